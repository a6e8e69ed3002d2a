//! The builder with which every pattern writes its trace.
//!
//! Owns: the numbering of blocks, the streams, and the live bytes. A block is a value that its free consumes, so no
//! pattern can free a block twice or complete a free that was never requested. The patterns determine the allocations.

use rand_pcg::{Pcg64, rand_core::Rng as _};

use super::error::{GenerateError, MAX_EVENTS};
use crate::trace::{Trace, TraceEvent};
use seamalloc::driver::StreamId;

/// A live block. Dropping the value leaves the block live at the trace's end.
#[derive(Debug)]
pub(super) struct Block {
    id: u32,
    size: u64,
}

impl Block {
    /// Returns the requested bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }
}

/// A block that the program has freed and that another stream may still use.
#[derive(Debug)]
#[must_use = "a free that never completes is a leak"]
pub(super) struct PendingFree(Block);

/// Writes the events of a trace.
#[derive(Debug)]
pub(super) struct Tape {
    streams: Vec<StreamId>,
    events: Vec<TraceEvent>,
    blocks: u32,
    live: u64,
    stream: u32,
    limit: usize,
    full: bool,
}

impl Tape {
    /// Makes a tape (a trace in the making) with the default stream and `side` further streams.
    pub(super) fn new(side: u32) -> Self {
        let streams = (0..=u64::from(side)).map(StreamId).collect();
        Self { streams, events: Vec::new(), blocks: 0, live: 0, stream: 0, limit: MAX_EVENTS, full: false }
    }

    /// Makes a tape as [`Self::new`] does, with another bound on its events.
    #[cfg(test)]
    pub(super) fn with_limit(side: u32, limit: usize) -> Self {
        Self { limit, ..Self::new(side) }
    }

    /// Sets the stream of later allocations, by its index.
    pub(super) fn on_stream(&mut self, stream: u32) {
        debug_assert!((stream as usize) < self.streams.len());
        self.stream = stream;
    }

    /// Allocates `size` bytes, at least one byte.
    pub(super) fn alloc(&mut self, size: u64) -> Block {
        let block = Block { id: self.blocks, size: size.max(1) };
        self.blocks += u32::from(self.push(TraceEvent::Alloc { size: block.size, stream: self.stream }));
        // The bytes count on a full tape (a trace at its limit of events) too, so that patterns that fill memory up to
        // a bound reach their end.
        self.live += block.size;
        block
    }

    /// Allocates a block that lives to the end of the trace, such as weights or a library's workspace.
    pub(super) fn alloc_for_good(&mut self, size: u64) {
        let _lives_on = self.alloc(size);
    }

    /// Frees a block that no other stream uses.
    pub(super) fn free(&mut self, block: Block) {
        let pending = self.request_free(block);
        self.complete_free(pending);
    }

    /// Frees every block, in order.
    pub(super) fn free_all(&mut self, blocks: impl IntoIterator<Item = Block>) {
        for block in blocks {
            self.free(block);
        }
    }

    /// Allocates a block and frees it by the next event, as for a kernel's workspace.
    pub(super) fn workspace(&mut self, size: u64) {
        let block = self.alloc(size);
        self.free(block);
    }

    /// Frees a block that another stream may still use.
    pub(super) fn request_free(&mut self, block: Block) -> PendingFree {
        self.push(TraceEvent::FreeRequested { block: block.id });
        PendingFree(block)
    }

    /// Completes a free, after the GPU has passed the last use of the block.
    pub(super) fn complete_free(&mut self, PendingFree(block): PendingFree) {
        self.push(TraceEvent::FreeCompleted { block: block.id });
        self.live -= block.size;
    }

    /// Returns the bytes of blocks whose free has not completed.
    pub(super) fn live(&self) -> u64 {
        self.live
    }

    /// Returns whether the trace has reached its bound. A pattern then stops at the end of its step.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    /// Returns the finished trace, without a name and meta.
    pub(super) fn finish(self) -> Result<Trace, GenerateError> {
        if self.full {
            return Err(GenerateError::TooLong { limit: self.limit });
        }
        Ok(Trace { streams: self.streams, events: self.events, ..Trace::default() })
    }

    fn push(&mut self, event: TraceEvent) -> bool {
        // A trace that has reached its limit takes no more events, since a missing event in the middle would make the
        // rest invalid.
        self.full |= self.events.len() >= self.limit;
        if !self.full {
            self.events.push(event);
        }
        !self.full
    }
}

/// The random numbers of a workload. The numbers are the same on every platform and in every version, because PCG's
/// stream is specified and this file does the reduction to a range.
#[derive(Clone, Debug)]
pub(super) struct Dice(Pcg64);

/// PCG's stream selector. Any constant would do.
const DICE_STREAM: u128 = 0xa02b_dbf7_bb3c_0a7a_c28f_a16a_64ab_f96b;

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(Pcg64::new(u128::from(seed), DICE_STREAM))
    }

    /// Returns a number from `low` to `high`, both included.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        debug_assert!(low <= high);
        let span = u128::from(high.saturating_sub(low)) + 1;
        // The upper half of a 64 by 64 bit product is below `span`, so it fits in 64 bits.
        let offset = (u128::from(self.0.next_u64()) * span) >> 64;
        low + u64::try_from(offset).unwrap_or(0)
    }

    /// Returns one of the choices.
    pub(super) fn pick(&mut self, choices: &[u64]) -> u64 {
        let last = choices.len().saturating_sub(1) as u64;
        let index = self.between(0, last) as usize;
        choices.get(index).copied().unwrap_or(1)
    }

    /// Returns `true` with probability `numerator` / `denominator`.
    pub(super) fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.between(1, denominator.max(1)) <= numerator
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_never_zero_and_live_is_counted() {
        let mut tape = Tape::new(0);
        let empty = tape.alloc(0);
        assert_eq!(empty.size(), 1);
        let big = tape.alloc(10);
        assert_eq!(tape.live(), 11);
        tape.free(empty);
        let pending = tape.request_free(big);
        assert_eq!(tape.live(), 10);
        tape.complete_free(pending);
        assert_eq!(tape.live(), 0);
        assert_eq!(tape.finish().unwrap().events.len(), 6);
    }

    #[test]
    fn allocations_are_on_the_chosen_stream() {
        let mut tape = Tape::new(2);
        tape.on_stream(2);
        tape.workspace(8);
        let trace = tape.finish().unwrap();
        assert_eq!(trace.streams.len(), 3);
        assert_eq!(trace.events[0], TraceEvent::Alloc { size: 8, stream: 2 });
    }

    #[test]
    fn dice_stay_in_range_and_repeat() {
        let (mut a, mut b) = (Dice::new(7), Dice::new(7));
        let mut seen = [false; 5];
        for _ in 0..200 {
            let x = a.between(10, 14);
            assert_eq!(x, b.between(10, 14));
            seen[(x - 10) as usize] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(a.between(3, 3), 3);
        assert_eq!(Dice::new(1).pick(&[]), 1);
    }

    #[test]
    fn dice_keep_their_stream() {
        let mut dice = Dice::new(0);
        let drawn: Vec<u64> = (0..4).map(|_| dice.between(0, u64::MAX)).collect();
        assert_eq!(drawn, DRAWN_AT_SEED_0);
    }

    const DRAWN_AT_SEED_0: [u64; 4] =
        [13_549_743_876_051_892_886, 184_001_786_516_912_882, 18_131_995_708_378_454_909, 1_841_462_893_848_310_241];
}
