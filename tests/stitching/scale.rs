//! Cost follows need: what the driver does grows with the requests that miss and the chunks that they need, on patterns made
//! to break this. The checks of the feature `paranoid` cost what there is, and are left out.

use seamalloc::driver::sim::{Range, SimConfig, SimGpu};
use seamalloc::driver::{Call, Driver};
use seamalloc::{Allocator, Config, StrategyKind};
use seamalloc_trace::TraceEvent;
use seamalloc_trace::replay::{ReplayOptions, replay};
use seamalloc_trace::workload::{self, Scale};
use std::sync::Arc;

/// The result of a run.
#[derive(Debug, Default)]
struct Run {
    ops: u64,
    streams: u64,
    /// Requests that called the driver.
    misses: u64,
    /// Chunks behind the blocks that they got.
    chunks: u64,
    /// Calls that make, map or give back memory, and calls for events.
    memory_calls: u64,
    event_calls: u64,
    driver_us: u64,
}

fn run(name: &str, steps: u32, options: &str) -> Run {
    let trace = workload::find(name).unwrap().generate(0, Scale { steps: Some(steps) }).unwrap();
    let config = SimConfig { calls_advance_clock: false, ..SimConfig::parse("sim:h200").unwrap() };
    let gpu = Arc::new(SimGpu::new(config).unwrap());
    gpu.set_run_ahead(200);
    let config = Config { strategy: StrategyKind::Stitch, ..Config::parse(options).unwrap() };
    let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), config).unwrap();
    let mut addresses = Vec::new();
    let mut run = Run { streams: trace.streams.len() as u64, ops: trace.events.len() as u64, ..Run::default() };
    for event in &trace.events {
        gpu.advance(1);
        let busy = gpu.busy_ns();
        match *event {
            TraceEvent::Alloc { size, stream } => {
                let address = allocator.allocate(size, trace.streams[stream as usize]).unwrap();
                addresses.push(address);
                if gpu.busy_ns() > busy {
                    let pieces = gpu.physical(Range { address, size });
                    let mut chunks: Vec<u64> = pieces.iter().map(|piece| piece.memory).collect();
                    chunks.dedup();
                    run.misses += 1;
                    run.chunks += chunks.len() as u64;
                }
            }
            TraceEvent::FreeRequested { block } => allocator.free(addresses[block as usize]).unwrap(),
            TraceEvent::FreeCompleted { .. } => {}
        }
    }
    let calls = gpu.call_stats();
    for (call, stat) in calls.iter() {
        match call {
            Call::EventCreate | Call::EventRecord | Call::EventQuery | Call::StreamWait => {
                run.event_calls += stat.count
            }
            _ => run.memory_calls += stat.count,
        }
    }
    run.driver_us = calls.total_ns() / 1000;
    run
}

#[test]
fn the_driver_works_for_misses_and_their_chunks_and_for_nothing_else() {
    /// The most that a chunk costs: made, mapped at home and in a view, and unmapped from the view again, each with its
    /// share of the call that grants access.
    const CHUNK_US: u64 = 40;
    /// And a miss beside its chunks: addresses, events.
    const MISS_US: u64 = 20;
    for (name, steps) in [
        ("comb", 2),
        ("sawtooth", 6),
        ("creeping", 20),
        ("ping-pong", 8),
        ("dtr-chain", 2),
        ("kv-batch", 20),
        ("prefetch", 30),
    ] {
        // With room for hardly any view too, where each has to make room for the next.
        for options in ["sharing:wait", "sharing:wait,max_view_mappings:300"] {
            let run = run(name, steps, options);
            let Run { misses, chunks, memory_calls, event_calls, driver_us, streams, ops } = run;
            let what = format!("{name} with `{options}`: {run:?}");
            // Streams that share come to rest early, so that most chunks have just been made.
            let (least, by_chunk) = if name == "prefetch" { (30, 3) } else { (100, 2) };
            assert!(misses > least && chunks > misses, "{what}");
            // A chunk is mapped in a view by a call of its own; others may have made it and mapped it at home before.
            assert!(memory_calls <= 4 * misses + by_chunk * chunks, "{what}");
            assert!(driver_us <= CHUNK_US * chunks + MISS_US * misses, "{what}");
            // A stream alone has nobody to wait for; events order views that make room for one another.
            let by_miss = if streams == 1 && options == "sharing:wait" { 0 } else { 2 * streams * misses };
            // Where live memory falls by a quarter of all, streams give one another what they have passed.
            let by_ebb = if streams == 1 { 0 } else { ops };
            assert!(event_calls <= by_miss + by_ebb, "{what}");
        }
    }
}

/// A miss costs no more when the same pattern runs for longer.
#[test]
fn a_miss_costs_no_more_the_longer_a_program_runs() {
    for (name, steps) in [("comb", 1), ("creeping", 10), ("dtr-chain", 1), ("sawtooth", 4)] {
        let [short, long] = [steps, 3 * steps].map(|steps| run(name, steps, "max_view_mappings:1000"));
        let by_chunk = |run: &Run| run.driver_us as f64 / (run.misses + run.chunks) as f64;
        assert!(long.misses > short.misses, "{name}: {short:?}, {long:?}");
        assert!(by_chunk(&long) < 1.5 * by_chunk(&short), "{name}: {short:?}, {long:?}");
    }
}

/// Copies on one stream and computes on another, with buffers of any size. Large requests that took the free slabs of small ones
/// would let each small request grow memory by a slab, and the next view be of more pieces: held and driver time rose with each pass.
#[test]
fn streams_that_share_come_to_rest() {
    let trace = workload::find("prefetch").unwrap().generate(0, Scale::default()).unwrap();
    for (lag, bound) in [(0, 1.25), (1500, 1.25)] {
        let options = ReplayOptions { passes: 6, lag, ..ReplayOptions::new(Config::default(), SimConfig::default()) };
        let passes = replay(&trace, &options, &mut |_, _| {}).unwrap();
        let held: Vec<u64> = passes.iter().map(|pass| pass.peak_reserved).collect();
        let live = passes[0].peak_live as f64;
        assert!(held[5] as f64 <= bound * live && held[5] == held[3], "lag {lag}: {held:?} of {live}");
        let built: Vec<u64> = passes.iter().map(|pass| pass.views_built).collect();
        assert!(built[4..].iter().sum::<u64>() * 4 <= built[0], "lag {lag}: {built:?}");
    }
}
