//! Unused page-locked host memory that is kept for the next spill and the next backup, and its release.
//!
//! Owns: the driver calls, and when they are made. `heap/home/host_stock.rs` has the memory kept for spilling.
//! `heap/home/saved.rs` has the memory kept for backups.

use super::context::StrategyContext;
use crate::driver::DriverResult;
use crate::ids::Handle;

/// Creates page-locked host memory. If the host refuses, all kept memory is given back before a second try.
pub(super) fn create_on_host(context: &mut StrategyContext<'_>, size: u64) -> DriverResult<Handle> {
    let refused = match context.driver.create_on_host(size) {
        Err(error) if error.is_out_of_memory() => error,
        answer => return answer,
    };
    if give_all_back(context) { context.driver.create_on_host(size) } else { Err(refused) }
}

/// Gives back all kept memory, because the host has refused more page-locked memory. Returns whether any memory was
/// given back. A failure is logged.
pub(super) fn give_all_back(context: &mut StrategyContext<'_>) -> bool {
    let before = context.heap.host_stock().bytes() + context.heap.private().stock().cached();
    let released = release_host_stock(context).and_then(|_| release_backups(context));
    if let Err(error) = released {
        tracing::warn!(%error, "page-locked memory that is kept could not be given back yet");
    }
    context.heap.host_stock().bytes() + context.heap.private().stock().cached() < before
}

/// Keeps host memory in which no chunk is spilled any more and which is mapped nowhere, if the bounds on kept memory
/// allow another piece. The stock has room for the piece (`HostStock::reserve`). Returns whether the memory is kept.
pub(super) fn keep(context: &mut StrategyContext<'_>, size: u64, handle: Handle) -> bool {
    let spilled = context.heap.spilled();
    let cached = context.heap.host_stock().bytes() + context.heap.private().stock().cached() + size;
    let fits = context.config.backup_cache.is_none_or(|most| cached <= most);
    // If spilling is off, the stock keeps no memory.
    let keeps = fits && context.spill.is_some() && context.heap.host_stock().allows(size, spilled);
    if keeps {
        context.heap.host_stock_mut().put(size, handle);
    }
    keeps
}

/// Gives back kept memory until the rest is within the bound, which depends on `spilled`, the bytes that are spilled.
/// After a failure, which is logged, the remaining memory stays.
pub(super) fn make_room(context: &mut StrategyContext<'_>, spilled: u64) {
    loop {
        let excess = context.heap.host_stock().excess(spilled);
        if excess == 0 {
            return;
        }
        let Some(piece) = context.heap.host_stock_mut().take_for(excess) else { return };
        if let Err(error) = release(context, piece) {
            tracing::warn!(%error, "host memory that is kept could not be given back yet");
            return;
        }
    }
}

/// Gives back all memory that is kept for spilling. Returns the bytes given back.
pub(crate) fn release_host_stock(context: &mut StrategyContext<'_>) -> DriverResult<u64> {
    let mut released = 0;
    while let Some(piece) = context.heap.host_stock_mut().take_for(u64::MAX) {
        release(context, piece)?;
        released += piece.0;
    }
    let spilled = context.heap.spilled();
    context.heap.host_stock_mut().emptied(spilled);
    Ok(released)
}

/// Releases a piece that was taken from the stock. If the release fails, the stock keeps the piece again.
fn release(context: &mut StrategyContext<'_>, (size, handle): (u64, Handle)) -> DriverResult<()> {
    context.driver.release(handle).inspect_err(|_| context.heap.host_stock_mut().put(size, handle))
}

/// Gives back all page-locked memory that holds no backup. Returns the bytes given back.
pub(crate) fn release_backups(context: &mut StrategyContext<'_>) -> DriverResult<u64> {
    let mut released = 0;
    while context.heap.private().stock().cached() > 0 {
        released += release_backup(context)?;
    }
    Ok(released)
}

/// Gives back page-locked memory that holds no backup, until the kept memory is within the option `backup_cache`. After
/// a failure, which is logged, the remaining memory stays.
pub(crate) fn bound_backups(context: &mut StrategyContext<'_>) {
    let Some(most) = context.config.backup_cache else { return };
    while context.heap.private().stock().cached() > most.saturating_sub(context.heap.host_stock().bytes()) {
        if let Err(error) = release_backup(context) {
            tracing::warn!(%error, "page-locked memory of backups could not be given back yet");
            return;
        }
    }
}

/// Gives the smallest unused buffer back to the host. Returns the buffer's bytes; 0 if there is no unused buffer.
fn release_backup(context: &mut StrategyContext<'_>) -> DriverResult<u64> {
    let Some(locked) = context.heap.private_mut().stock_mut().take(0) else { return Ok(0) };
    if let Err(error) = context.driver.host_free(locked.buffer) {
        context.heap.private_mut().stock_mut().put(locked);
        return Err(error);
    }
    context.heap.private_mut().stock_mut().gone(locked);
    Ok(locked.size)
}
