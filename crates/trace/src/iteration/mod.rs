//! The iteration of a trace: the part that the program repeats, and the requests of it that are planned.
//!
//! Owns: the beginning and the end of an iteration, and the planning of blocks that are live at the beginning or the
//! end. `period.rs` finds the repetition, and `blocks.rs` has the live bytes. `cuts.rs` accepts the repetition as
//! iterations if it contains the peak of live memory, and `kinds.rs` counts steps of other kinds.
//!
//! ```text
//!            cut              cut              cut
//!   ----------|----------------|----------------|------- persistent: not planned
//!             | ---   -- ---   | ---   -- ---   |        of one iteration
//!             |-        -------|-        -------|------  crosses a cut: the old and the new block have the
//!             |                |                |        same place, which is unused in between
//! ```

mod blocks;
mod cuts;
mod kinds;
mod period;

pub use blocks::ALIGNMENT;
pub use cuts::{Likeness, Repeated};
pub use kinds::Kind;

use crate::persistent;
use crate::trace::Trace;
use blocks::Blocks;
use cuts::Cuts;
use seamalloc_plan::{Buffer, Gap, Problem, ProblemError};
use std::fmt;
use std::ops::Range;

/// The number n: two iterations are planned instead of one if an iteration requests more than 1/n of the most live
/// bytes before it frees the blocks of the previous iteration that these requests replace.
const FEW_PART: u64 = 1000;

/// A number of requests, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// The number of requests.
    pub count: usize,
    /// The bytes of all requests, each rounded up to [`ALIGNMENT`].
    pub bytes: u64,
}

impl Requests {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// One iteration of a trace, to be planned.
#[derive(Clone, Debug, PartialEq)]
pub struct Iteration {
    /// The buffers of the iteration. Ids are the numbers of the trace's blocks. Moments are events counted from the
    /// iteration's first.
    pub problem: Problem,
    /// The way in which the iterations are alike.
    pub likeness: Likeness,
    /// The number of whole iterations in the trace.
    pub iterations: usize,
    /// The number of iterations that are planned, one after the other: one or two.
    pub planned: usize,
    /// The planned events: the events of the iteration with the most live bytes, and of a neighbour if two are planned.
    pub events: Range<usize>,
    /// Requests that are made in the planned events.
    pub requests: Requests,
    /// Persistent memory: blocks such as weights that live from before the planned events to after them. Persistent
    /// memory is not planned.
    pub persistent: Requests,
    /// Planned buffers that are live at the beginning or the end of the iteration.
    pub crossing: Requests,
    /// Requests whose blocks replace blocks of the previous iteration that are freed only later, as in optimizers that
    /// recompute their state. If these requests have many bytes, two iterations are planned. Otherwise the new and the
    /// old block each have an address for the whole iteration.
    pub by_turns: Requests,
    /// The number of requests whose size differs between iterations of one shape.
    pub varying: usize,
    /// The kinds of steps that were found, the kind of the iterations first; empty if no iterations have one shape.
    pub kinds: Vec<Kind>,
    /// A part that repeats and does not contain the peak of live memory, such as a layer's pass or the update of a
    /// tensor.
    pub part: Option<Repeated>,
    /// The most live bytes in the planned events, including persistent memory, with each block rounded up to
    /// [`ALIGNMENT`].
    pub live: u64,
}

impl Iteration {
    /// Finds the iterations of a trace, and takes the iteration with the most live bytes. A neighbour of this iteration
    /// is taken too if many bytes replace blocks of the previous iteration that are freed only later. The new and the
    /// old blocks then use two addresses in turn.
    ///
    /// # Errors
    /// The trace has more blocks or bytes than can be planned.
    pub fn of(trace: &Trace) -> Result<Self, ProblemError> {
        let blocks = Blocks::new(trace);
        let cuts = Cuts::new(&blocks, persistent(trace));
        let index = cuts.heaviest(&blocks);
        let Some(events) = cuts.events(index, 1) else {
            let problem = Problem::new(trace.name.clone(), Vec::new())?;
            return Ok(Self::new(problem, &cuts, 0..0, 0));
        };
        let mut out = Self::new(Problem::default(), &cuts, events, cuts.varying(&blocks));
        out.kinds = kinds::of(&blocks, &cuts);
        let mut buffers = out.buffers(&blocks, cuts.requests_back(&blocks, index, 1));
        if out.by_turns.bytes > blocks.most(out.events.clone()) / FEW_PART {
            let first = if index + 2 < cuts.at.len() { index } else { index.saturating_sub(1) };
            let by_turns = out.by_turns;
            if let Some(events) = cuts.events(first, 2) {
                (out.events, out.planned) = (events, 2);
                (out.requests, out.persistent, out.crossing) = Default::default();
                buffers = out.buffers(&blocks, cuts.requests_back(&blocks, first, 2));
                out.by_turns = by_turns;
            }
        }
        out.live = blocks.most(out.events.clone());
        out.problem = Problem::new(trace.name.clone(), buffers)?;
        Ok(out)
    }

    fn new(problem: Problem, cuts: &Cuts, events: Range<usize>, varying: usize) -> Self {
        Self {
            problem,
            likeness: cuts.likeness,
            iterations: cuts.at.len().saturating_sub(1),
            planned: 1,
            events,
            requests: Requests::default(),
            persistent: Requests::default(),
            crossing: Requests::default(),
            by_turns: Requests::default(),
            varying,
            kinds: Vec::new(),
            part: cuts.part,
            live: 0,
        }
    }

    /// Returns the buffers of the planned events. `back` is the number of requests since the same request of the
    /// previous iteration, if it is known.
    fn buffers(&mut self, blocks: &Blocks, back: Option<usize>) -> Vec<Buffer> {
        let (from, to) = (self.events.start, self.events.end);
        let length = (to - from) as i64;
        let moment = |event: usize| event.clamp(from, to) as i64 - from as i64;
        let first_of = |event: usize| blocks.made.partition_point(|made| *made < event);
        let (first, behind) = (first_of(from), first_of(to));
        let mut out = Vec::new();
        // For each block that takes the address of a block that was live at the beginning, the entry is the moment at
        // which that older block is freed.
        let mut comes_in = vec![None; behind - first];
        for block in 0..first {
            let freed = blocks.freed[block];
            if freed <= from {
                continue;
            }
            if freed >= to {
                self.persistent.add(blocks.sizes[block]);
                continue;
            }
            // The heir is the block of the same request in the next iteration, which crosses the end as this block
            // crossed the beginning.
            let heir = back.map(|back| block + back).filter(|heir| {
                let is_inside = (first..behind).contains(heir) && blocks.freed[*heir] > to;
                is_inside && blocks.sizes[*heir] == blocks.sizes[block]
            });
            match heir {
                Some(heir) if freed <= blocks.made[heir] => comes_in[heir - first] = Some(moment(freed)),
                Some(heir) => {
                    self.by_turns.add(blocks.sizes[block]);
                    self.crossing.add(blocks.sizes[block]);
                    comes_in[heir - first] = Some(0);
                    out.push(Buffer::new(block.to_string(), 0, length, blocks.sizes[block]));
                }
                None => {
                    self.crossing.add(blocks.sizes[block]);
                    out.push(Buffer::new(block.to_string(), 0, moment(freed), blocks.sizes[block]));
                }
            }
        }
        for block in first..behind {
            let (size, lower, upper) = (blocks.sizes[block], moment(blocks.made[block]), moment(blocks.freed[block]));
            self.requests.add(size);
            if blocks.freed[block] > to {
                self.crossing.add(size);
            }
            let buffer = Buffer::new(block.to_string(), lower, upper, size);
            out.push(match comes_in[block - first] {
                None => buffer,
                Some(left) => {
                    let gap = (0 < left && left < lower).then_some(Gap { lower: left, upper: lower, window: None });
                    Buffer { lower: 0, upper: length, gaps: gap.into_iter().collect(), ..buffer }
                }
            });
        }
        out
    }
}

impl fmt::Display for Iteration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.likeness, self.iterations) {
            (Likeness::None, _) => match self.part {
                None => write!(f, "nothing repeats, so the whole trace is planned"),
                Some(Repeated { requests, times }) => write!(
                    f,
                    "no steps are found, so the whole trace is planned: what repeats, {times} times in a row, are {requests} \
                     requests without the peak of live memory, such as layers of a pass or tensors of an optimizer"
                ),
            },
            (_, 1) => write!(f, "one whole iteration, of which a part stands there again"),
            (Likeness::Equal, count) => write!(f, "{count} equal iterations"),
            (Likeness::Shape, count) if self.varying == 0 => write!(f, "{count} iterations of one shape"),
            (Likeness::Shape, count) => {
                write!(f, "{count} iterations of one shape, in which {} requests vary in size", self.varying)
            }
            (Likeness::Part, count) => write!(f, "{count} iterations that are alike in part"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TraceBuilder;
    use seamalloc::driver::StreamId;

    /// Builds a trace of operations. `make` requests units under a number, and `free` frees the block with that number.
    struct Program(TraceBuilder);

    impl Program {
        fn new() -> Self {
            Self(TraceBuilder::new("t"))
        }

        fn make(&mut self, id: u64, units: u64) {
            let stream = self.0.stream(StreamId::DEFAULT).unwrap();
            self.0.alloc(id, units * ALIGNMENT, stream).unwrap();
        }

        fn free(&mut self, id: u64) {
            self.0.free_requested(id).unwrap();
            self.0.free_completed(id).unwrap();
        }

        fn iteration(self) -> Iteration {
            Iteration::of(&self.0.finish()).unwrap()
        }
    }

    type Shown = (i64, i64, u64, Option<(i64, i64)>);

    /// Returns (lower, upper, units, gap) of every buffer.
    fn shown(iteration: &Iteration) -> Vec<Shown> {
        let gap = |buffer: &Buffer| buffer.gaps.first().map(|gap| (gap.lower, gap.upper));
        let buffers = iteration.problem.buffers().iter();
        buffers.map(|buffer| (buffer.lower, buffer.upper, buffer.size / ALIGNMENT, gap(buffer))).collect()
    }

    #[test]
    fn an_iteration_is_found_and_what_persists_is_left_out() {
        let mut program = Program::new();
        (0..5).for_each(|id| program.make(id, 100 + id));
        for step in 1..=4 {
            let id = |index: u64| 1000 * step + index;
            for index in 0..10 {
                program.make(id(index), 1 + index % 5);
                program.make(id(100 + index), 7);
                program.free(id(100 + index));
            }
            (0..10).for_each(|index| program.free(id(index)));
        }
        let found = program.iteration();
        assert_eq!((found.likeness, found.varying), (Likeness::Equal, 0));
        assert!(found.iterations >= 3, "{}", found.iterations);
        assert_eq!(found.persistent.count, 5);
        assert_eq!((found.requests.count, found.crossing.count), (20, 0));
        assert_eq!(found.problem.buffers().len(), 20);
        assert_eq!(found.problem.buffers().iter().map(|buffer| buffer.size).sum::<u64>(), found.requests.bytes);
    }

    #[test]
    fn what_crosses_has_one_place_with_a_gap() {
        let mut program = Program::new();
        for step in 0..6_u64 {
            let id = |index: u64| 1000 * step + index;
            program.make(id(0), 9);
            if step > 0 {
                // The previous step made this block in the middle of that step.
                program.free(id(1) - 1000);
            }
            program.make(id(2), 5);
            program.make(id(1), 3);
            program.free(id(0));
            program.make(id(3), 40);
            program.free(id(3));
            program.free(id(2));
        }
        let found = program.iteration();
        assert_eq!(found.likeness, Likeness::Equal);
        assert_eq!(found.crossing, Requests { count: 1, bytes: 3 * ALIGNMENT });
        let buffers = shown(&found);
        let crossing = buffers.iter().find(|buffer| buffer.3.is_some()).unwrap();
        let length = found.events.len() as i64;
        assert_eq!((crossing.0, crossing.1, crossing.2), (0, length, 3), "{buffers:?}");
        assert_eq!(buffers.len(), 4);
    }

    /// A state of 8 units is allocated again in each step before the old one is freed, beside an activation of 5 units.
    #[test]
    fn what_is_made_anew_before_the_old_is_freed_counts_once() {
        let mut program = Program::new();
        for step in 0..8_u64 {
            let id = |index: u64| 1000 * step + index;
            program.make(id(0), 5);
            program.make(id(2), 1);
            program.free(id(2));
            program.free(id(0));
            program.make(id(1), 8);
            if step > 0 {
                program.free(id(1) - 1000);
            }
        }
        let found = program.iteration();
        assert_eq!((found.planned, found.live), (2, 16 * ALIGNMENT), "{found:?}");
        assert_eq!(found.by_turns, Requests { count: 1, bytes: 8 * ALIGNMENT });
        assert!(shown(&found).iter().any(|buffer| buffer.2 == 8 && buffer.3.is_some()), "{:?}", shown(&found));
        let load = |at: i64| {
            let live = |of: &&Shown| of.0 <= at && at < of.1 && of.3.is_none_or(|(from, to)| at < from || to <= at);
            shown(&found).iter().filter(live).map(|buffer| buffer.2).sum::<u64>()
        };
        assert_eq!((0..found.events.len() as i64).map(load).max(), Some(16));
    }

    #[test]
    fn sizes_may_vary_and_the_heaviest_iteration_is_taken() {
        let mut program = Program::new();
        for step in 0..5_u64 {
            let id = |index: u64| 1000 * step + index;
            for index in 0..20 {
                program.make(id(index), if index % 2 == 0 { 4 } else { [3, 9, 2, 5, 7][step as usize] });
            }
            (0..20).for_each(|index| program.free(id(index)));
        }
        let found = program.iteration();
        assert_eq!((found.likeness, found.varying), (Likeness::Shape, 10));
        assert!(shown(&found).iter().all(|buffer| [4, 9].contains(&buffer.2)));
    }

    #[test]
    fn layers_that_repeat_without_the_peak_are_no_steps() {
        let mut program = Program::new();
        // The program has a forward pass of layers that each keep one block, then the peak, then the frees in reverse
        // order.
        for layer in 0..40 {
            program.make(3 * layer, 9);
            program.make(3 * layer + 1, 4);
            program.free(3 * layer + 1);
        }
        program.make(1000, 500);
        program.free(1000);
        (0..40).rev().for_each(|layer| program.free(3 * layer));
        let found = program.iteration();
        assert_eq!((found.likeness, found.iterations, found.kinds.len()), (Likeness::None, 1, 0));
        assert_eq!(found.part, Some(Repeated { requests: 2, times: 40 }));
        assert_eq!(found.live, (40 * 9 + 500) * ALIGNMENT);
        let text = found.to_string();
        assert!(text.contains("40 times in a row, are 2 requests without the peak of live memory"), "{text}");
    }

    #[test]
    fn a_step_with_the_peak_beside_the_others_counts() {
        let mut program = Program::new();
        for step in 0..5_u64 {
            let id = |index: u64| 1000 * step + index;
            (0..40).for_each(|index| program.make(id(index), 4));
            // The first step has one more request, at the peak.
            if step == 0 {
                program.make(id(99), 50);
                program.free(id(99));
            }
            (0..40).for_each(|index| program.free(id(index)));
        }
        let found = program.iteration();
        assert_eq!((found.likeness, found.iterations, found.live), (Likeness::Part, 5, 210 * ALIGNMENT));
        assert_eq!((found.requests.count, found.kinds.len(), found.part), (41, 0, None));
    }

    #[test]
    fn a_trace_in_which_nothing_repeats_is_planned_whole() {
        let mut program = Program::new();
        (1..50).for_each(|id| program.make(id, id));
        (1..30).for_each(|id| program.free(id));
        let found = program.iteration();
        assert_eq!((found.likeness, found.iterations), (Likeness::None, 1));
        assert_eq!(found.problem.buffers().len(), 49);
        assert_eq!(found.persistent.count, 0);
        let none = Iteration::of(&Trace::default()).unwrap();
        assert!(none.problem.buffers().is_empty());
    }
}
