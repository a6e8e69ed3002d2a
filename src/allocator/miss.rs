//! The steps of a request that no free block fits.
//!
//! Owns: which steps there are, and their order. Each step returns the block that it finds, and knows no other step.
//! [`Search`] holds the results of a step that later steps need.

use super::borrowing::borrow;
use super::core::{Allocator, Core};
use super::pending::{own_means, wait};
use super::prepared::{AllocRequest, Prepared};
use super::pressure::call_back;
use super::retry::retry;
use super::search::Search;
use crate::error::Result;
use crate::ids::BlockId;
use parking_lot::MutexGuard;

/// A step of a miss. Returns a block for the request, or `None` if its means find none.
type Step = fn(&mut Search<'_, '_>) -> Result<Option<BlockId>>;

/// The steps in their order: freed blocks that other streams have passed; the program's callbacks; the strategy by
/// cheap means, and by all means unless the request should wait; a wait for pending memory; the memory of other
/// processes; a wait for memory that other threads or processes give back.
const STEPS: [Step; 6] = [complete_frees, call_back, own_means, wait, borrow, retry];

/// Serves a request that no free block fits, or refuses it. Afterwards, memory that the headroom lacks goes back to the
/// driver.
#[cold]
pub(super) fn serve(
    allocator: &Allocator,
    core: &mut MutexGuard<'_, Core>,
    asked: &AllocRequest,
    prepared: Prepared,
) -> Result<u64> {
    core.features.fallback.begin_miss();
    core.heap.note_miss(prepared.request.pool);
    let served = Search::new(allocator, core, asked, prepared).serve();
    if core.config.headroom.bytes > 0 {
        core.yield_at_miss();
    }
    served
}

impl Search<'_, '_> {
    fn serve(&mut self) -> Result<u64> {
        for step in STEPS {
            if let Some(id) = step(self)? {
                return self.core.hand_out(id, &self.prepared);
            }
        }
        Err(self.core.out_of_memory(&self.prepared.request, self.refused))
    }
}

/// Frees blocks that other streams have passed, unless that was done before the request, as for a private pool.
fn complete_frees(search: &mut Search<'_, '_>) -> Result<Option<BlockId>> {
    let core = &mut **search.core;
    if search.prepared.private.is_some() || core.rules.polls_first || core.streams.recorded.waiting() == 0 {
        return Ok(None);
    }
    core.poll()?;
    core.fit_usable(&search.prepared)
}
