//! A program with tags, on a device of which calls can be made to fail.

use parking_lot::Mutex;
use seamalloc::driver::host::{HostConfig, HostDriver, HostWork, Range};
use seamalloc::driver::{Call, Driver, DriverError, DriverResult, ForwardingDriver, Status, StreamId};
use seamalloc::{Allocator, Backup, Config, Error, PoolId};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const MAIN: StreamId = StreamId::DEFAULT;
pub(crate) const SIDE: StreamId = StreamId(7);

/// The calls of sleeping and waking.
pub(crate) const OF_SLEEP: [Call; 12] = [
    Call::Synchronize,
    Call::Reserve,
    Call::Create,
    Call::Release,
    Call::Map,
    Call::Unmap,
    Call::SetAccess,
    Call::HostMalloc,
    Call::HostFree,
    Call::CopyOut,
    Call::CopyIn,
    Call::HostWait,
];

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
}

impl ForwardingDriver for Device {
    fn inner(&self) -> &dyn Driver {
        &self.host
    }

    fn make_call<T>(&self, call: Call, make: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> DriverResult<T> {
        if OF_SLEEP.contains(&call) {
            let mut book = self.book.lock();
            book.made += 1;
            let made = book.made;
            let status =
                book.failing.filter(|(first, count, _)| (*first..first.saturating_add(*count)).contains(&made));
            if let Some((.., status)) = status {
                book.failed.push(call);
                return Err(DriverError::new(call, status, "made to fail"));
            }
        }
        make(&self.host)
    }
}

impl Device {
    /// Lets `count` calls fail from the nth on.
    pub(crate) fn fail(&self, nth: u64, count: u64, status: Status) {
        *self.book.lock() = Book { failing: Some((nth, count, status)), ..Book::default() };
    }

    /// Lets no more calls fail. Returns those that have.
    pub(crate) fn heal(&self) -> Vec<Call> {
        std::mem::take(&mut *self.book.lock()).failed
    }

    /// Returns how many bytes of the device are in use.
    pub(crate) fn used(&self) -> u64 {
        let info = Driver::memory_info(&self.host).unwrap();
        info.total - info.free
    }
}

/// What a block holds: its bytes, and the first word.
#[derive(Clone, Copy)]
pub(crate) struct Live {
    pub(crate) size: u64,
    first: u64,
    pub(crate) tag: PoolId,
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

    /// Allocates and fills a block; of no tag with [`PoolId::NONE`].
    pub(crate) fn allocate(&mut self, tag: PoolId, size: u64, stream: StreamId) -> Result<u64, Error> {
        let address = match tag {
            PoolId::NONE => self.allocator.allocate(size, stream)?,
            tag => self.allocator.allocate_in(tag, size, stream)?,
        };
        self.numbers += 1 << 40;
        let first = self.numbers;
        let words =
            move |at: u64, words: &mut [u64]| words.iter_mut().zip(at..).for_each(|(word, at)| *word = first + at);
        let to = Range { address, size };
        self.device.host.launch(stream, HostWork::Fill { to, words: Arc::new(words) }).unwrap();
        assert!(self.live.insert(address, Live { size, first, tag }).is_none());
        Ok(address)
    }

    pub(crate) fn free(&mut self, address: u64) {
        self.live.remove(&address).unwrap();
        self.allocator.free(address).unwrap();
    }

    /// Reads every word of a block, by a kernel.
    pub(crate) fn check(&self, address: u64) {
        self.check_as(address, self.live[&address]);
    }

    /// Reads words that are to be those of a block.
    pub(crate) fn check_as(&self, address: u64, Live { size, first, .. }: Live) {
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
        assert_eq!(
            wrong.load(Ordering::Relaxed),
            0,
            "words of the block of {size} bytes at {address:#x} are not its own"
        );
    }

    /// Reads every word of every block that is awake, and looks whether the allocator and the device agree to the byte.
    pub(crate) fn check_all(&self) {
        self.check_books();
        let awake = self.live.iter().filter(|(_, live)| !self.allocator.is_asleep(live.tag));
        awake.for_each(|(address, _)| self.check(*address));
        assert_eq!(self.device.host.faults(), []);
    }

    pub(crate) fn check_books(&self) {
        self.allocator.check().unwrap();
        let held = self.allocator.stats().reserved_bytes.all.current;
        assert_eq!(held, self.device.used(), "the allocator counts other bytes than the device");
        let parts = self.allocator.fragmentation();
        let sum = parts.allocated + parts.pending + parts.free + parts.unsettled;
        assert_eq!(held + parts.asleep, sum, "{parts:?}");
    }

    pub(crate) fn views(&self) -> u64 {
        self.allocator.fragmentation().views
    }

    /// Makes a tag with blocks at home, small ones, blocks that are stitched, free memory, and two streams.
    pub(crate) fn furnished(&mut self) -> PoolId {
        let tag = self.allocator.create_tag().unwrap();
        let large: Vec<u64> = (0..5).map(|_| self.allocate(tag, 4 * MIB, MAIN).unwrap()).collect();
        for size in [512, 4096, 900 << 10] {
            self.allocate(tag, size, MAIN).unwrap();
        }
        self.allocate(tag, 3 * MIB, SIDE).unwrap();
        [large[0], large[2], large[4]].into_iter().for_each(|address| self.free(address));
        self.allocate(tag, 7 * MIB, MAIN).unwrap();
        assert!(self.views() > 0, "nothing was stitched");
        tag
    }

    /// Frees everything and ends the allocator, which leaves nothing.
    pub(crate) fn end(mut self, tags: &[PoolId]) {
        let live: Vec<u64> = self.live.keys().copied().collect();
        live.into_iter().for_each(|address| self.free(address));
        tags.iter().for_each(|tag| self.allocator.release_pool(*tag).unwrap());
        let Self { device, allocator, .. } = self;
        drop(allocator);
        assert_eq!(device.host.leaks(), Default::default());
    }
}

/// Returns each kind of backup. The file has a name of its own.
pub(crate) fn backups(name: &str) -> [Backup; 4] {
    [Backup::Host, Backup::Pinned, Backup::Discard, Backup::File(file(name))]
}

/// Returns the name of a file that does not exist.
pub(crate) fn file(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("seamalloc-sleep-{name}-{}", std::process::id()));
    drop(std::fs::remove_file(&path));
    path
}
