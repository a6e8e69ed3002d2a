//! The strategy `planned` on recorded training jobs whose iterations are all alike (`data/fixed/`): from the third one on, a plan serves
//! them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

use seamalloc::driver::Driver;
use seamalloc::driver::sim::{Profile, SimConfig, SimGpu};
use seamalloc::{Allocator, Config, PlanStats, StrategyKind};
use seamalloc_plan::online::Inline;
use seamalloc_trace::replay::{ReplayOptions, Replayer, Step, Watcher, replay};
use seamalloc_trace::{Trace, read_path};
use std::path::Path;
use std::sync::Arc;

fn job(name: &str) -> Trace {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/fixed").join(name).with_extension("seam");
    read_path(&file).unwrap().remove(0)
}

/// What a step of the plans came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Figures {
    /// The most bytes that were live and held.
    peak: u64,
    held: u64,
    calls: u64,
    views: u64,
    placed: u64,
    departures: u64,
}

/// Looks at each step as it ends.
struct Steps {
    gpu: Arc<SimGpu>,
    now: Figures,
    /// Counters at its beginning.
    calls: u64,
    views: u64,
    plans: PlanStats,
    ended: Vec<Figures>,
}

impl Watcher for Steps {
    fn step(&mut self, step: &Step<'_>) {
        let stats = step.allocator.stats();
        self.now.peak = self.now.peak.max(stats.allocated_bytes.all.current);
        self.now.held = self.now.held.max(stats.reserved_bytes.all.current);
        if stats.plans.steps == self.plans.steps {
            return;
        }
        let calls = self.gpu.call_stats().iter().map(|(_, calls)| calls.count).sum();
        let before = self.plans;
        self.ended.push(Figures {
            calls: calls - self.calls,
            views: stats.views_built - self.views,
            placed: stats.plans.placed - before.placed,
            departures: stats.plans.departures - before.departures,
            ..self.now
        });
        (self.calls, self.views, self.plans) = (calls, stats.views_built, stats.plans);
        // What is held now is the next step's.
        self.now = Figures::default();
    }

    fn end(&mut self, _: &Allocator) {}
}

fn steps(trace: &Trace) -> Vec<Figures> {
    let gpu = Arc::new(SimGpu::new(SimConfig::new(Profile::H200)).unwrap());
    let allocator = Allocator::new(gpu.clone(), Config::with_strategy(StrategyKind::Planned)).unwrap();
    allocator.set_planner(Box::<Inline>::default());
    let mut replayer = Replayer::new(trace, allocator, gpu.clone());
    let (now, plans) = (Figures::default(), PlanStats::default());
    let mut steps = Steps { gpu, now, calls: 0, views: 0, plans, ended: Vec::new() };
    replayer.watched_pass(1, &mut steps, &mut |_| {}).unwrap();
    steps.ended
}

#[test]
fn from_the_third_iteration_on_a_plan_serves_it_in_little_more_memory_than_is_live() {
    // The number of iterations; the last one has no end. The figures are what is reached, rounded down.
    for (name, iterations, least) in
        [("llama1b-fixed", 10, 0.9995), ("llama1b-fixed-R", 10, 0.9995), ("gpt2xl-fixed", 8, 0.9995)]
    {
        let steps = steps(&job(name));
        let planned = &steps[steps.len() - (iterations - 3)..];
        for step in planned {
            assert_eq!((step.calls, step.views, step.departures), (0, 0, 0), "{name}: {step:?}");
            assert_eq!(step.placed, planned[0].placed, "{name}: all are alike");
            assert!(step.placed > 1000, "{name}: {step:?}");
            assert!(step.peak as f64 >= least * step.held as f64, "{name}: {step:?}");
        }
    }
}

/// Its layers ask for the same in the backward pass, one after the other, and each ends like a step; and the output of the first layer is
/// kept until the next iteration has its own, so that only two iterations together have a place for it.
#[test]
fn layers_and_an_output_that_is_kept_are_parts_of_a_step_of_two_iterations() {
    let steps = steps(&job("peft"));
    // Iterations 7 and 8, and 9 and 10.
    let [first, second] = steps[steps.len() - 2..] else { panic!("{steps:?}") };
    let requests = 2 * 1358;
    assert_eq!((second.placed, second.departures), (requests, 0));
    assert_eq!(first.placed + first.departures, requests);
    assert!(first.placed > requests * 99 / 100, "{first:?}");
    assert_eq!((first.calls, first.views, second.calls, second.views), (0, 0, 0, 0));
}

#[test]
fn it_takes_no_more_memory_than_stitch() {
    for name in ["llama1b-fixed", "llama1b-fixed-R", "gpt2xl-fixed", "resnet-fixed", "peft"] {
        let trace = job(name);
        let [stitch, planned] = [StrategyKind::Stitch, StrategyKind::Planned].map(|kind| {
            let options = ReplayOptions::new(Config::with_strategy(kind), SimConfig::new(Profile::H200));
            let reports = replay(&trace, &ReplayOptions { passes: 3, ..options }, &mut |_, _| {}).unwrap();
            reports.into_iter().map(|report| report.peak_reserved).collect::<Vec<_>>()
        });
        let is_less = planned.iter().zip(&stitch).all(|(planned, stitch)| planned <= stitch);
        assert!(is_less, "{name}: {planned:?}, {stitch:?}");
    }
}
