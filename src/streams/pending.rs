//! Freed memory that work on the GPU still uses, in the order in which the work was given.
//!
//! Owns: the choice of the event that a request waits for next, and the CPU's wait for it. This module changes no
//! table. After the wait, the queues and epochs are queried as usual.
//!
//! ```text
//! freed      a, used by B too | b, on B      | c, used by C too        all of it is pending
//! events     end of a's use   | end of epoch | end of c's use          recorded, and awaited, in this order
//! ```

use super::Streams;
use super::context::StreamContext;
use super::record_stream::RecordedStreams;
use crate::driver::{Driver, DriverResult, in_relaxed_capture_mode};
use crate::error::Result;
use crate::fallible::TryPush;
use crate::heap::{Block, GRANULE, Heap, Kind};
use crate::ids::{EventId, PoolIndex, StreamId};

/// The first and the longest pause of the CPU between two queries of an event, in nanoseconds. A wait with a time limit
/// may take longer than needed by up to the longest pause.
const RESTS: (u64, u64) = (20_000, 1_000_000);

/// The pending memory that a request waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// The large pool of the request.
    pub(crate) own: PoolIndex,
    /// Whether memory of other streams counts too.
    pub(crate) others: bool,
}

/// Pending memory that is free once its events are complete.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) events: Vec<EventId>,
    /// When the last of the events was recorded, in operations of the allocator.
    pub(crate) at: u64,
    of: Of,
}

#[derive(Debug, PartialEq, Eq)]
enum Of {
    /// A block waits for a stream that `record_stream` named.
    Recorded(StreamId),
    /// Memory was freed on the stream of this large pool.
    Epoch(PoolIndex),
}

impl Wanted {
    fn is_of(&self, heap: &Heap, block: &Block) -> bool {
        let of = block.pool.large();
        block.kind != Kind::Guarded && (of == self.own || (self.others && !heap.is_private(of)))
    }
}

impl RecordedStreams {
    /// Returns the oldest event that the wanted memory waits for: the operation that recorded it, the event, and its
    /// stream. `None` if there is none.
    fn oldest(&self, heap: &Heap, wanted: Wanted) -> Option<(u64, EventId, StreamId)> {
        let first = self.queues().filter_map(|(stream, queue)| {
            let of = queue.iter().find(|queued| wanted.is_of(heap, heap.block(queued.block)))?;
            Some((of.at, of.event, stream))
        });
        first.min_by_key(|(at, ..)| *at)
    }
}

impl Streams {
    /// Returns the bytes of the wanted memory that becomes free with events that are already recorded.
    pub(crate) fn pending_bytes(&self, heap: &Heap, wanted: Wanted) -> Result<u64> {
        let recorded = self.recorded.waiting_blocks().map(|id| heap.block(id));
        let mut bytes: u64 = recorded.filter(|block| wanted.is_of(heap, block)).map(|block| block.size).sum();
        for pool in self.pools(heap, wanted) {
            self.visit_unpassed(heap, pool, |block| bytes += block.size)?;
        }
        Ok(bytes)
    }

    /// Returns the wanted memory that waits for the oldest event; `None` if there is none.
    pub(crate) fn oldest_pending(&self, heap: &Heap, wanted: Wanted) -> Result<Option<Pending>> {
        let recorded = self.recorded.oldest(heap, wanted);
        let mut oldest = recorded.map_or(u64::MAX, |(at, ..)| at);
        let mut epoch = None;
        for pool in self.pools(heap, wanted) {
            let mut first = u64::MAX;
            self.visit_unpassed(heap, pool, |block| first = first.min(block.freed_at))?;
            let Some(closed) = self.epochs.closed_up_to(pool, first).last() else { continue };
            if first < u64::MAX && closed.at < oldest {
                (oldest, epoch) = (closed.at, Some((pool, first)));
            }
        }
        let mut events = Vec::new();
        if let Some((pool, first)) = epoch {
            // Earlier epochs count too, since merged memory may come from any of them.
            for closed in self.epochs.closed_up_to(pool, first) {
                events.try_push(closed.event)?;
                for (_, event) in &closed.others {
                    events.try_push(*event)?;
                }
            }
            return Ok(Some(Pending { events, at: oldest, of: Of::Epoch(pool) }));
        }
        let Some((at, event, stream)) = recorded else { return Ok(None) };
        events.try_push(event)?;
        Ok(Some(Pending { events, at, of: Of::Recorded(stream) }))
    }

    /// Queries the events after a wait for `pending`, and frees the memory whose events are complete. The lock was not
    /// held during the wait, so other memory may be pending by now.
    pub(crate) fn ask_for(&mut self, context: &mut StreamContext<'_>, pending: &Pending) -> Result<()> {
        match pending.of {
            Of::Recorded(stream) => Ok(self.recorded.poll_stream(context.heap, context.driver, stream)?),
            // The pool may belong to another stream by now.
            Of::Epoch(pool) if !context.heap.is_of_stream(pool) => Ok(()),
            Of::Epoch(pool) => self.epochs.poll_stream(context, pool),
        }
    }

    /// Returns the large pools of other streams, if the wanted memory includes theirs.
    fn pools(&self, heap: &Heap, wanted: Wanted) -> impl Iterator<Item = PoolIndex> {
        heap.stream_pools().filter(move |pool| wanted.others && *pool != wanted.own)
    }

    /// Visits the free blocks of a stream in ended epochs that the stream has not passed: large blocks and whole slabs.
    fn visit_unpassed(&self, heap: &Heap, large: PoolIndex, mut visit: impl FnMut(&Block)) -> Result<()> {
        let passed = heap.pool(large).passed;
        for (pool, least) in [(large, 0), (large.small(), GRANULE)] {
            heap.visit_free(pool, least, |id| {
                let block = heap.block(id);
                if block.kind == Kind::Home && block.freed_at >= passed && self.epochs.covers(large, block.freed_at) {
                    visit(block);
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Makes the CPU wait until the events are complete, or until the device's clock reaches `until`. Returns whether the
/// events are complete. The caller does not hold the allocator's lock, so a capture may begin during the wait. The wait
/// does not invalidate the capture.
pub(crate) fn wait_for_events(driver: &dyn Driver, events: &[EventId], until: Option<u64>) -> DriverResult<bool> {
    in_relaxed_capture_mode(driver, true, || {
        for event in events {
            match until {
                None => driver.event_synchronize(*event)?,
                Some(until) if !wait_until(driver, *event, until)? => return Ok(false),
                Some(_) => {}
            }
        }
        Ok(true)
    })
}

/// Waits for an event until a time of the device's clock. The wait uses queries, since CUDA has no wait with a time
/// limit. Returns whether the event is complete.
fn wait_until(driver: &dyn Driver, event: EventId, until: u64) -> DriverResult<bool> {
    let (mut rest, longest) = RESTS;
    loop {
        if driver.event_query(event)? {
            return Ok(true);
        }
        let left = until.saturating_sub(driver.clock_ns());
        if left == 0 {
            return Ok(false);
        }
        driver.rest(rest.min(left));
        rest = longest.min(rest * 2);
    }
}
