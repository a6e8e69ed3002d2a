//! The last steps before a request is refused: the CPU waits, and memory is released and taken again.
//!
//! Owns: these steps and their order. Memory that the request cannot use where it lies is given back to the driver, and
//! home grows by as much. Such memory is free chunks of streams that share no memory, or free chunks that no view may
//! join because views are at a bound. Between these steps, chunks that are partly in use are split, if the program
//! allows it.

use super::release::ReleasableChunks;
use super::split::split;
use super::{Joined, Stitch};
use crate::backing::{InTurn, Miss, MissResult, Served, StrategyContext, drop_spilled, spill};
use crate::config::StreamSharing;
use crate::heap::{GRANULE, Heap, Request};
use crate::ids::{BlockId, Class};

/// The most splits for one request. One split may not be enough: free memory at an end of a chunk serves views without
/// a split, so splitting the chunk may gain less than the free bytes that were counted for it.
const MAX_SPLITS: u32 = 16;

impl Stitch {
    /// Waits on the CPU for all work that may still use freed memory. Then all free memory is usable: where it lies, or
    /// by giving it back and taking as much new memory.
    pub(super) fn wait_and_replace(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        context.wait_at_last()?;
        // Freed memory that is spilled serves no request.
        drop_spilled(context)?;
        if context.config.sharing != StreamSharing::Never {
            context.make_all_idle()?;
        }
        self.miss(context, request)
            .or_try(|| self.replace_of_others(context, request))
            .or_try(|| self.split_and_retry(context, request))
            .or_try(|| self.replace(context, request, whole(request), |_, _| true))
            .or_try(|| self.spill_and_replace(context, request))
    }

    /// Splits chunks if this is allowed. Afterwards memory may grow into the room that was reserved for splits.
    fn split_and_retry(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        if !context.may_exchange() {
            return Err(Miss::OUT_OF_MEMORY);
        }
        let replaced = match request.class {
            Class::Small => self.replace(context, request, GRANULE, |heap, id| !heap.is_open(id, request.pool.large())),
            Class::Large => Err(Miss::OUT_OF_MEMORY),
        };
        replaced.or_try(|| self.split_and_replace(context, request)).or_try(|| {
            self.spends_reserve = true;
            self.miss(context, request)
        })
    }

    /// Spills live memory to host memory, if the program allows it, and grows device memory by as much.
    fn spill_and_replace(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        if !context.may_spill() {
            return Err(Miss::OUT_OF_MEMORY);
        }
        for all in [false, true] {
            let missing = match self.join_mapped(context, request)? {
                Joined::Block(id) => return Ok(id),
                // Free memory did not help, so the request gets new memory for its whole size.
                Joined::Missing(_) if all => whole(request),
                Joined::Missing(missing) => missing,
            };
            let missing = missing.next_multiple_of(GRANULE);
            let short = context.missing(missing);
            if short > 0 && !spill(context, short)? {
                break;
            }
            self.spends_reserve = true;
            let served = self.miss(context, request);
            let served = served.or_try(|| self.replace(context, request, missing, |_, _| true));
            if let Some(id) = served.found()? {
                context.count_spill();
                return Ok(id);
            }
        }
        Err(Miss::OUT_OF_MEMORY)
    }

    /// Gives back memory that the GPU has passed so far, and grows by as much, without a wait. No chunk is split, since
    /// a split waits for the device.
    pub(super) fn replace_passed(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        context.advance_epochs()?;
        self.miss(context, request)
            .or_try(|| self.replace_of_others(context, request))
            .or_try(|| self.replace(context, request, whole(request), |_, _| true))
    }

    /// Gives back chunks that are free only for other streams, and grows by the bytes that the request's own free
    /// memory lacks.
    fn replace_of_others(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        if request.class == Class::Small {
            return Err(Miss::OUT_OF_MEMORY);
        }
        match self.join_mapped(context, request)? {
            Joined::Block(id) => Ok(id),
            Joined::Missing(missing) => {
                self.replace(context, request, missing, |heap, id| !heap.is_open(id, request.pool))
            }
        }
    }

    /// Joins free memory into a block, and maps the block's chunks at home. A small request joins no memory: it lacks
    /// one granule.
    fn join_mapped(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> MissResult<Joined> {
        if request.class == Class::Small {
            return Ok(Joined::Missing(GRANULE));
        }
        match self.join(context, request)? {
            Joined::Block(id) => self.attempt(context, request, |_, _| Ok(id)).map(Joined::Block),
            missing => Ok(missing),
        }
    }

    /// Splits chunks until the request fits. Memory of the request's own stream may be given back to make room for a
    /// split.
    fn split_and_replace(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        for _ in 0..MAX_SPLITS {
            let missing = match self.join_mapped(context, request)? {
                Joined::Block(id) => return Ok(id),
                Joined::Missing(missing) => missing,
            };
            if !split(context, missing)? {
                break;
            }
            let served = self.miss(context, request).or_try(|| match self.refused {
                // If a bound on views forbids the view, a split helps only if the free parts are given back, so that
                // memory can grow in one piece.
                Some(_) => self.replace(context, request, request.size, |_, _| true),
                None => self.replace(context, request, missing, |heap, id| !heap.is_open(id, request.pool)),
            });
            if let Some(id) = served.found()? {
                return Ok(id);
            }
        }
        Err(Miss::OUT_OF_MEMORY)
    }

    /// Gives back free chunks that touch a block for which the predicate is true, and grows home by `bytes` in
    /// exchange. Gives back no memory if this would not be enough to grow by `bytes`.
    fn replace(
        &mut self,
        context: &mut StrategyContext<'_>,
        request: &Request,
        bytes: u64,
        wanted: impl Fn(&Heap, BlockId) -> bool,
    ) -> Served {
        let bytes = bytes.next_multiple_of(GRANULE);
        // First just enough memory is given back. If the driver still refuses, everything is given back.
        for all in [false, true] {
            // A chunk that is still mapped elsewhere could not be released, so earlier failed calls are undone first.
            context.retry_rollback()?;
            // The reserve for splits stays free, so memory grows by as much as is given back.
            let room = context.room().saturating_sub(self.split_reserve(context));
            let goal = if all { u64::MAX } else { bytes.saturating_sub(room) };
            let heap = context.heap();
            let releasable = ReleasableChunks::of(heap)?.with(heap, |id| wanted(heap, id));
            let suffices = releasable.bytes().saturating_add(room) >= bytes;
            if !suffices || (all && releasable.bytes() == 0) {
                break;
            }
            releasable.release(context, goal)?;
            context.count_retry();
            let spent = std::mem::replace(&mut self.spends_reserve, true);
            let grown = self.attempt(context, request, |stitch, context| match request.class {
                Class::Small => stitch.slab(context, request),
                Class::Large => stitch.grow(context, request, bytes),
            });
            self.spends_reserve = spent;
            if let Some(id) = grown.found()? {
                return Ok(id);
            }
        }
        Err(Miss::OUT_OF_MEMORY)
    }
}

/// Returns the bytes by which memory grows if no free memory helps.
fn whole(request: &Request) -> u64 {
    if request.class == Class::Small { GRANULE } else { request.size }
}
