//! A program on a simulated GPU, one operation at a time. Its own books take no host memory.

use crate::physical::Taken;
use crate::short_host::{Apart, outside};
use seamalloc::driver::sim::{CaptureMode, Range, SimConfig, SimGpu};
use seamalloc::driver::{Driver, PlainMemory, StreamId};
use seamalloc::observer::{Event, Observer};
use seamalloc::{
    Advice, Allocator, Backup, Config, Error, PoolBlock, PoolId, Route, SegmentSource, Segments, SourceError,
    StrategyKind,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const MAIN: StreamId = StreamId::DEFAULT;
pub(crate) const SIDE: StreamId = StreamId(8);
pub(crate) const THIRD: StreamId = StreamId(9);
pub(crate) const CAPTURED: StreamId = StreamId(10);

/// The result of an operation.
pub(crate) type Done = Result<(), Error>;

pub(crate) struct World {
    pub(crate) gpu: Arc<SimGpu>,
    pub(crate) allocator: Allocator,
    /// Live blocks: address and requested bytes, 0 where there is none.
    blocks: [(u64, u64); BLOCKS],
    pub(crate) pools: [PoolId; 4],
    checkpoint: Vec<PoolBlock>,
    /// Whether a checkpoint was restored in part: which of its blocks are live is unknown until it is restored whole.
    restoring: bool,
    /// How many streams [`Self::many_streams`] has used.
    streams: u64,
}

/// The blocks of the scripts have the first numbers, those of [`World::many_blocks`] the rest.
const BLOCKS: usize = 300;
const FIRST_OF_MANY: usize = 64;
const STREAMS: u64 = 40;

struct Counting(Arc<AtomicU64>);

impl Observer for Counting {
    fn event(&mut self, _: &Event) {
        outside(|| self.0.fetch_add(1, Ordering::Relaxed));
    }
}

/// A source of segments over the device of the allocator.
struct OwnSource(Arc<SimGpu>);

impl SegmentSource for OwnSource {
    fn malloc(&mut self, size: u64) -> Result<u64, SourceError> {
        outside(|| self.0.malloc(size)).map_err(|_| SourceError::OutOfMemory)
    }

    fn free(&mut self, address: u64, _: u64) -> Result<(), SourceError> {
        outside(|| self.0.free(address)).map_err(|error| SourceError::Failed(error.to_string()))
    }
}

impl World {
    pub(crate) fn new(kind: StrategyKind, options: &str) -> Self {
        // The largest requests are powers of two there.
        let device = if kind == StrategyKind::Buddy { "sim:h200,capacity=512MiB" } else { "sim:h200,capacity=256MiB" };
        let gpu = Arc::new(SimGpu::new(SimConfig::parse(device).unwrap()).unwrap());
        gpu.connect_peer(1);
        let config = Config { strategy: kind, ..Config::parse(options).unwrap() };
        let allocator = Allocator::new(Arc::new(Apart(Arc::clone(&gpu))), config).unwrap();
        allocator.limits().on_pressure(|_| outside(|| false));
        allocator.reports().set_observer(Some(Box::new(Counting(Arc::default()))));
        let pools = [PoolId::NONE; 4];
        Self { gpu, allocator, blocks: [(0, 0); BLOCKS], pools, checkpoint: Vec::new(), restoring: false, streams: 0 }
    }

    fn address(&self, block: usize) -> u64 {
        assert!(self.blocks[block].0 != 0, "the script uses block {block}, which is not live");
        self.blocks[block].0
    }

    fn note(&mut self, block: usize, address: u64, size: u64) -> Done {
        assert_eq!(self.blocks[block].0, 0, "the script has block {block} already");
        self.blocks[block] = (address, size);
        Ok(())
    }

    pub(crate) fn allocate(&mut self, block: usize, size: u64, stream: StreamId) -> Done {
        let address = self.allocator.allocate(size, stream)?;
        self.note(block, address, size)
    }

    /// Memory that streams share serves the next request, where the strategy shares it.
    pub(crate) fn grow_no_more(&mut self) -> Done {
        let shares = self.allocator.config().strategy == StrategyKind::Stitch;
        self.allocator.limits().set_bytes(shares.then(|| self.allocator.reports().reserved()))
    }

    /// A request that there is too little memory for.
    pub(crate) fn is_refused(&mut self, size: u64, stream: StreamId) -> Done {
        let size = if self.allocator.config().strategy == StrategyKind::Buddy { 2 * size } else { size };
        match self.allocator.allocate(size, stream) {
            Err(Error::OutOfMemory(report)) => {
                assert_eq!(report.requested, size);
                Ok(())
            }
            Err(error) => Err(error),
            Ok(address) => panic!("{size} bytes were served, at {address:#x}"),
        }
    }

    pub(crate) fn allocate_in(&mut self, block: usize, pool: usize, size: u64, stream: StreamId) -> Done {
        let address = self.allocator.pools().allocate(self.pools[pool], size, stream)?;
        self.note(block, address, size)
    }

    pub(crate) fn free(&mut self, block: usize) -> Done {
        self.allocator.free(self.address(block))?;
        self.blocks[block] = (0, 0);
        Ok(())
    }

    pub(crate) fn free_on(&mut self, block: usize, stream: StreamId) -> Done {
        self.allocator.free_on(self.address(block), stream)?;
        self.blocks[block] = (0, 0);
        Ok(())
    }

    pub(crate) fn free_under(&mut self, block: usize, stream: StreamId) -> Done {
        self.allocator.free_with_current_stream(self.address(block), stream)?;
        self.blocks[block] = (0, 0);
        Ok(())
    }

    pub(crate) fn record(&mut self, block: usize, stream: StreamId) -> Done {
        self.allocator.record_stream(self.address(block), stream)
    }

    /// Reserves addresses for an allocation that grows.
    pub(crate) fn reserve(&mut self, block: usize, capacity: u64) -> Done {
        let address = self.allocator.growing().reserve(capacity, MAIN)?;
        self.note(block, address, 0)
    }

    /// Reserves addresses for one of a pool.
    pub(crate) fn reserve_in(&mut self, block: usize, pool: usize, capacity: u64) -> Done {
        let address = self.allocator.growing().reserve_in(self.pools[pool], capacity, MAIN)?;
        self.note(block, address, 0)
    }

    /// Grows or shrinks such an allocation.
    pub(crate) fn resize(&mut self, block: usize, size: u64) -> Done {
        self.allocator.growing().resize(self.address(block), size)?;
        self.blocks[block].1 = size;
        Ok(())
    }

    pub(crate) fn advise(&mut self, block: usize, advice: Advice) -> Done {
        self.allocator.spill().advise(self.address(block), advice)
    }

    /// The program gives a stream work that does not end before [`Self::finish`].
    pub(crate) fn hold(&mut self, stream: StreamId) -> Done {
        outside(|| self.gpu.hold(stream));
        Ok(())
    }

    pub(crate) fn finish(&mut self, stream: StreamId) -> Done {
        outside(|| while self.gpu.finish(stream) {});
        Ok(())
    }

    pub(crate) fn create_pool(&mut self, pool: usize) -> Done {
        match self.allocator.pools().create() {
            PoolId::NONE => Err(Error::HostMemory),
            id => {
                self.pools[pool] = id;
                Ok(())
            }
        }
    }

    pub(crate) fn create_tag(&mut self, pool: usize) -> Done {
        self.pools[pool] = self.allocator.tags().create()?;
        Ok(())
    }

    /// Lets a tag sleep, and keeps its contents on the host or in a file.
    pub(crate) fn sleep(&mut self, pool: usize, file: bool) -> Done {
        let path = || std::env::temp_dir().join(format!("seamalloc-host-memory-{}", std::process::id()));
        let backup = outside(|| if file { Backup::File(path()) } else { Backup::Host });
        let slept = self.allocator.tags().sleep(self.pools[pool], &backup);
        outside(|| drop(backup));
        slept.map(|bytes| assert!(bytes > 0))
    }

    pub(crate) fn sleep_pinned(&mut self, pool: usize) -> Done {
        self.allocator.tags().sleep(self.pools[pool], &Backup::Pinned).map(|bytes| assert!(bytes > 0))
    }

    /// Lets a tag sleep, and keeps nothing of its contents.
    pub(crate) fn discard(&mut self, pool: usize) -> Done {
        self.allocator.tags().sleep(self.pools[pool], &Backup::Discard).map(|bytes| assert!(bytes > 0))
    }

    pub(crate) fn wake(&mut self, pool: usize) -> Done {
        self.allocator.tags().wake(self.pools[pool]).map(|bytes| assert!(bytes > 0))
    }

    pub(crate) fn route(&mut self, pool: usize) -> Done {
        self.allocator.pools().begin(self.pools[pool], Route::stream(CAPTURED).capturing())
    }

    pub(crate) fn route_by_filter(&mut self, pool: usize) -> Done {
        let covered = CAPTURED.0;
        self.allocator.pools().begin(self.pools[pool], Route::when(move |stream| stream.0 == covered))
    }

    /// Opens a pool that the program numbers itself, with a source over the same device.
    pub(crate) fn open_with_source(&mut self) -> Done {
        let pool = PoolId(8, 0);
        self.allocator.pools().open_with(pool, Segments::from_source(OwnSource(Arc::clone(&self.gpu))))?;
        self.pools[3] = pool;
        Ok(())
    }

    /// Memory of the driver's pools is nobody else's, which is said whatever the host has.
    pub(crate) fn enable_peer(&mut self) -> Done {
        match self.allocator.sharing().enable_peer_access(1) {
            Err(Error::NotOfPools { .. }) => Ok(()),
            enabled => enabled,
        }
    }

    pub(crate) fn share(&mut self, block: usize) -> Done {
        let handle = match self.allocator.sharing().export(self.address(block)) {
            Err(Error::NotOfPools { .. }) => return Ok(()),
            shared => shared?,
        };
        assert_eq!(handle.handle.len(), outside(|| self.allocator.sharing().handle_len(self.address(block)))?);
        Ok(())
    }

    pub(crate) fn begin_capture(&mut self) -> Done {
        outside(|| self.gpu.begin_capture(CAPTURED, CaptureMode::Global)).map_err(Error::from)
    }

    pub(crate) fn end_capture(&mut self) -> Done {
        outside(|| self.gpu.end_capture(CAPTURED)).map_err(Error::from)
    }

    pub(crate) fn end_route(&mut self, pool: usize) -> Done {
        self.allocator.pools().end(self.pools[pool])
    }

    pub(crate) fn release(&mut self, pool: usize) -> Done {
        self.allocator.pools().release(self.pools[pool])
    }

    pub(crate) fn save(&mut self, pool: usize) -> Done {
        self.checkpoint = self.allocator.pools().blocks(self.pools[pool])?;
        Ok(())
    }

    pub(crate) fn restore(&mut self, pool: usize) -> Done {
        let restored = self.allocator.pools().restore(self.pools[pool], &self.checkpoint);
        self.restoring = restored.is_err();
        restored
    }

    /// Small blocks, until the tables have grown several times. What failed is tried again by the next call.
    pub(crate) fn many_blocks(&mut self) -> Done {
        for block in FIRST_OF_MANY..BLOCKS {
            if self.blocks[block].0 == 0 {
                self.allocate(block, 512 * (1 + block as u64 % 7), MAIN)?;
            }
        }
        Ok(())
    }

    pub(crate) fn free_many(&mut self) -> Done {
        // Every second one first, so that each is a range of its own.
        for block in (FIRST_OF_MANY..BLOCKS).step_by(2).chain((FIRST_OF_MANY + 1..BLOCKS).step_by(2)) {
            if self.blocks[block].0 != 0 {
                self.free(block)?;
            }
        }
        Ok(())
    }

    /// More streams than have pools at once. What failed is tried again by the next call.
    pub(crate) fn many_streams(&mut self) -> Done {
        while self.streams < STREAMS {
            if self.blocks[0].0 == 0 {
                self.allocate(0, 3 * MIB, StreamId(100 + self.streams))?;
            }
            self.free(0)?;
            self.streams += 1;
        }
        Ok(())
    }

    /// The allocator's tables are in order, it has what the device says, and every live block has memory of its own.
    pub(crate) fn check(&self, when: &str) {
        self.allocator.reports().check().unwrap_or_else(|broken| panic!("{when}: {broken}"));
        let info = self.gpu.memory_info().unwrap();
        assert_eq!(info.total - info.free, self.allocator.reports().reserved(), "{when}: the bytes that are held");
        let memory = self.allocator.reports().fragmentation();
        let parts = memory.allocated + memory.pending + memory.free + memory.unsettled;
        assert_eq!(memory.reserved + memory.asleep + memory.spilled, parts, "{when}: {memory:?}");
        let (stats, machine) = (self.allocator.stats(), self.gpu.leaks().host_bytes);
        assert_eq!(stats.spilled_bytes.current + stats.spill_kept_bytes, machine, "{when}: host memory");
        let asleep = self.pools.iter().any(|pool| self.allocator.tags().is_asleep(*pool));
        assert_eq!(memory.unsettled, 0, "{when}: no driver call has failed");
        let mut taken = Taken::default();
        for &(address, size) in self.blocks.iter().filter(|(address, _)| *address != 0) {
            if self.restoring && !self.allocator.reports().owns(address) {
                continue;
            }
            assert!(self.allocator.reports().owns(address), "{when}: {address:#x} is not live any more");
            let pieces = self.gpu.physical(Range { address, size });
            let bytes: u64 = pieces.iter().map(|piece| piece.size).sum();
            assert!(bytes == size || (asleep && bytes == 0), "{when}: {bytes} bytes of memory at {address:#x}");
            taken.take(&pieces);
        }
        assert!(self.gpu.faults().is_empty(), "{when}: {:?}", self.gpu.faults());
    }

    /// The program ends: frees everything, gives everything back, and drops the allocator.
    pub(crate) fn end(mut self, when: &str) {
        for stream in [MAIN, SIDE, THIRD, CAPTURED] {
            self.finish(stream).unwrap();
        }
        for block in 0..self.blocks.len() {
            if self.blocks[block].0 != 0 {
                self.free(block).unwrap_or_else(|error| panic!("{when}: {error}"));
            }
        }
        self.allocator.empty_cache().unwrap_or_else(|error| panic!("{when}: {error}"));
        self.check(when);
        assert_eq!(
            self.allocator.reports().reserved(),
            0,
            "{when}: {}",
            self.allocator.reports().fragmentation().reserved
        );
        let Self { gpu, allocator, .. } = self;
        drop(allocator);
        assert!(gpu.leaks().is_empty(), "{when}: {}", gpu.leaks());
    }
}
