//! The period of a sequence, which is the length of the part that a program repeats.
//!
//! Owns: the search for a distance at which a sequence is equal to itself over the longest possible run and, if there
//! is no such distance, the search for pieces that recur at about even distances.

use rustc_hash::FxHashMap;

/// The shortest length of the pieces (runs of tokens) whose repetitions are searched, and the factor from one length to
/// the next. Long pieces are needed if a part repeats inside of the period, as the layers of a model do.
const SHORTEST_PIECE: usize = 16;
const LONGER: usize = 4;
/// The number of distances that are tried for each length of a piece, the most frequent first.
const TRIED: usize = 24;
/// The length of the pieces (runs of tokens) that mark iterations, the least number of marks, and the factor by which
/// the distance between two marks may differ from the mean distance.
const MARK: usize = 64;
const LEAST_MARKS: u32 = 3;
const UNEVEN: usize = 2;
/// The base of the rolling hash, an odd number.
const BASE: u64 = 0x9e37_79b9_7f4a_7c15;

/// A part of a sequence that repeats itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Period {
    /// The beginning of the first repetition.
    pub(super) start: usize,
    /// The length of each repetition.
    pub(super) length: usize,
    /// The length of all repetitions together; the last one may be cut off.
    pub(super) covered: usize,
}

/// Finds the part of a sequence that repeats itself at least once and covers, with its repetitions, as much as
/// possible. Of several such parts, returns the one with the shortest period.
pub(super) fn find(sequence: &[u64]) -> Option<Period> {
    let mut tried: Vec<usize> = Vec::new();
    let mut piece = SHORTEST_PIECE;
    while piece <= sequence.len() / 2 {
        tried.extend(frequent_distances(sequence, piece));
        piece *= LONGER;
    }
    // In a short sequence, all short distances are tried.
    tried.extend(1..=SHORTEST_PIECE.min(sequence.len() / 2));
    tried.sort_unstable();
    tried.dedup();
    let mut best: Option<Period> = None;
    for length in tried {
        let Some((start, run)) = longest_run(sequence, length) else { continue };
        let period = Period { start, length, covered: run + length };
        if run >= length && best.is_none_or(|best| period.covered > best.covered) {
            best = Some(period);
        }
    }
    best
}

/// Returns places that a program passes once in each iteration. Such places begin pieces of the sequence that recur at
/// about even distances over more than half of the sequence. Pieces that recur equally often form a group, which counts
/// if its pieces together are at least twice as long as one piece. The result is the places of the first piece of the
/// group that recurs most often.
pub(super) fn marks(sequence: &[u64]) -> Vec<usize> {
    #[derive(Clone, Copy)]
    struct Seen {
        count: u32,
        first: usize,
        last: usize,
        least: usize,
        most: usize,
    }
    let mut seen: FxHashMap<u64, Seen> = FxHashMap::default();
    for (index, hash) in pieces(sequence, MARK) {
        let new = Seen { count: 0, first: index, last: index, least: usize::MAX, most: 0 };
        let seen = seen.entry(hash).or_insert(new);
        let way = index - seen.last;
        if seen.count > 0 {
            (seen.least, seen.most) = (seen.least.min(way), seen.most.max(way));
        }
        (seen.count, seen.last) = (seen.count + 1, index);
    }
    let is_even = |seen: &Seen| {
        let span = seen.last - seen.first;
        let mean = span / (seen.count as usize - 1);
        2 * span > sequence.len() && seen.least >= mean / UNEVEN && seen.most <= mean * UNEVEN
    };
    seen.retain(|_, seen| seen.count >= LEAST_MARKS && is_even(seen));
    let mut kinds: FxHashMap<u32, (usize, usize)> = FxHashMap::default();
    for seen in seen.values() {
        let (count, first) = kinds.entry(seen.count).or_insert((0, usize::MAX));
        (*count, *first) = (*count + 1, (*first).min(seen.first));
    }
    kinds.retain(|_, (count, _)| *count >= MARK);
    let Some((_, (_, first))) = kinds.into_iter().max_by_key(|(times, _)| *times) else {
        return Vec::new();
    };
    let Some(mark) = pieces(sequence, MARK).find(|(index, _)| *index == first).map(|(_, hash)| hash) else {
        return Vec::new();
    };
    pieces(sequence, MARK).filter(|(_, hash)| *hash == mark).map(|(index, _)| index).collect()
}

/// Returns the hash of each piece (run of tokens) of this length, with the place where the piece begins.
pub(super) fn pieces(sequence: &[u64], length: usize) -> impl Iterator<Item = (usize, u64)> {
    let top = (1..length).fold(1_u64, |power, _| power.wrapping_mul(BASE));
    let mut hash = 0_u64;
    let hashes = sequence.iter().enumerate().map(move |(index, token)| {
        if let Some(left) = index.checked_sub(length).and_then(|left| sequence.get(left)) {
            hash = hash.wrapping_sub(left.wrapping_mul(top));
        }
        hash = hash.wrapping_mul(BASE).wrapping_add(*token);
        (index, hash)
    });
    hashes.skip(length - 1).map(move |(index, hash)| (index + 1 - length, hash))
}

/// Returns the distances at which pieces (runs of tokens) of this length recur, the most frequent first.
fn frequent_distances(sequence: &[u64], piece: usize) -> Vec<usize> {
    let mut last = FxHashMap::default();
    let mut counts: FxHashMap<usize, usize> = FxHashMap::default();
    for (index, hash) in pieces(sequence, piece) {
        if let Some(before) = last.insert(hash, index) {
            *counts.entry(index - before).or_default() += 1;
        }
    }
    let mut distances: Vec<_> = counts.into_iter().collect();
    distances.sort_unstable_by_key(|(distance, count)| (std::cmp::Reverse(*count), *distance));
    distances.into_iter().take(TRIED).map(|(distance, _)| distance).collect()
}

/// Returns the beginning and the length of the longest run in which each token is equal to the token that is `distance`
/// places later; `None` if there is no such run.
fn longest_run(sequence: &[u64], distance: usize) -> Option<(usize, usize)> {
    let (mut best, mut start) = (None::<(usize, usize)>, 0);
    let behind = sequence.get(distance..)?;
    for (index, (one, other)) in sequence.iter().zip(behind).enumerate() {
        if one != other {
            start = index + 1;
        } else if best.is_none_or(|(_, length)| index + 1 - start > length) {
            best = Some((start, index + 1 - start));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_repetition_with_the_shortest_period_is_found() {
        assert_eq!(find(&[]), None);
        assert_eq!(find(&[1, 2, 3, 4]), None);
        assert_eq!(find(&[7, 1, 2, 1, 2, 1, 9]), Some(Period { start: 1, length: 2, covered: 5 }));
        // The sequence has a beginning of its own, then four steps, each with a head, ten layers of three tokens, and a
        // tail.
        let step: Vec<u64> = [100].into_iter().chain((0..30).map(|token| token % 3)).chain([101, 102]).collect();
        let sequence: Vec<u64> = (1000..1050).chain(step.repeat(4)).chain([5]).collect();
        assert_eq!(find(&sequence), Some(Period { start: 50, length: 33, covered: 132 }));
    }

    #[test]
    fn marks_stand_once_in_each_part_that_is_alike() {
        let head: Vec<u64> = (500..900).collect();
        // Each step has a different number of layers.
        let step = |layers: usize| head.iter().copied().chain((0..90).collect::<Vec<u64>>().repeat(layers));
        let sequence: Vec<u64> = [4, 6, 5, 7, 4].into_iter().flat_map(step).collect();
        let lengths = [760, 940, 850, 1030];
        let expected: Vec<usize> = lengths
            .iter()
            .scan(0, |at, length| {
                *at += length;
                Some(*at)
            })
            .collect();
        assert_eq!(marks(&sequence), [&[0], &expected[..]].concat());
        assert!(marks(&(0..5000).collect::<Vec<_>>()).is_empty());
    }

    #[test]
    fn layers_inside_of_a_long_period_do_not_hide_it() {
        let layer: Vec<u64> = (0..50).collect();
        let step: Vec<u64> = [1000, 1001].into_iter().chain(layer.repeat(200)).chain([1002]).collect();
        let found = find(&step.repeat(3)).unwrap();
        assert_eq!((found.start, found.length, found.covered), (0, 10_003, 30_009));
    }
}
