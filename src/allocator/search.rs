//! A request that looks for memory: the operations that each step of a miss may use.
//!
//! Owns: how a strategy is asked, and how a request is tried again. `miss.rs` has the steps.

use super::core::{Allocator, Core};
use super::prepared::{AllocRequest, Prepared};
use crate::backing::{AllocatorContext, Miss, Served, reclaim_private_pools};
use crate::error::Result;
use crate::heap::{Request, ViewUsage};
use crate::ids::BlockId;
use crate::strategy::{AnyStrategy, Means, serve_own_segments};
use parking_lot::MutexGuard;

/// The answer of a strategy: a block; or, if there is too little memory, the usage that all views would have had
/// together with a view that the bounds on views (such as `max_views`) forbade (`None` if they forbade none).
pub(super) type Found = std::result::Result<BlockId, Option<ViewUsage>>;

/// A request that no free block fits, and the results of its steps.
pub(super) struct Search<'a, 'guard> {
    pub(super) allocator: &'a Allocator,
    /// The lock, which some steps release for a while.
    pub(super) core: &'a mut MutexGuard<'guard, Core>,
    pub(super) asked: &'a AllocRequest,
    pub(super) prepared: Prepared,
    /// If the bounds on views forbade a view at the last try: the usage that all views would have had together with
    /// that view.
    pub(super) refused: Option<ViewUsage>,
    /// Set if the request should wait for pending memory: the bytes by which memory can grow.
    pub(super) room: Option<u64>,
}

impl<'a, 'guard> Search<'a, 'guard> {
    pub(super) fn new(
        allocator: &'a Allocator,
        core: &'a mut MutexGuard<'guard, Core>,
        asked: &'a AllocRequest,
        prepared: Prepared,
    ) -> Self {
        Self { allocator, core, asked, prepared, refused: None, room: None }
    }

    /// Prepares the request again, after a while without the lock.
    pub(super) fn prepare_again(&mut self) -> Result<()> {
        self.prepared = self.core.prepare_again(self.asked)?;
        Ok(())
    }

    /// Prepares the request again, completes the frees that the GPU has passed (without waiting), and returns a free
    /// block that fits, if there is one.
    pub(super) fn fit_again(&mut self) -> Result<Option<BlockId>> {
        self.prepare_again()?;
        self.core.poll()?;
        self.core.fit_usable(&self.prepared)
    }

    /// Tries the request again.
    pub(super) fn retry(&mut self, means: Means) -> Result<Option<BlockId>> {
        match self.fit_again()? {
            None => self.ask(means),
            found => Ok(found),
        }
    }

    /// Asks the strategy for a block.
    pub(super) fn ask(&mut self, means: Means) -> Result<Option<BlockId>> {
        let found = self.core.ask_strategy(&self.prepared, means)?;
        Ok(self.note(found))
    }

    /// Returns the block that was found, or notes why there is none.
    pub(super) fn note(&mut self, found: Found) -> Option<BlockId> {
        match found {
            Ok(id) => Some(id),
            Err(refused) => {
                self.refused = refused;
                None
            }
        }
    }
}

impl Core {
    /// Returns the block that the strategy finds, or the reason why there is too little memory.
    pub(super) fn ask_strategy(&mut self, prepared: &Prepared, means: Means) -> Result<Found> {
        if means == Means::All {
            self.drain_guard();
        }
        let request = &prepared.request;
        self.ask(|strategy, context| {
            if context.heap().is_segmented(request.pool) {
                return serve_own_segments(&mut **strategy, context, request, means);
            }
            let first = if means == Means::All { Means::Cheap } else { means };
            match strategy.serve(context, request, first) {
                Err(Miss::OutOfMemory { .. }) if means == Means::All => serve_by_all(strategy, context, request),
                found => found,
            }
        })
    }

    /// Returns the block that a step of the strategy finds.
    pub(super) fn ask(
        &mut self,
        mut step: impl FnMut(&mut AnyStrategy, &mut AllocatorContext<'_>) -> Served,
    ) -> Result<Found> {
        // Room in the table of live blocks is made first, so that a block that the step finds can be handed out.
        self.heap.reserve_live()?;
        let mut served = self.timed(&mut step);
        if matches!(served, Err(Miss::OutOfMemory { .. })) && self.takes_plain_memory() {
            served = self.timed(step);
        }
        match served {
            Ok(id) => Ok(Ok(id)),
            Err(Miss::OutOfMemory { refused }) => Ok(Err(refused)),
            Err(Miss::Failed(error)) => Err(error),
        }
    }
}

/// Serves a request for which cheap means found too little.
pub(super) fn serve_by_all(
    strategy: &mut AnyStrategy,
    context: &mut AllocatorContext<'_>,
    request: &Request,
) -> Served {
    reclaim_private_pools(context).map_err(Miss::Failed)?;
    strategy.serve(context, request, Means::All)
}
