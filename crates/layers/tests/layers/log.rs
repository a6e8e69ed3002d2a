//! The log: its lines, their order among threads, and who reads them.

use crate::fake::{AfterFree, Fake};
use crate::{MAIN, MIB, SIDE, on};
use seamalloc::driver::StreamId;
use seamalloc_layers::{LOG_HEADER, Logging, MemoryResource};
use seamalloc_trace::{TraceEvent, read_rmm};
use std::io::{self, Write};
use std::sync::Arc;

fn text<R: MemoryResource>(log: &Logging<R, Vec<u8>>) -> String {
    log.with_writer(|out| String::from_utf8(out.clone()).unwrap())
}

/// The fields of a line but the time, which is looked at by itself.
fn without_time(line: &str) -> String {
    let fields: Vec<&str> = line.split(',').collect();
    let [_, time, action, pointer, size, stream] = fields[..] else { panic!("{line}") };
    // HH:MM:SS.ffffff
    let digits: Vec<&str> = time.split([':', '.']).collect();
    let widths: Vec<usize> = digits.iter().map(|part| part.len()).collect();
    assert_eq!(widths, [2, 2, 2, 6], "{time}");
    assert!(digits.iter().all(|part| part.parse::<u64>().is_ok()), "{time}");
    let [hours, minutes, seconds] = [0, 1, 2].map(|at: usize| digits[at].parse::<u64>().unwrap());
    assert!(hours < 24 && minutes < 60 && seconds < 60, "{time}");
    format!("{action},{pointer},{size},{stream}")
}

#[test]
fn lines_are_those_of_rmm() {
    let log = Logging::new(Fake::new(5000), Vec::new()).unwrap();
    let block = log.allocate(1000, MAIN).unwrap();
    let other = log.allocate(24, SIDE).unwrap();
    log.allocate(5000, MAIN).unwrap_err();
    log.deallocate(block, MAIN).unwrap();
    let empty = log.allocate(0, MAIN).unwrap();
    log.deallocate(empty, MAIN).unwrap();
    log.deallocate(other, MAIN).unwrap();
    let text = text(&log);
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("Thread,Time,Action,Pointer,Size,Stream"));
    let found: Vec<String> = lines.clone().map(without_time).collect();
    let expected = [
        "allocate,0x1000,1000,0",
        "allocate,0x13e8,24,0x8",
        "allocate failure,(nil),5000,0",
        "free,0x1000,1000,0",
        "allocate,(nil),0,0",
        "free,(nil),0,0",
        "free,0x13e8,24,0",
    ];
    assert_eq!(found, expected);
    let threads: Vec<&str> = lines.filter_map(|line| line.split(',').next()).collect();
    assert!(threads.iter().all(|of| *of == threads[0] && of.parse::<u64>().is_ok()), "{threads:?}");
}

#[test]
fn a_failed_free_leaves_no_line() {
    let fake = Arc::new(Fake::new(5000));
    let log = Logging::new(Arc::clone(&fake), Vec::new()).unwrap();
    let block = log.allocate(1000, MAIN).unwrap();
    let before = text(&log);
    fake.fail_free();
    log.deallocate(block, MAIN).unwrap_err();
    assert_eq!(text(&log), before);
}

/// Threads that hand memory to each other as fast as they can: no address is logged twice without a free between.
#[test]
fn a_log_of_threads_is_a_valid_trace() {
    let (_, allocator) = on("sim:h200,capacity=4GiB", "strategy:caching");
    let log = Logging::new(Arc::clone(&allocator), Vec::new()).unwrap();
    const EACH: usize = 300;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..EACH {
                    // One stream, so that all have the same memory.
                    let block = log.allocate(2 * MIB, MAIN).unwrap();
                    log.deallocate(block, MAIN).unwrap();
                }
            });
        }
    });
    let text = text(&log);
    let trace = read_rmm("threads", "threads.csv", text.as_bytes()).unwrap();
    assert_eq!(trace.events.len(), 4 * EACH * 3);
    assert_eq!(trace.streams, [MAIN]);
    let threads: std::collections::BTreeSet<&str> =
        text.lines().skip(1).filter_map(|line| line.split(',').next()).collect();
    assert_eq!(threads.len(), 4);
}

/// Another thread gets the memory before the free of it has returned: its line comes after that of the free.
#[test]
fn a_free_is_logged_before_the_memory_is_another_threads() {
    let below = Arc::new(AfterFree { below: Fake::new(1000), hook: parking_lot::Mutex::new(None) });
    let log = Arc::new(Logging::new(Arc::clone(&below), Vec::new()).unwrap());
    let block = log.allocate(1000, MAIN).unwrap();
    let (send, other) = std::sync::mpsc::channel();
    let again = Arc::clone(&log);
    *below.hook.lock() = Some(Box::new(move || {
        let again = Arc::clone(&again);
        send.send(std::thread::spawn(move || again.allocate(1000, MAIN).unwrap())).unwrap();
        // Long enough for it to get the memory, and to write its line if it may.
        std::thread::sleep(std::time::Duration::from_millis(50));
    }));
    log.deallocate(block, MAIN).unwrap();
    assert_eq!(other.recv().unwrap().join().unwrap(), block);
    let actions: Vec<String> = text(&log).lines().skip(1).map(without_time).collect();
    assert_eq!(actions, ["allocate,0x1000,1000,0", "free,0x1000,1000,0", "allocate,0x1000,1000,0"]);
}

/// A log is read back as the trace of what was asked, and replayed as any other.
#[test]
fn a_log_is_replayed() {
    let (_, allocator) = on("sim:h200,capacity=4GiB", "");
    let log = Logging::new(allocator, Vec::new()).unwrap();
    let blocks: Vec<_> = (1..=5).map(|at| log.allocate(at * 3 * MIB, StreamId(at % 2)).unwrap()).collect();
    for block in &blocks {
        log.deallocate(*block, block.stream).unwrap();
    }
    let traces = seamalloc_trace::read::read_bytes("job.csv", text(&log).as_bytes()).unwrap();
    let sizes: Vec<u64> = traces[0]
        .events
        .iter()
        .filter_map(|event| if let TraceEvent::Alloc { size, .. } = event { Some(*size) } else { None })
        .collect();
    assert_eq!(sizes, [3, 6, 9, 12, 15].map(|mib| mib * MIB));
    let options = seamalloc_trace::replay::ReplayOptions::new(
        seamalloc::Config::default(),
        seamalloc::driver::sim::SimConfig::new(seamalloc::driver::sim::Profile::H200),
    );
    let passes = seamalloc_trace::replay::replay(&traces[0], &options, &mut |_, _| {}).unwrap();
    assert!(passes[0].utilization() > 0.9, "{}", passes[0].utilization());
}

/// A writer that is full after some bytes.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.0);
        self.0 -= taken;
        if taken == 0 { Err(io::Error::other("full")) } else { Ok(taken) }
    }
    fn flush(&mut self) -> io::Result<()> {
        if self.0 == 0 { Err(io::Error::other("full")) } else { Ok(()) }
    }
}

#[test]
fn lines_that_cannot_be_written_are_counted_and_change_nothing_else() {
    assert!(Logging::new(Fake::new(100), Full(LOG_HEADER.len())).is_err());
    let log = Logging::new(Fake::new(100), Full(LOG_HEADER.len() + 1)).unwrap();
    let block = log.allocate(60, MAIN).unwrap();
    assert!(log.allocate(60, MAIN).unwrap_err().is_out_of_memory());
    log.deallocate(block, MAIN).unwrap();
    log.allocate(60, MAIN).unwrap();
    assert_eq!(log.lost(), 4);
    assert!(log.flush().is_err());
}
