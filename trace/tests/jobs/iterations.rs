//! Iterations of recorded jobs: found, and planned by each method of one pass.

use seamalloc_plan::{Limits, Method, plan};
use seamalloc_trace::iteration::Iteration;
use seamalloc_trace::{Trace, recorded};

/// The most that is live in a part of a trace, each size rounded up as in a plan.
fn peak_live(trace: &Trace, events: std::ops::Range<usize>) -> u64 {
    use seamalloc_trace::TraceEvent::{Alloc, FreeCompleted, FreeRequested};
    let (mut sizes, mut live, mut most) = (Vec::new(), 0_u64, 0);
    for (index, event) in trace.events.iter().enumerate() {
        if index == events.start {
            most = live;
        }
        match *event {
            Alloc { size, .. } => {
                sizes.push(size.next_multiple_of(512));
                live += sizes[sizes.len() - 1];
            }
            FreeRequested { .. } => {}
            FreeCompleted { block } => live -= sizes[block as usize],
        }
        if events.contains(&index) {
            most = most.max(live);
        }
    }
    most
}

/// What is planned and what lives throughout are together what is live at most, but that a block that crosses is as large
/// as the larger of the two that take its place; and each method's plan holds.
#[test]
fn iterations_of_recorded_jobs_are_planned() {
    for (name, iterations) in [("gpt2xl-N", 4), ("opt1.3b-R", 7), ("opt13b-LR", 5), ("llama8b-fsdp2", 2)] {
        let trace = recorded::find(name).unwrap().load().unwrap();
        let iteration = Iteration::of(&trace).unwrap();
        assert_eq!(iteration.iterations, iterations, "{name}");
        let live = peak_live(&trace, iteration.events.clone());
        for method in [Method::FirstFit, Method::DecreasingSize, Method::Chainer] {
            let outcome = plan(&iteration.problem, method, &Limits::default(), &mut |_| {}).unwrap();
            outcome.plan.check(&iteration.problem).unwrap();
            let planned = outcome.bound + iteration.persistent.bytes;
            assert!((live..=live + iteration.crossing.bytes).contains(&planned), "{name}: {planned}, {live}");
            assert!(outcome.plan.offsets.iter().all(|offset| offset.is_multiple_of(512)), "{name}");
        }
    }
}
