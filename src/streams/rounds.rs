//! The age from which on a request may wait on the GPU for memory that recorded streams still use.
//!
//! Owns: when each stream last missed memory of each size class, and how much memory may grow instead of a wait.
//!
//! # Note: waits for old work first
//!
//! **Rationale.** A stream that copies ahead of a computation takes the buffer back that the GPU is reading: if it waits for that,
//! nothing overlaps any more. And a wait that the allocator adds is an edge that the program did not ask for. If the work at its end
//! communicates with another process, it completes only once that process has made progress. If an allocator there has added the
//! opposite wait, both hang for ever, where the programs alone run:
//! ```text
//! rank 0   send to 1 | free | allocate: waits for the send | receive from 1 into it
//! rank 1   send to 0 | free | allocate: waits for the send | receive from 0 into it      no receive is ever given to a GPU
//! ```
//! Waits for work of an earlier round of the program close no cycle: every rank has given its part of that round to its GPU
//! already, so all waits lead from later rounds to earlier ones. Such work has most often been done, too.
//!
//! **Approach.** A round ends where a stream misses memory of the same size class again; a size class is a power of two. A
//! request waits for uses that were recorded up to the last miss of its stream and size class. Rather than wait for later ones, memory
//! grows, up to [`OVERLAP`] of the most that was live. Beyond that, and where memory cannot grow, a request waits for any use.
//!
//! **Limitations.**
//! - Beyond the bound a wait may be for work of the present round. Without a bound, `llama1b-fsdp2` replayed 1,000 operations ahead
//!   would hold 2.4 times what is live.
//! - Memory without recorded uses has no such rule (`waits.rs`). Programs that give communication in the same order to all ranks are safe: each
//!   wait leads from later work to earlier work. `sharing:never` adds no waits.

use crate::fallible::Grown;
use crate::heap::{Heap, Request};
use crate::ids::StreamId;
use crate::streams::epochs::grow_to;

/// The age of a wait for any event.
pub(crate) const ANY_AGE: u64 = u64::MAX;

/// Up to so many times the most that was live, memory grows rather than make a stream wait for work of the present round.
const OVERLAP: f64 = 1.25;

/// How many size classes there are.
const CLASSES: usize = 64;

/// The last misses of each stream.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    by_pool: Vec<Misses>,
}

/// The misses of one stream, by size class.
#[derive(Debug)]
struct Misses {
    /// The stream and its number, since its pools may pass to another one.
    by: (StreamId, Option<u64>),
    /// The last two misses of each class, the later one first, as numbers of operations.
    last: [[u64; 2]; CLASSES],
}

impl Misses {
    fn new() -> Self {
        Self { by: (StreamId::DEFAULT, None), last: [[0; 2]; CLASSES] }
    }
}

impl Rounds {
    /// Notes that a request has missed. Returns the number of the operation up to which uses were recorded for which it may wait: those
    /// of an earlier round, or any. A request may ask several times.
    pub(crate) fn begin(&mut self, heap: &Heap, request: &Request) -> Grown<u64> {
        let (number, of) = (request.pool.stream(), heap.pool(request.pool.large()));
        let now = heap.counters().operations() + 1;
        grow_to(&mut self.by_pool, number + 1, Misses::new)?;
        let misses = &mut self.by_pool[number];
        if misses.by != (of.stream, of.number) {
            *misses = Misses { by: (of.stream, of.number), ..Misses::new() };
        }
        let [last, before] = &mut misses.last[request.size.max(1).ilog2() as usize];
        if *last != now {
            (*before, *last) = (*last, now);
        }
        let most = heap.counters().allocated_bytes.peak() as f64 * OVERLAP;
        let may_grow = heap.reserved().saturating_add(request.size) as f64 <= most;
        Ok(if may_grow { before.saturating_sub(1) } else { ANY_AGE })
    }

    /// Returns the bytes of host memory that the lists take.
    pub(crate) fn host_bytes(&self) -> usize {
        self.by_pool.capacity() * size_of::<Misses>()
    }
}
