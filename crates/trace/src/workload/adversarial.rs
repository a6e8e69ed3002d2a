//! Patterns made to fragment memory. No real job behaves like this for long, but jobs have short phases that do.
//!
//! Owns: the four patterns and their sizes. Each pattern stays under a bound of live bytes, and ends its rounds with
//! few live bytes.

use super::tape::{Block, Dice, Tape};

/// A pattern, with the most bytes that it holds live.
#[derive(Clone, Copy, Debug)]
pub(super) struct Adversary {
    pub(super) kind: Kind,
    pub(super) bound: u64,
}

/// The way in which a pattern fragments memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Many blocks, every second of them freed, then larger blocks. Half of the memory is free, and no larger block
    /// fits.
    Comb,
    /// Ramps up and down. Each ramp has other sizes, and a few blocks of each ramp survive it.
    Sawtooth,
    /// Blocks that are replaced one by one by slightly larger ones, as buffers that grow with the longest input so far.
    Creeping,
    /// Two streams that take turns to allocate blocks of the size that the other stream has just freed.
    PingPong,
}

const MIB: u64 = 1 << 20;
/// The least and the largest size of the comb's larger blocks, in quarters of the size of a small block (a tooth).
const COMB_QUARTERS: (u64, u64) = (5, 40);

impl Adversary {
    /// Returns the number of streams beside the default one.
    pub(super) fn side_streams(&self) -> u32 {
        u32::from(self.kind == Kind::PingPong)
    }

    pub(super) fn run(&self, tape: &mut Tape, dice: &mut Dice, rounds: u32) {
        let mut survivors = Vec::new();
        let mut buffers = Vec::new();
        for round in 0..u64::from(rounds) {
            if tape.is_full() {
                break;
            }
            match self.kind {
                Kind::Comb => self.comb(tape, dice),
                Kind::Sawtooth => self.sawtooth(tape, dice, &mut survivors),
                Kind::Creeping => self.creep(tape, dice, &mut buffers),
                Kind::PingPong => self.ping_pong(tape, dice, round, &mut survivors),
            }
        }
    }

    /// Returns the bytes that may still be allocated.
    fn room(&self, tape: &Tape) -> u64 {
        self.bound.saturating_sub(tape.live())
    }

    fn comb(&self, tape: &mut Tape, dice: &mut Dice) {
        let tooth = dice.between(2, 24) * MIB;
        let mut teeth = Vec::new();
        while self.room(tape) > tooth {
            teeth.push(tape.alloc(tooth - dice.between(0, 1000) * 512));
        }
        let (mut kept, mut freed) = (Vec::new(), Vec::new());
        for (index, block) in teeth.into_iter().enumerate() {
            if index % 2 == 0 { kept.push(block) } else { freed.push(block) }
        }
        tape.free_all(freed);
        loop {
            let larger = tooth * dice.between(COMB_QUARTERS.0, COMB_QUARTERS.1) / 4;
            if self.room(tape) < larger {
                break;
            }
            kept.push(tape.alloc(larger));
        }
        scatter(tape, dice, kept);
    }

    fn sawtooth(&self, tape: &mut Tape, dice: &mut Dice, survivors: &mut Vec<Block>) {
        /// The most survivors of all ramps together.
        const SURVIVORS: usize = 64;
        let base = dice.between(1, 64) * MIB;
        let mut ramp = Vec::new();
        loop {
            let size = base + dice.between(0, base / 4);
            if self.room(tape) < size {
                break;
            }
            ramp.push(tape.alloc(size));
        }
        let every = (ramp.len() / 8).max(1);
        let (mut stay, mut go) = (Vec::new(), Vec::new());
        for (index, block) in ramp.into_iter().enumerate() {
            if index % every == every / 2 { stay.push(block) } else { go.push(block) }
        }
        tape.free_all(go.into_iter().rev());
        survivors.extend(stay);
        let surplus = survivors.len().saturating_sub(SURVIVORS);
        tape.free_all(survivors.drain(..surplus));
    }

    fn creep(&self, tape: &mut Tape, dice: &mut Dice, buffers: &mut Vec<Block>) {
        /// The number of buffers at the beginning. The buffers grow until less than a quarter of the bound is left.
        /// Then all are replaced.
        const BUFFERS: u64 = 400;
        if buffers.is_empty() {
            let mean = self.bound / 3 / BUFFERS;
            buffers.extend((0..BUFFERS).map(|_| tape.alloc(dice.between(mean / 2, mean * 3 / 2))));
        }
        for place in 0..buffers.len() {
            let Some(buffer) = buffers.get_mut(place) else { break };
            // The new buffer is between 1 and 6 percent larger, so that the hole left behind is always too small for
            // the next buffer.
            let larger = buffer.size() + buffer.size() * dice.between(10, 60) / 1000 + 1;
            if self.room(tape) < larger {
                break;
            }
            let replacement = tape.alloc(larger);
            tape.free(std::mem::replace(buffer, replacement));
        }
        if self.room(tape) < self.bound / 4 {
            scatter(tape, dice, std::mem::take(buffers));
        }
    }

    fn ping_pong(&self, tape: &mut Tape, dice: &mut Dice, round: u64, survivors: &mut Vec<Block>) {
        /// The number of blocks of each round that stay live.
        const STAY: usize = 4;
        /// The most blocks of all rounds together that stay live.
        const HELD: usize = 32;
        tape.on_stream(u32::from(round % 2 == 1));
        let base = dice.between(4, 96) * MIB;
        let mut filled = Vec::new();
        loop {
            let size = base + dice.between(0, base);
            if self.room(tape) < size {
                break;
            }
            filled.push(tape.alloc(size));
        }
        let every = (filled.len() / STAY).max(1);
        let mut passed = Vec::new();
        for (index, block) in filled.into_iter().enumerate() {
            if index % every == 0 {
                survivors.push(block);
            } else {
                passed.push(tape.request_free(block));
            }
        }
        // The other stream has read all of these blocks before that stream begins to allocate.
        for pending in passed {
            tape.complete_free(pending);
        }
        let surplus = survivors.len().saturating_sub(HELD);
        tape.free_all(survivors.drain(..surplus));
        tape.on_stream(0);
    }
}

/// Frees blocks in random order.
fn scatter(tape: &mut Tape, dice: &mut Dice, mut blocks: Vec<Block>) {
    while !blocks.is_empty() {
        let index = dice.between(0, blocks.len() as u64 - 1) as usize;
        let block = blocks.swap_remove(index);
        tape.free(block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TraceEvent;

    const BOUND: u64 = 8 << 30;

    fn run(kind: Kind, rounds: u32) -> (crate::trace::Trace, u64) {
        let adversary = Adversary { kind, bound: BOUND };
        let mut tape = Tape::new(adversary.side_streams());
        adversary.run(&mut tape, &mut Dice::new(9), rounds);
        let live = tape.live();
        (tape.finish().unwrap(), live)
    }

    #[test]
    fn the_bound_holds_and_is_nearly_reached() {
        for kind in [Kind::Comb, Kind::Sawtooth, Kind::Creeping, Kind::PingPong] {
            let (trace, _) = run(kind, 60);
            let peak = trace.summary().peak_active;
            assert!(peak <= BOUND && peak > BOUND / 4 * 3, "{kind:?}: {peak}");
        }
    }

    #[test]
    fn the_comb_frees_every_other_and_asks_for_larger() {
        let (trace, live) = run(Kind::Comb, 1);
        assert_eq!(live, 0);
        let sizes: Vec<u64> = trace
            .events
            .iter()
            .filter_map(|e| if let TraceEvent::Alloc { size, .. } = e { Some(*size) } else { None })
            .collect();
        let first_free = trace.events.iter().position(|e| !matches!(e, TraceEvent::Alloc { .. })).unwrap();
        assert!(sizes[first_free..].iter().all(|larger| *larger > sizes[0]));
        assert!(sizes.len() > first_free);
    }

    #[test]
    fn ping_pong_alternates_streams() {
        let (trace, _) = run(Kind::PingPong, 4);
        for stream in [0, 1] {
            assert!(trace.events.iter().any(|e| matches!(e, TraceEvent::Alloc { stream: s, .. } if *s == stream)));
        }
    }
}
