//! Planners that come and go.

use crate::real_words::{Device, MAIN, MIB};
use seamalloc::driver::Call;
use seamalloc::planning::{Places, PlanProblem, Planner};
use seamalloc::{Allocator, Config};
use seamalloc_plan::online::Inline;
use std::sync::Arc;

/// Answers nothing.
struct Silent;

impl Planner for Silent {
    fn submit(&mut self, _: u64, _: PlanProblem) {}

    fn answer(&mut self) -> Option<(u64, Places)> {
        None
    }
}

/// What the one before it was given, and has not answered, is no reason to give the next one nothing.
#[test]
fn a_planner_that_takes_the_place_of_a_silent_one_is_asked() {
    let device = Arc::new(Device::new(256 * MIB, &[] as &[Call]));
    let config = Config::parse("strategy:planned,chunk_size_mb:4").unwrap();
    let allocator = Allocator::new(Arc::<Device>::clone(&device), config).unwrap();
    allocator.set_planner(Box::new(Silent));
    let step = |length: u64| {
        let requests: Vec<u64> = (0..10).map(|_| allocator.allocate(length * MIB, MAIN).unwrap()).collect();
        requests.into_iter().for_each(|address| allocator.free(address).unwrap());
    };
    (2..9).for_each(step);
    assert!(allocator.stats().plans.steps > 4);
    allocator.set_planner(Box::<Inline>::default());
    (0..8).for_each(|_| step(3));
    assert!(allocator.stats().plans.placed > 0, "{:?}", allocator.stats().plans);
}
