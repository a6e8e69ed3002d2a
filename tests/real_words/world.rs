//! A program's live memory on a device of which calls can be made to fail: where each block lies, and what it holds.

use crate::device::{Device, MIB};
use crate::physical::Taken;
use seamalloc::driver::StreamId;
use seamalloc::driver::host::{HostWork, Range};
use seamalloc::{Allocator, Config, Error, PoolId, Stats};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The options of most worlds: chunks of 4 MiB, so that views and parts of chunks come with few bytes.
pub(crate) const OPTIONS: &str = "strategy:stitch,chunk_size_mb:4";

/// Bytes of the device of most worlds.
pub(crate) const CAPACITY: u64 = 256 * MIB;

/// An allocation, and what it holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Live {
    /// Bytes in use.
    pub(crate) size: u64,
    /// The first word. The words that follow count upwards.
    pub(crate) first: u64,
    pub(crate) stream: StreamId,
    pub(crate) pool: PoolId,
    pub(crate) grows: bool,
    /// Whether kernels of the program run on it: memory that a capture was given is noted for the graph, and never used.
    pub(crate) is_used: bool,
}

impl Live {
    /// A block with words of its own once it is noted.
    pub(crate) fn block(pool: PoolId, size: u64, stream: StreamId) -> Self {
        Self { size, first: 0, stream, pool, grows: false, is_used: true }
    }

    /// Returns the whole words of an allocation at this address.
    fn words(&self, address: u64) -> Range {
        Range { address, size: if self.is_used { self.size / 8 * 8 } else { 0 } }
    }
}

pub(crate) struct World {
    pub(crate) device: Arc<Device>,
    pub(crate) allocator: Allocator,
    pub(crate) live: BTreeMap<u64, Live>,
    numbers: u64,
}

impl World {
    pub(crate) fn new(capacity: u64, options: &str) -> Self {
        let device = Arc::new(Device::new(capacity));
        let allocator = Allocator::new(Arc::<Device>::clone(&device), Config::parse(options).unwrap()).unwrap();
        Self { device, allocator, live: BTreeMap::new(), numbers: 0 }
    }

    /// Notes what was allocated, and fills it with words of its own.
    pub(crate) fn note(&mut self, address: u64, live: Live) {
        let live = Live { first: self.next_first(), ..live };
        assert!(self.live.insert(address, live).is_none(), "{address:#x} is live");
        self.fill(address, 0);
    }

    /// Returns the first word of an allocation that no other allocation has words of.
    fn next_first(&mut self) -> u64 {
        self.numbers += 1 << 40;
        self.numbers
    }

    /// Writes the words of an allocation from an offset on, by a kernel on its stream.
    fn fill(&self, address: u64, from: u64) {
        let live = self.live[&address];
        let (size, from) = (live.words(address).size, from / 8 * 8);
        if size > from {
            self.device.fill(Range { address: address + from, size: size - from }, live.first + from / 8, live.stream);
        }
    }

    /// Writes an allocation with other words, by a kernel on this stream.
    pub(crate) fn rewrite(&mut self, address: u64, stream: StreamId) {
        let first = self.next_first();
        let live = self.live.get_mut(&address).unwrap();
        live.first = first;
        let to = live.words(address);
        self.device.fill(to, first, stream);
    }

    /// Allocates and fills a block.
    pub(crate) fn allocate(&mut self, size: u64, stream: StreamId) -> Result<u64, Error> {
        self.allocate_in(PoolId::NONE, size, stream)
    }

    /// Requests a block of a pool, which is neither noted nor filled; of no pool with [`PoolId::NONE`].
    pub(crate) fn request(&self, pool: PoolId, size: u64, stream: StreamId) -> Result<u64, Error> {
        match pool {
            PoolId::NONE => self.allocator.allocate(size, stream),
            pool => self.allocator.pools().allocate(pool, size, stream),
        }
    }

    /// Allocates and fills a block of a pool; of no pool with [`PoolId::NONE`].
    pub(crate) fn allocate_in(&mut self, pool: PoolId, size: u64, stream: StreamId) -> Result<u64, Error> {
        let address = self.request(pool, size, stream)?;
        self.note(address, Live::block(pool, size, stream));
        Ok(address)
    }

    /// Reserves an allocation that grows.
    pub(crate) fn reserve(&mut self, capacity: u64, stream: StreamId) -> Result<u64, Error> {
        self.reserve_in(PoolId::NONE, capacity, stream)
    }

    /// Reserves an allocation of a pool that grows; of no pool with [`PoolId::NONE`].
    pub(crate) fn reserve_in(&mut self, pool: PoolId, capacity: u64, stream: StreamId) -> Result<u64, Error> {
        let address = match pool {
            PoolId::NONE => self.allocator.growing().reserve(capacity, stream)?,
            pool => self.allocator.growing().reserve_in(pool, capacity, stream)?,
        };
        self.note(address, Live { grows: true, ..Live::block(pool, 0, stream) });
        Ok(address)
    }

    /// Grows an allocation, and writes what is new.
    pub(crate) fn grow(&mut self, address: u64, size: u64) -> Result<(), Error> {
        self.allocator.growing().grow(address, size)?;
        let before = self.live[&address].size;
        if size > before {
            self.live.get_mut(&address).unwrap().size = size;
            self.fill(address, before);
        }
        Ok(())
    }

    pub(crate) fn shrink(&mut self, address: u64, size: u64) -> Result<(), Error> {
        let live = self.live.get_mut(&address).unwrap();
        live.size = live.size.min(size);
        self.allocator.growing().shrink(address, size)
    }

    /// Takes over how much of an allocation that grows is in use after a call that may have failed, and fills what is new.
    pub(crate) fn take_len(&mut self, address: u64) {
        let len = self.allocator.growing().extent(address).unwrap().len;
        let before = std::mem::replace(&mut self.live.get_mut(&address).unwrap().size, len);
        self.fill(address, before.min(len));
    }

    pub(crate) fn free(&mut self, address: u64) {
        self.free_by(address, |allocator| allocator.free(address)).unwrap();
    }

    /// Frees an allocation by this call. One that grows may be freed in part where the call fails.
    pub(crate) fn free_by(
        &mut self,
        address: u64,
        free: impl FnOnce(&Allocator) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let freed = free(&self.allocator);
        if freed.is_ok() {
            self.live.remove(&address).unwrap();
        } else if self.live[&address].grows {
            self.live.get_mut(&address).unwrap().size = self.allocator.growing().extent(address).unwrap().len;
        }
        freed
    }

    /// Gives a stream work that uses an allocation.
    pub(crate) fn use_on(&self, address: u64, stream: StreamId) {
        let range = self.live[&address].words(address);
        if range.size > 0 {
            self.device.host.launch(stream, HostWork::Use { range }).unwrap();
        }
    }

    /// Returns whether an allocation has memory: its pool does not sleep.
    pub(crate) fn is_awake(&self, address: u64) -> bool {
        !self.allocator.tags().is_asleep(self.live[&address].pool)
    }

    /// Reads every word of an allocation.
    pub(crate) fn check(&self, address: u64) {
        self.check_as(address, self.live[&address]);
    }

    /// Reads words that are to be those of an allocation.
    pub(crate) fn check_as(&self, address: u64, live: Live) {
        self.device.check(&[(live.words(address), live.first)]);
    }

    /// Reads every word of every allocation that is awake, and checks that the allocator and the device agree to the byte.
    pub(crate) fn check_all(&self) {
        self.check_books();
        self.check_apart();
        let words: Vec<(Range, u64)> = self.awake().map(|(address, live)| (live.words(address), live.first)).collect();
        self.device.check(&words);
        assert_eq!(self.device.host.faults(), []);
    }

    /// Returns the allocations whose pool does not sleep.
    fn awake(&self) -> impl Iterator<Item = (u64, Live)> + '_ {
        self.live.iter().filter(|(address, _)| self.is_awake(**address)).map(|(address, live)| (*address, *live))
    }

    /// Checks that the allocator, the device and this world agree to the byte.
    pub(crate) fn check_books(&self) {
        self.allocator.reports().check().unwrap();
        let stats = self.allocator.stats();
        let counted = (stats.reserved_bytes.all.current, stats.spilled_bytes.current + stats.spill_kept_bytes);
        assert_eq!(counted, self.used(), "the allocator counts other bytes than the device and the machine");
        let mapped = self.device.host.leaks().mappings as u64;
        // Memory that sleeps is mapped nowhere.
        if stats.sleep.asleep_bytes == 0 && !self.device.has_failed() {
            assert_eq!(stats.mappings, mapped, "the allocator counts other mappings than the device");
        }
        let parts = self.allocator.reports().fragmentation();
        let sum = parts.allocated + parts.pending + parts.free + parts.unsettled;
        assert_eq!(parts.reserved + parts.spilled + parts.asleep, sum, "{parts:?}");
        self.check_sizes(&stats);
    }

    /// Checks that every allocation counts with its bytes, and each that grows with its mapped bytes.
    fn check_sizes(&self, stats: &Stats) {
        let mut allocated = 0;
        for (address, live) in &self.live {
            allocated += if live.grows {
                let extent = self.allocator.growing().extent(*address).unwrap();
                assert!(live.size <= extent.mapped && extent.len == live.size, "{live:?} {extent:?}");
                extent.mapped
            } else {
                live.size.next_multiple_of(512)
            };
        }
        assert_eq!(stats.allocated_bytes.all.current, allocated);
    }

    /// Checks that there is memory behind every byte, and that no two allocations share one.
    pub(crate) fn check_apart(&self) {
        let mut taken = Taken::default();
        for (address, live) in self.awake() {
            let pieces = self.device.host.physical(Range { address, size: live.size });
            assert_eq!(pieces.iter().map(|piece| piece.size).sum::<u64>(), live.size, "no memory at {address:#x}");
            taken.take(&pieces);
        }
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

    /// Returns the bytes of an allocation that have memory.
    pub(crate) fn mapped(&self, address: u64) -> u64 {
        self.allocator.growing().extent(address).unwrap().mapped
    }

    pub(crate) fn views(&self) -> u64 {
        self.allocator.reports().fragmentation().views
    }

    /// Frees all allocations.
    pub(crate) fn free_all(&mut self) {
        let live: Vec<u64> = self.live.keys().copied().collect();
        live.into_iter().for_each(|address| self.free(address));
    }

    /// Frees everything and ends the allocator with what it has cached, which leaves nothing.
    pub(crate) fn end(mut self, pools: &[PoolId]) {
        self.free_all();
        pools.iter().for_each(|pool| self.allocator.pools().release(*pool).unwrap());
        let Self { device, allocator, .. } = self;
        drop(allocator);
        assert_eq!(device.host.leaks(), Default::default());
        assert_eq!(device.host.faults(), []);
    }

    /// Frees everything and empties the cache, which leaves nothing, and ends the allocator.
    pub(crate) fn end_empty(mut self, pools: &[PoolId]) {
        self.free_all();
        pools.iter().for_each(|pool| self.allocator.pools().release(*pool).unwrap());
        self.allocator.empty_cache().unwrap();
        self.check_books();
        assert_eq!(self.used(), (0, 0));
        self.end(&[]);
    }
}
