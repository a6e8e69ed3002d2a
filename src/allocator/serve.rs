//! A request that takes the slow path: of a private pool, in guard mode, or for a part of an allocation that grows.

use super::core::{Allocator, Core};
use super::miss;
use super::prepared::{AllocRequest, Prepared};
use crate::error::Result;
use crate::ids::PoolId;
use parking_lot::MutexGuard;

impl Allocator {
    /// Serves a request that names no private pool, as [`Self::allocate`] does without guard mode.
    pub(super) fn serve_public(&self, guard: &mut MutexGuard<'_, Core>, asked: &AllocRequest) -> Result<u64> {
        let prepared = guard.prepare(asked)?;
        self.serve_prepared(guard, asked, prepared)
    }

    /// Serves a request of a private pool. A private pool has other rules for the memory that a request may take, and
    /// more data is noted for the block.
    pub(super) fn serve_private(
        &self,
        guard: &mut MutexGuard<'_, Core>,
        asked: &AllocRequest,
        owner: PoolId,
    ) -> Result<u64> {
        let prepared = guard.private_request(asked, owner)?;
        self.serve_prepared(guard, asked, prepared)
    }

    #[inline]
    pub(super) fn serve_prepared(
        &self,
        guard: &mut MutexGuard<'_, Core>,
        asked: &AllocRequest,
        prepared: Prepared,
    ) -> Result<u64> {
        let Some(id) = guard.fit(&prepared).some() else { return miss::serve(self, guard, asked, prepared) };
        guard.make_usable(id, &prepared.request)?;
        guard.hand_out(id, &prepared)
    }
}
