//! Host memory in the place of the simulated GPU, for tests that were written for that.
//!
//! Memory, streams and events are the driver's own. What only the simulated GPU has is added here: calls that are made to fail,
//! and a clock. A kernel that takes so long is held work, which ends when the clock has come so far, or when the CPU waits for
//! it, by which the clock has come so far.

use parking_lot::Mutex;
use seamalloc::driver::host::{Fault, HostConfig, HostDriver, HostHold, HostWork, Leaks, Piece, Range};
use seamalloc::driver::sim::SimConfig;
use seamalloc::driver::{
    Call, CallStats, CaptureMode, Driver, DriverError, DriverResult, ForwardingDriver, Status, StreamCapture, StreamId,
};
use seamalloc::{Allocator, Config};
use std::collections::HashMap;
use std::sync::Arc;

/// The cost of a call by the clock, in nanoseconds: enough for short kernels to end, as on the simulated GPU.
const CALL_NS: u64 = 2_000;

pub(crate) struct Device {
    host: HostDriver,
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    now: u64,
    /// When each stream's kernels end.
    done: HashMap<StreamId, u64>,
    kernels: Vec<(HostHold, u64)>,
    failures: Vec<(Call, u64, Status)>,
    failed: CallStats,
}

impl Book {
    /// The status of a call that is to fail.
    fn failure(&mut self, call: Call) -> Option<Status> {
        let mut status = None;
        self.failures.retain_mut(|(kind, left, with)| {
            if *kind != call {
                return true;
            }
            *left -= 1;
            if *left == 0 {
                status.get_or_insert(*with);
            }
            *left > 0
        });
        status
    }

    /// Ends kernels whose time has come, and lets the clock come to the end of those that were waited for.
    fn settle(&mut self, host: &HostDriver) {
        for (hold, ends) in &self.kernels {
            if !host.is_held(*hold) {
                self.now = self.now.max(*ends);
            }
        }
        let now = self.now;
        for (hold, _) in self.kernels.extract_if(.., |(_, ends)| *ends <= now) {
            host.finish_hold(hold);
        }
    }
}

impl Device {
    pub(crate) fn launch(&self, stream: StreamId, ranges: &[Range], ns: u64) -> DriverResult<()> {
        let mut book = self.book.lock();
        book.settle(&self.host);
        let captured = self.host.is_capturing(stream)?;
        let hold = if captured { None } else { Some(self.host.hold(stream)?) };
        let launched = ranges.iter().try_for_each(|range| self.host.launch(stream, HostWork::Use { range: *range }));
        if let Some(hold) = hold {
            let starts = book.done.get(&stream).map_or(book.now, |done| book.now.max(*done));
            let ends = starts + if launched.is_ok() { ns } else { 0 };
            book.done.insert(stream, ends);
            book.kernels.push((hold, ends));
            book.settle(&self.host);
        }
        launched
    }

    pub(crate) fn hold(&self, stream: StreamId) -> HostHold {
        self.host.hold(stream).unwrap()
    }

    pub(crate) fn finish(&self, stream: StreamId) -> bool {
        self.host.finish(stream)
    }

    pub(crate) fn finish_hold(&self, hold: HostHold) -> bool {
        self.host.finish_hold(hold)
    }

    pub(crate) fn now_ns(&self) -> u64 {
        let mut book = self.book.lock();
        book.settle(&self.host);
        book.now
    }

    pub(crate) fn advance(&self, ns: u64) {
        let mut book = self.book.lock();
        book.now += ns;
        book.settle(&self.host);
    }

    pub(crate) fn done_at(&self, stream: StreamId) -> Option<u64> {
        Some(self.book.lock().done.get(&stream).copied().unwrap_or_default())
    }

    pub(crate) fn begin_capture(&self, stream: StreamId, mode: CaptureMode) -> DriverResult<()> {
        self.host.begin_capture(stream, mode)
    }

    pub(crate) fn end_capture(&self, stream: StreamId) -> DriverResult<()> {
        self.host.end_capture(stream).map(drop)
    }

    pub(crate) fn fail_nth(&self, call: Call, nth: u64, status: Status) {
        self.book.lock().failures.push((call, nth.max(1), status));
    }

    pub(crate) fn fail_no_more(&self) {
        self.book.lock().failures.clear();
    }

    pub(crate) fn destroy_stream(&self, stream: StreamId) {
        self.host.destroy_stream(stream);
        self.book.lock().done.remove(&stream);
    }

    pub(crate) fn replace_stream(&self, stream: StreamId) {
        self.host.replace_stream(stream);
        self.book.lock().done.remove(&stream);
    }

    pub(crate) fn physical(&self, range: Range) -> Vec<Piece> {
        self.host.physical(range)
    }

    pub(crate) fn faults(&self) -> Vec<Fault> {
        self.host.faults()
    }

    pub(crate) fn leaks(&self) -> Leaks {
        self.host.leaks()
    }
}

impl ForwardingDriver for Device {
    fn inner(&self) -> &dyn Driver {
        &self.host
    }

    fn make_call<T>(&self, call: Call, make: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> DriverResult<T> {
        let mut book = self.book.lock();
        if let Some(status) = book.failure(call) {
            book.failed.add(call, 0);
            return Err(DriverError::new(call, status, "made to fail"));
        }
        drop(book);
        let answer = make(&self.host);
        self.advance(CALL_NS);
        answer
    }

    fn call_stats(&self) -> CallStats {
        let mut stats = self.host.call_stats();
        let book = self.book.lock();
        for (call, failed) in book.failed.iter() {
            (0..failed.count).for_each(|_| stats.add(call, 0));
        }
        stats
    }
}

/// A device with the memory of a simulated one. It takes as much of the machine's as is touched: none.
pub(crate) fn device(spec: &str) -> Device {
    let capacity = SimConfig::parse(spec).unwrap().capacity;
    Device { host: HostDriver::new(HostConfig { capacity }).unwrap(), book: Mutex::default() }
}

/// Such a device, and an allocator on it.
pub(crate) fn on(spec: &str, config: Config) -> (Arc<Device>, Allocator) {
    let device = Arc::new(device(spec));
    let allocator = Allocator::new(Arc::<Device>::clone(&device), config).unwrap();
    (device, allocator)
}
