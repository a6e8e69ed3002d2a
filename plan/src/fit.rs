//! Placing buffers one after the other, in a given order.
//!
//! Owns: where a buffer fits between those that are placed already. First fit takes the lowest place, best fit the
//! tightest.

use crate::check::Plan;
use crate::neighbours::Instance;
use crate::search::Search;

/// Buffers between two looks at the clock.
const BETWEEN_LOOKS: usize = 64;
/// The offset of a buffer that is not placed.
pub(crate) const NOWHERE: u64 = u64::MAX;

/// Which place is taken of those where a buffer fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The lowest.
    First,
    /// The smallest hole; where none fits, on top.
    Best,
}

/// Buffers with places, and room for the work.
#[derive(Debug)]
pub(crate) struct Placed<'a> {
    instance: &'a Instance,
    pub(crate) offsets: Vec<u64>,
    /// What is taken, as seen by the buffer to be placed: from and to.
    taken: Vec<(i64, i64)>,
}

impl<'a> Placed<'a> {
    /// Nothing is placed but what has an offset in any case.
    pub(crate) fn new(instance: &'a Instance) -> Self {
        let offsets = instance.fixed.iter().map(|fixed| fixed.unwrap_or(NOWHERE)).collect();
        Self { instance, offsets, taken: Vec::new() }
    }

    /// Takes a buffer out again.
    pub(crate) fn remove(&mut self, buffer: u32) {
        self.offsets[buffer as usize] = self.instance.fixed[buffer as usize].unwrap_or(NOWHERE);
    }

    /// Places a buffer, and returns its end.
    pub(crate) fn place(&mut self, buffer: u32, fit: Fit) -> u64 {
        let size = self.instance.sizes[buffer as usize];
        let offset = match self.instance.fixed[buffer as usize] {
            Some(fixed) => fixed,
            None => self.fit(buffer, fit),
        };
        self.offsets[buffer as usize] = offset;
        offset + size
    }

    fn fit(&mut self, buffer: u32, fit: Fit) -> u64 {
        let (size, alignment) =
            (self.instance.sizes[buffer as usize] as i64, self.instance.alignments[buffer as usize] as i64);
        let Self { instance, offsets, taken } = self;
        taken.clear();
        instance.for_each(buffer, |other, above, below| {
            let offset = offsets[other as usize];
            if offset != NOWHERE {
                // Gaps may let the two come nearer than their sizes.
                let (from, to) = (offset as i64 - above + size, offset as i64 + below);
                if from - size < to {
                    taken.push((from, to));
                }
            }
        });
        taken.sort_unstable();
        let (mut low, mut best) = (0_i64, None::<(i64, i64)>);
        for &(from, to) in taken.iter() {
            if low + size <= from {
                if fit == Fit::First {
                    return low as u64;
                }
                if best.is_none_or(|(room, _)| from - low < room) {
                    best = Some((from - low, low));
                }
            }
            if to > low {
                // The alignment is 1 in most problems.
                low = if alignment == 1 { to } else { (to + alignment - 1) / alignment * alignment };
            }
        }
        best.map_or(low, |(_, low)| low) as u64
    }
}

/// Places all buffers in this order. `None` where the search is over before.
pub(crate) fn place_all(
    instance: &Instance,
    order: impl IntoIterator<Item = u32>,
    fit: Fit,
    search: &Search,
) -> Option<Plan> {
    let mut placed = Placed::new(instance);
    let mut peak = 0;
    for (index, buffer) in order.into_iter().enumerate() {
        if index % BETWEEN_LOOKS == 0 && search.is_over() {
            return None;
        }
        peak = peak.max(placed.place(buffer, fit));
    }
    Some(Plan { offsets: placed.offsets, peak })
}

/// First fit in the order of the program: what an allocator that takes the lowest place comes to.
pub(crate) fn first_fit(instance: &Instance, search: &Search) -> Option<Plan> {
    let mut order: Vec<u32> = instance.all().collect();
    order.sort_by_key(|buffer| instance.sections.hull(*buffer).0);
    place_all(instance, order, Fit::First, search)
}

/// Best fit, the largest buffers first: `GlobalDecreasingSizeBestFitHeap` in XLA's `heap_simulator.cc`. Of equal sizes the
/// one that lives longer comes first.
pub(crate) fn decreasing_size(instance: &Instance, search: &Search) -> Option<Plan> {
    place_all(instance, by_size(instance), Fit::Best, search)
}

/// What buffers are ordered by, the largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    Size,
    /// The size times the number of neighbours.
    Load,
    /// How long it is live.
    Width,
    Neighbours,
    /// The size times how long it is live.
    Area,
}

impl Figure {
    /// Those of `omni_place` in omnimalloc's `first_fit.cpp` (Apache-2.0).
    const ALL: [Self; 5] = [Self::Size, Self::Load, Self::Width, Self::Neighbours, Self::Area];

    fn of(self, instance: &Instance, buffer: u32, neighbours: &[u128]) -> [u128; 2] {
        let size = u128::from(instance.sizes[buffer as usize]);
        let width = u128::from(instance.widths[buffer as usize]);
        let neighbours = neighbours[buffer as usize];
        match self {
            Self::Size => [size, 0],
            Self::Load => [size * neighbours, size],
            Self::Width => [width, 0],
            Self::Neighbours => [neighbours, size],
            Self::Area => [size * width, 0],
        }
    }
}

/// First fit in several orders, one after the other: which one is good depends on the problem. Of equals the first in the input
/// comes first.
pub(crate) fn in_orders(instance: &Instance, search: &Search) {
    let mut neighbours = vec![0_u128; instance.len()];
    for figure in Figure::ALL {
        // The first one does not need them, and may be enough.
        if figure == Figure::Load {
            for buffer in instance.all() {
                if (buffer as usize).is_multiple_of(BETWEEN_LOOKS) && search.is_over() {
                    return;
                }
                let count = &mut neighbours[buffer as usize];
                instance.for_each(buffer, |_, _, _| *count += 1);
            }
        }
        let mut order: Vec<u32> = instance.all().collect();
        order.sort_by_key(|buffer| std::cmp::Reverse(figure.of(instance, *buffer, &neighbours)));
        match place_all(instance, order, Fit::First, search) {
            Some(plan) => search.offer(plan),
            None => return,
        }
    }
}

/// The buffers, the largest first.
pub(crate) fn by_size(instance: &Instance) -> Vec<u32> {
    let key = |buffer: &u32| (instance.sizes[*buffer as usize], instance.widths[*buffer as usize]);
    let mut order: Vec<u32> = instance.all().collect();
    order.sort_by_key(|buffer| std::cmp::Reverse(key(buffer)));
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Buffer, Gap, Problem};

    fn plan(buffers: Vec<Buffer>, fit: Fit) -> Plan {
        let problem = Problem::new("p", buffers).unwrap();
        let instance = Instance::new(&problem);
        let search = Search::new(instance.bound, None, None);
        let plan = place_all(&instance, instance.all(), fit, &search).unwrap();
        plan.check(&problem).unwrap();
        plan
    }

    /// The largest first leaves a hole in both. By size times neighbours the one is packed, by size times life the other.
    #[test]
    fn one_order_finds_what_another_does_not() {
        let first: &[_] = &[(3, 7, 2), (2, 5, 2), (2, 3, 3), (5, 6, 4)];
        let second: &[_] = &[(1, 5, 2), (1, 6, 3), (4, 6, 2), (2, 4, 3), (5, 7, 3)];
        for (buffers, by_size, least) in [(first, 8, 6), (second, 10, 8)] {
            let of = |(id, &(lower, upper, size)): (usize, &(i64, i64, u64))| {
                Buffer::new(id.to_string(), lower, upper, size)
            };
            let problem = Problem::new("p", buffers.iter().enumerate().map(of).collect()).unwrap();
            let instance = Instance::new(&problem);
            let search = Search::new(instance.bound, None, None);
            in_orders(&instance, &search);
            let best = search.best().unwrap();
            best.check(&problem).unwrap();
            assert_eq!((best.peak, instance.bound), (least, least));
            let mut order: Vec<u32> = instance.all().collect();
            order.sort_by_key(|buffer| std::cmp::Reverse(instance.sizes[*buffer as usize]));
            let alone = place_all(&instance, order, Fit::First, &Search::new(0, None, None)).unwrap();
            assert_eq!(alone.peak, by_size);
        }
    }

    /// Holes of 6 and 4 bytes below a roof.
    fn holes() -> Vec<Buffer> {
        let of = |id: &str, lower, upper, size| Buffer::new(id, lower, upper, size);
        vec![of("a", 0, 1, 6), of("b", 0, 9, 1), of("c", 0, 1, 4), of("d", 0, 9, 1), of("new", 2, 9, 4)]
    }

    #[test]
    fn first_fit_is_low_and_best_fit_is_tight() {
        assert_eq!(plan(holes(), Fit::First).offsets, [0, 6, 7, 11, 0]);
        assert_eq!(plan(holes(), Fit::Best).offsets, [0, 6, 7, 11, 7]);
    }

    #[test]
    fn alignment_and_fixed_offsets_are_kept() {
        let mut buffers = holes();
        buffers[4].alignment = 4;
        // At 8 the hole has 3 bytes left.
        assert_eq!(plan(buffers.clone(), Fit::Best).offsets[4], 0);
        buffers[4].alignment = 3;
        buffers[0].fixed = Some(3);
        assert_eq!(plan(buffers, Fit::First).offsets, [3, 0, 9, 1, 3]);
    }

    #[test]
    fn a_buffer_lies_in_the_gap_of_another() {
        let gaps = vec![Gap { lower: 2, upper: 6, window: Some((0, 2)) }];
        let buffers = vec![Buffer { gaps, ..Buffer::new("a", 0, 8, 10) }, Buffer::new("b", 3, 5, 8)];
        assert_eq!(plan(buffers, Fit::First).offsets, [0, 2]);
    }

    #[test]
    fn an_end_is_heeded() {
        let problem = Problem::new("p", holes()).unwrap();
        let instance = Instance::new(&problem);
        let search = Search::new(instance.bound, None, Some(std::time::Instant::now()));
        assert_eq!(first_fit(&instance, &search), None);
        assert_eq!(decreasing_size(&instance, &search), None);
    }
}
