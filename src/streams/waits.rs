//! Memory of other streams, taken after waits on the GPU.
//!
//! Owns: the choice of the memory that a request gets, the waits, and for each stream the epochs for which it has
//! waited.
//!
//! ```text
//! stream A   | free a | event 0 | free b | event 1 |
//! stream B                 wait for event 0 : takes a; whatever A freed up to epoch 0 needs no other wait by B
//! ```

use super::context::StreamContext;
use super::epochs::{Closed, Epochs, Waited, grow_to, with_memory};
use crate::config::StreamSharing;
use crate::error::Result;
use crate::fallible::{Grown, TryPush};
use crate::heap::{GRANULE, Heap, Request, State};
use crate::ids::{BlockId, EventId, PoolIndex, StreamId};
use crate::span::Span;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A part of a free block of another stream, with the epoch in which that stream freed it.
#[derive(Clone, Copy)]
struct ForeignPart {
    from: PoolIndex,
    epoch: u64,
    part: Span,
}

/// The most bytes that a stream takes of another stream's free range for which it waits, as a multiple of the request.
/// With less, the stream would wait for the same range repeatedly. With the whole range, the other stream would soon
/// wait for its own memory.
const MAX_PASSED_ON: u64 = 16;

/// Returns the most bytes that a request takes of one free range of another stream.
pub(crate) fn most_of_a_range(size: u64) -> u64 {
    size.saturating_mul(MAX_PASSED_ON).checked_next_multiple_of(GRANULE).unwrap_or(u64::MAX)
}

impl Epochs {
    /// Returns whether the request can get memory of other streams after waits. A captured stream cannot wait for work
    /// outside of its graph. A graph may be replayed on another stream, which has not waited, so private pools do not
    /// wait.
    pub(crate) fn may_wait(&self, context: &StreamContext<'_>, request: &Request) -> Result<bool> {
        let pool = request.pool;
        if context.sharing != StreamSharing::Wait || context.capturing() || context.heap.is_private(pool) {
            return Ok(false);
        }
        // Without memory of other streams, no wait is possible.
        if with_memory(context).all(|other| other == pool) {
            return Ok(false);
        }
        Ok(context.can_record(context.heap.pool(pool).stream)?)
    }

    /// Returns the operation that recorded the event for which a request of the pool must wait to get a free block of
    /// another stream; 0 if the pool's stream has already waited. Returns `None` if the block is not free, or if its
    /// epoch is open.
    pub(crate) fn recorded_at(&self, heap: &Heap, own: PoolIndex, id: BlockId) -> Option<u64> {
        let block = heap.block(id);
        let (from, epoch) = (block.pool, block.freed_at);
        let is_free = block.state == State::Free && !from.is_small() && from != own && heap.is_of_stream(from);
        if !is_free || !self.covers(from, epoch) {
            return None;
        }
        if self.has_waited(heap, own, (from, epoch)) {
            return Some(0);
        }
        self.closed_up_to(from, epoch).last().map(|closed| closed.at)
    }

    /// Hands memory of other streams to the request's pool after waits on the GPU, until about `missing` bytes are
    /// found. Memory freed longest ago comes first, so that the wait is short. No event recorded after operation
    /// `until` is waited for. Returns whether any memory was handed over.
    pub(crate) fn wait_for(
        &mut self,
        context: &mut StreamContext<'_>,
        request: &Request,
        missing: u64,
        until: u64,
    ) -> Result<bool> {
        if context.sharing != StreamSharing::Wait {
            return Ok(false);
        }
        let taken = self.freed_longest_ago(context, request, missing, until)?;
        if taken.is_empty() || !self.may_wait(context, request)? {
            return Ok(false);
        }
        self.take(context, request.pool, &taken)?;
        Ok(true)
    }

    /// Hands memory of other streams in these spans of home to the request's pool, after waits on the GPU. The caller
    /// has checked [`Self::may_wait`] and [`Self::recorded_at`].
    pub(crate) fn wait_for_spans(
        &mut self,
        context: &mut StreamContext<'_>,
        request: &Request,
        spans: &[Span],
    ) -> Result<()> {
        let mut taken = Vec::new();
        for span in spans {
            for id in context.heap.blocks_over(*span) {
                if self.recorded_at(context.heap, request.pool, id).is_some() {
                    let block = context.heap.block(id);
                    let part = Span::between(block.address.max(span.start), block.end().min(span.end()));
                    taken.try_push(ForeignPart { from: block.pool, epoch: block.freed_at, part })?;
                }
            }
        }
        self.take(context, request.pool, &taken)
    }

    /// Makes the pool's stream wait on the GPU for the epochs in which other streams freed these parts, and hands the
    /// parts to the pool.
    fn take(&mut self, context: &mut StreamContext<'_>, pool: PoolIndex, taken: &[ForeignPart]) -> Result<()> {
        for (from, epoch) in latest_by_stream(taken)? {
            self.wait_on_gpu(context, pool, (from, epoch))?;
        }
        for ForeignPart { part, .. } in taken {
            // An earlier part may have come from the same block, so the block is looked up again.
            let block = context.heap.covering(part.start);
            context.heap.pass_on(block, *part, pool)?;
            context.heap.journal_mut().took_behind_wait(part.size);
        }
        Ok(())
    }

    /// Returns parts of blocks that other streams freed in closed epochs, with `missing` bytes together or more. Parts
    /// that need no wait come first, then parts whose events were recorded longest ago; of equal ages, the largest
    /// part.
    fn freed_longest_ago(
        &self,
        context: &StreamContext<'_>,
        request: &Request,
        missing: u64,
        until: u64,
    ) -> Result<Vec<ForeignPart>> {
        let mut free: Vec<Reverse<(u64, Reverse<u64>, BlockId)>> = Vec::new();
        for other in with_memory(context).filter(|other| *other != request.pool) {
            context.heap.visit_free(other, 0, |id| {
                let at = self.recorded_at(context.heap, request.pool, id).filter(|at| *at <= until);
                at.map_or(Ok(()), |at| free.try_push(Reverse((at, Reverse(context.heap.block(id).size), id))))
            })?;
        }
        // Only a few parts are taken, so a binary heap is cheaper than sorting.
        let mut oldest = BinaryHeap::from(free);
        let most = most_of_a_range(request.size);
        let (mut found, mut taken) = (0, Vec::new());
        while found < missing {
            let Some(Reverse((_, Reverse(size), id))) = oldest.pop() else { break };
            let block = context.heap.block(id);
            let part = Span::new(block.address, size.min(most));
            taken.try_push(ForeignPart { from: block.pool, epoch: block.freed_at, part })?;
            found += size;
        }
        Ok(taken)
    }

    /// Makes the pool's stream wait on the GPU until another stream has passed an epoch, unless the epoch is known to
    /// be passed.
    pub(super) fn wait_for_epoch(
        &mut self,
        context: &mut StreamContext<'_>,
        pool: PoolIndex,
        (from, epoch): (PoolIndex, u64),
    ) -> Result<()> {
        if epoch < context.heap.pool(from).passed { Ok(()) } else { self.wait_on_gpu(context, pool, (from, epoch)) }
    }

    /// Makes the pool's stream wait on the GPU until another stream has passed an epoch, unless the pool's stream has
    /// already waited for the epoch.
    fn wait_on_gpu(
        &mut self,
        context: &mut StreamContext<'_>,
        pool: PoolIndex,
        (from, epoch): (PoolIndex, u64),
    ) -> Result<()> {
        let stream = context.heap.pool(pool).stream;
        if self.has_waited(context.heap, pool, (from, epoch)) && is_same_stream(context, pool) {
            return Ok(());
        }
        self.reserve_waited(pool)?;
        let closed = self.closed_up_to(from, epoch);
        let Some(newest) = closed.clone().last() else { return Ok(()) };
        // Earlier epochs count too: ranges that were freed in them may have merged with a range of the newest epoch.
        let mut others: Vec<(StreamId, EventId)> = Vec::new();
        for (of, event) in closed.rev().flat_map(|closed: &Closed| &closed.others) {
            if *of != stream && !others.iter().any(|(known, _)| known == of) {
                others.try_push((*of, *event))?;
            }
        }
        let freed_by = (context.heap.pool(from).stream, newest.event);
        for (of, event) in std::iter::once(freed_by).chain(others) {
            context.driver.stream_wait(stream, event)?;
            context.heap.journal_mut().stream_waits(newest.at, of);
        }
        let until = newest.epoch;
        self.note_waited(context.heap, pool, (from, until));
        Ok(())
    }

    /// Returns whether the pool's stream has waited for this epoch of another stream, or for a later epoch.
    fn has_waited(&self, heap: &Heap, pool: PoolIndex, (from, epoch): (PoolIndex, u64)) -> bool {
        let by = name(heap, pool);
        let until = self.waited.get(pool.stream()).filter(|waited| waited.by == by && is_certain(heap, by));
        until.and_then(|waited| waited.of(from)).is_some_and(|until| until >= epoch)
    }

    /// Makes room for [`Self::note_waited`].
    fn reserve_waited(&mut self, pool: PoolIndex) -> Grown<()> {
        grow_to(&mut self.waited, pool.stream() + 1, Waited::default)?;
        self.waited[pool.stream()].until.try_reserve(1)
    }

    fn note_waited(&mut self, heap: &Heap, pool: PoolIndex, (from, epoch): (PoolIndex, u64)) {
        let by = name(heap, pool);
        let waited = &mut self.waited[pool.stream()];
        if waited.by != by {
            // The pools belonged to another stream, whose waits are dropped. The room reserved in the list stays.
            waited.until.clear();
            waited.by = by;
        }
        match waited.until.binary_search_by_key(&from, |(of, _)| *of) {
            Ok(at) => waited.until[at].1 = epoch.max(waited.until[at].1),
            Err(at) => waited.until.insert(at, (from, epoch)),
        }
    }
}

impl Waited {
    /// Returns the last epoch of another pool's stream for which this stream has waited; `None` if it has not waited.
    fn of(&self, from: PoolIndex) -> Option<u64> {
        let at = self.until.binary_search_by_key(&from, |(of, _)| *of).ok()?;
        self.until.get(at).map(|(_, until)| *until)
    }
}

/// Returns the stream of a pool, with the number that distinguishes it from other streams of the same handle.
fn name(heap: &Heap, pool: PoolIndex) -> (StreamId, Option<u64>) {
    let of = heap.pool(pool);
    (of.stream, of.number)
}

/// Returns whether the handle certainly still means this stream, and no newer one: the driver numbers the stream, and
/// no owner may destroy it without telling the allocator.
fn is_certain(heap: &Heap, (stream, number): (StreamId, Option<u64>)) -> bool {
    stream == StreamId::DEFAULT || (number.is_some() && !heap.is_external(stream))
}

/// Returns whether the handle of a pool's stream still means that stream, and no newer one.
fn is_same_stream(context: &StreamContext<'_>, pool: PoolIndex) -> bool {
    let (stream, number) = name(context.heap, pool);
    stream == StreamId::DEFAULT || context.driver.stream_number(stream).is_ok_and(|now| now == number)
}

/// Returns the latest epoch of each stream. The latest epoch covers the earlier ones, so one wait for each stream is
/// enough.
fn latest_by_stream(taken: &[ForeignPart]) -> Grown<Vec<(PoolIndex, u64)>> {
    let mut last: Vec<(PoolIndex, u64)> = Vec::new();
    for ForeignPart { from, epoch, .. } in taken {
        match last.iter_mut().find(|(of, _)| of == from) {
            Some((_, last)) => *last = (*last).max(*epoch),
            None => last.try_push((*from, *epoch))?,
        }
    }
    Ok(last)
}
