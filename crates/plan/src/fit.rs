//! Placing buffers one after the other, in a given order.
//!
//! Owns: the search for a place between the placed buffers, which uses the pairs of buffers that are live together or
//! an index. First fit takes the lowest place, best fit the tightest.

use crate::check::Plan;
use crate::neighbours::Instance;
use crate::search::Search;
use crate::taken::Taken;

/// The number of buffers between two checks of the clock.
const BETWEEN_LOOKS: usize = 64;
/// From this number of buffers on, a pass uses an index of the taken addresses instead of the pairs of buffers that are
/// live together.
pub(crate) const INDEXED: usize = 500;
/// The offset of a buffer that is not placed.
pub(crate) const NOWHERE: u64 = u64::MAX;

/// The choice among the places where a buffer fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The lowest place.
    First,
    /// The smallest hole in which the buffer fits; if there is none, the lowest place above all buffers.
    Best,
}

/// Buffers with places, and scratch memory.
#[derive(Debug)]
pub(crate) struct Placed<'a> {
    instance: &'a Instance,
    pub(crate) offsets: Vec<u64>,
    /// The ranges of offsets that the buffer to be placed cannot have.
    taken: Vec<(i64, i64)>,
}

impl<'a> Placed<'a> {
    /// Starts with only the buffers of fixed offsets placed.
    pub(crate) fn new(instance: &'a Instance) -> Self {
        let offsets = instance.fixed.iter().map(|fixed| fixed.unwrap_or(NOWHERE)).collect();
        Self { instance, offsets, taken: Vec::new() }
    }

    /// Removes a buffer.
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
                // With gaps, the distance of two buffers may be less than the size of the lower one.
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

/// Placed buffers in an index, for many buffers that use no bytes during their gaps. Buffers cannot be removed.
#[derive(Debug)]
pub(crate) struct Indexed<'a> {
    instance: &'a Instance,
    offsets: Vec<u64>,
    taken: Taken,
}

impl<'a> Indexed<'a> {
    /// Starts with only the buffers of fixed offsets placed.
    pub(crate) fn new(instance: &'a Instance) -> Self {
        Self::with(instance, Taken::new(instance.sections.loads.len() as u32, instance.len(), instance.most_live))
    }

    fn with(instance: &'a Instance, taken: Taken) -> Self {
        let mut out = Self { instance, offsets: vec![NOWHERE; instance.len()], taken };
        for (buffer, fixed) in instance.all().zip(&instance.fixed) {
            if let Some(fixed) = fixed {
                out.put(buffer, *fixed);
            }
        }
        out
    }

    /// Places a buffer that is not placed yet, and returns its end.
    pub(crate) fn place(&mut self, buffer: u32, fit: Fit) -> u64 {
        let (size, alignment) = (self.instance.sizes[buffer as usize], self.instance.alignments[buffer as usize]);
        if let Some(fixed) = self.instance.fixed[buffer as usize] {
            return fixed + size;
        }
        self.taken.clear();
        for span in self.instance.sections.of(buffer) {
            self.taken.ask(span.first, span.end);
        }
        let offset = match fit {
            Fit::First => self.taken.lowest(size, alignment),
            Fit::Best => self.taken.tightest(size, alignment),
        };
        self.put(buffer, offset);
        offset + size
    }

    fn put(&mut self, buffer: u32, offset: u64) {
        self.offsets[buffer as usize] = offset;
        for span in self.instance.sections.of(buffer) {
            self.taken.add(span.first, span.end, (offset, offset + self.instance.sizes[buffer as usize]));
        }
    }
}

/// Places all buffers in this order. Returns `None` if the search ends first.
pub(crate) fn place_all(
    instance: &Instance,
    order: impl IntoIterator<Item = u32>,
    fit: Fit,
    search: &Search,
) -> Option<Plan> {
    if instance.len() < INDEXED || instance.has_windows {
        let mut placed = Placed::new(instance);
        let peak = place_each(order, |buffer| placed.place(buffer, fit), search)?;
        return Some(Plan { offsets: placed.offsets, peak });
    }
    let mut placed = Indexed::new(instance);
    let peak = place_each(order, |buffer| placed.place(buffer, fit), search)?;
    Some(Plan { offsets: placed.offsets, peak })
}

fn place_each(order: impl IntoIterator<Item = u32>, mut place: impl FnMut(u32) -> u64, search: &Search) -> Option<u64> {
    let mut peak = 0;
    for (index, buffer) in order.into_iter().enumerate() {
        if index % BETWEEN_LOOKS == 0 && search.is_over() {
            return None;
        }
        peak = peak.max(place(buffer));
    }
    Some(peak)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Buffer, Gap, Problem};
    use proptest::prelude::*;

    fn plan(buffers: Vec<Buffer>, fit: Fit) -> Plan {
        let problem = Problem::new("p", buffers).unwrap();
        let instance = Instance::new(&problem);
        let search = Search::new(instance.bound, None, None);
        let plan = place_all(&instance, instance.all(), fit, &search).unwrap();
        plan.check(&problem).unwrap();
        plan
    }

    /// Returns buffers with holes of 6 and 4 bytes below a roof.
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
        // With this alignment, the hole at 8 has 3 usable bytes.
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

    const MOMENTS: i64 = 40;

    fn live_together(one: &Buffer, other: &Buffer) -> bool {
        let is_live =
            |buffer: &Buffer, moment| buffer.pieces().any(|piece| (piece.lower..piece.upper).contains(&moment));
        (0..MOMENTS).any(|moment| is_live(one, moment) && is_live(other, moment))
    }

    /// Returns the lowest free offset, by trying all of them.
    fn lowest(buffers: &[Buffer], placed: &[(usize, u64)], buffer: usize, from: u64) -> u64 {
        let own = &buffers[buffer];
        let near: Vec<_> = placed.iter().filter(|(other, _)| live_together(own, &buffers[*other])).collect();
        let is_free = |offset: &u64| {
            near.iter().all(|(other, at)| offset + own.size <= *at || at + buffers[*other].size <= *offset)
        };
        (from..).filter(|offset| offset % own.alignment == 0).find(is_free).unwrap()
    }

    prop_compose! {
        fn any_buffer()(
            ends in (0..MOMENTS, 0..MOMENTS),
            gap in prop::option::weighted(0.3, (0..MOMENTS, 1..MOMENTS)),
            size in 1..12_u64,
            alignment in prop_oneof![3 => Just(1_u64), 1 => 2..6_u64],
            from in prop::option::weighted(0.1, 0..30_u64),
        ) -> (Buffer, Option<u64>) {
            let (lower, upper) = (ends.0.min(ends.1), ends.0.max(ends.1) + 1);
            let gap = gap.map(|(begin, length)| Gap { lower: begin, upper: begin + length, window: None });
            let gap = gap.filter(|gap| lower < gap.lower && gap.upper <= upper);
            let gaps = gap.into_iter().collect();
            (Buffer { alignment, gaps, ..Buffer::new("", lower, upper, size) }, from)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Buffers with fixed offsets come first. Above some offset there is then room for every other buffer.
        #[test]
        fn every_way_to_fit_finds_the_same_places(
            of in prop::collection::vec(any_buffer(), 1..50),
            buckets in 1..=MOMENTS as u32,
        ) {
            let (mut buffers, from): (Vec<_>, Vec<_>) = of.into_iter().unzip();
            let mut placed = Vec::new();
            for (index, from) in from.iter().enumerate() {
                buffers[index].id = index.to_string();
                if let Some(from) = from {
                    let offset = lowest(&buffers, &placed, index, *from);
                    placed.push((index, offset));
                    buffers[index].fixed = Some(offset);
                }
            }
            for index in 0..buffers.len() {
                if buffers[index].fixed.is_none() {
                    placed.push((index, lowest(&buffers, &placed, index, 0)));
                }
            }
            placed.sort_unstable();
            let naive: Vec<u64> = placed.into_iter().map(|(_, offset)| offset).collect();
            let problem = Problem::new("p", buffers).unwrap();
            let instance = Instance::new(&problem);
            let sections = instance.sections.loads.len() as u32;
            let places = |fit| {
                let mut pairs = Placed::new(&instance);
                let mut indexed = Indexed::with(&instance, Taken::with_buckets(sections, buckets.min(sections)));
                for buffer in instance.all() {
                    assert_eq!(pairs.place(buffer, fit), indexed.place(buffer, fit));
                }
                assert_eq!(pairs.offsets, indexed.offsets);
                indexed.offsets
            };
            prop_assert_eq!(places(Fit::First), naive);
            places(Fit::Best);
        }
    }
}
