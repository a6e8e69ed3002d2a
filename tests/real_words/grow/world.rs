//! A program with allocations that grow, on a device of which calls can be made to fail.

use crate::real_words::Device;
use seamalloc::driver::host::Range;
use seamalloc::driver::{Call, StreamId};
use seamalloc::{Allocator, Config, Error, PoolId};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) const OPTIONS: &str = "strategy:stitch,chunk_size_mb:4";

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
        let device = Arc::new(Device::new(capacity, &Call::ALL));
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
        self.device.fill(Range { address: address + from, size: live.size - from }, live.first + from / 8, live.stream);
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

    pub(crate) fn free(&mut self, address: u64) {
        self.live.remove(&address).unwrap();
        self.allocator.free(address).unwrap();
    }

    /// Reads every word of an allocation, by a kernel.
    pub(crate) fn check(&self, address: u64) {
        let Live { size, first, .. } = self.live[&address];
        self.device.check(Range { address, size }, first);
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
