//! A program whose live memory is more than its device has, on a device of which calls can be made to fail.

use crate::real_words::{Device, MAIN, MIB, SIDE};
use seamalloc::driver::host::Range;
use seamalloc::driver::{Call, StreamId};
use seamalloc::{Allocator, Config, Error, Stats};
use seamalloc_plan::online::Inline;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of the device of [`World::furnished`], and of a request that is too large for what it has left.
pub(crate) const FURNISHED: u64 = 18 * MIB;
pub(crate) const TOO_LARGE: u64 = 12 * MIB;

/// The calls of spilling and coming back.
pub(crate) const OF_SPILLING: [Call; 10] = [
    Call::Synchronize,
    Call::Reserve,
    Call::AddressFree,
    Call::Create,
    Call::CreateOnHost,
    Call::Release,
    Call::Map,
    Call::Unmap,
    Call::SetAccess,
    Call::Copy,
];

/// What a block holds: its bytes, and the first word.
#[derive(Clone, Copy)]
pub(crate) struct Live {
    pub(crate) size: u64,
    first: u64,
}

pub(crate) struct World {
    pub(crate) device: Arc<Device>,
    pub(crate) allocator: Allocator,
    pub(crate) live: BTreeMap<u64, Live>,
    numbers: u64,
    pub(crate) words: u64,
}

impl World {
    pub(crate) fn new(capacity: u64, options: &str) -> Self {
        let device = Arc::new(Device::new(capacity, &OF_SPILLING));
        let allocator = Allocator::new(Arc::<Device>::clone(&device), Config::parse(options).unwrap()).unwrap();
        allocator.set_planner(Box::<Inline>::default());
        Self { device, allocator, live: BTreeMap::new(), numbers: 0, words: 0 }
    }

    /// Allocates and fills a block.
    pub(crate) fn allocate(&mut self, size: u64, stream: StreamId) -> Result<u64, Error> {
        let address = self.allocator.allocate(size, stream)?;
        self.fill(address, size, stream);
        Ok(address)
    }

    /// Fills a block with words of its own, by a kernel.
    pub(crate) fn fill(&mut self, address: u64, size: u64, stream: StreamId) {
        let size = size / 8 * 8;
        self.numbers += 1 << 40;
        let first = self.numbers;
        self.device.fill(Range { address, size }, first, stream);
        self.live.insert(address, Live { size, first });
    }

    pub(crate) fn free(&mut self, address: u64) {
        self.live.remove(&address).unwrap();
        self.allocator.free(address).unwrap();
    }

    /// Reads every word of a block, by a kernel.
    pub(crate) fn check(&mut self, address: u64) {
        let Live { size, first } = self.live[&address];
        self.device.check(Range { address, size }, first);
        self.words += size / 8;
    }

    /// Reads every word of every block, and looks whether the allocator and the device agree to the byte.
    pub(crate) fn check_all(&mut self) {
        self.check_books();
        let live: Vec<u64> = self.live.keys().copied().collect();
        live.into_iter().for_each(|address| self.check(address));
        assert_eq!(self.device.host.faults(), []);
    }

    pub(crate) fn check_books(&self) {
        self.allocator.check().unwrap();
        let stats = self.allocator.stats();
        let counted = (stats.reserved_bytes.all.current, stats.spilled_bytes.current + stats.spill_kept_bytes);
        assert_eq!(counted, self.used(), "the allocator counts other bytes than the device and the machine");
        let parts = self.allocator.fragmentation();
        let sum = parts.allocated + parts.pending + parts.free + parts.unsettled;
        assert_eq!(parts.reserved + parts.spilled, sum, "{parts:?}");
    }

    /// Returns how many bytes of the device, and of the machine, are in use.
    pub(crate) fn used(&self) -> (u64, u64) {
        let leaks = self.device.host.leaks();
        (leaks.bytes, leaks.host_bytes)
    }

    pub(crate) fn stats(&self) -> Stats {
        self.allocator.stats()
    }

    /// Returns the bytes of the machine that are kept for the next spill.
    pub(crate) fn kept(&self) -> u64 {
        self.stats().spill_kept_bytes
    }

    /// Returns the bytes that are spilled.
    pub(crate) fn spilled(&self) -> u64 {
        self.stats().spilled_bytes.current
    }

    /// Fills the device: blocks at home, some of which end inside of a chunk, one that is stitched, and small ones. Returns the
    /// large ones, the oldest first.
    pub(crate) fn furnished(options: &str) -> (Self, Vec<u64>) {
        let mut world = Self::new(FURNISHED, &format!("chunk_size_mb:2,{options}"));
        let mut large: Vec<u64> = [3, 7, 5, 4, 5].map(|half| world.allocate(half * MIB / 2, MAIN).unwrap()).to_vec();
        world.allocate(512, MAIN).unwrap();
        world.allocate(900 << 10, SIDE).unwrap();
        for index in [3, 1] {
            world.free(large.remove(index));
        }
        world.device.settle();
        large.push(world.allocate(5 * MIB, MAIN).unwrap());
        assert!(world.allocator.fragmentation().views > 0, "nothing was stitched");
        (world, large)
    }

    /// Frees everything and ends the allocator, which leaves nothing.
    pub(crate) fn end(mut self) {
        let live: Vec<u64> = self.live.keys().copied().collect();
        live.into_iter().for_each(|address| self.free(address));
        self.allocator.empty_cache().unwrap();
        assert_eq!(self.used(), (0, 0));
        let Self { device, allocator, .. } = self;
        drop(allocator);
        assert_eq!(device.host.leaks(), Default::default());
    }
}
