//! The course that the page is told of a replay is equal to the replay without an observer.

#![allow(clippy::unwrap_used)]

use seamalloc::driver::Call;
use seamalloc::driver::sim::SimConfig;
use seamalloc::{Config, StrategyKind};
use seamalloc_page::{Course, course};
use seamalloc_trace::Trace;
use seamalloc_trace::replay::{PassReport, ReplayOptions, replay};
use seamalloc_trace::workload::{self, Scale};

/// A generated job of several streams, with frees that complete late.
fn job(name: &str, steps: u32) -> Trace {
    let workload = workload::catalogue().iter().find(|workload| workload.name == name).unwrap();
    workload.generate(0, Scale { steps: Some(steps) }).unwrap()
}

fn options(strategy: StrategyKind, conf: &str, device: &str) -> ReplayOptions {
    let config = Config { strategy, ..Config::parse(conf).unwrap() };
    ReplayOptions::new(config, SimConfig::parse(device).unwrap())
}

/// Everything that does not depend on this machine's clock.
fn without_clock(passes: &[PassReport]) -> Vec<PassReport> {
    let without = |pass: &PassReport| PassReport { ns_per_op: 0.0, held_after: 0, ..pass.clone() };
    passes.iter().map(without).collect()
}

fn most(figure: &[(u32, u64)]) -> u64 {
    figure.iter().map(|(_, value)| *value).max().unwrap_or(0)
}

/// The sum of a count over all operations that called the driver.
fn sum(course: &Course, of: impl Fn(Call) -> bool) -> u64 {
    let calls = course.work.iter().flat_map(|work| &course.call_sets[work.calls as usize]);
    calls.filter(|(call, _)| of(*call)).map(|(_, count)| count).sum()
}

#[track_caller]
fn agrees(trace: &Trace, options: &ReplayOptions) -> Course {
    let alone = replay(trace, options, &mut |_, _| {}).unwrap();
    let course = course(trace, options, true, &mut |_, _| {}).unwrap();
    let name = course.strategy;
    assert_eq!(without_clock(&course.passes), without_clock(&alone), "{name}: it is not looked at without a change");
    let last = alone.last().unwrap();
    assert_eq!(sum(&course, |_| true), last.driver.iter().map(|(_, stat)| stat.count).sum::<u64>(), "{name}: calls");
    assert_eq!(course.work.iter().map(|work| work.ns).sum::<u64>(), last.driver.total_ns(), "{name}: driver time");
    if !options.config.strategy.needs_memory_pools() {
        // Where the driver's pool serves, streams wait for that of the pool too.
        assert_eq!(sum(&course, |call| call == Call::StreamWait), last.stream_waits, "{name}: stream waits");
    }
    let waits = [Call::EventSynchronize, Call::StreamSynchronize, Call::Free];
    assert_eq!(sum(&course, |call| waits.contains(&call)), last.cpu_syncs, "{name}: CPU waits");
    let worst = course.work.iter().map(|work| work.ns).max().unwrap_or(0);
    // A free that names another stream first is two calls of the allocator, each of which may stall.
    let (work, stalls) = (course.work.len() as u64, last.stalls.count);
    assert!(worst >= last.stalls.worst_ns, "{name}: the worst of {stalls} stalls: {worst}, {}", last.stalls.worst_ns);
    assert!(stalls <= 2 * work, "{name}: {stalls} stalls in {work} operations");
    // Within an operation more may be held than before and after it.
    assert!(most(&course.reserved) <= last.peak_reserved, "{name}: reserved");
    let ops: Vec<_> = course.work.iter().map(|work| work.op).collect();
    assert!(ops.is_sorted() && course.reserved.is_sorted_by_key(|(op, _)| *op), "{name}: order");
    for (_, memory) in &course.samples {
        assert_eq!(memory.reserved, memory.allocated + memory.pending + memory.free + memory.unsettled, "{name}");
    }
    course
}

#[test]
fn looking_on_changes_nothing_with_any_strategy() {
    let trace = job("prefetch", 2);
    assert!(trace.summary().deferred_frees > 0 && trace.streams.len() > 1);
    for kind in StrategyKind::ALL {
        let course = agrees(&trace, &options(kind, "", "sim:h200"));
        assert_eq!(course.strategy, kind.name());
        let last = course.passes.last().unwrap();
        assert_eq!(most(&course.reserved), last.peak_reserved, "{kind}: the most that is held is shown");
        assert!(course.samples.len() > 50, "{kind}");
    }
}

/// Two passes, run-ahead, and waits between streams: the course is that of the last pass.
#[test]
fn the_last_pass_is_shown() {
    let trace = job("llama-8b-fsdp", 2);
    for kind in StrategyKind::MAIN {
        let options = ReplayOptions { passes: 2, lag: 300, ..options(kind, "sharing:wait", "sim:h200") };
        let course = agrees(&trace, &options);
        assert_eq!(course.passes.len(), 2);
        assert_eq!(course.reserved[0].0, 0, "{kind}: what is held from the first pass is there from the beginning");
        assert!(course.reserved[0].1 > 0, "{kind}");
    }
}

#[test]
fn a_refused_request_is_the_last_of_the_course() {
    let trace = job("prefetch", 2);
    let live = trace.summary().peak_live;
    let device = format!("sim:h200,capacity={}", live / 2);
    for kind in StrategyKind::MAIN {
        let course = agrees(&trace, &options(kind, "", &device));
        let last = course.passes.last().unwrap();
        assert!(last.oom.is_some(), "{kind}");
        assert_eq!(course.samples.last().unwrap().0 as u64, last.ops, "{kind}: how memory is divided up then is known");
        assert!(course.work.last().unwrap().op as u64 <= last.ops, "{kind}");
    }
}
