//! Iterations of recorded jobs: found, and planned by each method of one pass.

use seamalloc_plan::{Buffer, Limits, Method, Piece, Problem, plan};
use seamalloc_trace::iteration::Iteration;
use seamalloc_trace::{Trace, persistent, read_path, recorded};
use std::path::Path;

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

/// The step that is planned is the one with the peak. What is planned and persistent memory are together what is live at most;
/// and each method's plan holds.
#[test]
fn iterations_of_recorded_jobs_are_planned() {
    for (name, iterations) in [("gpt2xl-N", 4), ("opt1.3b-R", 8), ("opt13b-LR", 6), ("llama8b-fsdp2", 2)] {
        let trace = recorded::find(name).unwrap().load().unwrap();
        let iteration = Iteration::of(&trace).unwrap();
        assert_eq!(iteration.iterations, iterations, "{name}");
        let live = peak_live(&trace, iteration.events.clone());
        assert_eq!((live, iteration.live), (peak_live(&trace, 0..trace.events.len()), live), "{name}");
        for method in [Method::FirstFit, Method::DecreasingSize, Method::Chainer] {
            let outcome = plan(&iteration.problem, method, &Limits::default(), &mut |_| {}).unwrap();
            outcome.plan.check(&iteration.problem).unwrap();
            let planned = outcome.bound + iteration.persistent.bytes;
            assert!((live..=live + iteration.by_turns.bytes).contains(&planned), "{name}: {planned}, {live}");
            assert!(iteration.planned == 1 && iteration.by_turns.bytes <= 512, "{name}: {:?}", iteration.by_turns);
            assert!(outcome.plan.offsets.iter().all(|offset| offset.is_multiple_of(512)), "{name}");
        }
    }
}

/// The most bytes of buffers at one moment.
fn peak_load(problem: &Problem) -> u64 {
    let pieces = problem.buffers().iter().flat_map(Buffer::pieces);
    let bytes = |piece: &Piece| piece.window.1 - piece.window.0;
    // Ends come before beginnings of the same moment.
    let ends = |piece: Piece| [(piece.upper, false, bytes(&piece)), (piece.lower, true, bytes(&piece))];
    let mut changes: Vec<_> = pieces.flat_map(ends).collect();
    changes.sort_unstable();
    let loads = changes.iter().scan(0, |load, (_, begins, bytes)| {
        *load = if *begins { *load + bytes } else { *load - bytes };
        Some(*load)
    });
    loads.max().unwrap_or(0)
}

/// The peak load of what is planned, with persistent memory, is the most that is live in the steps that are planned, and no less
/// than the most of the whole job. An optimizer that makes its state anew has two steps planned, in which no block counts twice.
#[test]
fn no_bound_is_below_the_live_peak() {
    let files = std::fs::read_dir(format!("{}/tests/data/snapshots", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let snapshots = files.filter_map(|file| read_path(&file.unwrap().path()).ok()?.pop());
    let jobs: Vec<Trace> = snapshots.chain(recorded::JOBS.iter().map(|job| job.load().unwrap())).collect();
    assert!(jobs.len() >= recorded::JOBS.len() + 10, "{}", jobs.len());
    for trace in jobs {
        let iteration = Iteration::of(&trace).unwrap();
        let bound = peak_load(&iteration.problem) + iteration.persistent.bytes;
        let live = trace.summary().peak_live;
        let most = peak_live(&trace, iteration.events.clone());
        assert!(bound == most || iteration.planned == 1 && bound <= most + most / 1000, "{}: {bound}", trace.name);
        assert_eq!(iteration.planned == 2, trace.name == "optimizer-loop", "{}: {:?}", trace.name, iteration.by_turns);
        assert!(bound >= live && iteration.live >= live, "{}: {bound}, {live}, {}", trace.name, iteration.live);
        assert!(persistent(&trace) <= live, "{}", trace.name);
    }
}

/// Two epochs of four steps of training and two of evaluation; the first step, which makes the optimizer's state, is its own.
#[test]
fn training_and_evaluation_are_told_apart() {
    let path = format!("{}/tests/data/snapshots/train-eval.snapshot.pickle.gz", env!("CARGO_MANIFEST_DIR"));
    let iteration = Iteration::of(&read_path(Path::new(&path)).unwrap()[0]).unwrap();
    let kinds: Vec<_> = iteration.kinds.iter().map(|kind| (kind.times, kind.requests)).collect();
    assert_eq!(kinds, [(7, 558), (4, 161)]);
    assert!(iteration.kinds[0].live == iteration.live && iteration.kinds[1].live < iteration.live / 3, "{iteration}");
}
