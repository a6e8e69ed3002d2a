//! The host's memory as a device of which calls can be made to fail, and words by which the contents of blocks are known.

use parking_lot::Mutex;
use seamalloc::driver::host::{HostConfig, HostDriver, HostWork, Range};
use seamalloc::driver::{Call, CallStats, Driver, DriverError, DriverResult, ForwardingDriver, Status, StreamId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const MAIN: StreamId = StreamId::DEFAULT;
pub(crate) const SIDE: StreamId = StreamId(7);
pub(crate) const THIRD: StreamId = StreamId(8);

/// The host's memory, of which calls can be made to fail.
pub(crate) struct Device {
    pub(crate) host: HostDriver,
    book: Mutex<Book>,
    words_read: AtomicU64,
}

#[derive(Default)]
struct Book {
    failing: Option<Failing>,
    /// The calls that failed since the device was last healed.
    failed: Vec<Call>,
    /// Whether any call has failed so far.
    has_failed: bool,
}

/// The calls that are to fail.
struct Failing {
    /// The kinds that are counted, and that can fail.
    kinds: &'static [Call],
    /// How many calls succeed before the first failure.
    before: u64,
    /// How many calls fail.
    left: u64,
    status: Status,
}

impl Failing {
    /// Counts a call. Returns the status of a call that is to fail.
    fn next(&mut self, call: Call) -> Option<Status> {
        if self.left == 0 || !self.kinds.contains(&call) {
            return None;
        }
        if self.before > 0 {
            self.before -= 1;
            return None;
        }
        self.left -= 1;
        Some(self.status)
    }
}

impl ForwardingDriver for Device {
    fn inner(&self) -> &dyn Driver {
        &self.host
    }

    fn make_call<T>(&self, call: Call, make: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> DriverResult<T> {
        let mut book = self.book.lock();
        if let Some(status) = book.failing.as_mut().and_then(|failing| failing.next(call)) {
            book.failed.push(call);
            book.has_failed = true;
            return Err(DriverError::new(call, status, "made to fail"));
        }
        drop(book);
        make(&self.host)
    }
}

impl Device {
    /// A device with so many bytes.
    pub(crate) fn new(capacity: u64) -> Self {
        let host = HostDriver::new(HostConfig { capacity }).unwrap();
        Self { host, book: Mutex::default(), words_read: AtomicU64::new(0) }
    }

    /// Lets `count` calls of these kinds fail from the nth of them on.
    pub(crate) fn fail(&self, kinds: &'static [Call], nth: u64, count: u64, status: Status) {
        let mut book = self.book.lock();
        book.failing = Some(Failing { kinds, before: nth - 1, left: count, status });
        book.failed.clear();
    }

    /// Lets no more calls fail. Returns those that have failed.
    pub(crate) fn heal(&self) -> Vec<Call> {
        let mut book = self.book.lock();
        book.failing = None;
        std::mem::take(&mut book.failed)
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
