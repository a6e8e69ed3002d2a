//! Best fit on offset lines, as Chainer's allocator plans.
//!
//! Owns: the lines, and the choice of the block that is placed on a line. The method is the strip packing of Burke,
//! Kendall and Whitwell, as T. Sekiyama and others use it in "Profile-guided memory optimization for deep neural
//! networks" (arXiv 1804.10001), section 3.2.
//!
//! ```text
//!   offset
//!     |     ____           the lowest line (the leftmost of several) takes the longest-lived block that fits
//!     | ___|    |__        between the line's ends; if no block fits, the line is lifted to its lower
//!     |          | |____   neighbour and merges with it
//!     +------------------ time
//! ```

use crate::check::Plan;
use crate::fit::{Fit, place_all};
use crate::neighbours::Instance;
use crate::search::Search;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The number of lines (ranges of time) between two checks of the clock.
const BETWEEN_LOOKS: usize = 256;
/// Blocks in a leaf of the k-d tree.
const LEAF: usize = 8;

/// Returns the plan. If a buffer has a fixed offset, an alignment or gaps, which the method does not support, the
/// offsets only give the order for first fit.
pub(crate) fn chainer(instance: &Instance, search: &Search) -> Option<Plan> {
    let plan = lines(instance, instance.all().collect(), search)?;
    let is_plain = instance.is_solid
        && instance.fixed.iter().all(Option::is_none)
        && instance.alignments.iter().all(|alignment| *alignment == 1);
    if is_plain {
        return Some(plan);
    }
    let mut order: Vec<u32> = instance.all().collect();
    order.sort_by_key(|buffer| plan.offsets[*buffer as usize]);
    place_all(instance, order, Fit::First, search)
}

/// Returns an order for first fit: the buffers of `least` bytes or more by their offsets in Chainer's plan, then the
/// smaller buffers in the given order, which fill the holes. In that plan, small buffers would divide the ranges of
/// time into which large ones fit. Returns `None` if the search ends first.
pub(crate) fn larger_first(
    instance: &Instance,
    least: u64,
    order: impl IntoIterator<Item = u32>,
    search: &Search,
) -> Option<Vec<u32>> {
    let (mut larger, smaller): (Vec<u32>, Vec<u32>) =
        order.into_iter().partition(|buffer| instance.sizes[*buffer as usize] >= least);
    let plan = lines(instance, larger.clone(), search)?;
    larger.sort_by_key(|buffer| plan.offsets[*buffer as usize]);
    larger.extend(smaller);
    Some(larger)
}

/// A range of time, and the offset above which memory is free in this range.
#[derive(Clone, Copy)]
struct Line {
    first: u32,
    end: u32,
    offset: u64,
}

/// Places these buffers. The offsets of all other buffers are 0.
fn lines(instance: &Instance, buffers: Vec<u32>, search: &Search) -> Option<Plan> {
    if search.is_over() {
        return None;
    }
    let mut left = buffers.len();
    let mut blocks = Blocks::new(instance, buffers);
    let mut offsets = vec![0; instance.len()];
    let mut peak = 0;
    // `lines` has the line (a range of time) that begins at each section. An end of 0 means that no line begins there.
    let sections = instance.sections.loads.len() as u32;
    let mut lines = vec![Line { first: 0, end: 0, offset: 0 }; sections as usize];
    let mut begins_before = vec![0_u32; sections as usize + 1];
    let mut lowest = BinaryHeap::new();
    let add = |lines: &mut Vec<Line>, before: &mut Vec<u32>, lowest: &mut BinaryHeap<_>, line: Line| {
        lines[line.first as usize] = line;
        before[line.end as usize] = line.first;
        lowest.push(Reverse((line.offset, line.first, line.end)));
    };
    if sections > 0 {
        add(&mut lines, &mut begins_before, &mut lowest, Line { first: 0, end: sections, offset: 0 });
    }
    let mut step = 0_usize;
    while let Some(Reverse((offset, first, end))) = lowest.pop() {
        let now = lines[first as usize];
        if left == 0 {
            break;
        }
        if (now.offset, now.end) != (offset, end) {
            // The line (a range of time) was lifted to a higher offset, or divided, after it was queued.
            continue;
        }
        step += 1;
        if step.is_multiple_of(BETWEEN_LOOKS) && search.is_over() {
            return None;
        }
        if let Some(block) = blocks.take_longest(first, end) {
            let (from, to) = instance.sections.hull(block);
            offsets[block as usize] = offset;
            let top = offset + instance.sizes[block as usize];
            peak = peak.max(top);
            left -= 1;
            for line in [
                Line { first, end: from, offset },
                Line { first: from, end: to, offset: top },
                Line { first: to, end, offset },
            ] {
                if line.first < line.end {
                    add(&mut lines, &mut begins_before, &mut lowest, line);
                }
            }
            continue;
        }
        // No block fits into the line's range of time. The line is lifted to the offset of its lower neighbour, and
        // merges with the neighbours at this offset.
        let left_of = (first > 0).then(|| lines[begins_before[first as usize] as usize]);
        let right_of = (end < sections).then(|| lines[end as usize]);
        let Some(to) = [left_of, right_of].iter().flatten().map(|line| line.offset).min() else {
            // The line covers all of time, so every remaining buffer would fit. Therefore no buffer remains.
            break;
        };
        let merged = |line: Option<Line>| line.filter(|line| line.offset == to);
        let from = merged(left_of).map_or(first, |line| line.first);
        let until = merged(right_of).map_or(end, |line| line.end);
        for gone in [Some(first), merged(right_of).map(|line| line.first)].into_iter().flatten() {
            lines[gone as usize].end = 0;
        }
        add(&mut lines, &mut begins_before, &mut lowest, Line { first: from, end: until, offset: to });
    }
    (!search.is_over() || left == 0).then_some(Plan { offsets, peak })
}

/// The blocks that are not placed yet, in a k-d tree by their begin and end. Each node has the longest life below it.
struct Blocks<'a> {
    instance: &'a Instance,
    /// The blocks, in the order of the k-d tree's leaves.
    blocks: Vec<u32>,
    nodes: Vec<Node>,
}

#[derive(Clone, Copy)]
struct Node {
    /// The index of the node's first block.
    from: u32,
    to: u32,
    /// The index of the second child, which has the second half of the blocks; 0 in a leaf. The first child lies
    /// directly after the node and has the first half.
    second: u32,
    /// The latest begin and the earliest end of the remaining blocks below the node.
    first: u32,
    end: u32,
    /// The longest life of the remaining blocks, then the size and the reversed number, so that the first of equal
    /// blocks is taken.
    longest: Option<(u64, u64, Reverse<u32>)>,
}

impl<'a> Blocks<'a> {
    fn new(instance: &'a Instance, blocks: Vec<u32>) -> Self {
        let mut out = Self { instance, blocks, nodes: Vec::new() };
        if !out.blocks.is_empty() {
            out.build(0, out.blocks.len(), true);
        }
        out
    }

    fn key(&self, block: u32) -> (u64, u64, Reverse<u32>) {
        (self.instance.widths[block as usize], self.instance.sizes[block as usize], Reverse(block))
    }

    fn build(&mut self, from: usize, to: usize, by_first: bool) -> usize {
        let sections = &self.instance.sections;
        let index = self.nodes.len();
        let own = &mut self.blocks[from..to];
        self.nodes.push(Node { from: from as u32, to: to as u32, second: 0, first: 0, end: 0, longest: None });
        if to - from > LEAF {
            let half = (to - from) / 2;
            own.select_nth_unstable_by_key(half, |block| {
                let (first, end) = sections.hull(*block);
                if by_first { first } else { end }
            });
            self.build(from, from + half, !by_first);
            let second = self.build(from + half, to, !by_first);
            self.nodes[index].second = second as u32;
        }
        self.update(index);
        index
    }

    fn update(&mut self, index: usize) {
        let mut node = self.nodes[index];
        (node.first, node.end, node.longest) = (0, u32::MAX, None);
        if node.second == 0 {
            for &block in &self.blocks[node.from as usize..node.to as usize] {
                let (first, end) = self.instance.sections.hull(block);
                (node.first, node.end) = (node.first.max(first), node.end.min(end));
                node.longest = node.longest.max(Some(self.key(block)));
            }
        } else {
            for child in [self.nodes[index + 1], self.nodes[node.second as usize]] {
                (node.first, node.end) = (node.first.max(child.first), node.end.min(child.end));
                node.longest = node.longest.max(child.longest);
            }
        }
        self.nodes[index] = node;
    }

    /// Removes and returns the block with the longest life within these sections; `None` if no block fits.
    fn take_longest(&mut self, first: u32, end: u32) -> Option<u32> {
        let mut best = None;
        if !self.nodes.is_empty() {
            self.look(0, (first, end), &mut best);
        }
        let (_, _, Reverse(block)) = best?;
        self.remove(0, block, best);
        Some(block)
    }

    fn look(&self, index: usize, within: (u32, u32), best: &mut Option<(u64, u64, Reverse<u32>)>) {
        let node = self.nodes[index];
        if node.longest <= *best || node.first < within.0 || node.end > within.1 {
            return;
        }
        if node.second == 0 {
            for &block in &self.blocks[node.from as usize..node.to as usize] {
                let (first, end) = self.instance.sections.hull(block);
                if within.0 <= first && end <= within.1 {
                    *best = (*best).max(Some(self.key(block)));
                }
            }
            return;
        }
        // The child with the longer life is visited first, since the other child is then pruned more often.
        let (one, other) = (index + 1, node.second as usize);
        let (one, other) =
            if self.nodes[one].longest >= self.nodes[other].longest { (one, other) } else { (other, one) };
        self.look(one, within, best);
        self.look(other, within, best);
    }

    /// Removes the block with this key below a node. Returns whether the block was there.
    fn remove(&mut self, index: usize, block: u32, key: Option<(u64, u64, Reverse<u32>)>) -> bool {
        let node = self.nodes[index];
        let (first, end) = self.instance.sections.hull(block);
        if node.longest < key || node.first < first || node.end > end {
            return false;
        }
        if node.second == 0 {
            let own = &mut self.blocks[node.from as usize..node.to as usize];
            let Some(at) = own.iter().position(|other| *other == block) else { return false };
            // The list of a leaf shrinks at its end.
            own[at..].rotate_left(1);
            self.nodes[index].to -= 1;
        } else if !self.remove(index + 1, block, key) && !self.remove(node.second as usize, block, key) {
            return false;
        }
        self.update(index);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Buffer, Problem};

    fn offsets(buffers: &[(i64, i64, u64)]) -> Vec<u64> {
        let of =
            |(id, (lower, upper, size)): (usize, &(i64, i64, u64))| Buffer::new(id.to_string(), *lower, *upper, *size);
        let problem = Problem::new("p", buffers.iter().enumerate().map(of).collect()).unwrap();
        let instance = Instance::new(&problem);
        let plan = chainer(&instance, &Search::new(instance.bound, None, None)).unwrap();
        plan.check(&problem).unwrap();
        plan.offsets
    }

    #[test]
    fn the_longest_lived_goes_to_the_lowest_line() {
        assert_eq!(offsets(&[(0, 2, 5), (0, 8, 1), (2, 8, 3)]), [1, 0, 1]);
    }

    #[test]
    fn a_line_on_which_nothing_fits_is_lifted() {
        // Beside the first block (time 0 to 6), only the third fits at offset 0, since the second begins at 4. The line
        // above the third block is then lifted to offset 4, where the second block fits.
        assert_eq!(offsets(&[(0, 6, 4), (4, 8, 2), (6, 8, 1)]), [0, 4, 0]);
    }

    #[test]
    fn all_blocks_are_found_again() {
        let mut seed = 3_u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..50 {
            let buffers: Vec<_> = (0..200)
                .map(|_| {
                    let lower = next(300) as i64;
                    (lower, lower + 1 + next(60) as i64, 1 + next(9))
                })
                .collect();
            offsets(&buffers);
        }
    }

    /// Chainer's plan would place the small buffer, which lives longest, below the two large ones.
    #[test]
    fn small_buffers_are_not_in_the_way_of_larger_ones() {
        let of =
            |(id, (lower, upper, size)): (usize, &(i64, i64, u64))| Buffer::new(id.to_string(), *lower, *upper, *size);
        let buffers = [(0, 9, 1), (0, 5, 8), (5, 8, 8)];
        let problem = Problem::new("p", buffers.iter().enumerate().map(of).collect()).unwrap();
        let instance = Instance::new(&problem);
        let search = Search::new(instance.bound, None, None);
        assert_eq!(larger_first(&instance, 1, [0, 1, 2], &search), Some(vec![0, 1, 2]));
        assert_eq!(larger_first(&instance, 2, [0, 1, 2], &search), Some(vec![1, 2, 0]));
        assert_eq!(larger_first(&instance, 9, [2, 1, 0], &search), Some(vec![2, 1, 0]));
        search.end();
        assert_eq!(larger_first(&instance, 9, [2, 1, 0], &search), None);
    }
}
