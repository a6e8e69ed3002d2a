//! The age of the work for which a request may wait on the GPU.
//!
//! Owns: the last misses of each stream by size class, and the amount by which memory may grow instead of a wait.
//!
//! # Note: waits for old work first
//!
//! **Rationale.** A wait that the allocator adds is a dependency that the program did not request. If the awaited work
//! communicates with another process, the work completes only after the other process has made progress. If an
//! allocator there has added the opposite wait, both processes hang for ever, although the programs would run without
//! these waits:
//! ```text
//! rank 0   send to 1 | free | allocate: waits for the send | receive from 1 into it
//! rank 1   send to 0 | free | allocate: waits for the send | receive from 0 into it  no receive is ever given to a GPU
//! ```
//! Waits for work of an earlier round of the program close no cycle. Every rank has already given its part of the
//! earlier round to its GPU, so all waits lead from later rounds to earlier ones. Work of an earlier round is usually
//! complete. A stream that copies ahead of a computation must not wait for the buffer that the GPU is reading, since
//! copies and computation would no longer overlap.
//!
//! **Approach.** A round ends when a stream misses memory of the same size class again. A size class is a power of two.
//! A request waits for work that was given to the GPU before the [`ROUNDS_BACK`]-th miss before the present one, of the
//! same stream and size class. Rather than wait for later work, memory grows, up to a bound beyond peak live memory:
//! [`Room`]. The last growth may end beyond the bound, so that one more buffer of any size fits. Beyond the bound, and
//! if memory cannot grow, a request waits for any work.
//!
//! **Limitations.** Beyond the bound, a wait may be for work of the present round. Without a bound, `llama1b-fsdp2`,
//! replayed 1,000 operations ahead of the GPU, would hold 2.4 times its live memory. Programs that give their
//! communication to all ranks in the same order need no bound, since each wait leads from later work to earlier work.
//! `sharing:never` adds no waits.

use crate::fallible::Grown;
use crate::heap::{Heap, Request};
use crate::ids::StreamId;
use crate::streams::epochs::grow_to;

/// The operation number in [`Until`] that allows a wait for any event.
pub(crate) const ANY_AGE: u64 = u64::MAX;

/// The operations of the allocator up to which a request may wait for events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Until {
    /// The last operation whose event may be awaited, for uses that `record_stream` or `free_on` named.
    pub(crate) recorded: u64,
    /// The last operation whose event may be awaited, for memory freed on another stream.
    pub(crate) freed: u64,
}

impl Until {
    /// Allows a wait for any event.
    pub(crate) const ANY: Self = Self { recorded: ANY_AGE, freed: ANY_AGE };
}

impl Default for Until {
    fn default() -> Self {
        Self::ANY
    }
}

/// The bytes beyond peak live memory that may be held before a request waits for work of the present round.
struct Room {
    /// The room as a fraction of peak live memory.
    part: f64,
}

impl Room {
    /// The room for recorded uses (those that `record_stream` or `free_on` named). A stream that copies ahead needs a
    /// few more buffers, which may be a large part of live memory.
    const RECORDED: Self = Self { part: 0.2 };
    /// The room for freed memory. Streams that share memory hold little more than live memory.
    const FREED: Self = Self { part: 0.005 };
    /// The least room, for recorded uses and for freed memory, in bytes.
    const LEAST: u64 = 128 << 20;
    /// The most bytes beyond peak live memory that may be held after a growth, as a fraction of the peak and in bytes.
    /// The smaller limit applies, but no less than the room. A growth may begin within the room and end beyond it, up
    /// to this limit. So one more buffer fits, and two ranks that send and receive in opposite orders wait only for
    /// buffers of earlier rounds.
    const MOST: f64 = 0.25;
    const LARGEST: u64 = 512 << 20;

    /// Returns whether memory may grow by `more` bytes.
    fn is_left(&self, heap: &Heap, more: u64) -> bool {
        let (live, reserved) = (heap.counters().allocated_bytes.peak(), heap.reserved());
        let room = ((live as f64 * self.part) as u64).max(Self::LEAST);
        let most = ((live as f64 * Self::MOST) as u64).min(Self::LARGEST).max(room);
        reserved <= live.saturating_add(room) && reserved.saturating_add(more) <= live.saturating_add(most)
    }
}

/// The number of rounds between a request and the work for which it may wait. A stream that copies ahead of a
/// computation has one more buffer than this number, because it fills one buffer while the others wait.
const ROUNDS_BACK: usize = 2;

/// The number of size classes.
const CLASSES: usize = 64;

/// The last misses of each stream.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    by_pool: Vec<Misses>,
    /// The last operation whose work counts as work of an earlier round. Later work counts as work of the present
    /// round.
    before: u64,
}

/// The misses of one stream, by size class.
#[derive(Debug)]
struct Misses {
    /// The stream and its number, since its pools may pass to another stream.
    by: (StreamId, Option<u64>),
    /// The last misses of each class, the latest first, as numbers of operations.
    last: [[u64; ROUNDS_BACK + 1]; CLASSES],
}

impl Misses {
    fn new() -> Self {
        Self { by: (StreamId::DEFAULT, None), last: [[0; ROUNDS_BACK + 1]; CLASSES] }
    }
}

impl Rounds {
    /// Notes that a request has missed. Returns for which work the request may wait: work of an earlier round, or any
    /// work. The method may be called several times for one request.
    pub(crate) fn begin(&mut self, heap: &Heap, request: &Request) -> Grown<Until> {
        let (number, of) = (request.pool.stream(), heap.pool(request.pool.large()));
        let now = heap.counters().operations() + 1;
        grow_to(&mut self.by_pool, number + 1, Misses::new)?;
        let misses = &mut self.by_pool[number];
        if misses.by != (of.stream, of.number) {
            *misses = Misses { by: (of.stream, of.number), ..Misses::new() };
        }
        let last = &mut misses.last[request.size.max(1).ilog2() as usize];
        if last[0] != now {
            last.rotate_right(1);
            last[0] = now;
        }
        let round = last[ROUNDS_BACK].saturating_sub(1);
        self.before = round;
        let until = |room: Room| if room.is_left(heap, request.size) { round } else { ANY_AGE };
        Ok(Until { recorded: until(Room::RECORDED), freed: until(Room::FREED) })
    }

    /// Returns whether work given to the GPU at this operation belongs to the present round of the stream whose request
    /// missed last.
    pub(crate) fn is_new(&self, at: u64) -> bool {
        at > self.before
    }

    /// Returns the bytes of host memory that the lists take.
    pub(crate) fn host_bytes(&self) -> usize {
        self.by_pool.capacity() * size_of::<Misses>()
    }
}
