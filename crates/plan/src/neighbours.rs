//! The pairs of buffers that need memory at the same time.
//!
//! Owns: the search for these pairs, and the list of all pairs if there are few enough and a method uses them
//! repeatedly. A job of 100,000 requests has some hundred million pairs, which are not listed.

use crate::problem::Problem;
use crate::search::Search;
use crate::sections::Sections;
use std::collections::HashMap;
use std::sync::OnceLock;

/// The most pairs that are listed. The list then takes 128 MiB.
const LISTED: u64 = 1 << 24;
/// The number of buffers between two checks of the clock.
const BETWEEN_LOOKS: usize = 64;

/// The buffers of a problem by number, in the form in which the methods use them.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) sections: Sections,
    pub(crate) sizes: Vec<u64>,
    pub(crate) alignments: Vec<u64>,
    pub(crate) fixed: Vec<Option<u64>>,
    /// The lifetime of each buffer, in the input's unit of time.
    pub(crate) widths: Vec<u64>,
    /// The peak load. No plan needs fewer bytes.
    pub(crate) bound: u64,
    /// For each buffer, the last identical buffer before it (same size, alignment and neighbours). The two buffers can
    /// change places in every plan.
    pub(crate) twins: Vec<Option<u32>>,
    /// Whether no buffer has gaps.
    pub(crate) is_solid: bool,
    /// Whether some gap has a window: bytes of the buffer used during the gap.
    pub(crate) has_windows: bool,
    /// The buffers in the order in which they begin.
    by_first: Vec<u32>,
    /// For each section of time, the index in `by_first` of the first buffer that begins in the section or later.
    begins: Vec<u32>,
    /// For each section of time, the number of buffers that end before or at its begin, and are not live in it.
    ended: Vec<u32>,
    /// The most buffers that are live in one section of time if gaps are ignored.
    pub(crate) most_live: u32,
    /// A tree over `by_first`, with the latest end below each node.
    latest: Vec<u32>,
    leaves: usize,
    /// The number of pairs whose hulls (from a buffer's first to its last section of time) meet.
    pairs: u64,
    /// The list of pairs, once a method has asked for it; `None` if the search ended before the list was made.
    listed: OnceLock<Option<Listed>>,
}

/// The pairs, each of them listed for both of its buffers.
#[derive(Debug)]
struct Listed {
    starts: Vec<u32>,
    others: Vec<u32>,
    /// For each listed pair, the least distance between the two offsets if the buffer in `others` lies above its
    /// partner. The list is empty if every distance is the lower buffer's size.
    distances: Vec<i64>,
}

impl Instance {
    pub(crate) fn new(problem: &Problem) -> Self {
        let buffers = problem.buffers();
        let sections = Sections::new(problem);
        let mut by_first: Vec<u32> = (0..buffers.len() as u32).collect();
        by_first.sort_by_key(|buffer| sections.hull(*buffer).0);
        let mut begins = Vec::with_capacity(sections.loads.len() + 1);
        let mut index = 0;
        for section in 0..=sections.loads.len() as u32 {
            while by_first.get(index).is_some_and(|buffer| sections.hull(*buffer).0 < section) {
                index += 1;
            }
            begins.push(index as u32);
        }
        let mut ended = vec![0; sections.loads.len() + 1];
        by_first.iter().for_each(|buffer| ended[sections.hull(*buffer).1 as usize] += 1);
        let mut count = 0;
        for of_section in &mut ended {
            count += *of_section;
            *of_section = count;
        }
        let live = begins.iter().skip(1).zip(&ended).map(|(begun, ended)| begun - ended);
        let most_live = live.max().unwrap_or(0);
        let leaves = by_first.len().next_power_of_two();
        let mut latest = vec![0; 2 * leaves];
        for (index, buffer) in by_first.iter().enumerate() {
            latest[leaves + index] = sections.hull(*buffer).1;
        }
        for node in (1..leaves).rev() {
            latest[node] = latest[2 * node].max(latest[2 * node + 1]);
        }
        let mut out = Self {
            bound: sections.bound(problem),
            sizes: buffers.iter().map(|buffer| buffer.size).collect(),
            alignments: buffers.iter().map(|buffer| buffer.alignment).collect(),
            fixed: buffers.iter().map(|buffer| buffer.fixed).collect(),
            widths: buffers.iter().map(|buffer| buffer.upper.abs_diff(buffer.lower)).collect(),
            is_solid: buffers.iter().all(|buffer| buffer.gaps.is_empty()),
            has_windows: buffers.iter().any(|buffer| buffer.gaps.iter().any(|gap| gap.window.is_some())),
            twins: twins(problem, &sections),
            sections,
            by_first,
            begins,
            ended,
            most_live,
            latest,
            leaves,
            pairs: 0,
            listed: OnceLock::new(),
        };
        out.pairs = out.all().map(|buffer| out.meeting(buffer)).sum::<u64>() / 2;
        out
    }

    pub(crate) fn len(&self) -> usize {
        self.sizes.len()
    }

    /// Returns a divisor of the peak of every plan whose buffers are pushed down as far as possible.
    pub(crate) fn step(&self) -> u64 {
        if self.has_windows {
            return 1;
        }
        let alignments = self.alignments.iter().copied().filter(|alignment| *alignment > 1);
        let numbers = self.sizes.iter().copied().chain(alignments).chain(self.fixed.iter().copied().flatten());
        numbers.fold(0, common_divisor).max(1)
    }

    /// Returns all buffers.
    pub(crate) fn all(&self) -> std::ops::Range<u32> {
        0..self.len() as u32
    }

    /// Returns whether there are few enough pairs to list them.
    pub(crate) fn can_be_listed(&self) -> bool {
        self.pairs <= LISTED
    }

    /// Lists all pairs if there are few enough, for methods that use the pairs repeatedly. Returns whether the pairs
    /// are listed.
    pub(crate) fn list(&self, search: &Search) -> bool {
        self.can_be_listed() && self.listed.get_or_init(|| Listed::new(self, search)).is_some()
    }

    fn listed(&self) -> Option<&Listed> {
        self.listed.get()?.as_ref()
    }

    /// Returns the number of other buffers whose hulls (first to last section of time) meet this buffer's hull.
    fn meeting(&self, buffer: u32) -> u64 {
        let (first, end) = self.sections.hull(buffer);
        u64::from(self.begins[end as usize] - self.ended[first as usize]) - 1
    }

    /// Returns, for each buffer, the number of other buffers that need memory at the same time. Returns `None` if the
    /// search ends first.
    pub(crate) fn degrees(&self, search: &Search) -> Option<Vec<u64>> {
        let mut degrees: Vec<u64> = self.all().map(|buffer| self.meeting(buffer)).collect();
        // Buffers with gaps may have no moment in common although their hulls (first to last section of time) meet.
        let with_gaps = self.all().filter(|buffer| self.sections.of(*buffer).len() > 1);
        for (index, buffer) in with_gaps.enumerate() {
            if index % BETWEEN_LOOKS == 0 && search.is_over() {
                return None;
            }
            self.search(buffer, |other| {
                if self.sections.distance(buffer, other).is_none() {
                    degrees[buffer as usize] -= 1;
                    // If the other buffer has gaps too, its own turn of the loop subtracts this pair from its degree.
                    degrees[other as usize] -= u64::from(self.sections.of(other).len() == 1);
                }
            });
        }
        Some(degrees)
    }

    /// Calls `found` with every other buffer that needs memory at the same time, and with two distances: how far the
    /// other buffer's offset must be above this buffer's offset if the other buffer lies above, and how far below if it
    /// lies below.
    pub(crate) fn for_each(&self, buffer: u32, mut found: impl FnMut(u32, i64, i64)) {
        let size = self.sizes[buffer as usize] as i64;
        if let Some(listed) = self.listed()
            && self.is_solid
        {
            for &other in listed.others(buffer) {
                found(other, size, self.sizes[other as usize] as i64);
            }
            return;
        }
        self.search(buffer, |other| {
            if self.is_solid {
                found(other, size, self.sizes[other as usize] as i64);
            } else if let (Some(above), Some(below)) =
                (self.sections.distance(buffer, other), self.sections.distance(other, buffer))
            {
                found(other, above, below);
            }
        });
    }

    /// Returns the buffers that need memory at the same time as this buffer, each with the least distance between the
    /// offsets if the other buffer lies above this buffer. Returns no buffers if the pairs are not listed.
    pub(crate) fn above(&self, buffer: u32) -> impl Iterator<Item = (u32, i64)> {
        let (others, distances) = self.listed().map_or((&[][..], &[][..]), |listed| {
            let range = listed.range(buffer);
            (&listed.others[range.clone()], listed.distances.get(range).unwrap_or(&[]))
        });
        let size = self.sizes[buffer as usize] as i64;
        others.iter().enumerate().map(move |(index, other)| (*other, distances.get(index).copied().unwrap_or(size)))
    }

    /// Calls `found` with every other buffer whose hull (first to last section of time) meets this buffer's hull.
    fn search(&self, buffer: u32, mut found: impl FnMut(u32)) {
        let (first, end) = self.sections.hull(buffer);
        // First the buffers that begin in one of this buffer's sections.
        let range = self.begins[first as usize] as usize..self.begins[end as usize] as usize;
        self.by_first[range].iter().filter(|other| **other != buffer).for_each(|other| found(*other));
        // Then the buffers that begin before this buffer and end after its begin.
        let before = self.begins[first as usize] as usize;
        let mut stack = [0_usize; 2 * usize::BITS as usize];
        let mut depth = usize::from(before > 0);
        stack[0] = 1;
        while depth > 0 {
            depth -= 1;
            let node = stack[depth];
            if self.latest[node] <= first {
                continue;
            }
            if node >= self.leaves {
                found(self.by_first[node - self.leaves]);
                continue;
            }
            // The leaves of the right child begin in the middle of the node's leaves.
            let level = self.leaves.ilog2() - node.ilog2();
            let middle = ((2 * node + 1) << (level - 1)) - self.leaves;
            stack[depth] = 2 * node;
            depth += 1;
            if middle < before {
                stack[depth] = 2 * node + 1;
                depth += 1;
            }
        }
    }
}

/// Returns, for each buffer, the last buffer before it with the same size, alignment and neighbours; `None` for buffers
/// with fixed offsets.
fn twins(problem: &Problem, sections: &Sections) -> Vec<Option<u32>> {
    let mut last = HashMap::new();
    let own = problem.buffers().iter().zip(0..).map(|(buffer, number)| {
        let key = (buffer.size, buffer.alignment, sections.of(number));
        if buffer.fixed.is_some() { None } else { last.insert(key, number) }
    });
    own.collect()
}

/// Returns the greatest common divisor.
fn common_divisor(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Listed {
    fn new(instance: &Instance, search: &Search) -> Option<Self> {
        let (mut starts, mut others, mut distances) = (vec![0], Vec::new(), Vec::new());
        for buffer in instance.all() {
            if (buffer as usize).is_multiple_of(BETWEEN_LOOKS) && search.is_over() {
                return None;
            }
            instance.search(buffer, |other| {
                if instance.is_solid {
                    others.push(other);
                } else if let Some(distance) = instance.sections.distance(buffer, other) {
                    others.push(other);
                    distances.push(distance);
                }
            });
            starts.push(others.len() as u32);
        }
        Some(Self { starts, others, distances })
    }

    fn range(&self, buffer: u32) -> std::ops::Range<usize> {
        self.starts[buffer as usize] as usize..self.starts[buffer as usize + 1] as usize
    }

    fn others(&self, buffer: u32) -> &[u32] {
        &self.others[self.range(buffer)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Buffer, Gap};

    #[test]
    fn twins_are_alike_in_all() {
        let of = |lower, upper, size| Buffer::new(format!("{lower}-{size}"), lower, upper, size);
        let fixed = Buffer { fixed: Some(8), ..of(0, 4, 3) };
        let aligned = Buffer { alignment: 2, ..of(0, 4, 3) };
        let buffers =
            vec![of(0, 4, 3), of(0, 4, 2), of(0, 4, 3), fixed, aligned, of(1, 4, 3), of(0, 3, 3), of(0, 4, 3)];
        let named = buffers.into_iter().enumerate().map(|(id, buffer)| Buffer { id: id.to_string(), ..buffer });
        let instance = Instance::new(&Problem::new("p", named.collect()).unwrap());
        // All buffers are live in the only section of time, so their begins and ends make no difference.
        assert_eq!(instance.twins, [None, None, Some(0), None, None, Some(2), Some(5), Some(6)]);
    }

    #[test]
    fn neighbours_are_those_that_are_live_together() {
        let mut seed = 7_u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for count in [1, 2, 5, 33, 100] {
            let buffers: Vec<_> = (0..count)
                .map(|id| {
                    let lower = next(50) as i64;
                    Buffer::new(id.to_string(), lower, lower + 1 + next(20) as i64, 1 + next(9))
                })
                .collect();
            let problem = Problem::new("p", buffers.clone()).unwrap();
            let instance = Instance::new(&problem);
            let search = Search::new(0, None, None);
            let degrees = instance.degrees(&search).unwrap();
            for is_listed in [false, true] {
                assert!(!is_listed || instance.list(&search));
                for (index, one) in buffers.iter().enumerate() {
                    let live = |other: &Buffer| other.lower < one.upper && one.lower < other.upper;
                    let with = buffers.iter().enumerate().filter(|(other, buffer)| *other != index && live(buffer));
                    let expected: Vec<_> = with.map(|(other, buffer)| (other as u32, one.size, buffer.size)).collect();
                    let mut found = Vec::new();
                    instance.for_each(index as u32, |other, above, below| {
                        found.push((other, above as u64, below as u64));
                    });
                    found.sort_unstable();
                    assert_eq!(degrees[index], expected.len() as u64);
                    assert_eq!(found, expected);
                }
            }
        }
    }

    #[test]
    fn hulls_that_meet_are_not_neighbours_where_one_has_a_gap() {
        let gaps = vec![Gap { lower: 2, upper: 6, window: None }];
        let buffers = vec![
            Buffer { gaps: gaps.clone(), ..Buffer::new("a", 0, 8, 1) },
            Buffer::new("b", 2, 6, 1),
            Buffer::new("c", 1, 4, 1),
            Buffer { gaps, ..Buffer::new("d", 0, 8, 1) },
        ];
        let instance = Instance::new(&Problem::new("p", buffers).unwrap());
        assert_eq!(instance.degrees(&Search::new(0, None, None)), Some(vec![2, 1, 3, 2]));
    }

    #[test]
    fn nothing_is_listed_once_the_search_is_over() {
        let instance = Instance::new(&Problem::new("p", vec![Buffer::new("a", 0, 8, 1)]).unwrap());
        let search = Search::new(0, None, None);
        search.end();
        assert!(instance.can_be_listed() && !instance.list(&search));
    }
}
