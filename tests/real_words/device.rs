//! The host's memory as a device of which calls can be made to fail, and words by which the contents of blocks are known.

use parking_lot::Mutex;
use seamalloc::driver::host::{HostConfig, HostDriver, HostWork, Range};
use seamalloc::driver::{Call, CallStats, Driver, DriverError, DriverResult, ForwardingDriver, Status, StreamId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const MAIN: StreamId = StreamId::DEFAULT;
pub(crate) const SIDE: StreamId = StreamId(7);

/// The host's memory, of which calls can be made to fail.
pub(crate) struct Device {
    pub(crate) host: HostDriver,
    /// The kinds of calls that can, and that are counted.
    counted: &'static [Call],
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    made: u64,
    /// Calls from this one on fail, and so many, with this status.
    failing: Option<(u64, u64, Status)>,
    failed: Vec<Call>,
}

impl ForwardingDriver for Device {
    fn inner(&self) -> &dyn Driver {
        &self.host
    }

    fn make_call<T>(&self, call: Call, make: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> DriverResult<T> {
        if self.counted.contains(&call) {
            let mut book = self.book.lock();
            book.made += 1;
            let made = book.made;
            let failing =
                book.failing.filter(|(first, count, _)| (*first..first.saturating_add(*count)).contains(&made));
            if let Some((.., status)) = failing {
                book.failed.push(call);
                return Err(DriverError::new(call, status, "made to fail"));
            }
        }
        make(&self.host)
    }
}

impl Device {
    /// A device with so many bytes, of which these kinds of calls can be made to fail.
    pub(crate) fn new(capacity: u64, counted: &'static [Call]) -> Self {
        Self { host: HostDriver::new(HostConfig { capacity }).unwrap(), counted, book: Mutex::default() }
    }

    /// Lets `count` calls fail from the nth on.
    pub(crate) fn fail(&self, nth: u64, count: u64, status: Status) {
        *self.book.lock() = Book { failing: Some((nth, count, status)), ..Book::default() };
    }

    /// Lets no more calls fail. Returns those that have.
    pub(crate) fn heal(&self) -> Vec<Call> {
        std::mem::take(&mut *self.book.lock()).failed
    }

    /// Returns how many bytes of the device are in use.
    #[allow(dead_code, reason = "where the machine's memory serves too, both are counted")]
    pub(crate) fn used(&self) -> u64 {
        self.host.leaks().bytes
    }

    /// Returns the calls that reached the device.
    #[allow(dead_code, reason = "some tests count none")]
    pub(crate) fn calls(&self) -> CallStats {
        Driver::call_stats(&self.host)
    }

    /// Waits for all that runs on the streams.
    pub(crate) fn settle(&self) {
        Driver::synchronize(&self.host).unwrap();
    }

    /// Writes `first` and the numbers that follow, by a kernel on this stream.
    pub(crate) fn fill(&self, to: Range, first: u64, stream: StreamId) {
        let words =
            move |at: u64, words: &mut [u64]| words.iter_mut().zip(at..).for_each(|(word, at)| *word = first + at);
        self.host.launch(stream, HostWork::Fill { to, words: Arc::new(words) }).unwrap();
    }

    /// Reads every word, by a kernel, once all other work is done: they are what [`Self::fill`] has written.
    #[allow(dead_code, reason = "some tests read words of their own")]
    pub(crate) fn check(&self, at: Range, first: u64) {
        if at.size == 0 {
            return;
        }
        let (wrong, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (wrongs, words_seen) = (Arc::clone(&wrong), Arc::clone(&seen));
        let see = move |at: u64, words: &[u64]| {
            let wrong = words.iter().zip(at..).filter(|(word, at)| **word != first + at).count();
            wrongs.fetch_add(wrong as u64, Ordering::Relaxed);
            words_seen.fetch_add(words.len() as u64, Ordering::Relaxed);
        };
        self.settle();
        self.host.launch(MAIN, HostWork::Look { at, see: Arc::new(see) }).unwrap();
        self.settle();
        assert_eq!(seen.load(Ordering::Relaxed), at.size / 8);
        let wrong = wrong.load(Ordering::Relaxed);
        assert_eq!(wrong, 0, "{wrong} words of the {} bytes at {:#x} are not their own", at.size, at.address);
    }
}
