//! What happens when no free block fits: the strategies, and what they have in common.
//!
//! Owns: the [`Strategy`] trait. A strategy is the only part that calls the driver for memory; it tells the heap what
//! it got. It decides nothing on the hot path: its [`FitRules`] are plain data.

mod caching;
mod enough;
mod expandable;
mod gmlake;
mod home;
mod ladder;
mod mapping;
pub(crate) mod segmented;
mod stitch;

use crate::blocks::BlockId;
use crate::config::{Config, Sharing, StrategyKind};
use crate::deferred::Deferred;
use crate::driver::{Driver, DriverError, DriverResult, in_relaxed_capture_mode};
use crate::error::Error;
use crate::heap::{FitRules, Heap, Request};
use crate::ids::StreamId;
use crate::rounding::segment_size;

/// All that a strategy may touch.
pub(crate) struct Ground<'a> {
    pub(crate) heap: &'a mut Heap,
    pub(crate) deferred: &'a mut Deferred,
    pub(crate) driver: &'a dyn Driver,
    pub(crate) config: &'a Config,
    /// The most bytes that may be held, if limited.
    pub(crate) limit: Option<u64>,
    /// The limit by `memory_fraction` alone. PyTorch's strategies count against it as PyTorch does, and may exceed it.
    pub(crate) fraction_limit: Option<u64>,
}

impl Ground<'_> {
    /// Whether `more` bytes keep within the limit in bytes, which nothing ever exceeds.
    pub(crate) fn keeps_memory_limit(&self, more: u64) -> bool {
        self.config.memory_limit.is_none_or(|limit| self.heap.reserved().saturating_add(more) <= limit)
    }
}

/// What a strategy may count on when it is asked how far memory would have to grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Premise {
    /// Things are as they are.
    AsIs,
    /// The same, but no view can be added: memory must lie in one piece.
    NoMoreViews,
    /// What is free on other streams is this one's as well.
    AllStreams,
}

impl Ground<'_> {
    /// Whether a stream may be being captured: until that is over, nothing may be waited for, asked for or freed that a
    /// capture forbids.
    pub(crate) fn capturing(&self) -> bool {
        self.heap.private.capturing()
    }

    /// Makes memory of private pools that were released memory of all: the CPU waits for the device, since graphs may
    /// have been launched on streams that nobody named.
    ///
    /// Pools with segments of their own give these back instead. What a source failed with, the first one, if any: it hinders
    /// nothing else.
    pub(crate) fn reclaim(&mut self) -> Result<Option<Error>, Error> {
        let mut released = self.heap.private.released();
        released.retain(|pool| self.heap.has_something_to_reclaim(*pool));
        if released.is_empty() || self.capturing() {
            return Ok(None);
        }
        self.driver.synchronize()?;
        let mut failed = None;
        for pool in released {
            if self.heap.private.segments(pool).is_some() {
                failed = failed.or(segmented::give_back(self, pool)?);
            } else {
                self.heap.dissolve_private(pool, true);
            }
        }
        Ok(failed)
    }

    /// Whether the handle of a pool's stream is another stream's now, which the program did not say. The CPU has waited for
    /// the device then, since no event can be recorded on a stream that is no more.
    pub(crate) fn was_replaced(&mut self, pool: u32) -> DriverResult<bool> {
        let of = &self.heap.pools[pool as usize];
        let (stream, Some(known)) = (of.stream, of.number) else { return Ok(false) };
        let number = self.driver.stream_number(stream)?;
        if number == Some(known) {
            return Ok(false);
        }
        tracing::warn!(%stream, "a stream was destroyed that an allocator knew; forget_stream spares the wait for the GPU");
        self.driver.synchronize()?;
        self.heap.pools[pool as usize].number = number;
        Ok(true)
    }

    /// The CPU waits for what the stream of a pool was given.
    pub(crate) fn wait_for_stream(&mut self, pool: u32) -> DriverResult<()> {
        let large = pool & !1;
        let of = &self.heap.pools[large as usize];
        let (stream, ended) = (of.stream, of.ended);
        if ended || self.was_replaced(large)? {
            return Ok(());
        }
        self.driver.stream_synchronize(stream)
    }

    /// The CPU waits for the device, and streams that nobody named: neither unmap nor release waits for the GPU.
    pub(crate) fn wait_for_all(&mut self) -> DriverResult<()> {
        self.driver.synchronize()
    }

    /// Plain memory of the device, in a capture too.
    pub(crate) fn malloc(&self, size: u64) -> DriverResult<u64> {
        self.in_relaxed_capture_mode(|| self.driver.malloc(size))
    }

    /// Makes calls that captures forbid so that none is harmed.
    pub(crate) fn in_relaxed_capture_mode<T>(&self, calls: impl FnOnce() -> DriverResult<T>) -> DriverResult<T> {
        in_relaxed_capture_mode(self.driver, self.capturing(), calls)
    }
}

/// Why a miss could not be met.
#[derive(Debug)]
pub(crate) enum Miss {
    /// Too little memory, after all was tried.
    OutOfMemory,
    /// Something else went wrong.
    Failed(Error),
}

impl From<DriverError> for Miss {
    fn from(error: DriverError) -> Self {
        if error.is_out_of_memory() { Self::OutOfMemory } else { Self::Failed(error.into()) }
    }
}

impl From<Error> for Miss {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// What happens on a miss, and when memory is given back.
pub(crate) trait Strategy: Send {
    /// How requests find their blocks.
    fn rules(&self, config: &Config) -> FitRules;

    /// Makes a free block of at least the request's size, and takes it out of the free index. Gives nothing back to the
    /// driver that could serve later, and does not wait for the GPU.
    fn miss(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss>;

    /// The same by all means, after [`Strategy::miss`] found too little: waits for the GPU, gives back what the request
    /// cannot use where it lies, and grows by it.
    fn last_resort(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss>;

    /// Makes the memory behind a block at home, which a hit has found, usable at its addresses: its first `size` bytes.
    /// On an error nothing has changed.
    fn map_home(&mut self, _ground: &mut Ground<'_>, _id: BlockId, _size: u64) -> Result<(), Miss> {
        Ok(())
    }

    /// Much was freed on the stream of a large pool since this was said last: an epoch has become long.
    fn freed_much(&mut self, _ground: &mut Ground<'_>, _large: u32) -> DriverResult<()> {
        Ok(())
    }

    /// Live memory has fallen by much since its last high: what was freed on different streams may meet and merge now.
    fn ebb(&mut self, _ground: &mut Ground<'_>) -> DriverResult<()> {
        Ok(())
    }

    /// Gives back every free byte that can be given back. The caller has made sure that no stream uses them.
    fn release_cached(&mut self, ground: &mut Ground<'_>) -> DriverResult<()>;

    /// Gives back just enough free memory that no more than `down_to` bytes are held. If it may not wait for the GPU, only
    /// what the GPU has passed, and nothing at all where that is too little: whether it sufficed. If it may, all there is
    /// where all is too little.
    fn trim(&mut self, ground: &mut Ground<'_>, down_to: u64, may_wait: bool) -> DriverResult<bool>;

    /// Whether streams may still use memory of a large pool that is free in the order of its own stream.
    fn waits_for_others(&self, _large: u32) -> bool {
        false
    }

    /// A block of a large pool, or of the small one beside it, is about to be freed while another stream is the current one,
    /// which may use it. Its own stream may have it at once; others, and the driver, once both have passed. Whether that is
    /// seen to; otherwise the block has to wait for that stream.
    fn freed_under(&mut self, _ground: &mut Ground<'_>, _large: u32, _stream: StreamId) -> DriverResult<bool> {
        Ok(false)
    }

    /// All that the stream of a large pool was given is done, and all that [`Self::waits_for_others`] meant.
    fn stream_passed(&mut self, _ground: &mut Ground<'_>, _large: u32) {}

    /// When memory freed on one stream may serve another.
    fn sharing(&self, _config: &Config) -> Sharing {
        Sharing::Never
    }

    /// The largest request that what is free for a pool could meet now, without new memory; `across` as if the memory of
    /// other streams were this one's. For reports: it makes no driver call.
    fn reach(&self, heap: &Heap, _config: &Config, pool: u32, _across: bool) -> u64 {
        heap.largest_in(pool)
    }

    /// By how many bytes at most the memory held would have to grow for a request that nothing free meets: less what would
    /// go back to the driver for it. For reports.
    fn growth(&self, _heap: &Heap, config: &Config, request: &Request, _premise: Premise) -> u64 {
        segment_size(request.size, config.large_segment_size)
    }

    /// Gives back what is not memory. The allocator is at its end.
    fn close(&mut self, _ground: &mut Ground<'_>) {}

    /// Checks the strategy's own rules that always hold, beyond those of the heap: what is broken, and where.
    fn check(&self, _heap: &Heap) -> Result<(), String> {
        Ok(())
    }
}

/// The strategy of that name.
pub(crate) fn new(kind: StrategyKind) -> Box<dyn Strategy> {
    match kind {
        StrategyKind::Caching => Box::new(caching::Caching),
        StrategyKind::Gmlake => Box::<gmlake::GmLake>::default(),
        StrategyKind::Stitch => Box::<stitch::Stitch>::default(),
        StrategyKind::Expandable => Box::<expandable::Expandable>::default(),
    }
}
