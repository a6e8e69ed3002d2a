//! A plan's places in memory that is a tag's by the time at which the plan is put in place.

use crate::real_words::{Device, MAIN, MIB};
use seamalloc::driver::Call;
use seamalloc::planning::{Place, Places, PlanProblem, Planner};
use seamalloc::{Allocator, Backup, Config};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Places the first request across the border of the two longest runs of free chunks. Answers once it may.
struct Across {
    first: u64,
    open: Arc<AtomicBool>,
    answer: Option<(u64, Places)>,
}

impl Planner for Across {
    fn submit(&mut self, number: u64, problem: PlanProblem) {
        let place = |part: &seamalloc::planning::PlanPart| {
            let range = part.ranges.len() - 1;
            assert!(part.ranges[range] > self.first, "{:?}", part.ranges);
            vec![Some(Place { range, offset: self.first - MIB })]
        };
        self.answer.get_or_insert((number, problem.parts.iter().map(place).collect()));
    }

    fn answer(&mut self) -> Option<(u64, Places)> {
        if self.open.load(Ordering::Relaxed) { self.answer.take() } else { None }
    }
}

#[test]
fn no_view_of_a_plan_maps_memory_of_a_tag() {
    for tagged in [false, true] {
        let device = Arc::new(Device::new(256 * MIB, &[] as &[Call]));
        let config = Config::parse("strategy:planned,chunk_size_mb:4,sharing:wait").unwrap();
        let allocator = Allocator::new(Arc::<Device>::clone(&device), config).unwrap();
        let open = Arc::new(AtomicBool::new(false));
        allocator.set_planner(Box::new(Across { first: 20 * MIB, open: Arc::clone(&open), answer: None }));
        let allocate = |size: u64| allocator.allocate(size, MAIN).unwrap();
        let free = |address: u64| allocator.free(address).unwrap();
        // Free runs of 12 and 20 MiB, and weights beside them.
        let blocks: Vec<u64> = [12, 4, 20, 4].map(|mib| allocate(mib * MIB)).to_vec();
        let step = || {
            let requests: Vec<u64> = (0..10).map(|_| allocate(2 * MIB)).collect();
            requests.into_iter().for_each(free);
        };
        [0, 2].into_iter().for_each(|at| free(blocks[at]));
        (0..4).for_each(|_| step());
        let long = allocate(20 * MIB);
        allocator.empty_cache().unwrap();
        let tag = allocator.create_tag().unwrap();
        let taken = if tagged { allocator.allocate_in(tag, 12 * MIB, MAIN).unwrap() } else { allocate(12 * MIB) };
        if !tagged {
            free(taken);
        }
        free(long);
        let views = allocator.stats().views_built;
        open.store(true, Ordering::Relaxed);
        (0..3).for_each(|_| step());
        let built = allocator.stats().views_built - views;
        assert_eq!(built, u64::from(!tagged), "the plan's view is built where its memory is public still");
        if tagged {
            allocator.sleep(tag, &Backup::Host).unwrap();
            allocator.free(taken).unwrap();
        }
        allocator.release_pool(tag).unwrap();
        [1, 3].into_iter().for_each(|at| free(blocks[at]));
        allocator.check().unwrap();
        allocator.empty_cache().unwrap();
        assert_eq!(device.used(), 0);
        drop(allocator);
        assert_eq!(device.host.leaks(), Default::default());
    }
}
