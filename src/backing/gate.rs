//! A gate that holds all streams that the allocator knows while memory changes under live addresses.
//!
//! Owns: when the gate is closed and opened, and how often closing is tried. The driver holds the streams.
//!
//! The order matters, because other threads launch work at any time. New memory is there and mapped beside the old one
//! before the gate closes. The streams get the gate and the device gets the copies in one go. Once the copies are done,
//! nothing but unmaps, maps and changes of access happens until the gate opens.

use super::context::{Exchanges, Miss, MissResult, StrategyContext};
use crate::driver::{Driver, GateCopy};

/// How long the CPU waits for held streams and for copies, in nanoseconds, and for so many bytes to copy a nanosecond more. A
/// program whose threads run ahead has given its streams work for many milliseconds; beyond this, work may wait for other
/// ranks, which may wait for a held stream.
const PATIENCE_NS: u64 = 200_000_000;
const BYTES_PER_NS: u64 = 8;

/// How often closing is tried: another thread may launch work between the streams' kernels, and then the gate is not closed.
const TRIES: u32 = 3;

/// A closed gate, which opens when it is dropped.
pub(super) struct ClosedGate<'a>(&'a dyn Driver);

impl Drop for ClosedGate<'_> {
    fn drop(&mut self) {
        self.0.open_gate();
    }
}

/// Copies live contents. If the step exchanges memory behind a gate, the gate is closed afterwards. If it cannot be
/// closed, no more memory is exchanged in this step.
///
/// # Errors
/// [`Miss::OutOfMemory`] if the gate could not be closed in time; the driver's. No memory has changed but the targets'.
pub(super) fn copy_behind_gate<'a>(
    context: &mut StrategyContext<'a>,
    copies: &[GateCopy],
) -> MissResult<Option<ClosedGate<'a>>> {
    if copies.is_empty() {
        return Ok(None);
    }
    if context.exchanges != Exchanges::Never
        && let Some(gate) = close(context, copies)?
    {
        return Ok(Some(gate));
    }
    if context.exchanges != Exchanges::Ungated {
        tracing::warn!(
            "the streams of other threads could not be held: no chunk is split for this request. `split:ungated` splits without \
             holding them, if no other thread launches work meanwhile"
        );
        context.exchanges = Exchanges::Never;
        context.no_gate = true;
        return Err(Miss::OUT_OF_MEMORY);
    }
    copies.iter().try_for_each(|copy| context.driver.copy(copy.from, copy.to, copy.size))?;
    Ok(None)
}

fn close<'a>(context: &mut StrategyContext<'a>, copies: &[GateCopy]) -> MissResult<Option<ClosedGate<'a>>> {
    let driver = context.driver;
    if !driver.properties().stream_gates {
        return Ok(None);
    }
    let (streams, on) = context.on_streams();
    let Some(held) = streams.known.held_streams(&on)? else { return Ok(None) };
    let patience = PATIENCE_NS + copies.iter().map(|copy| copy.size).sum::<u64>() / BYTES_PER_NS;
    for _ in 0..TRIES {
        match driver.close_gate(&held, copies, patience) {
            Ok(true) => return Ok(Some(ClosedGate(driver))),
            Ok(false) => {}
            // A stream was destroyed meanwhile.
            Err(error) if error.status.may_name_no_stream() => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}
