//! What is live, where it lies, and what it holds.

use crate::physical::Taken;
use crate::real_words::{Device, MIB};
use seamalloc::driver::host::{HostWork, Range};
use seamalloc::driver::{Call, StreamId};
use seamalloc::{Allocator, Config, Error, PoolId};
use seamalloc_plan::online::Inline;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the device.
const CAPACITY: u64 = 64 * MIB;
/// One word of so many is read: at least one of each page.
const EVERY: usize = 256;

/// The calls that can fail.
const FAILING: [Call; 17] = [
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
    Call::CopyOut,
    Call::CopyIn,
    Call::HostMalloc,
    Call::EventCreate,
    Call::EventRecord,
    Call::EventQuery,
    Call::StreamWait,
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
    /// Whether calls may have failed, so that mappings may be left to undo.
    fails: bool,
}

impl World {
    pub(crate) fn new(options: &str, fails: bool) -> Self {
        let device = Arc::new(Device::new(CAPACITY, &FAILING));
        let options = format!("strategy:planned,spill:host=64MiB,{options}");
        let allocator = Allocator::new(Arc::<Device>::clone(&device), Config::parse(&options).unwrap()).unwrap();
        allocator.set_planner(Box::<Inline>::default());
        Self { device, allocator, live: BTreeMap::new(), numbers: 0, fails }
    }

    /// Notes what was allocated, and fills it.
    pub(crate) fn note(&mut self, address: u64, size: u64, stream: StreamId, pool: PoolId, grows: bool) {
        self.numbers += 1 << 40;
        let live = Live { size, first: self.numbers, stream, pool, grows };
        assert!(self.live.insert(address, live).is_none(), "{address:#x} is live");
        self.fill(address, 0);
    }

    /// Writes words of an allocation from an offset on.
    fn fill(&self, address: u64, from: u64) {
        let Live { size, first, stream, .. } = self.live[&address];
        let (size, from) = (size / 8 * 8, from / 8 * 8);
        if size > from {
            let to = Range { address: address + from, size: size - from };
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

    /// Reads words of all allocations.
    fn read_all(&self) {
        let wrong = Arc::new(AtomicU64::new(0));
        self.device.settle();
        for (address, Live { size, first, .. }) in self.live.iter().filter(|(address, _)| self.is_awake(**address)) {
            let (wrongs, first) = (Arc::clone(&wrong), *first);
            let address = *address;
            let see = move |at: u64, words: &[u64]| {
                let is_wrong = |(at, word): &(u64, &u64)| **word != first + at;
                if (at..).zip(words).step_by(EVERY).any(|of| is_wrong(&of)) {
                    wrongs.fetch_max(address, Ordering::Relaxed);
                }
            };
            let at = Range { address, size: size / 8 * 8 };
            if at.size > 0 {
                self.device.host.launch(StreamId::DEFAULT, HostWork::Look { at, see: Arc::new(see) }).unwrap();
            }
        }
        self.device.settle();
        let wrong = wrong.load(Ordering::Relaxed);
        assert_eq!(wrong, 0, "words at {wrong:#x} are not their own: {:?}", self.live.get(&wrong));
        assert_eq!(self.device.host.faults(), []);
    }

    /// Looks whether two live allocations share a byte.
    fn check_apart(&self) {
        let mut taken = Taken::default();
        for (address, live) in self.live.iter().filter(|(address, _)| self.is_awake(**address)) {
            let pieces = self.device.host.physical(Range { address: *address, size: live.size });
            assert_eq!(pieces.iter().map(|piece| piece.size).sum::<u64>(), live.size, "memory behind every byte");
            taken.take(&pieces);
        }
    }

    /// Looks whether the allocator and the device agree to the byte.
    pub(crate) fn check_books(&self) {
        self.allocator.check().unwrap();
        self.check_apart();
        let (stats, leaks) = (self.allocator.stats(), self.device.host.leaks());
        let of_machine = stats.spilled_bytes.current + stats.spill_kept_bytes;
        let counted = (stats.reserved_bytes.all.current, of_machine);
        assert_eq!(counted, (leaks.bytes, leaks.host_bytes), "counted and held, of the device and the machine");
        // What sleeps is mapped nowhere.
        if stats.sleep.asleep_bytes == 0 && !self.fails {
            assert_eq!(stats.mappings, leaks.mappings as u64, "mappings");
        }
        let parts = self.allocator.fragmentation();
        let sum = parts.allocated + parts.pending + parts.free + parts.unsettled;
        assert_eq!(parts.reserved + parts.spilled + parts.asleep, sum, "{parts:?}");
    }

    pub(crate) fn check_all(&self) {
        self.check_books();
        self.read_all();
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
