//! Where iterations begin, and which part that repeats is taken for one.
//!
//! Owns: the rule that iterations hold the peak of live memory. A model's layers and the tensors of an optimizer repeat too,
//! and more often than steps do; but the peak is in none of them, or what they keep adds up.

use super::blocks::Blocks;
use super::period::{self, Period};
use std::collections::HashMap;
use std::ops::Range;

/// The part of a trace that equal iterations cover at least, and those of one shape. What covers less is a part of
/// something that repeats, such as a model's layers.
const COVERED_BY_EQUAL: f64 = 0.5;
const COVERED_BY_SHAPE: f64 = 1.0 / 3.0;
/// The part of its operations that an iteration beside the others has in common with them.
const IN_COMMON: f64 = 0.75;
/// The part of an iteration's length around its expected end in which least is live where the next one begins.
const AROUND_PART: usize = 8;

/// Around the iteration with the peak no more is live than persistent memory and this part of the rest.
const BETWEEN_PART: u64 = 4;

/// In which way the iterations of a trace are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Likeness {
    /// The same operations with the same sizes.
    Equal,
    /// The same operations on the same blocks, some with other sizes.
    Shape,
    /// Only a part of the operations is the same in each.
    Part,
    /// No part that repeats holds the peak of live memory: the whole trace is one iteration.
    None,
}

/// A part of a trace that repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeated {
    /// The number of requests in the part.
    pub requests: usize,
    /// How often the part is there in a row.
    pub times: usize,
}

/// Where iterations begin, and the last one ends: events.
pub(super) struct Cuts {
    pub(super) likeness: Likeness,
    pub(super) at: Vec<usize>,
    /// A part that repeats without the peak.
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

    /// Every iteration is cut where in the second one least is live, if there is one: the first may be the one that makes
    /// what is kept.
    fn periodic(blocks: &Blocks, likeness: Likeness, period: &Period) -> Self {
        let Period { start, length, covered } = *period;
        let second = start + length;
        let cut = blocks.least_live(second, (second + length).min(start + covered));
        // Events between two operations are those of completed frees; the cut stands behind all of them.
        let operation = blocks.operations.partition_point(|(event, _, _)| *event <= cut);
        let shift = (operation - start) % length;
        let cuts = (start + shift..start + covered + 1).step_by(length);
        Self { likeness, at: cuts.map(|operation| blocks.event(operation)).collect(), part: None }
    }

    /// The iterations, if the peak of live memory lies in one of them, or in one beside them: of about the same length, with
    /// mostly the same operations as its neighbour.
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

    /// Whether little more than persistent memory is live at both ends of the iteration with the peak: what layers keep adds
    /// up from one to the next.
    fn begins_low(&self, blocks: &Blocks, most: u64, persistent: u64) -> bool {
        let heaviest = self.heaviest(blocks);
        let live = |cut: &usize| cut.checked_sub(1).and_then(|event| blocks.live.get(event)).copied().unwrap_or(0);
        let low = persistent + most.saturating_sub(persistent) / BETWEEN_PART;
        self.at.iter().skip(heaviest).take(2).all(|cut| live(cut) <= low)
    }

    /// The iteration in which most is live, the last of several.
    pub(super) fn heaviest(&self, blocks: &Blocks) -> usize {
        let peak = |index: &usize| blocks.most(self.at[*index]..self.at[*index + 1]);
        (0..self.at.len().saturating_sub(1)).max_by_key(peak).unwrap_or(0)
    }

    /// The events of so many iterations from this one on, if there are so many.
    pub(super) fn events(&self, index: usize, count: usize) -> Option<Range<usize>> {
        Some(*self.at.get(index)?..*self.at.get(index + count)?)
    }

    /// How many requests lie between one of these iterations and the same one so many iterations before, if there is that one.
    pub(super) fn requests_back(&self, blocks: &Blocks, index: usize, count: usize) -> Option<usize> {
        let events = self.events(index.checked_sub(count)?, count)?;
        let made = |event: usize| blocks.made.partition_point(|made| *made < event);
        Some(made(events.end) - made(events.start))
    }

    /// The requests whose size is not the same in all iterations of one shape.
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

/// The other end of an iteration that lies before another, or behind it; `None` where there is none that is alike.
fn beside(blocks: &Blocks, shape: &[u64], known: Range<usize>, is_before: bool) -> Option<usize> {
    let around = known.len() / AROUND_PART;
    let expected = if is_before { known.start.checked_sub(known.len())? } else { known.end + known.len() };
    if expected > shape.len() {
        return None;
    }
    let from = expected.saturating_sub(around);
    // Before the first operation nothing is live.
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
