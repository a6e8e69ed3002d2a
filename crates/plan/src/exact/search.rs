//! The search for a plan within a given capacity.
//!
//! Owns: the choice of the buffer that is placed next, and of the buffers that can be skipped. The search is the
//! depth-first search of `SolverImpl` in google/minimalloc's `src/solver.cc` (Apache-2.0).

use super::state::State;
use crate::fit::NOWHERE;
use crate::neighbours::Instance;
use crate::search::Search;
use std::cmp::Reverse;

/// The number of partial plans between two checks of the clock.
const CLOCK: u64 = 64;

/// The orders in which buffers are tried. Each order has three keys, the largest value first: W, the length of the
/// life; A, size times life; T, the bytes that remain to be placed in the fullest section of the life
/// (`preordering_heuristics` in google/minimalloc's `src/solver.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Wat,
    Taw,
    Twa,
}

impl Order {
    pub(crate) const ALL: [Self; 3] = [Self::Wat, Self::Taw, Self::Twa];
}

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// A plan exists.
    Found,
    /// No plan exists.
    None,
    /// The answer is unknown: the limit of partial plans was reached, or the search of all threads has ended.
    TooLong,
}

/// A buffer to be placed: the lowest offset that the buffer can have, and its rank, which orders candidates with equal
/// offsets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    lowest: u64,
    rank: u32,
}

/// The search of one thread.
pub(super) struct Solver<'a> {
    state: State<'a>,
    search: &'a Search,
    order: Order,
    /// The number of partial plans that may still be explored.
    nodes: u64,
    /// The offsets of the plan found.
    pub(super) solution: Vec<u64>,
}

impl<'a> Solver<'a> {
    pub(super) fn new(instance: &'a Instance, search: &'a Search) -> Self {
        let state = State::new(instance);
        Self { state, search, order: Order::Wat, nodes: 0, solution: vec![NOWHERE; instance.len()] }
    }

    /// Searches for a plan of at most `capacity` bytes, exploring at most `nodes` partial plans. The offsets of a plan
    /// that is found are in [`solution`](Self::solution).
    pub(super) fn solve(&mut self, capacity: u64, order: Order, nodes: u64) -> Answer {
        self.state.set_capacity(capacity);
        (self.order, self.nodes) = (order, nodes);
        let parts = self.state.parts();
        let all: Vec<u32> = self.state.instance.all().collect();
        self.solve_parts(&parts, &all)
    }

    /// Solves one by one the parts of time that have no buffer in common.
    fn solve_parts(&mut self, parts: &[u32], buffers: &[u32]) -> Answer {
        let mut answer = Answer::Found;
        for (from, to) in parts.iter().zip(parts.iter().skip(1)) {
            let is_inside = |buffer: &u32| {
                let (first, end) = self.state.instance.sections.hull(*buffer);
                self.state.offsets[*buffer as usize] == NOWHERE && first < *to && *from < end
            };
            let own: Vec<u32> = buffers.iter().copied().filter(is_inside).collect();
            answer = if own.is_empty() { Answer::Found } else { self.solve_part(own, (*from, *to)) };
            if answer != Answer::Found {
                break;
            }
        }
        answer
    }

    /// Ranks the buffers of a part of time that shares no buffer with other parts, and searches for their offsets
    /// (`SubSolve`).
    fn solve_part(&mut self, mut buffers: Vec<u32>, within: (u32, u32)) -> Answer {
        let instance = self.state.instance;
        let order = self.order;
        let state = &self.state;
        buffers.sort_by_cached_key(|buffer| {
            let width = instance.widths[*buffer as usize];
            let area = u128::from(width) * u128::from(instance.sizes[*buffer as usize]);
            let (width, total) = (u128::from(width), u128::from(state.most_to_come(*buffer)));
            let keys = match order {
                Order::Wat => [width, area, total],
                Order::Taw => [total, area, width],
                Order::Twa => [total, width, area],
            };
            (Reverse(keys), *buffer)
        });
        let ranks: Vec<u32> = (0..buffers.len() as u32).collect();
        self.descend(&buffers, &ranks, within, Candidate { lowest: 0, rank: 0 })
    }

    /// Places one buffer after the other (`SearchSolutions`). `last` is the buffer placed last. Buffers are placed by
    /// offset and then by rank, so that no plan is explored in two orders (canonical solutions). `before` has the ranks
    /// of the buffers that remained before the last placement.
    fn descend(&mut self, buffers: &[u32], before: &[u32], within: (u32, u32), last: Candidate) -> Answer {
        if self.nodes == 0 || self.is_of_no_use() {
            return Answer::TooLong;
        }
        self.nodes -= 1;
        let state = &self.state;
        let mut lowest_end = u64::MAX;
        let mut left = Vec::with_capacity(before.len());
        for &rank in before {
            let buffer = buffers[rank as usize] as usize;
            if state.offsets[buffer] == NOWHERE {
                lowest_end = lowest_end.min(state.lowest[buffer] + state.instance.sizes[buffer]);
                left.push(rank);
            }
        }
        if left.is_empty() {
            for &buffer in buffers {
                self.solution[buffer as usize] = self.state.offsets[buffer as usize];
            }
            return Answer::Found;
        }
        // Candidates at or above `lowest_end`, the lowest end of a remaining buffer, are skipped: that buffer fits
        // below them, and some plan with it there is as good (dominance).
        let of_rank = |rank: u32| Candidate { lowest: state.lowest[buffers[rank as usize] as usize], rank };
        let is_tried = |candidate: &Candidate| candidate.lowest < lowest_end && *candidate >= last;
        let mut candidates: Vec<_> = left.iter().map(|rank| of_rank(*rank)).filter(is_tried).collect();
        candidates.sort_unstable();
        let most = state.most_to_come_within(within);
        for &candidate in &candidates {
            let buffer = buffers[candidate.rank as usize];
            if self.state.is_behind_its_twin(buffer) || !self.state.may_be_placed(buffer, within, most) {
                continue;
            }
            let mark = self.state.place(buffer);
            let answer =
                if mark.has_room { self.go_on(buffer, buffers, &left, within, candidate) } else { Answer::None };
            self.state.take_back(buffer, mark);
            if answer != Answer::None {
                return answer;
            }
            // No remaining buffer lies above this buffer, so its place affects no other buffer (hatless pruning).
            if mark.is_hatless {
                break;
            }
        }
        Answer::None
    }

    /// Returns whether the search is over, or another thread has found or proved the answer.
    fn is_of_no_use(&self) -> bool {
        let is_over = if self.nodes.is_multiple_of(CLOCK) { self.search.is_over() } else { self.search.was_ended() };
        let capacity = self.state.capacity();
        is_over || capacity >= self.search.peak() || capacity < self.search.lower()
    }

    /// Continues after a buffer is placed: as one part, or in the independent parts into which time is divided by
    /// placing the buffer (`DynamicallyDecompose`).
    fn go_on(&mut self, buffer: u32, buffers: &[u32], left: &[u32], within: (u32, u32), last: Candidate) -> Answer {
        self.solution[buffer as usize] = last.lowest;
        let mut parts = Vec::new();
        self.state.untie(buffer, |section| parts.push(section));
        let answer = if parts.is_empty() {
            self.descend(buffers, left, within, last)
        } else {
            parts.insert(0, within.0);
            parts.push(within.1);
            self.solve_parts(&parts, buffers)
        };
        self.state.tie(buffer);
        answer
    }
}
