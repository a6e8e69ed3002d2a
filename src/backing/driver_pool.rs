//! The driver's pool of stream-ordered memory: its allocations, and its frees in the order of streams.
//!
//! Owns: the pool, and the stream on which frees of several streams are joined. Memory that cannot be given back after
//! a failed call is noted in the heap as a free block, so that it is not lost. If the pool's size cannot be read, the
//! last size that was read stays in use.

use super::context::{Served, StrategyContext};
use crate::driver::{DriverResult, MemoryPool, PoolAttribute, StreamId};
use crate::error::Result;
use crate::fallible::{TryPush, with_room};
use crate::ids::{BlockId, PoolIndex};
use crate::span::Span;
use crate::streams::StreamState;

/// The release threshold with which the pool keeps all memory until a trim (`CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`).
const KEEPS_ALL: u64 = u64::MAX;

/// The driver's pool, which is created at the first request.
#[derive(Debug, Default)]
pub(crate) struct DriverPool {
    pool: Option<MemoryPool>,
    /// The stream on which frees of several streams are joined, created when first needed.
    free_stream: Option<StreamId>,
    /// The bytes freed on `free_stream` since a request's stream last waited for `free_stream`.
    pending: u64,
    /// Whether the pool has changed since its size was last read.
    is_stale: bool,
}

impl DriverPool {
    /// Allocates a segment of one block for a pool of the heap. The block is not in the index of free blocks.
    ///
    /// A stream that is being captured gets memory that no graph owns: the memory is allocated on the stream that joins
    /// frees, and the CPU waits for that stream.
    pub(crate) fn malloc(&mut self, context: &mut StrategyContext<'_>, pool: PoolIndex, size: u64) -> Served {
        let mut slots = context.heap.reserve_pooled(pool)?;
        let stream = context.heap.pool(pool.large()).stream;
        let from = self.pool(context)?;
        // Work given to the default stream would break captures of streams that wait for the default stream.
        let captured = match stream {
            StreamId::DEFAULT => context.capturing(),
            _ => context.driver.is_capturing(stream)?,
        };
        let on = if captured { self.free_stream(context)? } else { stream };
        let address = Self::undisturbed(context, captured, || context.driver.pool_malloc(from, size, on))?;
        let span = Span::new(address, size);
        context.heap.check_pooled(span)?;
        if captured {
            let waited = Self::undisturbed(context, true, || context.driver.stream_synchronize(on));
            if let Err(error) = waited {
                let undone = Self::undisturbed(context, true, || context.driver.pool_free(address, on));
                match undone {
                    Ok(()) => self.read_held(context),
                    Err(_) => self.keep(context, pool, span, &mut slots),
                }
                return Err(error.into());
            }
        }
        let id = context.heap.add_pooled_segment(pool, span, &mut slots);
        context.heap.set_has_uses(id);
        self.read_held(context);
        Ok(id)
    }

    /// Notes memory as a free block, because the memory could not be given back.
    fn keep(&mut self, context: &mut StrategyContext<'_>, pool: PoolIndex, span: Span, slots: &mut crate::heap::Slots) {
        let id = context.heap.add_pooled_segment(pool, span, slots);
        context.heap.insert_free(id);
        self.read_held(context);
    }

    /// Makes the driver calls of an allocation. During a capture, the calls are made in the thread's relaxed capture
    /// mode, which leaves captures valid.
    fn undisturbed<T>(
        context: &StrategyContext<'_>,
        captured: bool,
        calls: impl FnOnce() -> DriverResult<T>,
    ) -> DriverResult<T> {
        let capturing = captured || context.capturing();
        crate::driver::in_relaxed_capture_mode(context.driver, capturing, calls)
    }

    /// Frees a live block that was taken out of the table of live allocations. While a stream that uses the block is
    /// being captured, returns `false` and changes nothing.
    ///
    /// # Errors
    /// A driver call failed, or the host has no memory. The block stays live.
    pub(crate) fn free(&mut self, context: &mut StrategyContext<'_>, id: BlockId) -> Result<bool> {
        let Some(on) = self.stream_of_free(context, id)? else { return Ok(false) };
        context.allowed_in_captures(|| context.driver.pool_free(context.heap.block(id).address, on))?;
        if Some(on) == self.free_stream {
            self.pending += context.heap.block(id).size;
        }
        context.streams.recorded.forget_uses(id);
        context.heap.clear_uses(id);
        context.heap.free_requested(id);
        let others = context.heap.is_release_due();
        context.heap.free_completed(id);
        if !others {
            context.heap.clear_release_due();
        }
        context.heap.notify_segment_free(id);
        context.heap.remove_pooled_segment(id);
        Ok(true)
    }

    /// Gives back the free blocks of public pools whose earlier release failed.
    ///
    /// # Errors
    /// A driver call failed. The remaining blocks stay free.
    pub(crate) fn release_free(&mut self, context: &mut StrategyContext<'_>) -> Result<()> {
        for pool in context.heap.every_public_pool()? {
            self.release_free_of(context, pool)?;
        }
        Ok(())
    }

    /// Gives back the free blocks of one pool, as [`Self::release_free`] does for all public pools.
    pub(crate) fn release_free_of(&mut self, context: &mut StrategyContext<'_>, pool: PoolIndex) -> Result<()> {
        if !context.heap.has_free(pool) {
            return Ok(());
        }
        for id in context.heap.free_blocks(pool)? {
            self.release_block(context, id)?;
        }
        Ok(())
    }

    /// Gives back an allocated block that serves no request.
    ///
    /// # Errors
    /// A driver call failed. The block stays in the heap as a free block.
    pub(crate) fn undo(&mut self, context: &mut StrategyContext<'_>, id: BlockId) -> Result<()> {
        context.heap.insert_free(id);
        self.release_block(context, id)
    }

    /// Gives one free block back to the driver's pool.
    fn release_block(&mut self, context: &mut StrategyContext<'_>, id: BlockId) -> Result<()> {
        let Some(on) = self.stream_of_free(context, id)? else { return Ok(()) };
        context.allowed_in_captures(|| context.driver.pool_free(context.heap.block(id).address, on))?;
        context.heap.notify_segment_free(id);
        context.heap.remove_pooled_segment(id);
        Ok(())
    }

    /// Returns the stream in whose order a block may be freed: the block's own stream, or the stream on which frees of
    /// several streams are joined. Returns `None` while a stream is being captured, because frees beside a capture
    /// corrupted data on an H200 (docs/measurements/2026-11-23-malloc-async).
    fn stream_of_free(&mut self, context: &mut StrategyContext<'_>, id: BlockId) -> Result<Option<StreamId>> {
        let large = context.heap.block(id).pool.large();
        let (stream, ended) = (context.heap.pool(large).stream, context.heap.has_no_stream(id));
        if context.capturing() {
            return Ok(None);
        }
        let external = context.heap.is_external(stream);
        let mut uses = with_room(context.streams.recorded.uses(id).len() + 1)?;
        let passed = ended || large == context.heap.idle();
        let is_live = !passed && !external && {
            match context.on_streams().1.stream_state(large)? {
                StreamState::Live => true,
                // The stream was destroyed, and all its work is done.
                StreamState::Ended => false,
                StreamState::Captured => return Ok(None),
            }
        };
        if is_live {
            uses.push(stream);
        } else if external && !passed {
            // The external stream may have been destroyed, so no event can be recorded on the stream.
            context.driver.synchronize()?;
        }
        for other in context.streams.recorded.uses(id) {
            uses.try_push(*other)?;
        }
        match uses.as_slice() {
            [own] if is_live => Ok(Some(*own)),
            _ => {
                let onto = self.free_stream(context)?;
                let joined = context.streams.recorded.join(context.driver, &uses, onto)?;
                Ok(joined.then_some(onto))
            }
        }
    }

    /// Makes a stream wait on the GPU for all frees on `free_stream`, so that the stream may use the freed memory.
    ///
    /// # Errors
    /// A driver call failed.
    pub(crate) fn wait_for_frees(&mut self, context: &mut StrategyContext<'_>, stream: StreamId) -> Result<()> {
        let Some(free_stream) = self.free_stream else { return Ok(()) };
        if context.streams.recorded.join(context.driver, &[free_stream], stream)? {
            self.pending = 0;
        }
        Ok(())
    }

    /// Returns the bytes freed on `free_stream` since a request's stream last waited for `free_stream`.
    pub(crate) fn pending(&self) -> u64 {
        self.pending
    }

    /// Gives memory of the pool back to the device, until the pool holds about `keep` bytes or a little more.
    ///
    /// # Errors
    /// The driver refused to trim the pool.
    pub(crate) fn trim(&mut self, context: &mut StrategyContext<'_>, keep: u64) -> Result<()> {
        let Some(pool) = self.pool else { return Ok(()) };
        let trimmed = context.driver.pool_trim(pool, keep);
        self.read_held(context);
        Ok(trimmed?)
    }

    /// At the end of the allocator, destroys the pool, and the stream on which frees are joined. Live allocations of
    /// the pool stay valid.
    ///
    /// # Errors
    /// The driver refused to destroy the pool or the stream. A later call tries again.
    pub(crate) fn close(&mut self, context: &mut StrategyContext<'_>) -> Result<()> {
        if let Some(pool) = self.pool.take() {
            context.driver.pool_destroy(pool).inspect_err(|_| self.pool = Some(pool))?;
            context.heap.set_pool_held(context.heap.pool_used());
        }
        if let Some(stream) = self.free_stream.take() {
            context.driver.stream_destroy(stream).inspect_err(|_| self.free_stream = Some(stream))?;
        }
        Ok(())
    }

    /// Reads again how many bytes the pool holds, if the last read failed.
    pub(crate) fn refresh(&mut self, context: &mut StrategyContext<'_>) {
        if self.is_stale {
            self.read_held(context);
        }
    }

    /// Reads how many bytes the pool holds. A failed read is repeated once without a pause, and then at the next step.
    /// The caller's step does not fail because of a failed read.
    fn read_held(&mut self, context: &mut StrategyContext<'_>) {
        let Some(pool) = self.pool else { return };
        let ask = || context.allowed_in_captures(|| context.driver.pool_attribute(pool, PoolAttribute::Reserved));
        match ask().or_else(|_| ask()) {
            Ok(held) => {
                context.heap.set_pool_held(held);
                self.is_stale = false;
            }
            Err(error) => {
                tracing::warn!(%error, "the driver does not tell how much its pool holds");
                self.is_stale = true;
            }
        }
    }

    fn pool(&mut self, context: &StrategyContext<'_>) -> DriverResult<MemoryPool> {
        if let Some(pool) = self.pool {
            return Ok(pool);
        }
        let pool = context.allowed_in_captures(|| context.driver.pool_create(KEEPS_ALL))?;
        self.pool = Some(pool);
        Ok(pool)
    }

    fn free_stream(&mut self, context: &StrategyContext<'_>) -> DriverResult<StreamId> {
        if let Some(stream) = self.free_stream {
            return Ok(stream);
        }
        let stream = context.allowed_in_captures(|| context.driver.stream_create())?;
        self.free_stream = Some(stream);
        Ok(stream)
    }
}
