//! Orders in which buffers are placed one after the other.
//!
//! Owns: the criteria of the orders, and the methods that make one pass in an order.

use crate::chainer::larger_first;
use crate::check::Plan;
use crate::fit::{Fit, place_all};
use crate::neighbours::Instance;
use crate::search::Search;

/// First fit in the order of the program, as in an allocator that takes the lowest place.
pub(crate) fn first_fit(instance: &Instance, search: &Search) -> Option<Plan> {
    let mut order: Vec<u32> = instance.all().collect();
    order.sort_by_key(|buffer| instance.sections.hull(*buffer).0);
    place_all(instance, order, Fit::First, search)
}

/// Best fit, the largest buffers first: `GlobalDecreasingSizeBestFitHeap` in XLA's `heap_simulator.cc`. Of equal sizes,
/// the buffer with the longer life comes first.
pub(crate) fn decreasing_size(instance: &Instance, search: &Search) -> Option<Plan> {
    place_all(instance, by_size(instance), Fit::Best, search)
}

/// The criterion of an order, the largest value first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    Size,
    /// The size times the number of neighbours.
    Load,
    /// The length of the lifetime.
    Width,
    Neighbours,
    /// The size times the length of the lifetime.
    Area,
}

impl Figure {
    /// The criteria of `omni_place` in omnimalloc's `first_fit.cpp` (Apache-2.0).
    const ALL: [Self; 5] = [Self::Size, Self::Load, Self::Width, Self::Neighbours, Self::Area];

    fn of(self, instance: &Instance, buffer: u32, neighbours: &[u64]) -> [u128; 2] {
        let size = u128::from(instance.sizes[buffer as usize]);
        let width = u128::from(instance.widths[buffer as usize]);
        let neighbours = u128::from(neighbours[buffer as usize]);
        match self {
            Self::Size => [size, 0],
            Self::Load => [size * neighbours, size],
            Self::Width => [width, 0],
            Self::Neighbours => [neighbours, size],
            Self::Area => [size * width, 0],
        }
    }
}

/// Tries first fit in several orders, one after the other, since the best order depends on the problem. Equal buffers
/// keep the order of the input.
pub(crate) fn in_orders(instance: &Instance, search: &Search) {
    let Some(neighbours) = instance.degrees(search) else { return };
    for figure in Figure::ALL {
        match place_all(instance, by_figure(instance, figure, &neighbours), Fit::First, search) {
            Some(plan) => search.offer(plan),
            None => return,
        }
    }
}

fn by_figure(instance: &Instance, figure: Figure, neighbours: &[u64]) -> Vec<u32> {
    let mut order: Vec<u32> = instance.all().collect();
    order.sort_by_key(|buffer| std::cmp::Reverse(figure.of(instance, *buffer, neighbours)));
    order
}

/// The first order of a search of many buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    By(Figure),
    /// Buffers larger than the peak load shifted right by this number come first, by their offsets in the plan of
    /// `chainer.rs`. The other buffers follow by size.
    Larger(u32),
}

/// The orders with which one thread begins a search of many buffers.
#[derive(Debug)]
pub(crate) struct Starts<'a> {
    instance: &'a Instance,
    search: &'a Search,
    neighbours: Option<Vec<u64>>,
    left: std::iter::StepBy<std::slice::Iter<'static, Start>>,
}

impl<'a> Starts<'a> {
    /// The orders that were the best on some instance come first.
    const ALL: [Start; 13] = [
        Start::Larger(10),
        Start::By(Figure::Size),
        Start::By(Figure::Load),
        Start::Larger(8),
        Start::Larger(12),
        Start::By(Figure::Width),
        Start::Larger(6),
        Start::By(Figure::Neighbours),
        Start::Larger(14),
        Start::By(Figure::Area),
        Start::Larger(17),
        Start::Larger(20),
        Start::Larger(4),
    ];

    /// Gives each thread different orders. With more threads than orders, the last threads repeat the orders
    /// of the first threads.
    pub(crate) fn new(instance: &'a Instance, search: &'a Search, index: usize, threads: usize) -> Self {
        let left = Self::ALL[index % Self::ALL.len()..].iter().step_by(threads.max(1));
        Self { instance, search, neighbours: None, left }
    }
}

impl Iterator for Starts<'_> {
    type Item = Vec<u32>;

    fn next(&mut self) -> Option<Vec<u32>> {
        let Self { instance, search, neighbours, left } = self;
        match *left.next()? {
            Start::By(figure) => {
                if neighbours.is_none() {
                    *neighbours = instance.degrees(search);
                }
                Some(by_figure(instance, figure, neighbours.as_ref()?))
            }
            Start::Larger(shift) => larger_first(instance, instance.bound >> shift, by_size(instance), search),
        }
    }
}

/// Returns the buffers, the largest first.
pub(crate) fn by_size(instance: &Instance) -> Vec<u32> {
    let key = |buffer: &u32| (instance.sizes[*buffer as usize], instance.widths[*buffer as usize]);
    let mut order: Vec<u32> = instance.all().collect();
    order.sort_by_key(|buffer| std::cmp::Reverse(key(buffer)));
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Buffer, Problem};

    /// In both problems, the order by size leaves a hole. The order by size times neighbours packs one problem, the
    /// order by size times life the other.
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

    #[test]
    fn an_end_is_heeded() {
        let problem = Problem::new("p", vec![Buffer::new("a", 0, 1, 6), Buffer::new("b", 0, 9, 1)]).unwrap();
        let instance = Instance::new(&problem);
        let search = Search::new(instance.bound, None, Some(std::time::Instant::now()));
        assert_eq!(first_fit(&instance, &search), None);
        assert_eq!(decreasing_size(&instance, &search), None);
    }

    #[test]
    fn threads_share_the_orders_to_begin_with() {
        let problem = Problem::new("p", vec![Buffer::new("a", 0, 2, 6), Buffer::new("b", 1, 9, 1)]).unwrap();
        let instance = Instance::new(&problem);
        let search = Search::new(0, None, None);
        for threads in 1..=16 {
            let of = |index| Starts::new(&instance, &search, index, threads).count();
            assert!((0..threads).all(|index| of(index) > 0));
            assert!((0..threads).map(of).sum::<usize>() >= Starts::ALL.len());
        }
    }
}
