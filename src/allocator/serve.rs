//! A request that takes the slow path: of a private pool, in guard mode, or for a part of an allocation that grows.

use super::core::{Allocator, Core};
use super::miss;
use super::prepared::{Order, Prepared};
use crate::error::Result;
use crate::ids::PoolId;
use parking_lot::MutexGuard;

impl Allocator {
    /// Serves a request that names no private pool, as [`Self::allocate`] does without guard mode.
    pub(super) fn serve_public(&self, guard: &mut MutexGuard<'_, Core>, order: &Order) -> Result<u64> {
        let prepared = guard.prepare(order)?;
        self.serve_prepared(guard, order, prepared)
    }

    /// Serves a request of a private pool. Other rules apply to the memory that it may take, and more is noted of its
    /// block.
    pub(super) fn serve_private(&self, guard: &mut MutexGuard<'_, Core>, order: &Order, owner: PoolId) -> Result<u64> {
        let prepared = guard.private_request(order, owner)?;
        self.serve_prepared(guard, order, prepared)
    }

    #[inline]
    pub(super) fn serve_prepared(
        &self,
        guard: &mut MutexGuard<'_, Core>,
        order: &Order,
        prepared: Prepared,
    ) -> Result<u64> {
        let Some(id) = guard.fit(&prepared).some() else { return miss::serve(self, guard, order, prepared) };
        guard.make_usable(id, &prepared.request)?;
        guard.hand_out(id, &prepared)
    }
}
