//! No false alarm: recorded jobs and generated workloads run through guard mode as through none.

use super::*;
use seamalloc::driver::sim::SimConfig;
use seamalloc_trace::recorded::JOBS;
use seamalloc_trace::workload::{Scale, catalogue};
use seamalloc_trace::{Trace, TraceEvent};

/// Events of each trace under `cargo test`; whole traces take minutes.
const SHARE: usize = 2_500;
/// How far the CPU is ahead of the GPU, in operations.
const RUN_AHEAD: u64 = 200;

/// Runs a part of a trace under guard mode, the GPU far behind the CPU. A kernel uses each block from its allocation on, and
/// the side stream of a deferred free is told. Returns how many allocations were guarded.
fn quiet(trace: &Trace, options: &str, most: usize) -> u64 {
    let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=8TiB").unwrap()).unwrap());
    gpu.set_run_ahead(RUN_AHEAD);
    let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::parse(options).unwrap()).unwrap();
    let side = StreamId(1 << 62);
    let mut live: Vec<Option<(u64, u64)>> = Vec::new();
    let mut event = 0;
    while let Some(now) = trace.events.get(event).filter(|_| event < most) {
        gpu.advance(1);
        match *now {
            TraceEvent::Alloc { size, stream } => {
                let stream = trace.streams[stream as usize];
                let address = allocator.allocate(size, stream).unwrap();
                if size > 0 {
                    gpu.launch(stream, &[range(address, size)], 2).unwrap();
                    allocator.guard().record_access(&[address], stream).unwrap();
                }
                live.push(Some((address, size)));
            }
            TraceEvent::FreeRequested { block } => {
                let (address, size) = live[block as usize].take().unwrap();
                if trace.events.get(event + 1) != Some(&TraceEvent::FreeCompleted { block }) && size > 0 {
                    gpu.launch(side, &[range(address, size)], 20).unwrap();
                    allocator.guard().record_access(&[address], side).unwrap();
                    allocator.record_stream(address, side).unwrap();
                }
                allocator.free(address).unwrap();
            }
            TraceEvent::FreeCompleted { .. } => {}
        }
        event += 1;
    }
    let blamed = |allocator: &Allocator| {
        assert!(allocator.guard().findings().is_empty(), "{}: {}", trace.name, allocator.guard().findings()[0]);
        assert!(gpu.faults().is_empty(), "{}: {}", trace.name, gpu.faults()[0]);
    };
    blamed(&allocator);
    for (address, _) in live.into_iter().flatten() {
        allocator.free(address).unwrap();
    }
    allocator.guard().check().unwrap();
    blamed(&allocator);
    let stats = allocator.stats();
    assert_eq!(stats.guard.unguarded, 0, "{}", trace.name);
    ends_clean(&gpu, allocator);
    stats.guard.guarded
}

#[test]
fn recorded_jobs_are_not_blamed() {
    for job in JOBS {
        assert!(quiet(&job.load().unwrap(), "guard:on", SHARE) > 500, "{}", job.name);
    }
}

#[test]
fn generated_workloads_are_not_blamed() {
    for workload in catalogue() {
        let trace = workload.generate(0, Scale { steps: Some(1) }).unwrap();
        assert!(quiet(&trace, "guard:on", SHARE) > 100, "{}", workload.name);
    }
}

#[test]
#[ignore = "takes minutes: every event of every trace"]
fn whole_traces_are_not_blamed() {
    let traces = JOBS.iter().map(|job| job.load().unwrap());
    let generated = catalogue().iter().map(|workload| workload.generate(0, Scale { steps: None }).unwrap());
    for trace in traces.chain(generated) {
        quiet(&trace, "guard:on,guard_sample:20", usize::MAX);
    }
}
