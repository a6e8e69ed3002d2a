//! Steps of several kinds, such as training and evaluation.
//!
//! Owns: the search for further copies of the found iterations, and for parts that repeat in the rest of the trace.

use super::blocks::Blocks;
use super::cuts::{Cuts, Likeness};
use super::period::{self, Period};
use std::ops::Range;

/// The most stretches outside of the found iterations that are searched for other kinds of steps. The longest stretches
/// are searched first.
const TRIED: usize = 6;
/// A step begins where persistent memory and at most this part (1/n) of the step's own memory is live.
const BEGINNING_PART: u64 = 8;
/// A kind whose steps have less than this part (1/n) of an iteration's operations is a part of a step, not a kind.
const SHORT_PART: usize = 8;

/// Steps of one kind, which have the same operations. Corresponding blocks differ in size only if corresponding blocks
/// of the iterations do (`Likeness::Shape`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The number of steps of the kind in the trace.
    pub times: usize,
    /// The number of requests in each step.
    pub requests: usize,
    /// The most live bytes in any of the steps, including persistent memory.
    pub live: u64,
}

/// Returns the kinds of steps, the kind of the iterations first; no kinds if the iterations do not all have the same
/// operations.
pub(super) fn of(blocks: &Blocks, cuts: &Cuts) -> Vec<Kind> {
    let tokens = match cuts.likeness {
        Likeness::Equal => blocks.equal_tokens(),
        Likeness::Shape => blocks.shape_tokens(),
        Likeness::Part | Likeness::None => return Vec::new(),
    };
    let (Some(&from), Some(&to)) = (cuts.at.first(), cuts.at.get(1)) else { return Vec::new() };
    let low = before(blocks, blocks.operations(from..to).start);
    let most = blocks.live.iter().copied().max().unwrap_or(0);
    let begins = |operation: usize| before(blocks, operation) <= low + (most - low) / BEGINNING_PART;
    let kind = |step: &Range<usize>, places: &[usize]| {
        let live = |place: &usize| blocks.most(blocks.event(*place)..blocks.event(place + step.len()));
        let frees = blocks.operations[step.clone()].iter().filter(|(_, _, is_freed)| *is_freed).count();
        let live = places.iter().map(live).max().unwrap_or(0);
        Kind { times: places.len(), requests: step.len() - frees, live }
    };
    let step = blocks.operations(from..to);
    let whole = 0..tokens.len();
    let whole = std::slice::from_ref(&whole);
    let found = places(&tokens, &step, whole);
    let mut out = vec![kind(&step, &found)];
    let mut rest = without(whole, &found, step.len());
    for _ in 0..TRIED {
        let Some(longest) = rest.iter().max_by_key(|range| range.len()).cloned() else { break };
        let other = period::find(&tokens[longest.clone()]).filter(|other| other.length >= step.len() / SHORT_PART);
        let other = other.map(|Period { start, length, .. }| longest.start + start..longest.start + start + length);
        let there = other.as_ref().map(|other| places(&tokens, other, &rest)).unwrap_or_default();
        match other {
            Some(other) if there.iter().all(|place| begins(*place) && begins(place + other.len())) => {
                out.push(kind(&other, &there));
                rest = without(&rest, &there, other.len());
            }
            _ => rest.retain(|range| *range != longest),
        }
    }
    out
}

/// Returns the bytes live before an operation.
fn before(blocks: &Blocks, operation: usize) -> u64 {
    blocks.event(operation).checked_sub(1).and_then(|event| blocks.live.get(event)).copied().unwrap_or(0)
}

/// Returns the places in the ranges `rest` at which the step's tokens (one for each operation) recur, without overlaps.
fn places(tokens: &[u64], step: &Range<usize>, rest: &[Range<usize>]) -> Vec<usize> {
    let of = &tokens[step.clone()];
    let mut out = Vec::new();
    for range in rest {
        let inside = &tokens[range.clone()];
        let Some((_, hash)) = period::pieces(of, of.len()).next() else { continue };
        let mut free = range.start;
        for (index, found) in period::pieces(inside, of.len()) {
            let place = range.start + index;
            if found == hash && place >= free && tokens[place..place + of.len()] == *of {
                out.push(place);
                free = place + of.len();
            }
        }
    }
    out
}

/// Returns the ranges of operations `rest` without the steps of this length that begin at `places`.
fn without(rest: &[Range<usize>], places: &[usize], length: usize) -> Vec<Range<usize>> {
    let mut out = Vec::new();
    for range in rest {
        let mut from = range.start;
        for place in places.iter().filter(|place| range.contains(*place)) {
            out.push(from..*place);
            from = place + length;
        }
        out.push(from..range.end);
    }
    out.retain(|range| !range.is_empty());
    out
}
