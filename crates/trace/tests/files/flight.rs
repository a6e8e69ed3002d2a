//! The events that the flight recorder kept, in files: they load, and say what was done and what was lost.

use seamalloc::driver::StreamId;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::{Allocator, Config};
use seamalloc_trace::{FlightDump, Trace, TraceEvent, read_path, read_snapshot, write_flight};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn on(options: &str) -> Allocator {
    let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=1GiB").unwrap()).unwrap());
    Allocator::new(gpu, Config::parse(options).unwrap()).unwrap()
}

/// Allocates and frees blocks of growing sizes on two streams; those of every third round stay. Returns what a trace says of it.
fn work(allocator: &Allocator, rounds: u64) -> Vec<TraceEvent> {
    let mut events = Vec::new();
    for nth in 0..rounds {
        let (size, stream) = (nth * 1000 + 1, (nth % 2) as u32);
        let address = allocator.allocate(size, StreamId(u64::from(stream))).unwrap();
        events.push(TraceEvent::Alloc { size, stream });
        if nth % 3 > 0 {
            allocator.free(address).unwrap();
            let block = nth as u32;
            events.extend([TraceEvent::FreeRequested { block }, TraceEvent::FreeCompleted { block }]);
        }
    }
    events
}

/// The sizes of blocks that are live at the end, and what happened to those that were allocated in the trace at last.
fn live_sizes(trace: &Trace) -> Vec<u64> {
    let mut blocks = Vec::new();
    for event in &trace.events {
        match *event {
            TraceEvent::Alloc { size, .. } => blocks.push(Some(size)),
            TraceEvent::FreeRequested { .. } => {}
            TraceEvent::FreeCompleted { block } => blocks[block as usize] = None,
        }
    }
    let mut live: Vec<u64> = blocks.into_iter().flatten().collect();
    live.sort_unstable();
    live
}

#[test]
fn every_form_of_the_file_has_the_operations_that_were_made() {
    let allocator = on("");
    let made = work(&allocator, 300);
    let flight = allocator.reports().flight().unwrap();
    let folder = tempfile::tempdir().unwrap();
    for name in ["flight.pickle", "flight.seam", "flight.csv", "flight.csv.gz"] {
        let path = folder.path().join(name);
        write_flight(&flight, &path).unwrap();
        let [trace] = &read_path(&path).unwrap()[..] else { panic!("{name}") };
        assert_eq!(trace.events, made, "{name}");
        assert_eq!(trace.streams, [StreamId(0), StreamId(1)], "{name}");
    }
}

#[test]
fn what_was_overwritten_is_said_and_live_blocks_are_there_all_the_same() {
    let allocator = on("flight_recorder:100");
    work(&allocator, 200);
    let flight = allocator.reports().flight().unwrap();
    assert!(flight.overwritten > 200);
    let folder = tempfile::tempdir().unwrap();
    let [pickle, seam] = ["flight.pickle", "flight.seam"].map(|name| folder.path().join(name));
    write_flight(&flight, &pickle).unwrap();
    write_flight(&flight, &seam).unwrap();
    let read = read_snapshot(&std::fs::read(&pickle).unwrap()).unwrap();
    assert_eq!(read.snapshots, std::slice::from_ref(&flight.snapshot));
    let said = &read.traces[0].meta["allocator_settings"]["flight_recorder"];
    assert_eq!(said["overwritten"], flight.overwritten);
    assert_eq!((&said["operations"], &said["capacity"]), (&flight.operations.into(), &100.into()));
    let trace = &read_path(&seam).unwrap()[0];
    assert_eq!(
        (&trace.meta["overwritten"], &trace.meta["operations"]),
        (&flight.overwritten.into(), &flight.operations.into())
    );
    let stay: Vec<u64> = (0..200).step_by(3).map(|nth| nth * 1000 + 1).collect();
    assert_eq!(live_sizes(trace), stay);
    assert_eq!(live_sizes(&read.traces[0]), stay);
}

#[test]
fn a_refusal_writes_it_and_a_folder_that_is_missing_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let allocator = on(&format!("flight_dump:{}/{{pid}}.{{device}}.pickle", folder.path().display()));
    let dump = FlightDump::of(&allocator.config(), 3);
    let path = folder.path().join(format!("{}.3.pickle", std::process::id()));
    assert_eq!(dump.path(), Some(path.as_path()));
    let made = work(&allocator, 30);
    dump.refused(&allocator, &allocator.free(12345).unwrap_err());
    assert!(!path.exists(), "no refusal");
    let refused = allocator.allocate(1100 * MIB, StreamId::DEFAULT).unwrap_err();
    dump.refused(&allocator, &refused);
    let read = read_snapshot(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!((&read.traces[0].events, read.snapshots[0].device), (&made, 3));
    // What the viewer shows of it is in the history too.
    let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
    assert!(text.contains("device_free") && text.contains("oom"));

    // The next one within a second is not written.
    std::fs::remove_file(&path).unwrap();
    dump.refused(&allocator, &refused);
    assert!(!path.exists());
    let nowhere = on("flight_dump:/nonexistent/flight.pickle");
    let dump = FlightDump::of(&nowhere.config(), 0);
    let refused = nowhere.allocate(1100 * MIB, StreamId::DEFAULT).unwrap_err();
    dump.refused(&nowhere, &refused);
    assert_eq!(nowhere.reports().check(), Ok(()));
}
