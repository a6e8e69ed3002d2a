//! Persistent memory of a job, which no step frees: weights and optimizer state.
//!
//! Owns: the search for the least live memory between two steps, and for the blocks that exist on both sides of a step.
//!
//! ```text
//!   live      peak            peak
//!             /\              /\
//!            /  \     /\     /  \
//!        ___/    \___/  \___/    \___
//!      _/       valley  valley       \_   the job's end
//! ```

use crate::summary::fullest;
use crate::trace::{Trace, TraceEvent};
use std::collections::HashMap;

/// The number of depths that are tried for valleys (lows of live memory between steps). The first depth is half the
/// peak, the next depth a quarter, and so on.
const DEPTHS: u32 = 6;
/// The number of depths that are tried for a single valley beside the peak, if no two valleys were found.
const DEPTHS_OF_ONE: u32 = 3;
/// The least depth of a valley (a low of live memory between steps), as a part (1/n) of the difference between the
/// lowest valley and the peak. Dips within a step are shallower.
const LEAST_DEPTH_PART: u64 = 4;
/// A step after a valley counts as begun once live memory has risen by this part (1/n) of the valley's depth.
const BEGINNING_PART: u64 = 4;
/// The most valleys (lows of live memory between steps) that are examined before the peak, and after it.
const VALLEYS: usize = 32;

/// The end of a block that is never freed.
const NEVER: usize = usize::MAX;

/// Returns the bytes of persistent memory (weights, optimizer state) at the peak of live memory, wherever in the job
/// the recording begins and ends. Returns 0 if the trace does not show which memory is persistent.
///
/// Steps appear as valleys of live memory, between which live memory rises and falls again: by half the peak or, if
/// there are no such valleys, by a quarter, and so on. Memory that is live in two successive valleys is persistent. A
/// block that is replaced by one of the same size between two valleys is persistent too, as with optimizers that
/// recompute their state. Gradients that stay from one step to the next also count. The beginning of a recording is no
/// valley, because the weights may not be allocated yet. The end is no valley if the job has freed the memory that was
/// live between its steps. Without a second valley, as in a recording of a single step, memory counts as persistent if
/// it is live both at the peak and in the valley after the peak, or else in the valley before the peak. If a job runs
/// out of memory in its second step, the optimizer's state may therefore be missing.
#[must_use]
pub fn persistent(trace: &Trace) -> u64 {
    Persistent::of(trace).bytes
}

/// The blocks of a trace that are persistent.
#[derive(Debug, Default)]
pub(crate) struct Persistent {
    /// Whether each block is persistent, in the order in which the blocks were made.
    pub(crate) blocks: Vec<bool>,
    /// The bytes of the persistent blocks at the peak, limited to the bytes that are live between two steps.
    pub(crate) bytes: u64,
}

impl Persistent {
    pub(crate) fn of(trace: &Trace) -> Self {
        let course = Course::of(&trace.events);
        let pairs = (1..=DEPTHS).map(|halvings| course.between(course.most >> halvings));
        if let Some(found) = pairs.flatten().find(|found| found.bytes > 0) {
            return found;
        }
        let beside = (1..=DEPTHS_OF_ONE).map(|halvings| course.beside(course.most >> halvings));
        beside
            .flatten()
            .find(|found| found.bytes > 0)
            .unwrap_or_else(|| Self { blocks: vec![false; course.sizes.len()], bytes: 0 })
    }
}

/// The lifetimes of a trace's blocks, and the live bytes after each event.
struct Course {
    sizes: Vec<u64>,
    made: Vec<usize>,
    freed: Vec<usize>,
    live: Vec<u64>,
    /// The event after which most bytes are live, and these bytes.
    peak: usize,
    most: u64,
}

impl Course {
    fn of(events: &[TraceEvent]) -> Self {
        let (mut sizes, mut made, mut freed) = (Vec::new(), Vec::new(), Vec::<usize>::new());
        let mut live = Vec::with_capacity(events.len());
        let mut now = 0_u64;
        for (index, event) in events.iter().enumerate() {
            match *event {
                TraceEvent::Alloc { size, .. } => {
                    sizes.push(size);
                    made.push(index);
                    freed.push(NEVER);
                    now = now.saturating_add(size);
                }
                TraceEvent::FreeRequested { block } => {
                    if let Some(freed) = freed.get_mut(block as usize) {
                        *freed = index;
                        now = now.saturating_sub(sizes.get(block as usize).copied().unwrap_or(0));
                    }
                }
                TraceEvent::FreeCompleted { .. } => {}
            }
            live.push(now);
        }
        let peak = fullest(events);
        Self { sizes, made, freed, most: live.get(peak).copied().unwrap_or(0), live, peak }
    }

    fn at(&self, event: usize) -> u64 {
        self.live.get(event).copied().unwrap_or(0)
    }

    fn is_live(&self, block: usize, event: usize) -> bool {
        self.made[block] <= event && event < self.freed[block]
    }

    /// Returns the valleys: the events after which fewest bytes are live, each after a fall and before a rise of this
    /// depth. The last valley needs no rise after it, since the trace may end there.
    fn valleys(&self, depth: u64) -> Vec<usize> {
        let mut out = Vec::new();
        // A recording begins with a rise from 0.
        let (mut rises, mut highest, mut lowest) = (true, 0, (u64::MAX, 0));
        for (index, &live) in self.live.iter().enumerate() {
            if rises {
                highest = highest.max(live);
                if highest - live >= depth {
                    (rises, lowest) = (false, (live, index));
                }
            } else if live <= lowest.0 {
                lowest = (live, index);
            } else if live - lowest.0 >= depth {
                out.push(lowest.1);
                (rises, highest) = (true, live);
            }
        }
        if !rises {
            out.push(lowest.1);
        }
        out
    }

    /// Returns the blocks that exist in two successive valleys of this depth; `None` if such valleys are dips within a
    /// step.
    fn between(&self, depth: u64) -> Option<Persistent> {
        let mut valleys = self.valleys(depth.max(1));
        let last = valleys.pop()?;
        let followed = self.live.get(last..).unwrap_or_default().iter().any(|live| live - self.at(last) >= depth);
        let before = valleys.last().map_or(0, |before| self.at(*before));
        let stays = self.at(last) >= before / 4 * 3;
        let lowest = valleys.iter().copied().chain(followed.then_some(last)).map(|at| self.at(at)).min()?;
        if depth < (self.most - lowest) / LEAST_DEPTH_PART {
            return None;
        }
        valleys.extend((followed || stays).then_some(last));
        let until_peak = valleys.partition_point(|valley| *valley <= self.peak);
        let near = until_peak.saturating_sub(VALLEYS)..valleys.len().min(until_peak + VALLEYS);
        let near = valleys.get(near)?;
        let mut blocks = vec![false; self.sizes.len()];
        near.iter().zip(near.iter().skip(1)).for_each(|(from, to)| self.mark(*from, *to, depth, &mut blocks));
        if let Some(&before_end) = near.last().filter(|_| !followed && !stays) {
            let top = (before_end..last).max_by_key(|event| self.at(*event)).unwrap_or(last);
            let stay = |block| self.is_live(block, before_end) && self.is_live(block, top);
            blocks.iter_mut().enumerate().for_each(|(block, marked)| *marked |= stay(block));
        }
        let most = near.iter().map(|valley| self.at(*valley)).max()?;
        Some(self.sum(blocks, most))
    }

    /// Marks as persistent the blocks that are live in both valleys (at the events `from` and `to`), and the blocks
    /// that one of the same size replaces in between.
    fn mark(&self, from: usize, to: usize, depth: u64, blocks: &mut [bool]) {
        let begun = self.at(from).saturating_add(depth / BEGINNING_PART);
        let rise = (from..to).take_while(|event| self.at(*event) - self.at(from) < depth);
        let begin = rise.filter(|event| self.at(*event) <= begun).last().unwrap_or(from);
        let mut left: HashMap<u64, Vec<usize>> = HashMap::new();
        for block in 0..self.sizes.len() {
            let stays = self.is_live(block, to);
            if self.made[block] <= begin && stays {
                blocks[block] = true;
            } else if self.is_live(block, from) {
                left.entry(self.sizes[block]).or_default().push(block);
            } else if let Some(other) = left.get_mut(&self.sizes[block]).filter(|_| stays).and_then(Vec::pop) {
                blocks[block] = true;
                blocks[other] = true;
            }
        }
    }

    /// Returns the blocks that are live both at the peak and in the valley of this depth after the peak. Without such a
    /// valley, takes the valley before the peak; `None` if there is no valley.
    fn beside(&self, depth: u64) -> Option<Persistent> {
        let valleys = self.valleys(depth.max(1));
        let behind = valleys.iter().find(|valley| **valley > self.peak);
        let valley = *behind.or(valleys.last())?;
        let there = |block| self.is_live(block, valley) && self.is_live(block, self.peak);
        Some(self.sum((0..self.sizes.len()).map(there).collect(), self.at(valley)))
    }

    fn sum(&self, blocks: Vec<bool>, most: u64) -> Persistent {
        let at_peak = |block: &usize| blocks[*block] && self.is_live(*block, self.peak);
        let sizes = (0..blocks.len()).filter(at_peak).map(|block| self.sizes[block]);
        let bytes = sizes.fold(0, u64::saturating_add);
        Persistent { bytes: bytes.min(most), blocks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TraceBuilder;
    use seamalloc::driver::StreamId;

    /// Returns the trace of a program. A positive number is a request for as many bytes; a negative one frees the
    /// oldest live block of that size.
    fn trace(program: &[i64]) -> Trace {
        let mut builder = TraceBuilder::new("t");
        let stream = builder.stream(StreamId::DEFAULT).unwrap();
        let mut live = Vec::new();
        for (id, size) in (0..).zip(program) {
            let bytes = size.unsigned_abs();
            if *size > 0 {
                builder.alloc(id, bytes, stream).unwrap();
                live.push((id, bytes));
            } else {
                let at = live.iter().position(|(_, size)| *size == bytes).unwrap();
                let (id, _) = live.remove(at);
                builder.free_requested(id).unwrap();
                builder.free_completed(id).unwrap();
            }
        }
        builder.finish()
    }

    /// The job has weights of 12 bytes, a first step that makes a state of 8 bytes after the step's peak, and further
    /// steps.
    const FIRST: [i64; 9] = [5, 7, 30, 31, -31, -30, 9, 8, -9];
    const STEP: [i64; 6] = [30, 32, -32, -30, 9, -9];

    #[test]
    fn persistent_memory_does_not_depend_on_the_ends_of_the_recording() {
        let steps = [&FIRST[..], &STEP, &STEP].concat();
        let ends = [&[][..], &[-5, -7, -8], &[-5, -8], &[30, 31], &[30, 32, -32]];
        for end in ends {
            assert_eq!(persistent(&trace(&[&steps[..], end].concat())), 20, "{end:?}");
        }
        // The recording begins within a step, with the blocks that were live at that time.
        assert_eq!(persistent(&trace(&[&[5, 7, 8, 30, -30][..], &STEP, &STEP].concat())), 20);
    }

    #[test]
    fn state_that_is_made_anew_in_each_step_is_persistent() {
        let step = |most| [&[30, most, -most, -30][..], &[9, 8, -9, -8]].concat();
        assert_eq!(persistent(&trace(&[&FIRST[..], &step(32), &step(33), &step(32)].concat())), 20);
    }

    #[test]
    fn a_single_step_shows_what_was_there_before_it_and_stays() {
        assert_eq!(persistent(&trace(&[5, 7, 30, 32, -32, -30])), 12);
        // Memory runs out in the second step.
        assert_eq!(persistent(&trace(&[&FIRST[..], &[30, 31, 90]].concat())), 12);
        // A single rise does not show which blocks are the weights.
        assert_eq!(persistent(&trace(&[5, 7, 30, 32])), 0);
        assert_eq!(persistent(&Trace::default()), 0);
    }

    #[test]
    fn small_steps_on_large_weights_are_seen() {
        let step = [3, 4, -4, 2, -2, -3];
        let job = [&[50, 51, 52][..], &step, &step, &step, &[-50, -51, -52]].concat();
        assert_eq!(persistent(&trace(&job)), 153);
    }

    #[test]
    fn dips_of_a_single_step_are_no_valleys() {
        // Each layer keeps 10 bytes and frees 8; then comes the backward pass.
        let layers = [10, 8, -8].repeat(8);
        let back = [6, -10, -6].repeat(8);
        assert_eq!(persistent(&trace(&[&[20][..], &layers, &back].concat())), 20);
    }
}
