//! The device, the allocator, the program's book of its blocks, and the checks of them.
//!
//! Owns: the state of a program, the checks after each operation, which errors may come, and the end.

use super::callbacks::{Act, Desk, OddPolicy};
use super::dice::Dice;
use super::oracle::{Stretch, Use, Uses, bytes, intruder, overlap};
use super::setup::{MIB, Setup};
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::{Piece, Range, SimConfig, SimGpu};
use seamalloc::{Allocator, Config, Error, IdleRelease, PoolBlock, PoolId, StrategyKind};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Operations after which the whole book is compared.
const THOROUGH: u64 = 32;
/// Handles of the program's streams begin here.
pub(super) const FIRST_STREAM: u64 = 7;
/// A stream that only requests of the checks themselves have.
const OWN_STREAM: StreamId = StreamId(6);
#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) size: u64,
    /// `None` for a block of no stream: its stream was forgotten, or it was restored.
    pub(super) stream: Option<StreamId>,
    pub(super) pool: Option<PoolId>,
    pub(super) grows: bool,
    /// Handed out in a capture.
    pub(super) captured: bool,
    /// Brought back by a checkpoint.
    pub(super) restored: bool,
}

pub(super) struct Pool {
    pub(super) id: PoolId,
    pub(super) uses: u64,
    pub(super) tag: bool,
}

pub(super) struct Capture {
    pub(super) stream: StreamId,
    pub(super) pool: PoolId,
    pub(super) ranges: Vec<Range>,
}

/// Memory that a capture used. It stays while its pool has a use.
pub(super) struct Graph {
    pub(super) pool: PoolId,
    pub(super) ranges: Vec<Range>,
}

/// How often something happened, by name.
pub(super) type Tally = BTreeMap<&'static str, u64>;

pub(super) struct World {
    pub(super) gpu: Arc<SimGpu>,
    pub(super) allocator: Arc<Allocator>,
    pub(super) setup: Setup,
    pub(super) strategy: StrategyKind,
    /// In guard mode each mistake of the program is a finding.
    pub(super) guarded: bool,
    pub(super) live: BTreeMap<u64, Live>,
    pub(super) uses: Uses,
    pub(super) slots: HashMap<u64, u64>,
    pub(super) pools: Vec<Pool>,
    /// Tags that were released and that the allocator still knows are among them.
    pub(super) tags: Vec<PoolId>,
    pub(super) routes: Vec<(PoolId, StreamId)>,
    pub(super) capture: Option<Capture>,
    pub(super) graphs: Vec<Graph>,
    pub(super) checkpoints: Vec<(PoolId, Vec<PoolBlock>)>,
    pub(super) pools_named: u64,
    /// Memory of the device that others have.
    pub(super) others: Vec<(u64, u64)>,
    pub(super) idle: IdleRelease,
    pub(super) idle_clock: u64,
    pub(super) desk: Desk,
    /// Driver calls may be failing.
    pub(super) armed: bool,
    pub(super) operation: u64,
    pub(super) tally: Tally,
    exchanged: u64,
    /// Faults of kernels that met memory which a failed call had left without access.
    forgiven: usize,
    log: Option<Arc<Mutex<Vec<String>>>>,
}

/// Ends a program with a finding. The panic hook does not run, so that the many runs of a program that is shortened are silent.
pub(super) fn end_with(what: String) -> ! {
    std::panic::resume_unwind(Box::new(what))
}

macro_rules! found {
    ($($text:tt)*) => { $crate::attack::world::end_with(format!($($text)*)) };
}
pub(super) use found;

impl World {
    /// Makes the world; `None` where the options contradict each other.
    pub(super) fn new(setup: &Setup, log: Option<Arc<Mutex<Vec<String>>>>) -> Option<Self> {
        let config = Config::parse(&setup.options.join(",")).ok()?;
        let (strategy, guarded) = (config.strategy, config.guard.is_on());
        let device = SimConfig { capacity: setup.capacity, host_capacity: setup.host, ..SimConfig::default() };
        let gpu = Arc::new(SimGpu::new(device).ok()?);
        let allocator = Arc::new(Allocator::new(Arc::<SimGpu>::clone(&gpu), config).ok()?);
        let desk = Desk::default();
        if setup.pressure {
            desk.add_pressure(&allocator);
        }
        if setup.sleep_callback {
            desk.add_sleep(&allocator);
        }
        if setup.lender {
            desk.add_lender(&allocator);
        }
        if setup.odd_policy {
            allocator.spill().set_policy(OddPolicy(Mutex::new(Dice::new(setup.seed))));
        }
        Some(Self {
            gpu,
            allocator,
            setup: setup.clone(),
            strategy,
            guarded,
            live: BTreeMap::new(),
            uses: Uses::default(),
            slots: HashMap::new(),
            pools: Vec::new(),
            tags: Vec::new(),
            routes: Vec::new(),
            capture: None,
            graphs: Vec::new(),
            checkpoints: Vec::new(),
            pools_named: 0,
            others: Vec::new(),
            idle: IdleRelease::new(Duration::from_secs(1)),
            idle_clock: 0,
            desk,
            armed: false,
            operation: 0,
            tally: Tally::new(),
            exchanged: 0,
            forgiven: 0,
            log,
        })
    }

    pub(super) fn log(&self, line: impl FnOnce() -> String) {
        if let Some(log) = &self.log
            && let Ok(mut log) = log.lock()
        {
            log.push(line());
        }
    }

    pub(super) fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    /// Carries out the operation of this seed, and checks what must hold after it.
    pub(super) fn step(&mut self, seed: u64) {
        self.operation += 1;
        let dice = &mut Dice::new(seed);
        {
            let shared = &mut *self.desk.lock();
            shared.seed = seed;
            shared.capturing = self.capture.is_some();
            shared.pools = self.pools.iter().filter(|pool| pool.uses == 1).map(|pool| pool.id).collect();
        }
        self.arm(dice);
        self.carry_out(dice);
        self.follow();
        self.after();
    }

    fn after(&mut self) {
        let stats = self.allocator.stats();
        let exchanged = stats.splits.chunks + stats.spills.chunks + stats.spills.returned_chunks;
        let thorough = self.operation.is_multiple_of(THOROUGH);
        if self.exchanged != exchanged || thorough {
            self.exchanged = exchanged;
            self.whole();
            self.apart();
        }
        self.books();
        if thorough {
            self.check();
        }
    }

    /// Notes the changes that callbacks made.
    pub(super) fn follow(&mut self) {
        let acts = std::mem::take(&mut self.desk.lock().acts);
        for act in acts {
            match act {
                Act::Freed(address) => {
                    self.log(|| format!("    a callback freed {address:#x}"));
                    self.live.remove(&address);
                }
                Act::Forgot(stream) => {
                    self.log(|| format!("    a callback forgot stream {stream}"));
                    self.forgot(stream);
                }
                Act::Released(pool) => {
                    self.log(|| format!("    a callback released pool {pool}"));
                    self.released(pool);
                }
            }
        }
    }

    pub(super) fn forgot(&mut self, stream: StreamId) {
        self.live.values_mut().filter(|live| live.stream == Some(stream)).for_each(|live| live.stream = None);
    }

    /// Makes calls fail now and then, once, several times or from then on, and no more later.
    fn arm(&mut self, dice: &mut Dice) {
        use seamalloc::driver::{Call, Status};
        const STATUSES: [Status; 5] = [
            Status::OUT_OF_MEMORY,
            Status::OUT_OF_MEMORY,
            Status::UNKNOWN,
            Status::INVALID_VALUE,
            Status::NOT_SUPPORTED,
        ];
        const OFTEN_MADE: [Call; 10] = [
            Call::Create,
            Call::Release,
            Call::Map,
            Call::Unmap,
            Call::SetAccess,
            Call::Reserve,
            Call::EventRecord,
            Call::EventQuery,
            Call::StreamWait,
            Call::Malloc,
        ];
        if self.setup.faulty && dice.one_in(6) {
            for _ in 0..1 + dice.below(3) {
                let call = match dice.one_in(3) {
                    true => Call::ALL[dice.below(Call::COUNT as u64) as usize],
                    false => dice.pick(&OFTEN_MADE),
                };
                let (status, first) = (dice.pick(&STATUSES), 1 + dice.below(4));
                let times = dice.pick(&[1, 1, 1, 3, 100]);
                (first..first + times).for_each(|nth| self.gpu.fail_nth(call, nth, status));
                self.log(|| format!("  {times} calls of {call:?} fail with {status:?}, from the {first}. on"));
            }
            self.armed = true;
        } else if self.armed && dice.one_in(2) {
            self.disarm();
        }
    }

    /// Ends the failures of calls. Memory that could not be put back has to be there after the next request.
    pub(super) fn disarm(&mut self) {
        self.gpu.fail_no_more();
        // A capture has to end first: memory is not put back while it is under way.
        if !self.armed || self.capture.is_some() {
            return;
        }
        self.armed = false;
        self.log(|| "  no call fails any more".to_owned());
        if self.missing().is_some() {
            self.count("made whole");
        }
        match self.allocator.allocate(512, OWN_STREAM) {
            Ok(address) => {
                if let Err(error) = self.allocator.free(address) {
                    found!("a free fails although no call does: {error}");
                }
            }
            Err(error) => self.refused("allocate", &error),
        }
        self.follow();
        if let Some((address, live)) = self.missing() {
            found!("{address:#x} lacks memory after a request without failing calls: {live:?}");
        }
    }

    /// Launches a kernel. Returns whether it runs: where calls fail, memory may be mapped without access until the next request
    /// without failing calls.
    pub(super) fn runs(&mut self, stream: StreamId, range: Range, ns: u64) -> bool {
        let Err(error) = self.gpu.launch(stream, &[range], ns) else { return true };
        if !self.armed {
            found!("a kernel on {range}: {error}");
        }
        self.forgiven += 1;
        if self.capture.is_some() {
            return false;
        }
        self.count("made whole");
        self.disarm();
        if let Err(error) = self.gpu.launch(stream, &[range], ns) {
            found!("a kernel on {range} after a request without failing calls: {error}");
        }
        true
    }

    pub(super) fn pieces(&self, address: u64, size: u64) -> Vec<Piece> {
        if size == 0 { Vec::new() } else { self.gpu.physical(Range { address, size }) }
    }

    pub(super) fn asleep(&self) -> Vec<PoolId> {
        self.tags.iter().copied().filter(|tag| self.allocator.tags().is_asleep(*tag)).collect()
    }

    pub(super) fn is_asleep(&self, address: u64) -> bool {
        let tag = self.live.get(&address).and_then(|live| live.pool).filter(|pool| self.tags.contains(pool));
        tag.is_some_and(|tag| self.allocator.tags().is_asleep(tag))
    }

    fn missing(&self) -> Option<(u64, &Live)> {
        let asleep = self.asleep();
        let awake = self.live.iter().filter(|(_, live)| !live.pool.is_some_and(|pool| asleep.contains(&pool)));
        awake.map(|(address, live)| (*address, live)).find(|(address, live)| {
            let pieces = self.pieces(*address, live.size);
            bytes(&pieces) != live.size
        })
    }

    /// Checks that every byte of a live block has memory. Where calls fail, memory may be missing until the next request without
    /// failing calls.
    pub(super) fn whole(&mut self) {
        let Some((address, live)) = self.missing() else { return };
        if !self.armed {
            found!("{address:#x} lacks memory although no call fails: {live:?}");
        }
        if self.capture.is_none() {
            self.disarm();
        }
    }

    /// Checks that no two live blocks share a byte, and that nobody has memory of a graph of another pool.
    pub(super) fn apart(&self) {
        let stretches = |(address, live): (&u64, &Live)| {
            let pieces = self.pieces(*address, live.size).into_iter();
            pieces.map(|piece| Stretch::of(*address, &piece)).collect::<Vec<_>>()
        };
        let mut live: Vec<Stretch> = self.live.iter().flat_map(stretches).collect();
        if let Some((one, other)) = overlap(&mut live) {
            found!("two live blocks share memory: {one} and {other}");
        }
        let graphs = self.graphs.iter().map(|graph| (graph.pool, &graph.ranges));
        let captured = self.capture.iter().map(|capture| (capture.pool, &capture.ranges));
        for (pool, ranges) in graphs.chain(captured) {
            for range in ranges {
                let pieces = self.gpu.physical(*range);
                if bytes(&pieces) != range.size && !self.armed {
                    found!("a graph of {pool} has no memory at {range}");
                }
                let own = |address| self.live.get(&address).is_some_and(|live| live.pool == Some(pool));
                if let Some(other) = pieces.iter().find_map(|piece| intruder(&live, piece, own)) {
                    found!("{other} is memory of a graph of {pool} at {range}: {:?}", self.live.get(&range.address));
                }
            }
        }
    }

    /// Checks that the books of the device and of the machine agree with the allocator's, to the byte.
    pub(super) fn books(&mut self) {
        let (stats, held) = (self.allocator.stats(), self.gpu.leaks());
        let others: u64 = self.others.iter().map(|(_, size)| size).sum();
        // A driver's pool says itself how much it holds; where that call has failed, its last answer stands.
        let asks = self.strategy == StrategyKind::MallocAsync && self.setup.faulty;
        let reserved = stats.reserved_bytes.all.current;
        if reserved + others != held.bytes && !asks {
            found!("the allocator holds {reserved} bytes, others {others}, and the device gave {}", held.bytes);
        }
        let (spilled, kept) = (stats.spilled_bytes.current, stats.spill_kept_bytes);
        if spilled + kept != held.host_bytes {
            found!("{spilled} bytes are spilled and {kept} kept, and the machine gave {}", held.host_bytes);
        }
    }

    fn check(&mut self) {
        if let Err(broken) = self.allocator.reports().check() {
            found!("{broken}");
        }
        let free = self.allocator.reports().fragmentation();
        let (parts, whole) =
            (free.allocated + free.pending + free.free + free.unsettled, free.reserved + free.spilled + free.asleep);
        // Memory before guarded allocations, and of freed ones until it is unmapped, is in no part.
        let guard = self.allocator.stats().guard;
        if whole < parts || whole - parts > guard.held_bytes {
            found!("the figures of free memory do not add up: {free:?}; {guard:?}");
        }
        let snapshot = self.allocator.reports().snapshot();
        let allocated: u64 = snapshot.segments.iter().map(|segment| segment.allocated_size()).sum();
        if allocated != free.allocated {
            found!("the snapshot has {allocated} bytes of {} allocated", free.allocated);
        }
        if let Some(fault) = self.gpu.faults().get(self.forgiven) {
            found!("{fault}");
        }
        if let Some(finding) = self.allocator.guard().findings().first() {
            found!("guard mode finds {finding}");
        }
        for (&address, live) in &self.live {
            let size = match live.grows {
                true => self.allocator.growing().extent(address).map(|extent| extent.len),
                false => self.allocator.reports().size_of(address),
            };
            if size != Ok(live.size) && !(live.grows && self.armed) {
                found!("{address:#x} has {size:?}, and the book {live:?}");
            }
        }
        self.uses.prune(self.gpu.now_ns());
        let known = self.allocator.pools().ids();
        self.tags.retain(|tag| known.contains(tag));
    }

    /// Checks that an error may come here.
    pub(super) fn refused(&mut self, what: &'static str, error: &Error) {
        self.log(|| format!("    {what}: {}", error.to_string().lines().next().unwrap_or_default()));
        match error {
            Error::OutOfMemory(report) => {
                self.count("refused for want of memory");
                if self.operation.is_multiple_of(THOROUGH) && report.to_string().is_empty() {
                    found!("a report that says nothing");
                }
            }
            Error::Driver(_) | Error::Source { .. } if self.armed => self.count("failed calls that were told"),
            // A capture forbids some calls.
            Error::Driver(_) if self.capture.is_some() => {}
            Error::Driver(_) | Error::Source { .. } | Error::Internal(_) => {
                found!("{what}: {error}; {:?}", self.allocator.reports().check())
            }
            _ => self.count("refused otherwise"),
        }
    }

    /// Checks that no kernel of another stream may still use memory that is handed out on `stream`.
    pub(super) fn is_passed(&mut self, address: u64, size: u64, stream: StreamId, pool: Option<PoolId>) {
        let now = self.gpu.now_ns();
        let starts = self.gpu.done_at(stream).unwrap_or(u64::MAX).max(now);
        let pieces = self.pieces(address, size);
        let early = |by: &Use| {
            by.ends > starts
                && by.stream != stream
                && by.untold != Some(stream)
                && (by.graph_of.is_none() || by.graph_of != pool)
        };
        if let Some(by) = self.uses.find(&pieces, early) {
            found!("{address:#x} is handed out for stream {stream} at {starts}, and still used: {by:?}");
        }
        if self.uses.find(&pieces, |by| by.ends > now).is_some() {
            self.count("handed out before the GPU was done");
        }
    }

    /// Ends everything that is under way, frees all, and gives all back.
    pub(super) fn finish(mut self) -> Tally {
        self.log(|| "the end".to_owned());
        self.end_capture();
        self.disarm();
        self.whole();
        self.apart();
        self.books();
        self.check();
        let must = |what: &str, done: Result<(), Error>| {
            if let Err(error) = done {
                found!("at the end, {what}: {error}");
            }
        };
        for (address, _) in std::mem::take(&mut self.others) {
            must("others give back", seamalloc::driver::PlainMemory::free(&*self.gpu, address).map_err(Error::Driver));
        }
        for (pool, _) in std::mem::take(&mut self.routes) {
            must("a route", self.allocator.pools().end(pool));
        }
        self.graphs.clear();
        for address in std::mem::take(&mut self.live).into_keys() {
            must("a free", self.allocator.free(address));
        }
        let left = std::mem::take(&mut self.desk.lock().left);
        left.into_iter().for_each(|address| must("a callback's block", self.allocator.free(address)));
        for Pool { id, uses, .. } in std::mem::take(&mut self.pools) {
            (0..uses).for_each(|_| must("a pool", self.allocator.pools().release(id)));
        }
        must("release_backups", self.allocator.tags().release_backups().map(drop));
        must("empty_cache", self.allocator.empty_cache().map(drop));
        self.check();
        self.books();
        let stats = self.allocator.stats();
        if stats.allocated_bytes.all.current != 0 || stats.active_bytes.all.current != 0 {
            found!("live at the end: {:?}", stats.active_bytes.all);
        }
        for (what, times) in [
            ("chunks split", stats.splits.chunks),
            ("chunks spilled", stats.spills.chunks),
            ("chunks that came back", stats.spills.returned_chunks),
            ("sleeps", stats.sleep.sleeps),
            ("headroom given", stats.headroom.yields),
            ("waits on the GPU", stats.stream_waits),
            ("views built", stats.views_built),
            ("calls of callbacks", self.desk.lock().calls),
        ] {
            *self.tally.entry(what).or_default() += times;
        }
        let Self { gpu, allocator, tally, .. } = self;
        let Some(allocator) = Arc::into_inner(allocator) else { found!("somebody still has the allocator") };
        drop(allocator);
        let leaks = gpu.leaks();
        if !leaks.is_empty() {
            found!("leaks: {leaks} {}", leaks.bytes / MIB);
        }
        tally
    }
}
