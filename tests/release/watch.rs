//! A simulated GPU that tells how large each piece of physical memory is, and the most that was ever held.

use seamalloc::driver::sim::{Range, SimConfig, SimGpu};
use seamalloc::driver::{
    CallStats, CaptureMode, DeviceProperties, Driver, DriverResult, EventId, Handle, MemoryInfo, StreamId,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) struct Watch {
    pub(crate) sim: SimGpu,
    sizes: Mutex<HashMap<u64, u64>>,
    most: AtomicU64,
    /// The first reservation that is there: for stitching it is home.
    home: Mutex<Option<Range>>,
    /// Where something is mapped, by address.
    mapped: Mutex<BTreeMap<u64, u64>>,
}

impl Watch {
    pub(crate) fn new(config: SimConfig) -> Self {
        let (sizes, most, home, mapped) = Default::default();
        Self { sim: SimGpu::new(config).unwrap(), sizes, most, home, mapped }
    }

    /// Mappings outside of home.
    pub(crate) fn in_views(&self) -> usize {
        let home = self.home.lock().unwrap().unwrap_or(Range { address: 0, size: 0 });
        let outside = |address: &&u64| !(home.address..home.address + home.size).contains(*address);
        self.mapped.lock().unwrap().keys().filter(outside).count()
    }

    /// The most bytes that were held at any moment.
    pub(crate) fn most_held(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    /// Bytes of all chunks of which some byte lies in one of these ranges.
    pub(crate) fn touched(&self, ranges: impl Iterator<Item = Range>) -> u64 {
        let pieces = ranges.flat_map(|range| self.sim.physical(range));
        let chunks: BTreeSet<u64> = pieces.map(|piece| piece.memory).collect();
        let sizes = self.sizes.lock().unwrap();
        chunks.iter().map(|chunk| sizes[chunk]).sum()
    }

    fn taken(&self) {
        let info = self.sim.memory_info().unwrap();
        self.most.fetch_max(info.total - info.free, Ordering::Relaxed);
    }
}

impl Driver for Watch {
    fn properties(&self) -> &DeviceProperties {
        self.sim.properties()
    }
    fn reserve(&self, size: u64, alignment: u64) -> DriverResult<u64> {
        let address = self.sim.reserve(size, alignment)?;
        self.home.lock().unwrap().get_or_insert(Range { address, size });
        Ok(address)
    }
    fn address_free(&self, address: u64, size: u64) -> DriverResult<()> {
        self.sim.address_free(address, size)?;
        self.home.lock().unwrap().take_if(|home| home.address == address);
        Ok(())
    }
    fn create(&self, size: u64) -> DriverResult<Handle> {
        let handle = self.sim.create(size)?;
        // A handle's number is that of its memory.
        self.sizes.lock().unwrap().insert(handle.0, size);
        self.taken();
        Ok(handle)
    }
    fn release(&self, handle: Handle) -> DriverResult<()> {
        self.sim.release(handle)
    }
    fn map(&self, address: u64, size: u64, offset: u64, handle: Handle) -> DriverResult<()> {
        self.sim.map(address, size, offset, handle)?;
        self.mapped.lock().unwrap().insert(address, size);
        Ok(())
    }
    fn unmap(&self, address: u64, size: u64) -> DriverResult<()> {
        self.sim.unmap(address, size)?;
        self.mapped.lock().unwrap().retain(|at, _| !(address..address + size).contains(at));
        Ok(())
    }
    fn set_access(&self, address: u64, size: u64) -> DriverResult<()> {
        self.sim.set_access(address, size)
    }
    fn malloc(&self, size: u64) -> DriverResult<u64> {
        let address = self.sim.malloc(size)?;
        self.taken();
        Ok(address)
    }
    fn free(&self, address: u64) -> DriverResult<()> {
        self.sim.free(address)
    }
    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        self.sim.memory_info()
    }
    fn event_create(&self) -> DriverResult<EventId> {
        self.sim.event_create()
    }
    fn event_destroy(&self, event: EventId) -> DriverResult<()> {
        self.sim.event_destroy(event)
    }
    fn event_record(&self, event: EventId, stream: StreamId) -> DriverResult<()> {
        self.sim.event_record(event, stream)
    }
    fn event_query(&self, event: EventId) -> DriverResult<bool> {
        self.sim.event_query(event)
    }
    fn event_synchronize(&self, event: EventId) -> DriverResult<()> {
        self.sim.event_synchronize(event)
    }
    fn stream_wait(&self, stream: StreamId, event: EventId) -> DriverResult<()> {
        self.sim.stream_wait(stream, event)
    }
    fn stream_synchronize(&self, stream: StreamId) -> DriverResult<()> {
        self.sim.stream_synchronize(stream)
    }
    fn is_capturing(&self, stream: StreamId) -> DriverResult<bool> {
        self.sim.is_capturing(stream)
    }
    fn synchronize(&self) -> DriverResult<()> {
        self.sim.synchronize()
    }
    fn exchange_capture_mode(&self, mode: CaptureMode) -> DriverResult<CaptureMode> {
        self.sim.exchange_capture_mode(mode)
    }
    fn call_stats(&self) -> CallStats {
        self.sim.call_stats()
    }
    fn busy_ns(&self) -> u64 {
        self.sim.busy_ns()
    }
}
