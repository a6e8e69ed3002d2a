//! Traces and trace files that nobody sane would make: reading, checking, writing, replaying and fitting them may fail
//! with an error, and never panics.

use crate::length::rounds;
use crate::random::Random;
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::{MAX_CAPACITY, SimConfig};
use seamalloc::observer::{Action, Event};
use seamalloc::snapshot::{BlockInfo, BlockState, SegmentInfo, Snapshot};
use seamalloc::{Config, StrategyKind, StreamSharing};
use seamalloc_trace::fit::fit;
use seamalloc_trace::replay::{ReplayOptions, replay};
use seamalloc_trace::{
    TimedEvent, Trace, TraceEvent, read_bytes, read_snapshot, write_compact, write_csv, write_snapshot_json,
    write_snapshot_pickle,
};

const MIB: u64 = 1 << 20;

fn options(config: Config, capacity: u64) -> ReplayOptions {
    ReplayOptions::new(config, SimConfig { capacity, ..SimConfig::default() })
}

/// Any events at all, mostly such as could be.
fn any_trace(random: &mut Random) -> Trace {
    let streams = (0..random.below(4)).map(|_| StreamId([0, 7, 1 << 62, u64::MAX][random.below(4) as usize])).collect();
    let size = |random: &mut Random| match random.below(20) {
        0 => 0,
        1 => u64::MAX - random.below(600),
        2 => 1 << random.below(64),
        _ => 1 + random.below(40 * MIB),
    };
    let events = (0..random.below(60)).map(|step| match random.below(9) {
        0..5 => TraceEvent::Alloc { size: size(random), stream: random.below(4) as u32 },
        5 => TraceEvent::FreeRequested { block: u32::MAX - random.below(2) as u32 },
        6 => TraceEvent::FreeCompleted { block: random.below(step + 1) as u32 },
        _ => TraceEvent::FreeRequested { block: random.below(step / 2 + 1) as u32 },
    });
    Trace { name: "any".into(), streams, events: events.collect(), ..Trace::default() }
}

/// Only such events as could be.
fn valid_trace(random: &mut Random, streams: Vec<StreamId>) -> Trace {
    let mut events = Vec::new();
    let (mut live, mut requested, mut blocks) = (Vec::new(), Vec::new(), 0);
    for _ in 0..random.below(150) {
        match random.below(5) {
            0..3 => {
                let most = [3000, MIB, 30 * MIB][random.below(3) as usize];
                let size = 1 + random.below(most);
                events.push(TraceEvent::Alloc { size, stream: random.below(streams.len() as u64) as u32 });
                live.push(blocks);
                blocks += 1;
            }
            3 if !live.is_empty() => {
                let block = live.swap_remove(random.below(live.len() as u64) as usize);
                events.push(TraceEvent::FreeRequested { block });
                requested.push(block);
            }
            _ if !requested.is_empty() => {
                let block = requested.swap_remove(random.below(requested.len() as u64) as usize);
                events.push(TraceEvent::FreeCompleted { block });
            }
            _ => {}
        }
    }
    Trace { name: "valid".into(), streams, events, ..Trace::default() }
}

#[test]
fn replaying_any_events_ends_in_a_report_or_an_error() {
    let mut random = Random(1);
    let mut ran = 0;
    for round in 0..rounds(120, 400) {
        let trace = any_trace(&mut random);
        let _ = trace.summary();
        let (mut csv, mut compact) = (Vec::new(), Vec::new());
        let valid = write_csv(&trace, &mut csv).is_ok();
        assert_eq!(valid, write_compact(&trace, &mut compact).is_ok());
        for kind in StrategyKind::ALL {
            let mut options =
                options(Config::with_strategy(kind), [2 * MIB, 64 * MIB, 1 << 30, MAX_CAPACITY][round % 4]);
            options.lag = [0, 3, u64::MAX][round % 3];
            options.passes = [1, 3, 0][round % 3];
            let reports = replay(&trace, &options, &mut |_, _| {});
            ran += u32::from(reports.is_ok());
            for report in reports.iter().flatten() {
                assert!(report.utilization() >= 0.0 && report.to_json().is_object());
            }
        }
    }
    assert!(ran > 100, "{ran}");
}

/// A free that waits for another stream waits, whatever handles the trace's own streams have.
#[test]
fn streams_of_any_handle_do_not_meet_those_of_the_replay() {
    use TraceEvent::{Alloc, FreeCompleted, FreeRequested};
    let alloc = |stream| Alloc { size: 20 * MIB, stream };
    let events =
        vec![alloc(0), FreeRequested { block: 0 }, alloc(0), FreeCompleted { block: 0 }, FreeRequested { block: 1 }];
    let peak = |stream| {
        let trace = Trace { streams: vec![StreamId(stream)], events: events.clone(), ..Trace::default() };
        // No stream waits on the GPU.
        let config = Config { sharing: StreamSharing::Never, ..Config::default() };
        replay(&trace, &options(config, 1 << 30), &mut |_, _| {}).unwrap()[0].peak_reserved
    };
    assert_eq!(peak(5), 40 * MIB, "the second block cannot have the first's memory");
    assert_eq!(peak(1 << 62), 40 * MIB);
    assert_eq!(peak(u64::MAX), 40 * MIB);
}

#[test]
fn what_fits_is_what_runs() {
    let mut random = Random(3);
    for round in 0..rounds(8, 25) {
        let trace = valid_trace(&mut random, vec![StreamId(0), StreamId(5)]);
        for kind in StrategyKind::ALL {
            for limits in [
                "",
                "per_process_memory_fraction:0.5",
                "per_process_memory_fraction:0.8,garbage_collection_threshold:0.4",
            ] {
                let config = Config { strategy: kind, ..Config::parse(limits).unwrap() };
                let found = fit(&trace, &options(config.clone(), 1 << 30), &mut |_, _| {}).unwrap().unwrap();
                let reports = replay(&trace, &options(config, found.capacity), &mut |_, _| {}).unwrap();
                let out_of_memory = reports.iter().any(|report| report.oom.is_some());
                assert!(!out_of_memory, "{kind} {limits} {round}: does not run on {} bytes", found.capacity);
            }
        }
    }
}

fn snapshot_of(random: &mut Random) -> (Snapshot, Vec<TimedEvent>) {
    let state = |n| [BlockState::ActiveAllocated, BlockState::ActivePendingFree, BlockState::Inactive][n as usize];
    let number = |random: &mut Random| match random.below(8) {
        0 => u64::MAX - random.below(3),
        1 => 0,
        _ => random.below(1 << 20) * 512,
    };
    let segments = (0..random.below(4))
        .map(|_| SegmentInfo {
            address: number(random),
            total_size: number(random),
            stream: StreamId(number(random)),
            small: random.below(2) == 0,
            expandable: random.below(2) == 0,
            pool: seamalloc::PoolId(number(random), number(random)),
            blocks: (0..random.below(4))
                .map(|_| BlockInfo {
                    address: number(random),
                    size: number(random),
                    requested_size: number(random),
                    state: state(random.below(3)),
                    spilled: number(random),
                    asleep: random.below(2) == 0,
                })
                .collect(),
        })
        .collect();
    let actions = [Action::Alloc, Action::FreeRequested, Action::FreeCompleted, Action::SegmentAlloc, Action::Oom];
    let history = (0..random.below(20))
        .map(|_| TimedEvent {
            event: Event {
                action: actions[random.below(5) as usize],
                address: random.below(4) * 512,
                size: number(random),
                stream: StreamId(number(random)),
                pool: seamalloc::PoolId::NONE,
            },
            time_us: number(random),
        })
        .collect();
    let device = [0, 1, 119, u32::MAX][random.below(4) as usize];
    (Snapshot { device, segments, settings: "max_split_size_mb:9223372036854775807,x".into() }, history)
}

#[test]
fn snapshots_of_any_figures_are_written_or_refused() {
    let mut random = Random(4);
    for _ in 0..600 {
        let (snapshot, history) = snapshot_of(&mut random);
        for segment in &snapshot.segments {
            let _ = (segment.allocated_size(), segment.active_size(), segment.requested_size());
        }
        let mut out = Vec::new();
        if write_snapshot_json(&snapshot, &history, &mut out).is_ok() {
            let _ = read_snapshot(&out).map(|read| read.reserved_bytes());
        }
        out.clear();
        if write_snapshot_pickle(&snapshot, &history, &mut out).is_ok() {
            let _ = read_snapshot(&out).map(|read| read.reserved_bytes());
        }
    }
}

#[test]
fn damaged_files_are_errors() {
    let rounds: u64 = std::env::var("SEAMALLOC_DAMAGE_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(600);
    let mut random = Random(5);
    for _ in 0..rounds {
        let trace = valid_trace(&mut random, vec![StreamId(0), StreamId(u64::MAX)]);
        let mut files = vec![Vec::new(), Vec::new(), Vec::new(), Vec::new()];
        write_csv(&trace, &mut files[0]).unwrap();
        write_compact(&trace, &mut files[1]).unwrap();
        let (snapshot, history) = snapshot_of(&mut random);
        let _ = write_snapshot_json(&snapshot, &history, &mut files[2]);
        let _ = write_snapshot_pickle(&snapshot, &history, &mut files[3]);
        for mut file in files.into_iter().filter(|file| !file.is_empty()) {
            for _ in 0..1 + random.below(4) {
                let at = random.below(file.len() as u64) as usize;
                match random.below(4) {
                    0 => file[at] = random.below(256) as u8,
                    1 => file[at] ^= 1 << random.below(8),
                    2 => file.truncate(at.max(1)),
                    _ => {
                        let to = (at + random.below(40) as usize).min(file.len());
                        let piece = file[at..to].to_vec();
                        file.splice(at..at, piece);
                    }
                }
            }
            for trace in read_bytes("damaged", &file).into_iter().flatten() {
                let _ = trace.summary();
            }
            let _ = read_snapshot(&file);
        }
    }
}
