//! A gate that holds all streams that the allocator knows while memory is exchanged under live addresses.
//!
//! Owns: when the gate is closed and opened, and how often closing is tried. The driver holds the streams.
//!
//! The order matters, because other threads launch work at any time. New memory is created, and mapped beside the old
//! memory, before the gate closes. `Driver::close_gate` holds the streams and makes the copies. Between the copies and
//! the opening of the gate, the only calls are unmaps, maps and changes of access.

use super::context::{Exchanges, Miss, MissResult, StrategyContext};
use crate::driver::{Driver, GateCopy};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::thread;
use std::time::{Duration, Instant};

/// The tries to close the gate, in nanoseconds: how long the CPU waits for the streams, and the longest pause after a
/// try that fails. The streams that the gate has reached stand still during a try.
///
/// A kernel on each stream makes the gate. If another thread launches work between two of these kernels, the gate may
/// never close, so the first tries are short. A program whose threads run ahead has given its streams work for many
/// milliseconds, so the later tries are long. During a long try such threads come to wait for held streams. The next
/// try, without a pause in between, then launches its kernels before these threads launch more work. No try is longer,
/// because work that takes longer may wait for other ranks, which may wait for a held stream.
const TRIES: [(u64, u64); 7] = [
    (2_000_000, 8_000_000),
    (2_000_000, 8_000_000),
    (2_000_000, 8_000_000),
    (20_000_000, 0),
    (LONGEST_NS, 20_000_000),
    (LONGEST_NS, 0),
    (LONGEST_NS, 0),
];
const LONGEST_NS: u64 = 200_000_000;

/// A closed gate, which opens when it is dropped.
pub(super) struct ClosedGate<'a>(&'a dyn Driver);

impl Drop for ClosedGate<'_> {
    fn drop(&mut self) {
        self.0.open_gate();
    }
}

/// Copies live contents behind a gate. Returns the closed gate, or `None` if there are no copies or the copies were
/// made without a gate (`Exchanges::Ungated`). If no gate could be closed and exchanges need one, no more memory is
/// exchanged for this request.
///
/// # Errors
/// [`Miss::OutOfMemory`] if exchanges need a gate and no gate could be closed in time, or the driver's error. Only the
/// memory of the copies' targets has changed.
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
        context.split_no_more();
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
    // Tries shorter than an earlier gate of the request took are left out: they would only add to the time that streams
    // stand still.
    for (patience, pause) in TRIES.into_iter().filter(|(patience, _)| *patience >= context.gate_took_ns) {
        // The device's clock decides which tries are left out, so that a simulated device always has the same ones.
        let (begin, before) = (Instant::now(), driver.clock_ns());
        match driver.close_gate(&held, copies, patience) {
            Ok(true) => {
                context.gate_took_ns = driver.clock_ns().saturating_sub(before).min(LONGEST_NS);
                return Ok(Some(ClosedGate(driver)));
            }
            Ok(false) if begin.elapsed() >= Duration::from_nanos(patience) => wait_up_to(pause),
            // The try was given up for another reason than its time.
            Ok(false) => {}
            // A stream was destroyed meanwhile, so no gate is closed.
            Err(error) if error.status.may_name_no_stream() => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// Waits for a random time of less than `longest` nanoseconds, or not at all if `longest` is 0. Two ranks that hold
/// their streams at the same time wait for each other's collectives, until one of them holds its streams alone.
fn wait_up_to(longest: u64) {
    if longest > 0 {
        let random = RandomState::new().build_hasher().finish();
        thread::sleep(Duration::from_nanos(random % longest));
    }
}
