//! The beginnings of iterations, and the choice of the repeating part that counts as an iteration.
//!
//! Owns: the rule that an iteration contains the peak of live memory. A model's layers and the tensors of an optimizer
//! repeat too, and more often than steps do. But either none of these repetitions contains the peak, or the memory that
//! they keep adds up from one to the next.

use super::blocks::Blocks;
use super::period::{self, Period};
use std::collections::HashMap;
use std::ops::Range;

/// The least part of a trace that iterations must cover: equal iterations, and iterations of one shape. A repetition
/// that covers less is a part of a larger repeating part, such as a model's layers within a step.
const COVERED_BY_EQUAL: f64 = 0.5;
const COVERED_BY_SHAPE: f64 = 1.0 / 3.0;
/// An iteration directly before or after the recognized ones must share at least this part of its operations with its
/// neighbour.
const IN_COMMON: f64 = 0.75;
/// The end of an iteration is sought around its expected end, up to this part (1/n) of the iteration's length before
/// and after. The end is where fewest bytes are live in this range.
const AROUND_PART: usize = 8;

/// At both ends of the iteration with the peak, at most persistent memory and this part (1/n) of the peak's other
/// memory may be live.
const BETWEEN_PART: u64 = 4;

/// The way in which the iterations of a trace are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Likeness {
    /// All iterations have the same operations with the same sizes.
    Equal,
    /// All iterations have the same operations on corresponding blocks, some of which differ in size.
    Shape,
    /// Each iteration shares only a part of the operations with the others.
    Part,
    /// No repeating part contains the peak of live memory, so the whole trace is one iteration.
    None,
}

/// A part of a trace that repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeated {
    /// The number of requests in the part.
    pub requests: usize,
    /// How often the part occurs in a row.
    pub times: usize,
}

/// The events at which iterations begin, and the event at which the last one ends.
pub(super) struct Cuts {
    pub(super) likeness: Likeness,
    pub(super) at: Vec<usize>,
    /// A part that repeats but does not contain the peak.
    pub(super) part: Option<Repeated>,
}

impl Cuts {
    pub(super) fn new(blocks: &Blocks, persistent: u64) -> Self {
        let operations = blocks.operations.len();
        let mut part = None;
        let shape = blocks.shape_tokens();
        for (likeness, covers, tokens) in
            [(Likeness::Equal, COVERED_BY_EQUAL, &blocks.equal_tokens()), (Likeness::Shape, COVERED_BY_SHAPE, &shape)]
        {
            let Some(period) = period::find(tokens) else { continue };
            let repeated = blocks.operations.get(period.start..period.start + period.length).unwrap_or(&[]);
            let frees = repeated.iter().filter(|(_, _, is_freed)| *is_freed).count();
            if frees == 0 || (period.covered as f64) < covers * operations as f64 {
                continue;
            }
            if let Some(found) = Self::periodic(blocks, likeness, &period).holding_peak(blocks, &shape, persistent) {
                return found;
            }
            let requests = period.length - frees;
            part = part.or(Some(Repeated { requests, times: period.covered / period.length }));
        }
        let marks = period::marks(&shape);
        let pairs = marks.iter().zip(marks.iter().skip(1));
        let mut at: Vec<usize> = pairs.map(|(from, to)| blocks.least_live(*from, *to) + 1).collect();
        at.dedup();
        let marked = Self { likeness: Likeness::Part, at, part: None };
        if let Some(found) = marked.holding_peak(blocks, &shape, persistent) {
            return found;
        }
        Self { likeness: Likeness::None, at: vec![0, blocks.live.len()], part }
    }

    /// Cuts all iterations at the same place, where the second iteration has the fewest live bytes. The place is not
    /// taken from the first iteration, since the first may allocate memory that all later ones keep.
    fn periodic(blocks: &Blocks, likeness: Likeness, period: &Period) -> Self {
        let Period { start, length, covered } = *period;
        let second = start + length;
        let cut = blocks.least_live(second, (second + length).min(start + covered));
        // Events between two operations are completions of frees. The cut lies after all of these completions.
        let operation = blocks.operations.partition_point(|(event, _, _)| *event <= cut);
        let shift = (operation - start) % length;
        let cuts = (start + shift..start + covered + 1).step_by(length);
        Self { likeness, at: cuts.map(|operation| blocks.event(operation)).collect(), part: None }
    }

    /// Returns the iterations if one of them contains the peak of live memory. The peak may also lie in an iteration
    /// directly before or after them, if this iteration has about the same length and shares most operations with its
    /// neighbour. Returns `None` otherwise.
    fn holding_peak(mut self, blocks: &Blocks, shape: &[u64], persistent: u64) -> Option<Self> {
        let most = blocks.live.iter().copied().max()?;
        let peak = blocks.live.iter().position(|live| *live == most)?;
        loop {
            let (&first, &last) = (self.at.first()?, self.at.last()?);
            if self.at.len() < 2 {
                return None;
            }
            if blocks.most(first..last) == most {
                return self.begins_low(blocks, most, persistent).then_some(self);
            }
            let (place, known) =
                if peak < first { (0, first..self.at[1]) } else { (self.at.len(), self.at[self.at.len() - 2]..last) };
            let cut = beside(blocks, shape, blocks.operations(known), peak < first)?;
            self.at.insert(place, cut);
            self.likeness = Likeness::Part;
        }
    }

    /// Returns whether little more than persistent memory is live at both ends of the iteration with the peak. This is
    /// not so if the iterations are a model's layers, whose memory adds up from one layer to the next.
    fn begins_low(&self, blocks: &Blocks, most: u64, persistent: u64) -> bool {
        let heaviest = self.heaviest(blocks);
        let live = |cut: &usize| cut.checked_sub(1).and_then(|event| blocks.live.get(event)).copied().unwrap_or(0);
        let low = persistent + most.saturating_sub(persistent) / BETWEEN_PART;
        self.at.iter().skip(heaviest).take(2).all(|cut| live(cut) <= low)
    }

    /// Returns the iteration with the most live bytes; of several, the last.
    pub(super) fn heaviest(&self, blocks: &Blocks) -> usize {
        let peak = |index: &usize| blocks.most(self.at[*index]..self.at[*index + 1]);
        (0..self.at.len().saturating_sub(1)).max_by_key(peak).unwrap_or(0)
    }

    /// Returns the events of `count` iterations from iteration `index` on; `None` if the trace has fewer.
    pub(super) fn events(&self, index: usize, count: usize) -> Option<Range<usize>> {
        Some(*self.at.get(index)?..*self.at.get(index + count)?)
    }

    /// Returns the number of requests between a request of iteration `index` and the same request `count` iterations
    /// before; `None` if there is no such iteration.
    pub(super) fn requests_back(&self, blocks: &Blocks, index: usize, count: usize) -> Option<usize> {
        let events = self.events(index.checked_sub(count)?, count)?;
        let made = |event: usize| blocks.made.partition_point(|made| *made < event);
        Some(made(events.end) - made(events.start))
    }

    /// Returns the number of requests whose size differs between iterations of one shape.
    pub(super) fn varying(&self, blocks: &Blocks) -> usize {
        if self.likeness != Likeness::Shape {
            return 0;
        }
        let first = |cut: &usize| blocks.made.partition_point(|made| made < cut);
        let firsts: Vec<usize> = self.at.iter().map(first).collect();
        let pairs = firsts.iter().zip(firsts.iter().skip(1));
        let iterations: Vec<&[u64]> = pairs.map(|(from, to)| &blocks.sizes[*from..*to]).collect();
        let Some((one, others)) = iterations.split_first() else { return 0 };
        let varies = |(index, size): &(usize, &u64)| others.iter().any(|other| other.get(*index) != Some(*size));
        one.iter().enumerate().filter(varies).count()
    }
}

/// Returns the far end of an iteration directly before or after a known one; `None` if the iteration there is not
/// similar.
fn beside(blocks: &Blocks, shape: &[u64], known: Range<usize>, is_before: bool) -> Option<usize> {
    let around = known.len() / AROUND_PART;
    let expected = if is_before { known.start.checked_sub(known.len())? } else { known.end + known.len() };
    if expected > shape.len() {
        return None;
    }
    let from = expected.saturating_sub(around);
    // Before the first operation no bytes are live.
    let cut = if from == 0 { 0 } else { blocks.least_live(from, (expected + around).min(shape.len())) + 1 };
    let operation = blocks.operations.partition_point(|(event, _, _)| *event < cut);
    let range = if is_before { operation..known.start } else { known.end..operation };
    let mut counts: HashMap<u64, usize> = HashMap::new();
    for token in shape.get(known.clone())? {
        *counts.entry(*token).or_default() += 1;
    }
    let mut same = 0;
    for token in shape.get(range.clone())? {
        if let Some(left) = counts.get_mut(token).filter(|left| **left > 0) {
            *left -= 1;
            same += 1;
        }
    }
    (f64::from(same) >= IN_COMMON * known.len().max(range.len()) as f64).then_some(cut)
}
