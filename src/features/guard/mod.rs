//! Guard mode, which finds mistakes of the program where they are made.
//!
//! Owns: the records of allocations, and the steps of a guarded allocation from its free to the reuse of its addresses.
//!
//! ```text
//! records.rs       allocations by address       stream_uses.rs   the uses of streams that the program declared
//! marks.rs         canaries and poison          quarantine.rs    freed memory on its way out
//! ```
//! ```text
//! free -> filled with poison -> streams pass the free -> checked, unmapped -> addresses kept -> addresses given back
//! ```
//! This code runs only if guard mode is on. A failure of guard mode is logged, and the program goes on.

mod marks;
mod quarantine;
mod records;
mod stream_uses;

use crate::backing::{AllocatorContext, Miss, Served, map_guarded, unmap_guarded};
use crate::config::GuardOptions;
use crate::driver::{Driver, DriverResult};
use crate::error::Result;
use crate::heap::{Block, GRANULE, Heap, Request};
use crate::ids::{BlockId, StreamId};
use crate::report::guard::{Explanation, Finding, GuardStats, GuardedAllocation, Place};
use crate::streams::StreamState;
use quarantine::Quarantine;
use records::Records;
use stream_uses::{StreamUses, TARGET};

/// The most findings that are kept, so that a mistake in each step does not fill host memory with reports.
const FINDINGS_KEPT: usize = 1000;

/// The largest part (1/n) of the allowed memory that slack, the unused memory before guarded blocks, may take. A
/// program that needs no more than the rest therefore never runs out of memory because of slack.
const SLACK_SHARE: u64 = 4;

/// The state of guard mode.
#[derive(Debug)]
pub(crate) struct Guard {
    options: GuardOptions,
    records: Records,
    uses: StreamUses,
    quarantine: Quarantine,
    findings: Vec<Finding>,
    stats: GuardStats,
    /// The stream that the present free names, if any.
    pub(crate) named: Option<StreamId>,
}

impl Guard {
    /// Returns guard mode, if these options turn it on.
    pub(crate) fn new(options: &GuardOptions) -> Option<Box<Self>> {
        options.is_on().then(|| {
            Box::new(Self {
                options: *options,
                records: Records::default(),
                uses: StreamUses::default(),
                quarantine: Quarantine::default(),
                findings: Vec::new(),
                stats: GuardStats::default(),
                named: None,
            })
        })
    }

    pub(crate) fn options(&self) -> &GuardOptions {
        &self.options
    }

    /// Returns whether the next allocation, of `requested` bytes, is guarded.
    pub(crate) fn wants(&self, requested: u64) -> bool {
        let GuardOptions { page, sample, min_size, .. } = self.options;
        page && requested >= min_size && mixed(self.records.made()).is_multiple_of(sample)
    }

    /// Makes a guarded block for a request. Returns `None` if memory or the limits do not suffice. The request is then
    /// served without a guard.
    ///
    /// # Errors
    /// A driver call failed for a reason other than too little memory. The allocator's state is unchanged.
    pub(crate) fn allocate(
        &mut self,
        context: &mut AllocatorContext<'_>,
        request: &Request,
    ) -> Result<Option<BlockId>> {
        let mut made = self.map(context, request);
        if matches!(made, Err(Miss::OutOfMemory { .. })) && !context.capturing() {
            self.drain(context);
            made = self.map(context, request);
        }
        match made {
            Ok(id) => Ok(Some(id)),
            Err(Miss::OutOfMemory { .. }) => {
                if self.stats.unguarded == 0 {
                    tracing::warn!(target: TARGET, "memory does not suffice to guard every allocation; some are served without");
                }
                self.stats.unguarded += 1;
                Ok(None)
            }
            Err(Miss::Failed(error)) => Err(error),
        }
    }

    /// Makes a guarded block, unless slack (unused memory before guarded blocks) would take too large a part of the
    /// memory.
    fn map(&self, context: &mut AllocatorContext<'_>, request: &Request) -> Served {
        let total = context.driver().properties().total_memory;
        let total = context.limits.lowest().map_or(total, |limit| limit.min(total));
        let slack = request.size.next_multiple_of(GRANULE) - request.requested;
        if self.stats.slack_bytes + slack > total / SLACK_SHARE {
            return Err(Miss::OUT_OF_MEMORY);
        }
        map_guarded(context, request)
    }

    /// Notes an allocation that was handed out.
    pub(crate) fn allocated(&mut self, heap: &Heap, driver: &dyn Driver, id: BlockId) {
        let Block { address, size: rounded, requested: size, pool, .. } = *heap.block(id);
        let stream = heap.pool(pool).stream;
        let memory = heap.guarded_memory(id);
        let number = self.records.number();
        let guarded = memory.is_some();
        let allocation = GuardedAllocation { number, address, size, rounded, stream, guarded, freed: None };
        let slack = memory.map_or(0, |memory| address - memory.mapped.start);
        let mut has_canary = false;
        if let Some(memory) = memory {
            self.stats.guarded += 1;
            if self.records.is_mapped(address) {
                // The block was kept by a private pool and is handed out again by the restore of a checkpoint.
                self.records.forget(address);
            } else {
                self.stats.held_bytes += memory.mapped.size;
                self.stats.slack_bytes += memory.mapped.size - size;
            }
            has_canary = self.options.canary && fills_canary(heap, driver, &allocation, slack);
        }
        self.records.add(allocation, slack, has_canary);
    }

    /// Returns the streams that may still use an allocation at its free, other than its own stream and the streams in
    /// `named`. Reports a finding for each of these streams.
    pub(crate) fn missing_record_stream(
        &mut self,
        driver: &dyn Driver,
        address: u64,
        named: &[StreamId],
    ) -> Vec<StreamId> {
        let Some(record) = self.records.live(address).filter(|record| !record.uses.is_empty()) else {
            return Vec::new();
        };
        let record = record.clone();
        let mut missing = Vec::new();
        let allocation = record.allocation;
        for &(used_on, number) in &record.uses {
            if record.is_of(used_on) || named.contains(&used_on) {
                continue;
            }
            let has_ended = match record.is_of_no_stream {
                true => self.uses.has_ended(driver, (used_on, number)),
                false => self.uses.comes_after(driver, allocation.stream, (used_on, number)),
            };
            match has_ended {
                Ok(true) => {}
                Ok(false) => {
                    self.report(Finding::MissingRecordStream { allocation, used_on });
                    missing.push(used_on);
                }
                Err(error) => {
                    tracing::warn!(target: TARGET, %error, %used_on, "it is unknown whether a stream still uses freed memory")
                }
            }
        }
        missing
    }

    /// Notes that an allocation was freed. `own` is the allocation's own stream.
    pub(crate) fn freed(&mut self, address: u64, own: StreamId) {
        let stream = self.named.unwrap_or(own);
        self.records.free(address, stream);
    }

    /// Returns the mistake of a free at an address where no live allocation starts; `None` if guard mode does not know
    /// the address.
    pub(crate) fn wrong_free(&mut self, address: u64) -> Option<Finding> {
        let found = self.records.explain(address)?;
        let is_double = found.place == Place::Inside(0) && found.allocation.freed.is_some();
        let finding = if is_double { Finding::DoubleFree(found) } else { Finding::WrongFree(found) };
        self.report(finding);
        Some(finding)
    }

    /// Notes that the latest work on a stream uses these addresses. Addresses outside of live allocations are ignored.
    pub(crate) fn note_uses(&mut self, driver: &dyn Driver, addresses: &[u64], stream: StreamId) -> DriverResult<()> {
        if !self.options.streams {
            return Ok(());
        }
        // Uses by an allocation's own stream need no record.
        let records = &mut self.records;
        let start = |address: &u64| {
            let record = records.containing(*address).filter(|record| !record.is_of(stream));
            record.map(|record| record.allocation.address)
        };
        let known: Vec<u64> = addresses.iter().filter_map(start).collect();
        if known.is_empty() {
            return Ok(());
        }
        let number = self.uses.add(driver, stream)?;
        for address in known {
            let Some(record) = self.records.containing(address) else { continue };
            match record.uses.iter_mut().find(|(of, _)| *of == stream) {
                Some((_, last)) => *last = number,
                None => record.uses.push((stream, number)),
            }
        }
        Ok(())
    }

    /// Notes that an event of the program was recorded on a stream.
    pub(crate) fn note_event(&mut self, event: u64, stream: StreamId) {
        self.uses.record(event, stream);
    }

    /// Notes that later work of a stream waits for an event of the program.
    pub(crate) fn note_wait(&mut self, stream: StreamId, event: u64) {
        self.uses.wait(stream, event);
    }

    /// Notes that a stream has ended and its work is done.
    pub(crate) fn forget_stream(&mut self, stream: StreamId) {
        self.uses.forget(stream);
        self.records.all_live().for_each(|record| record.forget_stream(stream));
    }

    /// Returns the allocation to which an address belongs, if it is known.
    pub(crate) fn explain(&self, address: u64) -> Option<Explanation> {
        self.records.explain(address)
    }

    /// Returns the first findings, oldest first.
    pub(crate) fn findings(&self) -> &[Finding] {
        &self.findings
    }

    pub(crate) fn stats(&self) -> GuardStats {
        let mut stats = self.stats;
        (stats.quarantined, stats.quarantined_bytes) = self.quarantine.kept();
        stats
    }

    /// Takes freed memory one step further without waiting: begins the wait for streams, and unmaps memory that they
    /// have passed.
    pub(crate) fn step(&mut self, context: &mut AllocatorContext<'_>) {
        self.advance(context, false);
    }

    /// Takes the steps of [`Self::step`], and waits on the CPU until all memory that can be unmapped is unmapped.
    pub(crate) fn drain(&mut self, context: &mut AllocatorContext<'_>) {
        self.advance(context, true);
    }

    /// Takes the next steps of freed memory. While a stream is being captured, no event is recorded or queried.
    fn advance(&mut self, context: &mut AllocatorContext<'_>, waits: bool) {
        if context.capturing() {
            return;
        }
        let result: Result<()> = self.retire_all(context).and_then(|()| self.unmap_passed(context, waits));
        let most = self.options.quarantine;
        let result = result.and_then(|()| Ok(self.trim(context.driver(), most)?));
        if let Err(error) = result {
            tracing::warn!(target: TARGET, %error, "guarded memory that was freed stays for now");
        }
    }

    fn retire_all(&mut self, context: &mut AllocatorContext<'_>) -> Result<()> {
        let mut later = Vec::new();
        let mut failed = Ok(());
        for id in context.heap_mut().take_retired() {
            if failed.is_err() {
                later.push(id);
                continue;
            }
            match self.retire(context, id) {
                Ok(true) => {}
                Ok(false) => later.push(id),
                Err(error) => {
                    failed = Err(error);
                    later.push(id);
                }
            }
        }
        context.heap_mut().put_retired(later);
        failed
    }

    /// Fills a freed block and makes it wait for its own stream. All other streams have passed it. Returns `false` if
    /// the block must be retired later.
    fn retire(&mut self, context: &mut AllocatorContext<'_>, id: BlockId) -> Result<bool> {
        let Block { address, pool, .. } = *context.heap().block(id);
        let (stream, ended) = (context.heap().pool(pool.large()).stream, context.heap().pool(pool.large()).ended);
        // Live memory of an ended stream belongs to no stream, and an external stream may be destroyed. So the CPU
        // waits for the device.
        if ended || context.heap().is_external(stream) {
            context.driver().synchronize()?;
            self.unmap(context, id, address)?;
            return Ok(true);
        }
        let (_, mut on) = context.on_streams();
        match on.stream_state(pool.large())? {
            StreamState::Captured => return Ok(false),
            StreamState::Ended => {
                self.unmap(context, id, address)?;
                return Ok(true);
            }
            StreamState::Live => {}
        }
        if self.options.poison
            && let Some(record) = self.records.freed(address)
            && !record.is_poisoned
        {
            match marks::fill_poison(context.driver(), &record.allocation, stream) {
                Ok(()) => record.is_poisoned = true,
                Err(error) => tracing::warn!(target: TARGET, %error, "freed memory could not be filled"),
            }
        }
        self.quarantine.wait(context.driver(), stream, id, address)?;
        Ok(true)
    }

    fn unmap_passed(&mut self, context: &mut AllocatorContext<'_>, waits: bool) -> Result<()> {
        while let Some(passed) = self.quarantine.passed(context.driver(), waits)? {
            self.unmap(context, passed.id, passed.address)?;
            self.quarantine.done(&passed);
        }
        Ok(())
    }

    /// Checks memory that every stream has passed, and unmaps it. The addresses stay reserved.
    fn unmap(&mut self, context: &mut AllocatorContext<'_>, id: BlockId, address: u64) -> Result<()> {
        self.look_at_freed(context.driver(), address);
        let Some(memory) = context.heap().guarded_memory(id) else { return Ok(()) };
        let size = self.records.freed(address).map_or(0, |record| record.allocation.size);
        if let Some(reservation) = unmap_guarded(context, id)? {
            self.stats.held_bytes = self.stats.held_bytes.saturating_sub(memory.mapped.size);
            self.stats.slack_bytes = self.stats.slack_bytes.saturating_sub(memory.mapped.size - size);
            self.quarantine.keep(reservation, address);
            self.records.unmapped(address);
        }
        Ok(())
    }

    fn trim(&mut self, driver: &dyn Driver, most: u64) -> DriverResult<()> {
        let records = &mut self.records;
        self.quarantine.trim(driver, most, |address| records.forget(address))
    }

    /// Checks the filled bytes in and around a freed allocation, once.
    fn look_at_freed(&mut self, driver: &dyn Driver, address: u64) {
        let Some(record) = self.records.freed(address) else { return };
        let mut found = Vec::new();
        if std::mem::take(&mut record.has_canary) {
            found.extend(seen(marks::check_canary(driver, record)).into_iter().flatten());
        }
        if std::mem::take(&mut record.is_poisoned) {
            found.extend(seen(marks::check_poison(driver, record.allocation)).flatten());
        }
        found.into_iter().for_each(|finding| self.report(finding));
    }

    /// Checks the canaries of all live allocations. The device must have passed all work. An allocation with a finding
    /// is not checked again.
    pub(crate) fn look_at_live(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        let mut all = Vec::new();
        for record in self.records.all_live().filter(|record| record.has_canary) {
            let found = marks::check_canary(driver, record)?;
            record.has_canary = found.is_empty();
            all.extend(found);
        }
        all.into_iter().for_each(|finding| self.report(finding));
        Ok(())
    }

    fn report(&mut self, finding: Finding) {
        tracing::error!(target: TARGET, kind = finding.name(), %finding, "guard mode found a mistake");
        self.stats.findings += 1;
        if self.findings.len() < FINDINGS_KEPT {
            self.findings.push(finding);
        }
    }

    /// Unmaps all memory that can be unmapped, and gives all addresses back, at the end of an allocator.
    pub(crate) fn close(&mut self, context: &mut AllocatorContext<'_>) {
        self.drain(context);
        if let Err(error) = self.trim(context.driver(), 0) {
            tracing::warn!(target: TARGET, %error, "addresses of guarded memory could not be given back");
        }
    }

    /// Gives every event back to the driver, at the end of an allocator.
    pub(crate) fn destroy_events(&mut self, driver: &dyn Driver) {
        self.uses.destroy_events(driver);
        self.quarantine.destroy_events(driver);
    }
}

/// Fills the bytes around an allocation, unless a capture might record the fill. Returns whether the bytes were filled.
fn fills_canary(heap: &Heap, driver: &dyn Driver, allocation: &GuardedAllocation, slack: u64) -> bool {
    let stream = allocation.stream;
    let fill = || {
        if heap.private().capturing() || (stream != StreamId::DEFAULT && driver.is_capturing(stream)?) {
            return Ok(false);
        }
        marks::fill_canary(driver, allocation, slack, stream).map(|()| true)
    };
    let filled: DriverResult<bool> = fill();
    filled.unwrap_or_else(|error| {
        tracing::warn!(target: TARGET, %error, "the bytes around an allocation could not be filled");
        false
    })
}

/// Returns the result of a check. If the memory could not be read, logs a line and returns `None`.
fn seen<T>(looked: DriverResult<T>) -> Option<T> {
    looked.inspect_err(|error| tracing::warn!(target: TARGET, %error, "freed memory could not be looked at")).ok()
}

/// Mixes a number (splitmix64), so that a program which repeats itself does not get the same allocations guarded in
/// each repetition.
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
