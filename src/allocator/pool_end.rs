//! The waits before a capture into a private pool begins, and the end of private pools, when their memory becomes
//! public.

use super::core::Core;
use crate::backing::finish_drops;
use crate::error::Result;
use crate::heap::PrivatePool;
use crate::ids::{PoolId, StreamId};

impl Core {
    /// Waits until the GPU has passed all uses of a private pool's free memory, except on streams that are being
    /// captured. The CPU cannot wait for such streams, and their captures get other memory.
    pub(super) fn wait_for_pool(&mut self, owner: PoolId) -> Result<()> {
        self.heap.join_ended_pairs(owner)?;
        let capturing = self.capturing();
        for stream in self.heap.streams_to_pass(owner)? {
            // An external stream may be gone, so the CPU waits for the device.
            let external = self.heap.is_external(stream);
            // During a capture the CPU cannot wait for the device, and a wait for the default stream may include a
            // captured stream.
            if capturing && (external || stream == StreamId::DEFAULT || self.driver.is_capturing(stream)?) {
                continue;
            }
            self.timed(|_, context| {
                context.heap_mut().journal_mut().synchronized();
                match external {
                    true => context.driver().synchronize()?,
                    false => context.allowed_in_captures(|| context.driver().stream_synchronize(stream))?,
                }
                context.heap_mut().join_pairs(owner, stream)
            })?;
        }
        Ok(())
    }

    /// Makes idle the memory that streams have passed, if streams share memory. The call comes before a capture. During
    /// a capture no event can be queried, so the capture would take new memory instead, and a graph never gives back
    /// the memory that its capture takes.
    pub(super) fn gather_for_capture(&mut self) -> Result<()> {
        if self.rules.passes_memory_on && !self.capturing() {
            self.timed(|_, context| {
                let idle = context.heap().idle();
                let (streams, mut on) = context.on_streams();
                streams.epochs.gather(&mut on, idle)
            })?;
        }
        Ok(())
    }

    /// Makes the memory of released pools public, except of pools whose memory a graph, or a stream not named by
    /// `record_stream`, may use, and of pools with segments of their own.
    pub(super) fn merge_released_pools(&mut self) {
        if let Err(error) = self.try_merge_released_pools() {
            tracing::warn!(%error, "memory of a released private pool stays apart until it is reclaimed");
        }
    }

    /// Ends the sleep of tags that were released, once none of their blocks is live.
    #[cold]
    pub(super) fn end_sleep_of_released(&mut self) {
        if self.heap.has_released_asleep() {
            self.merge_released_pools();
        }
    }

    fn try_merge_released_pools(&mut self) -> Result<()> {
        let slept = self.heap.has_released_asleep();
        for pool in self.heap.private().released()? {
            if self.heap.private().segments(pool).is_some() {
                self.heap.forget_empty(pool);
            } else if self.heap.private().get(pool).is_some_and(PrivatePool::is_in_order) {
                self.heap.merge_private_pool(pool, false)?;
            } else if self.heap.private().asleep(pool).is_some() {
                // Without live blocks, the pool has no memory that a graph could use.
                self.heap.merge_private_pool(pool, true)?;
            }
        }
        if slept && !self.capturing() {
            // Views of the pool map no memory any more, and are dropped.
            self.timed(|_, context| finish_drops(context))?;
        }
        Ok(())
    }

    /// Ends all private pools with the allocator. Memory that a graph may use is not given back, since freeing it is
    /// worse than a leak.
    pub(super) fn close_private(&mut self) {
        self.heap.private_mut().close();
        self.merge_released_pools();
        let used = self.heap.private().in_use();
        if used > 0 {
            tracing::warn!(used, "an allocator is dropped while graphs may use private pools; their memory leaks");
        }
    }
}
