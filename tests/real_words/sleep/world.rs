//! A program with tags, on a device of which calls can be made to fail.

use crate::real_words::{Device, MAIN, MIB, SIDE};
use seamalloc::driver::host::Range;
use seamalloc::driver::{Call, StreamId};
use seamalloc::{Allocator, Backup, Config, Error, PoolId};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

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
        let device = Arc::new(Device::new(capacity, &OF_SLEEP));
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
        self.device.fill(Range { address, size }, first, stream);
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
        self.device.check(Range { address, size }, first);
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
        let large: Vec<u64> = (0..5).map(|_| self.allocate(tag, 2 * MIB, MAIN).unwrap()).collect();
        for size in [512, 4096, 900 << 10] {
            self.allocate(tag, size, MAIN).unwrap();
        }
        self.allocate(tag, 3 * MIB / 2, SIDE).unwrap();
        [large[0], large[2], large[4]].into_iter().for_each(|address| self.free(address));
        self.allocate(tag, 7 * MIB / 2, MAIN).unwrap();
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
