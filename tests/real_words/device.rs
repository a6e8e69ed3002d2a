//! Host memory as a device of which calls can be made to fail, and words by which the contents of blocks are known.

use parking_lot::Mutex;
use seamalloc::driver::host::{HostConfig, HostDriver, HostWork, Range};
use seamalloc::driver::{Call, CallStats, Driver, DriverError, DriverResult, ForwardingDriver, Status, StreamId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const MAIN: StreamId = StreamId::DEFAULT;
pub(crate) const SIDE: StreamId = StreamId(7);
pub(crate) const THIRD: StreamId = StreamId(8);

/// Host memory, of which calls can be made to fail.
pub(crate) struct Device {
    pub(crate) host: HostDriver,
    book: Mutex<Book>,
    words_read: AtomicU64,
}

/// So many calls that fail one behind the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    /// The number of the first call that fails, from 1 on.
    pub(crate) nth: u64,
    pub(crate) count: u64,
    pub(crate) status: Status,
}

/// The calls that were counted while some could fail, and those that have failed.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub(crate) counted: Vec<Call>,
    pub(crate) failed: Vec<Call>,
}

#[derive(Default)]
struct Book {
    /// The kinds of calls that are counted and can fail, and the fault.
    failing: Option<(&'static [Call], Fault)>,
    calls: Calls,
    /// Whether any call has failed so far.
    has_failed: bool,
}

impl Book {
    /// Counts a call. Returns the status of a call that is to fail.
    fn count(&mut self, call: Call) -> Option<Status> {
        let (_, Fault { nth, count, status }) = self.failing.filter(|(kinds, _)| kinds.contains(&call))?;
        self.calls.counted.push(call);
        let number = self.calls.counted.len() as u64;
        if !(nth..nth.saturating_add(count)).contains(&number) {
            return None;
        }
        self.calls.failed.push(call);
        self.has_failed = true;
        Some(status)
    }
}

impl ForwardingDriver for Device {
    fn inner(&self) -> &dyn Driver {
        &self.host
    }

    fn make_call<T>(&self, call: Call, make: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> DriverResult<T> {
        let failure = self.book.lock().count(call);
        match failure {
            Some(status) => Err(DriverError::new(call, status, "made to fail")),
            None => make(&self.host),
        }
    }
}

impl Device {
    /// A device with so many bytes.
    pub(crate) fn new(capacity: u64) -> Self {
        let host = HostDriver::new(HostConfig { capacity }).unwrap();
        Self { host, book: Mutex::default(), words_read: AtomicU64::new(0) }
    }

    /// Counts calls of these kinds from now on, and lets some of them fail.
    pub(crate) fn fail(&self, kinds: &'static [Call], fault: Fault) {
        let mut book = self.book.lock();
        book.failing = Some((kinds, fault));
        book.calls = Calls::default();
    }

    /// Lets no more calls fail. Returns those that were counted and that have failed.
    pub(crate) fn heal(&self) -> Calls {
        let mut book = self.book.lock();
        book.failing = None;
        std::mem::take(&mut book.calls)
    }

    /// Returns whether a call has ever failed, so that mappings may be left to undo.
    pub(crate) fn has_failed(&self) -> bool {
        self.book.lock().has_failed
    }

    /// Returns how many bytes of the device are in use.
    pub(crate) fn used(&self) -> u64 {
        self.host.leaks().bytes
    }

    /// Returns how many words [`Self::check`] has read so far.
    pub(crate) fn words_read(&self) -> u64 {
        self.words_read.load(Ordering::Relaxed)
    }

    /// Returns the calls that reached the device.
    pub(crate) fn calls(&self) -> CallStats {
        Driver::call_stats(&self.host)
    }

    /// Waits for all work of all streams.
    pub(crate) fn settle(&self) {
        Driver::synchronize(&self.host).unwrap();
    }

    /// Writes `first` and the numbers that follow, by a kernel on this stream. Its loop, and that of [`Self::read`], have no
    /// iterator: builds with little optimisation would call it for each word.
    pub(crate) fn fill(&self, to: Range, first: u64, stream: StreamId) {
        let words = move |at: u64, words: &mut [u64]| {
            let (mut next, mut left) = (first + at, words);
            while let [word, rest @ ..] = left {
                *word = next;
                (next, left) = (next + 1, rest);
            }
        };
        self.host.launch(stream, HostWork::Fill { to, words: Arc::new(words) }).unwrap();
    }

    /// Reads every word of these ranges, by kernels, once all other work is done. The words of each range must be its first
    /// word and the numbers that follow, as [`Self::fill`] writes them.
    pub(crate) fn check(&self, ranges: &[(Range, u64)]) {
        self.settle();
        let read: Vec<Arc<WordsRead>> = ranges.iter().map(|(at, first)| self.read(*at, *first)).collect();
        self.settle();
        for ((at, _), read) in ranges.iter().zip(read) {
            let (wrong, seen) = (read.wrong.load(Ordering::Relaxed), read.seen.load(Ordering::Relaxed));
            assert_eq!(seen, at.size / 8);
            assert_eq!(wrong, 0, "{wrong} words of the {} bytes at {:#x} are not their own", at.size, at.address);
            self.words_read.fetch_add(seen, Ordering::Relaxed);
        }
    }

    /// Gives the main stream a kernel that reads every word of a range.
    fn read(&self, at: Range, first: u64) -> Arc<WordsRead> {
        let read = Arc::new(WordsRead::default());
        let see = {
            let read = Arc::clone(&read);
            move |at: u64, words: &[u64]| {
                let (mut next, mut left, mut wrong) = (first + at, words, 0);
                while let [word, rest @ ..] = left {
                    wrong += u64::from(*word != next);
                    (next, left) = (next + 1, rest);
                }
                read.wrong.fetch_add(wrong, Ordering::Relaxed);
                read.seen.fetch_add(words.len() as u64, Ordering::Relaxed);
            }
        };
        if at.size > 0 {
            self.host.launch(MAIN, HostWork::Look { at, see: Arc::new(see) }).unwrap();
        }
        read
    }
}

/// The words that a kernel has read.
#[derive(Default)]
struct WordsRead {
    seen: AtomicU64,
    wrong: AtomicU64,
}
