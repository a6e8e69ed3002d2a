//! Live memory that is spilled to host memory.
//!
//! Owns: the policy that chooses the memory, and the return of spilled memory to the device.

use crate::backing::{AllocatorContext, unspill};
use crate::config::{ColdestFirst, SpillPolicy};
use crate::error::Result;
use crate::ids::ChunkId;
use crate::strategy::{AnyStrategy, Goal};

pub(crate) struct Spilling {
    pub(crate) policy: Box<dyn SpillPolicy>,
}

impl Default for Spilling {
    fn default() -> Self {
        Self { policy: Box::new(ColdestFirst) }
    }
}

/// Returns spilled memory to the device after a wait for the device: all of it, or the chunks in `only`. If fewer than
/// `room` bytes are available, free memory is given back first. Returns the bytes that returned.
pub(crate) fn bring_back(
    strategy: &mut AnyStrategy,
    context: &mut AllocatorContext<'_>,
    only: Option<&[ChunkId]>,
    room: u64,
) -> Result<u64> {
    context.wait_for_all()?;
    // Freed blocks that waited for a stream become free now.
    context.poll_recorded()?;
    let missing = context.missing(room);
    if missing > 0 {
        let down_to = context.heap().reserved().saturating_sub(missing);
        strategy.release(context, Goal::DownTo { down_to, may_wait: true })?;
    }
    unspill(context, only, 0)
}
