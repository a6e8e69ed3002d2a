//! What is live, and what it holds.

use crate::real_words::{Device, MIB};
use seamalloc::driver::host::{HostWork, Range};
use seamalloc::driver::{Call, StreamId};
use seamalloc::{Allocator, Config, Error, PoolId};
use seamalloc_plan::online::Inline;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of the device.
const CAPACITY: u64 = 48 * MIB;

/// The calls that can fail.
const FAILING: [Call; 15] = [
    Call::Synchronize,
    Call::Reserve,
    Call::Create,
    Call::CreateOnHost,
    Call::Release,
    Call::Map,
    Call::Unmap,
    Call::SetAccess,
    Call::Copy,
    Call::CopyOut,
    Call::CopyIn,
    Call::HostMalloc,
    Call::EventCreate,
    Call::EventRecord,
    Call::EventQuery,
];

#[derive(Clone, Copy, Debug)]
pub(crate) struct Live {
    pub(crate) size: u64,
    first: u64,
    pub(crate) stream: StreamId,
    pub(crate) pool: PoolId,
    pub(crate) grows: bool,
}

pub(crate) struct World {
    pub(crate) device: Arc<Device>,
    pub(crate) allocator: Allocator,
    pub(crate) live: BTreeMap<u64, Live>,
    numbers: u64,
}

impl World {
    pub(crate) fn new(options: &str) -> Self {
        let device = Arc::new(Device::new(CAPACITY, &FAILING));
        let options = format!("spill:host=64MiB,{options}");
        let allocator = Allocator::new(Arc::<Device>::clone(&device), Config::parse(&options).unwrap()).unwrap();
        allocator.set_planner(Box::<Inline>::default());
        Self { device, allocator, live: BTreeMap::new(), numbers: 0 }
    }

    /// Notes what was allocated, and fills it.
    pub(crate) fn note(&mut self, address: u64, size: u64, stream: StreamId, pool: PoolId, grows: bool) {
        self.numbers += 1 << 40;
        let live = Live { size, first: self.numbers, stream, pool, grows };
        assert!(self.live.insert(address, live).is_none(), "{address:#x} is live");
        self.fill(address, 0);
    }

    /// Writes the words of an allocation from an offset on.
    fn fill(&self, address: u64, from: u64) {
        let Live { size, first, stream, .. } = self.live[&address];
        if size / 8 * 8 > from {
            let to = Range { address: address + from, size: size / 8 * 8 - from };
            self.device.fill(to, first + from / 8, stream);
        }
    }

    /// Looks how much of an allocation that grows is in use, and fills what is new.
    pub(crate) fn look(&mut self, address: u64) {
        let len = self.allocator.extent(address).unwrap().len;
        let before = std::mem::replace(&mut self.live.get_mut(&address).unwrap().size, len);
        self.fill(address, before.min(len));
    }

    /// Gives a stream work that uses an allocation.
    pub(crate) fn use_on(&self, address: u64, stream: StreamId) {
        let range = Range { address, size: self.live[&address].size };
        if range.size > 0 {
            self.device.host.launch(stream, HostWork::Use { range }).unwrap();
        }
    }

    pub(crate) fn is_awake(&self, address: u64) -> bool {
        !self.allocator.is_asleep(self.live[&address].pool)
    }

    /// Reads every word of an allocation.
    pub(crate) fn check(&self, address: u64) {
        if self.is_awake(address) {
            let Live { size, first, .. } = self.live[&address];
            self.device.check(Range { address, size: size / 8 * 8 }, first);
        }
    }

    /// Looks whether the allocator and the device agree to the byte.
    pub(crate) fn check_books(&self) {
        self.allocator.check().unwrap();
        let (stats, leaks) = (self.allocator.stats(), self.device.host.leaks());
        let of_machine = stats.spilled_bytes.current + stats.spill_kept_bytes;
        let counted = (stats.reserved_bytes.all.current, of_machine);
        assert_eq!(
            counted,
            (leaks.bytes, leaks.host_bytes),
            "the allocator counts other bytes than the device and the machine"
        );
        let parts = self.allocator.fragmentation();
        let sum = parts.allocated + parts.pending + parts.free + parts.unsettled;
        assert_eq!(parts.reserved + parts.spilled + parts.asleep, sum, "{parts:?}");
    }

    pub(crate) fn check_all(&self) {
        self.check_books();
        self.live.keys().for_each(|address| self.check(*address));
        assert_eq!(self.device.host.faults(), []);
    }

    pub(crate) fn free(
        &mut self,
        address: u64,
        free: impl FnOnce(&Allocator) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let freed = free(&self.allocator);
        if freed.is_ok() {
            self.live.remove(&address);
        } else if self.live[&address].grows {
            self.live.get_mut(&address).unwrap().size = self.allocator.extent(address).unwrap().len;
        }
        freed
    }

    /// Frees everything and ends the allocator, which leaves nothing.
    pub(crate) fn end(mut self, pools: &[PoolId]) {
        let live: Vec<u64> = self.live.keys().copied().collect();
        live.into_iter().for_each(|address| self.free(address, |allocator| allocator.free(address)).unwrap());
        pools.iter().for_each(|pool| self.allocator.release_pool(*pool).unwrap());
        self.allocator.empty_cache().unwrap();
        self.check_books();
        let Self { device, allocator, .. } = self;
        drop(allocator);
        assert_eq!(device.host.leaks(), Default::default());
        assert_eq!(device.host.faults(), []);
    }
}
