//! Copies of a private pool's live memory: to the host before the pool sleeps, and back when the pool wakes.
//!
//! Owns: the copies, and the page-locked memory through which they go. `heap/home/saved.rs` keeps the saved bytes.
//!
//! ```text
//! Pinned        runs of live bytes ==copies==> page-locked memory, kept until the pool wakes
//! Host, File    runs of live bytes ==copies==> [stage | stage] --threads, or calls of the system--> memory, or a file
//! ```
//! The stage is page-locked memory in two halves: one half is emptied while the other fills. The driver's own stream
//! makes all copies in order.

use super::context::StrategyContext;
use super::host_stock::give_all_back;
use crate::driver::{DriverError, DriverResult};
use crate::error::{Error, Result};
use crate::fallible::TryPush;
use crate::heap::{Backup, Locked, Saved, Sleeper};
use crate::ids::PoolId;
use crate::span::Span;

const MIB: u64 = 1 << 20;

/// The bytes of each half of the stage (page-locked memory for the copies). On a link of 55 GB/s the copy of a half
/// takes 1.2 ms, long compared with a wait or the start of threads. The size is a multiple of the parts that
/// `heap/home/saved.rs` keeps.
const STAGE: u64 = 64 * MIB;

/// The bytes that are page-locked at a time for a backup. Copies fill one such buffer while the next one is locked.
const LOCKED: u64 = 256 * MIB;

/// Page-locked sizes are multiples of this number of bytes.
const LOCKED_STEP: u64 = 2 * MIB;

/// Contiguous runs of live bytes in device addresses, and how far their copies have been issued.
struct Runs {
    runs: Vec<Span>,
    /// The index of the next run, and of how many bytes of that run the copy has been issued.
    next: (usize, u64),
}

impl Runs {
    /// Returns the device addresses at which spans of home are mapped, as contiguous runs in the order of the spans.
    fn of(spans: &[Span], sleeper: &Sleeper) -> Result<Self> {
        const GONE: Error = Error::Internal("the place of a live block that sleeps is gone");
        let addresses = sleeper.addresses()?;
        let mut runs: Vec<Span> = Vec::new();
        for span in spans {
            let number = sleeper.chunk_at(span.start).ok_or(GONE)?;
            let address = addresses.get(number).copied().flatten().ok_or(GONE)?;
            let start = address + (span.start - sleeper.chunks[number].1.address);
            match runs.last_mut().filter(|last| last.end() == start) {
                Some(last) => last.size += span.size,
                None => runs.try_push(Span::new(start, span.size))?,
            }
        }
        Ok(Self { runs, next: (0, 0) })
    }

    /// Returns the total bytes of all runs.
    fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.size).sum()
    }

    /// Calls `copy` for each of the next pieces of the runs, of at most `most` bytes together: with its address, its
    /// size, and its offset in these bytes. Returns the bytes of these pieces.
    fn next(&mut self, most: u64, mut copy: impl FnMut(u64, u64, u64) -> DriverResult<()>) -> DriverResult<u64> {
        let mut taken = 0;
        while taken < most
            && let Some(run) = self.runs.get(self.next.0)
        {
            let (number, done) = self.next;
            let size = (run.size - done).min(most - taken);
            copy(run.start + done, size, taken)?;
            taken += size;
            self.next = if done + size == run.size { (number + 1, 0) } else { (number, done + size) };
        }
        Ok(taken)
    }
}

/// Copies the live bytes of the pool's chunks to the host.
///
/// # Errors
/// On any error the pool has not changed, and no copy is under way.
pub(super) fn save(context: &mut StrategyContext<'_>, sleeper: &Sleeper, backup: &Backup) -> Result<Saved> {
    let mut spans: Vec<Span> = Vec::new();
    if *backup != Backup::Discard {
        for ((_, chunk), address) in sleeper.chunks.iter().zip(sleeper.addresses()?) {
            // A chunk that is mapped nowhere has no contents to save.
            if address.is_some() {
                let live = context.heap.live_in(chunk)?;
                spans.try_reserve(live.len())?;
                spans.extend(live);
            }
        }
    }
    let mut runs = Runs::of(&spans, sleeper)?;
    let mut saved = Saved::new(backup, spans)?;
    let result = if saved.locked().is_some() {
        save_locked(context, &mut saved, &mut runs)
    } else {
        save_staged(context, &mut saved, &mut runs)
    };
    result.map(|()| saved)
}

/// Copies the runs of live bytes to page-locked memory: first to kept buffers, then to new buffers.
fn save_locked(context: &mut StrategyContext<'_>, saved: &mut Saved, runs: &mut Runs) -> Result<()> {
    let (mut left, mut known) = (runs.bytes(), 0);
    let mut copy_all = |context: &mut StrategyContext<'_>, to: &mut Vec<Locked>| -> Result<()> {
        while left > 0 {
            to.try_reserve(1)?;
            let locked = match context.heap.private_mut().stock_mut().take(0) {
                Some(locked) => {
                    known += 1;
                    locked
                }
                None => make(context, left.min(LOCKED).next_multiple_of(LOCKED_STEP))?,
            };
            to.push(locked);
            let driver = context.driver;
            let copy = |address, size, offset| driver.copy_out(address, locked.buffer, offset, size);
            left = left.saturating_sub(runs.next(locked.size, copy)?);
        }
        Ok(to.iter().try_for_each(|locked| context.driver.host_wait(locked.buffer))?)
    };
    let Some(to) = saved.locked_mut() else { return Ok(()) };
    let result = copy_all(context, to);
    if result.is_err() {
        settle(context, to);
        // A failed backup gives newly locked buffers back to the host.
        for (at, locked) in to.drain(..).enumerate() {
            if at < known { context.heap.private_mut().stock_mut().put(locked) } else { free(context, locked) }
        }
    }
    result
}

/// Copies the runs of live bytes through the stage (page-locked memory) to ordinary memory or a file.
fn save_staged(context: &mut StrategyContext<'_>, saved: &mut Saved, runs: &mut Runs) -> Result<()> {
    if !saved.keeps() || runs.bytes() == 0 {
        return Ok(());
    }
    let stage = stage_for(context, runs.bytes())?;
    let driver = context.driver;
    let mut copy_all = || -> Result<()> {
        let mut before: Option<(Locked, u64)> = None;
        for half in stage.iter().cycle() {
            let copied = runs.next(half.size.min(STAGE), |address, size, offset| {
                driver.copy_out(address, half.buffer, offset, size)
            })?;
            if let Some((half, size)) = before {
                driver.host_wait(half.buffer)?;
                let mut kept = Ok(());
                driver.host_bytes(half.buffer, 0, size, &mut |bytes| kept = saved.put(bytes))?;
                kept?;
            }
            if copied == 0 {
                break;
            }
            before = Some((*half, copied));
        }
        Ok(())
    };
    let result = copy_all();
    end_stage(context, stage, result.is_err());
    result
}

/// Copies the saved contents of a pool back to its chunks, which have memory again.
///
/// # Errors
/// A call failed, or the saved contents are gone. No copy is under way.
pub(super) fn restore(context: &mut StrategyContext<'_>, owner: PoolId, sleeper: &Sleeper) -> Result<()> {
    const GONE: Error = Error::Internal("what was kept of a pool that sleeps is gone");
    let saved = context.heap.private().asleep(owner).ok_or(GONE)?;
    let mut runs = Runs::of(saved.spans(), sleeper)?;
    if !saved.keeps() || runs.bytes() == 0 {
        return Ok(());
    }
    if let Some(from) = saved.locked() {
        let driver = context.driver;
        let mut copy_all = || -> DriverResult<()> {
            for locked in from {
                let copy = |address, size, offset| driver.copy_in(locked.buffer, offset, address, size);
                runs.next(locked.size, copy)?;
            }
            from.iter().try_for_each(|locked| driver.host_wait(locked.buffer))
        };
        let result = copy_all();
        if result.is_err() {
            settle(context, from);
        }
        return Ok(result?);
    }
    let stage = stage_for(context, runs.bytes())?;
    let saved = context.heap.private().asleep(owner).ok_or(GONE)?;
    let result = restore_staged(context, saved, &stage, &mut runs);
    end_stage(context, stage, result.is_err());
    result
}

fn restore_staged(context: &StrategyContext<'_>, saved: &Saved, stage: &[Locked], runs: &mut Runs) -> Result<()> {
    let (driver, total, mut done) = (context.driver, runs.bytes(), 0);
    for half in stage.iter().cycle() {
        let size = half.size.min(STAGE).min(total - done);
        if size == 0 {
            break;
        }
        driver.host_wait(half.buffer)?;
        let mut got = Ok(());
        driver.host_bytes(half.buffer, 0, size, &mut |bytes| got = saved.get(done, bytes))?;
        got?;
        done += runs.next(size, |address, size, offset| driver.copy_in(half.buffer, offset, address, size))?;
    }
    Ok(stage.iter().try_for_each(|half| driver.host_wait(half.buffer))?)
}

/// Returns both halves of the stage (page-locked memory for the copies), or only one if all bytes fit in one half.
fn stage_for(context: &mut StrategyContext<'_>, bytes: u64) -> Result<Vec<Locked>> {
    let size = bytes.min(STAGE).next_multiple_of(LOCKED_STEP);
    let mut stage = Vec::new();
    stage.try_reserve_exact(2)?;
    for _ in 0..bytes.div_ceil(size).min(2) {
        let half = match context.heap.private_mut().stock_mut().take(size) {
            Some(half) => Ok(half),
            None => make(context, size),
        };
        match half {
            Ok(half) => stage.push(half),
            Err(error) => {
                end_stage(context, stage, false);
                return Err(error);
            }
        }
    }
    Ok(stage)
}

/// Keeps the page-locked memory of the stage for later copies. If a copy `failed`, the function first waits for copies
/// that may be under way.
fn end_stage(context: &mut StrategyContext<'_>, stage: Vec<Locked>, failed: bool) {
    if failed {
        settle(context, &stage);
    }
    stage.into_iter().for_each(|half| context.heap.private_mut().stock_mut().put(half));
}

/// Waits for copies that may be under way after a failed call. If the waits fail too, the device's context is lost, and
/// the error is logged.
fn settle(context: &StrategyContext<'_>, locked: &[Locked]) {
    let waited = locked.iter().try_for_each(|locked| context.driver.host_wait(locked.buffer));
    if let Err(error) = waited.or_else(|_| context.driver.synchronize()) {
        tracing::error!(%error, "copies of a pool that sleeps could not be waited for");
    }
}

/// Page-locks host memory. If the host refuses, the function gives all kept page-locked memory back and tries again.
fn make(context: &mut StrategyContext<'_>, size: u64) -> Result<Locked> {
    context.heap.private_mut().stock_mut().reserve()?;
    // The host lacks memory here, not the device.
    let mut made = context.driver.host_malloc(size);
    if made.as_ref().is_err_and(DriverError::is_out_of_memory) && give_all_back(context) {
        made = context.driver.host_malloc(size);
    }
    let buffer = made.map_err(|error| if error.is_out_of_memory() { Error::HostMemory } else { error.into() })?;
    let locked = Locked { buffer, size };
    context.heap.private_mut().stock_mut().made(locked);
    Ok(locked)
}

/// Gives page-locked memory back to the host. If the call fails, the memory is kept for later copies.
fn free(context: &mut StrategyContext<'_>, locked: Locked) {
    match context.driver.host_free(locked.buffer) {
        Ok(()) => context.heap.private_mut().stock_mut().gone(locked),
        Err(error) => {
            tracing::warn!(%error, bytes = locked.size, "page-locked memory could not be given back yet");
            context.heap.private_mut().stock_mut().put(locked);
        }
    }
}
