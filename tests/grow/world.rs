//! A program with allocations that grow, on a device of which calls can be made to fail.

use parking_lot::Mutex;
use seamalloc::driver::host::{HostConfig, HostDriver, HostWork, Range};
use seamalloc::driver::{Call, Driver, DriverError, DriverResult, ForwardingDriver, Status, StreamId};
use seamalloc::{Allocator, Config, Error, PoolId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const MAIN: StreamId = StreamId::DEFAULT;
pub(crate) const SIDE: StreamId = StreamId(7);
pub(crate) const OPTIONS: &str = "strategy:stitch,chunk_size_mb:4";

/// The host's memory, of which calls can be made to fail.
pub(crate) struct Device {
    pub(crate) host: HostDriver,
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    made: u64,
    /// Calls from this one on fail, and so many, with this status.
    failing: Option<(u64, u64, Status)>,
    failed: Vec<Call>,
    counts: BTreeMap<&'static str, u64>,
}

impl ForwardingDriver for Device {
    fn inner(&self) -> &dyn Driver {
        &self.host
    }

    fn make_call<T>(&self, call: Call, make: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> DriverResult<T> {
        let mut book = self.book.lock();
        book.made += 1;
        *book.counts.entry(call.name()).or_default() += 1;
        let made = book.made;
        let status = book.failing.filter(|(first, count, _)| (*first..first.saturating_add(*count)).contains(&made));
        if let Some((.., status)) = status {
            book.failed.push(call);
            return Err(DriverError::new(call, status, "made to fail"));
        }
        drop(book);
        make(&self.host)
    }
}

impl Device {
    /// Lets `count` calls of any kind fail from the nth on.
    pub(crate) fn fail(&self, nth: u64, count: u64, status: Status) {
        *self.book.lock() = Book { failing: Some((nth, count, status)), ..Book::default() };
    }

    /// Lets no more calls fail. Returns those that have.
    pub(crate) fn heal(&self) -> Vec<Call> {
        std::mem::take(&mut *self.book.lock()).failed
    }

    /// Returns how often each call was made since the last time.
    pub(crate) fn calls(&self) -> BTreeMap<&'static str, u64> {
        std::mem::take(&mut self.book.lock().counts)
    }

    /// Returns how many bytes of the device are in use.
    pub(crate) fn used(&self) -> u64 {
        let info = Driver::memory_info(&self.host).unwrap();
        info.total - info.free
    }
}

/// What an allocation holds: its bytes, and the first word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Live {
    pub(crate) size: u64,
    pub(crate) first: u64,
    pub(crate) stream: StreamId,
    pub(crate) grows: bool,
}

pub(crate) struct World {
    pub(crate) device: Arc<Device>,
    pub(crate) allocator: Allocator,
    pub(crate) live: BTreeMap<u64, Live>,
    numbers: u64,
}

impl World {
    pub(crate) fn new(capacity: u64, options: &str) -> Self {
        let device = Device { host: HostDriver::new(HostConfig { capacity }).unwrap(), book: Mutex::default() };
        let device = Arc::new(device);
        let allocator = Allocator::new(Arc::<Device>::clone(&device), Config::parse(options).unwrap()).unwrap();
        Self { device, allocator, live: BTreeMap::new(), numbers: 0 }
    }

    fn note(&mut self, address: u64, size: u64, stream: StreamId, grows: bool) {
        self.numbers += 1 << 40;
        let live = Live { size, first: self.numbers, stream, grows };
        assert!(self.live.insert(address, live).is_none());
        self.fill(address, live, 0);
    }

    /// Writes the words of an allocation from an offset on.
    fn fill(&self, address: u64, live: Live, from: u64) {
        if live.size <= from {
            return;
        }
        let first = live.first + from / 8;
        let words =
            move |at: u64, words: &mut [u64]| words.iter_mut().zip(at..).for_each(|(word, at)| *word = first + at);
        let to = Range { address: address + from, size: live.size - from };
        self.device.host.launch(live.stream, HostWork::Fill { to, words: Arc::new(words) }).unwrap();
    }

    /// Allocates and fills a block.
    pub(crate) fn allocate(&mut self, size: u64, stream: StreamId) -> Result<u64, Error> {
        let address = self.allocator.allocate(size, stream)?;
        self.note(address, size, stream, false);
        Ok(address)
    }

    pub(crate) fn reserve(&mut self, capacity: u64, stream: StreamId) -> Result<u64, Error> {
        let address = self.allocator.reserve(capacity, stream)?;
        self.note(address, 0, stream, true);
        Ok(address)
    }

    pub(crate) fn reserve_in(&mut self, pool: PoolId, capacity: u64, stream: StreamId) -> Result<u64, Error> {
        let address = self.allocator.reserve_in(pool, capacity, stream)?;
        self.note(address, 0, stream, true);
        Ok(address)
    }

    /// Grows an allocation, and writes what is new.
    pub(crate) fn grow(&mut self, address: u64, size: u64) -> Result<(), Error> {
        self.allocator.grow(address, size)?;
        let before = self.live[&address].size;
        if size > before {
            self.live.get_mut(&address).unwrap().size = size;
            self.fill(address, self.live[&address], before);
        }
        Ok(())
    }

    pub(crate) fn shrink(&mut self, address: u64, size: u64) -> Result<(), Error> {
        let live = self.live.get_mut(&address).unwrap();
        live.size = live.size.min(size);
        self.allocator.shrink(address, size)
    }

    /// Waits for what runs on the streams.
    pub(crate) fn settle(&self) {
        Driver::synchronize(&self.device.host).unwrap();
    }

    pub(crate) fn free(&mut self, address: u64) {
        self.live.remove(&address).unwrap();
        self.allocator.free(address).unwrap();
    }

    /// Reads every word of an allocation, by a kernel.
    pub(crate) fn check(&self, address: u64) {
        let Live { size, first, .. } = self.live[&address];
        if size == 0 {
            return;
        }
        let (wrong, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (wrongs, words_seen) = (Arc::clone(&wrong), Arc::clone(&seen));
        let see = move |at: u64, words: &[u64]| {
            let wrong = words.iter().zip(at..).filter(|(word, at)| **word != first + at).count();
            wrongs.fetch_add(wrong as u64, Ordering::Relaxed);
            words_seen.fetch_add(words.len() as u64, Ordering::Relaxed);
        };
        Driver::synchronize(&self.device.host).unwrap();
        self.device.host.launch(MAIN, HostWork::Look { at: Range { address, size }, see: Arc::new(see) }).unwrap();
        Driver::synchronize(&self.device.host).unwrap();
        assert_eq!(seen.load(Ordering::Relaxed), size / 8);
        let wrong = wrong.load(Ordering::Relaxed);
        assert_eq!(wrong, 0, "words of the {size} bytes at {address:#x} are not their own");
    }

    /// Reads every word of everything, and looks whether the allocator and the device agree to the byte.
    pub(crate) fn check_all(&self) {
        self.check_books();
        self.live.keys().for_each(|address| self.check(*address));
        assert_eq!(self.device.host.faults(), []);
    }

    pub(crate) fn check_books(&self) {
        self.allocator.check().unwrap();
        let stats = self.allocator.stats();
        let held = stats.reserved_bytes.all.current;
        assert_eq!(held, self.device.used(), "the allocator counts other bytes than the device");
        let parts = self.allocator.fragmentation();
        let sum = parts.allocated + parts.pending + parts.free + parts.unsettled;
        assert_eq!(held + parts.asleep, sum, "{parts:?}");
        // To the byte: every allocation that grows counts with what is mapped of it.
        let grown = |(address, live): (&u64, &Live)| match live.grows {
            true => self.allocator.extent(*address).unwrap().mapped,
            false => live.size.next_multiple_of(512),
        };
        assert_eq!(stats.allocated_bytes.all.current, self.live.iter().map(grown).sum::<u64>());
        for (address, live) in self.live.iter().filter(|(_, live)| live.grows) {
            let extent = self.allocator.extent(*address).unwrap();
            assert!(live.size <= extent.mapped && extent.len == live.size, "{live:?} {extent:?}");
        }
    }

    /// Returns the bytes of an allocation that have memory.
    pub(crate) fn mapped(&self, address: u64) -> u64 {
        self.allocator.extent(address).unwrap().mapped
    }

    /// Frees everything and ends the allocator, which leaves nothing.
    pub(crate) fn end(mut self, pools: &[PoolId]) {
        let live: Vec<u64> = self.live.keys().copied().collect();
        live.into_iter().for_each(|address| self.free(address));
        pools.iter().for_each(|pool| self.allocator.release_pool(*pool).unwrap());
        let Self { device, allocator, .. } = self;
        drop(allocator);
        assert_eq!(device.host.leaks(), Default::default());
        assert_eq!(device.host.faults(), []);
    }
}
