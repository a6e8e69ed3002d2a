//! An index of the placed buffers: the addresses that are taken in a range of sections of time.
//!
//! Owns: the index, and the search for the lowest and the tightest place. Most buffers that are live at the same time
//! lie next to each other without a hole, so a few address ranges represent thousands of buffers.
//!
//! ```text
//! sections   |......|......|......|......|     buckets, and a tree over them
//! all        for each node of the tree: the ranges of the buffers that are live in any of its sections
//! through    for each bucket: the ranges of the buffers that are live in all of its sections
//! ends       for each bucket: the buffers that begin or end within it, one by one
//!
//! a query        ^-----------------^           reads `through` and `ends` of the first and the last bucket,
//!                                              and `all` of the nodes between
//! ```

/// The most buckets, each a range of sections. With fewer buckets, more buffers end within each bucket. With more
/// buckets, adding a buffer takes longer. Of 100 to 4,000 buckets, 100 to 500 were the fastest for 18,000 to 62,000
/// buffers.
const BUCKETS: u32 = 256;
/// The most bytes of the index's ranges in the worst case, in which no two buffers touch. If the ranges would take more
/// bytes, fewer buckets are used. For 19,000 to 141,000 buffers the ranges took at most 5.3 MiB.
const MOST_BYTES: u64 = 256 << 20;

/// A range of bytes, from and to.
type Range = (u64, u64);

/// A buffer that begins or ends within a bucket of sections.
#[derive(Clone, Copy, Debug)]
struct End {
    first: u32,
    end: u32,
    range: Range,
}

/// A list of ranges, and its first range that is not below the current place.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    list: usize,
    at: usize,
}

/// The placed buffers. No buffer can be removed.
#[derive(Debug)]
pub(crate) struct Taken {
    /// The number of sections in a bucket.
    width: u32,
    leaves: usize,
    /// Lists of ranges, each in order and disjoint. The first lists are, for each node of the tree over the buckets,
    /// the ranges taken in any of its sections (`all`); the root is at 1. Then follow, for each bucket, the ranges
    /// taken in all of its sections (`through`), and last the ranges from `ends` for the current query.
    lists: Vec<Vec<Range>>,
    ends: Vec<Vec<End>>,
    /// The cursors of the current query.
    cursors: Vec<Cursor>,
}

impl Taken {
    /// Makes an empty index for `count` buffers. `most_live` is the most buffers that are live in one section.
    pub(crate) fn new(sections: u32, count: usize, most_live: u32) -> Self {
        let mut buckets = sections.clamp(1, BUCKETS);
        // Each level of the tree, and `through` (ranges taken in whole buckets), has for each bucket at most the ranges
        // that are live when the bucket begins, and the ranges that begin or end in the bucket.
        let bytes = |buckets: u32| {
            let a_level = u64::from(buckets) * u64::from(most_live) + 2 * count as u64;
            a_level * u64::from(buckets.next_power_of_two().ilog2() + 2) * size_of::<Range>() as u64
        };
        while buckets > 1 && bytes(buckets) > MOST_BYTES {
            buckets /= 2;
        }
        Self::with_buckets(sections, buckets)
    }

    pub(crate) fn with_buckets(sections: u32, buckets: u32) -> Self {
        let leaves = buckets.next_power_of_two() as usize;
        Self {
            width: sections.div_ceil(buckets).max(1),
            leaves,
            lists: vec![Vec::new(); 3 * leaves + 1],
            ends: vec![Vec::new(); leaves],
            cursors: Vec::new(),
        }
    }

    /// Notes that the addresses of `range` are taken from section `first` until before section `end`.
    pub(crate) fn add(&mut self, first: u32, end: u32, range: Range) {
        let (low, high) = self.buckets(first, end);
        for bucket in low..high {
            if self.covers(first, end, bucket) {
                insert(&mut self.lists[2 * self.leaves + bucket], range);
            } else {
                self.ends[bucket].push(End { first, end, range });
            }
        }
        let (mut low, mut high) = (self.leaves + low, self.leaves + high - 1);
        while low > 0 {
            let mut is_new = false;
            for node in low..=high {
                is_new |= insert(&mut self.lists[node], range);
            }
            if !is_new {
                // Then the parents of these nodes already contain the range too.
                return;
            }
            (low, high) = (low / 2, high / 2);
        }
    }

    /// Begins a query for a free place, with no sections yet.
    pub(crate) fn clear(&mut self) {
        self.cursors.clear();
        let last = self.lists.len() - 1;
        self.lists[last].clear();
    }

    /// Adds sections to the query. The place must be free in all sections of the query.
    pub(crate) fn ask(&mut self, first: u32, end: u32) {
        let (low, high) = self.buckets(first, end);
        let last = self.lists.len() - 1;
        let (mut from, mut to) = (low, high);
        for bucket in [low, high - 1] {
            if from >= to || self.covers(first, end, bucket) {
                continue;
            }
            self.cursors.push(Cursor { list: 2 * self.leaves + bucket, at: 0 });
            let within = self.ends[bucket].iter().filter(|other| other.first < end && first < other.end);
            self.lists[last].extend(within.map(|other| other.range));
            (from, to) = if bucket == low { (low + 1, to) } else { (from, bucket) };
        }
        (from, to) = (from + self.leaves, to + self.leaves);
        while from < to {
            if from % 2 == 1 {
                self.cursors.push(Cursor { list: from, at: 0 });
                from += 1;
            }
            if to % 2 == 1 {
                to -= 1;
                self.cursors.push(Cursor { list: to, at: 0 });
            }
            (from, to) = (from / 2, to / 2);
        }
    }

    /// Returns the lowest place of this size in the sections of the query.
    pub(crate) fn lowest(&mut self, size: u64, alignment: u64) -> u64 {
        self.sort_ends();
        self.next(0, size, alignment)
    }

    /// Returns the place in the smallest hole; of several such holes, the lowest. Returns the place above all ranges if
    /// no hole is large enough.
    pub(crate) fn tightest(&mut self, size: u64, alignment: u64) -> u64 {
        self.sort_ends();
        let (mut low, mut best) = (0, None::<(u64, u64)>);
        loop {
            low = self.next(low, size, alignment);
            let above = self.cursors.iter().filter_map(|cursor| self.lists[cursor.list].get(cursor.at));
            let Some(end) = above.map(|range| range.0).min() else { break };
            if best.is_none_or(|(room, _)| end - low < room) {
                best = Some((end - low, low));
            }
            low = end;
        }
        best.map_or(low, |(_, low)| low)
    }

    /// Returns the lowest place from `low` on. Moves all cursors past the ranges below that place.
    fn next(&mut self, mut low: u64, size: u64, alignment: u64) -> u64 {
        let (mut index, mut agreed) = (0, 0);
        // The ranges of each list may move the place up. The loop ends when the place is free in all lists.
        while agreed < self.cursors.len() {
            let cursor = &mut self.cursors[index];
            let list = &self.lists[cursor.list];
            let before = low;
            while let Some(&(from, to)) = list.get(cursor.at)
                && (to <= low || from < low + size)
            {
                if to > low {
                    // The alignment is 1 in most problems.
                    low = if alignment == 1 { to } else { to.next_multiple_of(alignment) };
                }
                cursor.at += 1;
            }
            agreed = if low == before { agreed + 1 } else { 1 };
            index = (index + 1) % self.cursors.len();
        }
        low
    }

    /// Sorts the ranges that the query took from `ends`, and merges those that touch or overlap.
    fn sort_ends(&mut self) {
        let last = self.lists.len() - 1;
        let list = &mut self.lists[last];
        if list.is_empty() {
            return;
        }
        list.sort_unstable();
        list.dedup_by(|next, before| {
            let is_one = next.0 <= before.1;
            if is_one {
                before.1 = before.1.max(next.1);
            }
            is_one
        });
        self.cursors.push(Cursor { list: last, at: 0 });
    }

    /// Returns the first bucket of these sections and the bucket after the last.
    fn buckets(&self, first: u32, end: u32) -> (usize, usize) {
        ((first / self.width) as usize, ((end - 1) / self.width) as usize + 1)
    }

    fn covers(&self, first: u32, end: u32, bucket: usize) -> bool {
        let begin = bucket as u32 * self.width;
        first <= begin && begin + self.width <= end
    }
}

/// Adds a range to a list. Returns whether a part of it is new.
fn insert(list: &mut Vec<Range>, (from, to): Range) -> bool {
    // Ranges that touch the new range merge with it.
    let first = list.partition_point(|range| range.1 < from);
    let Some(&(low, high)) = list.get(first).filter(|range| range.0 <= to) else {
        list.insert(first, (from, to));
        return true;
    };
    if low <= from && to <= high {
        return false;
    }
    let after = first + list[first..].iter().take_while(|range| range.0 <= to).count();
    list[first] = (low.min(from), list[after - 1].1.max(to));
    list.drain(first + 1..after);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(buckets: u32) -> Taken {
        let mut taken = Taken::with_buckets(12, buckets);
        taken.add(0, 12, (0, 4));
        taken.add(0, 5, (4, 10));
        taken.add(5, 7, (6, 8));
        taken.add(7, 12, (12, 20));
        taken
    }

    #[test]
    fn places_are_free_in_all_sections() {
        for buckets in 1..=12 {
            let mut taken = taken(buckets);
            let mut lowest = |spans: &[(u32, u32)], size, alignment| {
                taken.clear();
                spans.iter().for_each(|span| taken.ask(span.0, span.1));
                taken.lowest(size, alignment)
            };
            assert_eq!(lowest(&[(0, 1)], 3, 1), 10);
            assert_eq!(lowest(&[(5, 7)], 2, 1), 4);
            assert_eq!(lowest(&[(5, 7)], 3, 1), 8);
            assert_eq!(lowest(&[(8, 9)], 8, 1), 4);
            assert_eq!(lowest(&[(8, 9)], 8, 3), 21);
            assert_eq!(lowest(&[(4, 8)], 2, 1), 10);
            assert_eq!(lowest(&[(4, 8)], 3, 1), 20);
            assert_eq!(lowest(&[(4, 5), (7, 8)], 2, 1), 10);
            assert_eq!(lowest(&[(5, 6), (11, 12)], 4, 1), 8);
            assert_eq!(lowest(&[], 4, 1), 0);
        }
    }

    #[test]
    fn the_tightest_place_is_the_smallest_hole() {
        for buckets in 1..=12 {
            let mut taken = taken(buckets);
            let mut tightest = |first, end, size| {
                taken.clear();
                taken.ask(first, end);
                taken.tightest(size, 1)
            };
            // The holes are from 4 to 6 and from 8 to 12.
            assert_eq!(tightest(6, 8, 2), 4);
            assert_eq!(tightest(6, 8, 3), 8);
            assert_eq!(tightest(6, 8, 5), 20);
            assert_eq!(tightest(0, 2, 1), 10);
        }
    }

    #[test]
    fn ranges_that_touch_become_one() {
        let mut list = Vec::new();
        for (range, is_new) in [((4, 6), true), ((8, 9), true), ((0, 1), true), ((6, 7), true), ((5, 7), false)] {
            assert_eq!(insert(&mut list, range), is_new);
        }
        assert_eq!(list, [(0, 1), (4, 7), (8, 9)]);
        assert!(insert(&mut list, (1, 8)));
        assert_eq!(list, [(0, 9)]);
    }

    #[test]
    fn bytes_are_bounded() {
        assert_eq!(Taken::new(16_000, 28_000, 3_000).width, 63);
        // A million buffers, half of which are live at once.
        assert_eq!(Taken::new(1_000_000, 1_000_000, 500_000).width, 250_000);
        assert_eq!(Taken::new(0, 0, 0).leaves, 1);
    }
}
