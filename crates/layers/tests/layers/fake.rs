//! A resource of so many bytes that fails when it is told to, and checks what it is asked.

use parking_lot::Mutex;
use seamalloc::PoolId;
use seamalloc::driver::{Call, DriverError, MemoryInfo, Status, StreamId};
use seamalloc_layers::{Layer, MemoryResource, PrivatePools, RawBlock, ResourceError, Result};
use std::collections::BTreeMap;
use std::fmt;

#[derive(Default)]
pub(crate) struct State {
    pub(crate) live: BTreeMap<u64, RawBlock>,
    pub(crate) calls: u64,
    /// The next calls that fail: the next allocation, the next free.
    pub(crate) fail: [bool; 2],
    pub(crate) capturing: bool,
    pub(crate) released: u64,
}

/// Hands out the lowest free addresses, like an allocator that reuses at once.
pub(crate) struct Fake {
    pub(crate) capacity: u64,
    pub(crate) state: Mutex<State>,
}

/// An error of the driver's that is not for want of memory.
pub(crate) fn broken() -> ResourceError {
    DriverError::new(Call::EventRecord, Status(999), "told to fail".to_owned()).into()
}

/// A refusal, as a resource without reports says it.
pub(crate) fn refused(requested: u64, allocated: u64, limit: u64) -> ResourceError {
    ResourceError::LimitExceeded { requested, allocated, limit }
}

impl Fake {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { capacity, state: Mutex::default() }
    }

    pub(crate) fn fail_allocation(&self) {
        self.state.lock().fail[0] = true;
    }

    pub(crate) fn fail_free(&self) {
        self.state.lock().fail[1] = true;
    }

    pub(crate) fn live(&self) -> Vec<RawBlock> {
        self.state.lock().live.values().copied().collect()
    }

    pub(crate) fn calls(&self) -> u64 {
        self.state.lock().calls
    }
}

impl MemoryResource for Fake {
    fn allocate(&self, size: u64, stream: StreamId) -> Result<RawBlock> {
        let state = &mut *self.state.lock();
        state.calls += 1;
        if std::mem::take(&mut state.fail[0]) {
            return Err(broken());
        }
        if size == 0 {
            return Ok(RawBlock::empty(stream));
        }
        let allocated: u64 = state.live.values().map(|block| block.size).sum();
        if allocated + size > self.capacity {
            return Err(refused(size, allocated, self.capacity));
        }
        let mut address = 4096;
        for block in state.live.values() {
            if block.address - address >= size {
                break;
            }
            address = block.address + block.size;
        }
        let block = RawBlock { address, size, stream };
        assert!(state.live.insert(address, block).is_none());
        Ok(block)
    }

    fn deallocate(&self, block: RawBlock, _stream: StreamId) -> Result<()> {
        let state = &mut *self.state.lock();
        state.calls += 1;
        if std::mem::take(&mut state.fail[1]) {
            return Err(broken());
        }
        if block.is_empty() {
            return Ok(());
        }
        match state.live.remove(&block.address) {
            Some(_) => Ok(()),
            None => Err(ResourceError::UnknownBlock { address: block.address }),
        }
    }

    fn record_stream(&self, _block: RawBlock, _stream: StreamId) -> Result<()> {
        Ok(())
    }

    fn erase_stream(&self, _block: RawBlock, _stream: StreamId) -> Result<()> {
        Ok(())
    }

    fn release(&self) -> Result<u64> {
        self.state.lock().released += 1;
        Ok(0)
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        Ok(MemoryInfo { free: self.capacity, total: self.capacity })
    }

    fn is_capturing(&self, _stream: StreamId) -> Result<bool> {
        Ok(self.state.lock().capturing)
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("fake")
    }
}

/// Any number of pools, of which nothing comes.
impl PrivatePools for Fake {
    fn create_pool(&self) -> Result<PoolId> {
        Ok(PoolId(1, 0))
    }

    fn release_pool(&self, _pool: PoolId) -> Result<()> {
        Ok(())
    }

    fn begin_capture(&self, _pool: PoolId, _stream: StreamId) -> Result<()> {
        Ok(())
    }

    fn end_capture(&self, _pool: PoolId) -> Result<()> {
        Ok(())
    }
}

type Hook = Box<dyn Fn() + Send + Sync>;

/// Does something after each free below, before those above know that it is done: as another thread may.
pub(crate) struct AfterFree<R> {
    pub(crate) below: R,
    pub(crate) hook: Mutex<Option<Hook>>,
}

impl<R: MemoryResource> Layer for AfterFree<R> {
    type Upstream = R;

    fn upstream(&self) -> &R {
        &self.below
    }

    fn name(&self) -> &str {
        "after free"
    }

    fn deallocate(&self, block: RawBlock, stream: StreamId) -> Result<()> {
        self.below.deallocate(block, stream)?;
        let hook = self.hook.lock().take();
        if let Some(hook) = hook {
            hook();
        }
        Ok(())
    }
}
