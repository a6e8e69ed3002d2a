//! Private pools with segments of their own, under any strategy: PyTorch's rules, over a source or the driver's `malloc`.
//!
//! Owns: where such a segment comes from and goes to, and the order of things when none is to be had. How segments are
//! sized and split is `caching.rs`'s.

use super::caching::Caching;
use super::ladder::grow_within_limit;
use super::{Ground, Miss, Strategy};
use crate::blocks::{Block, BlockId};
use crate::config::Config;
use crate::driver::{Call, Driver, DriverResult, in_relaxed_capture_mode};
use crate::error::{Error, Result};
use crate::heap::{FitRules, Heap, Request};
use crate::ids::PoolId;
use crate::rounding::{MIN_BLOCK, segment_size};
use crate::source::{SegmentSource, SourceError, guarded};

/// What such a pool is judged by in reports.
pub(crate) const LIKE: &dyn Strategy = &Caching;

/// How requests find their blocks.
pub(crate) fn rules(config: &Config, unsplit: bool) -> FitRules {
    let rules = Caching.rules(config);
    FitRules { no_split_from: if unsplit { 0 } else { rules.no_split_from }, ..rules }
}

/// A block of a new segment. Where there is none to be had, and all means may be used: once what other streams used is
/// free, once others have given back as much, and once they have given back all.
pub(crate) fn miss(
    strategy: &mut dyn Strategy,
    ground: &mut Ground<'_>,
    request: &Request,
    by_all_means: bool,
) -> std::result::Result<BlockId, Miss> {
    match grow_within_limit(&mut Caching, ground, request) {
        // Giving back waits, which no capture allows.
        Err(Miss::OutOfMemory) if by_all_means && !ground.capturing() => {}
        done => return done,
    }
    ground.heap.counters.num_sync_all_streams += 1;
    ground.deferred.synchronize(ground.heap, ground.driver)?;
    ground.reclaim()?;
    let unsplit = ground.heap.private.segments(ground.heap.owner_of(request.pool)).is_some_and(|own| own.are_unsplit());
    let found = ground.heap.fit(request, &rules(ground.config, unsplit));
    if found.is_some() {
        return Ok(found);
    }
    let segment = segment_size(request.size, ground.config.large_segment_size);
    for down_to in [ground.heap.reserved().saturating_sub(segment), 0] {
        strategy.trim(ground, down_to, true)?;
        ground.heap.counters.num_alloc_retries += 1;
        match grow_within_limit(&mut Caching, ground, request) {
            Err(Miss::OutOfMemory) => {}
            done => return done,
        }
    }
    Err(Miss::OutOfMemory)
}

/// New memory for a pool: from its source, or by the driver's `malloc`. An address that cannot be is an error, and is not
/// given back: it may be someone's.
pub(super) fn take(ground: &mut Ground<'_>, pool: u32, size: u64) -> std::result::Result<u64, Miss> {
    let owner = ground.heap.owner_of(pool);
    let Some(answer) = call(ground, owner, |source| guarded("giving a segment", || source.malloc(size))) else {
        let address = ground.malloc(size)?;
        ground.heap.check_answer(Call::Malloc, address, size, MIN_BLOCK)?;
        return Ok(address);
    };
    let address = match answer? {
        Ok(address) => address,
        Err(SourceError::OutOfMemory) => return Err(Miss::OutOfMemory),
        Err(SourceError::Failed(detail)) => return Err(Error::Source { pool: owner, detail }.into()),
    };
    if ground.heap.may_begin_at(address, size, MIN_BLOCK) && !meets_view(ground.heap, address, size) {
        return Ok(address);
    }
    let detail =
        format!("it gave {size} bytes at {address:#x}, which cannot be, or is part of memory that the allocator has");
    Err(Error::Source { pool: owner, detail }.into())
}

/// Gives back what [`take`] took.
pub(super) fn give(ground: &mut Ground<'_>, pool: u32, address: u64, size: u64) -> Result<()> {
    let owner = ground.heap.owner_of(pool);
    let freed = call(ground, owner, |source| guarded("taking a segment back", || source.free(address, size)));
    match freed.transpose()? {
        None => Ok(ground.in_relaxed_capture_mode(|| ground.driver.free(address))?),
        Some(Ok(())) => Ok(()),
        Some(Err(SourceError::Failed(detail))) => Err(Error::Source { pool: owner, detail }),
        Some(Err(SourceError::OutOfMemory)) => {
            Err(Error::Source { pool: owner, detail: "it did not take a segment back, for want of memory".into() })
        }
    }
}

/// Gives back the free segments of a pool that has ended; the device has passed everything. What its source failed with,
/// the first time; what it did not take stays.
pub(crate) fn give_back(ground: &mut Ground<'_>, owner: PoolId) -> Result<Option<Error>> {
    let mut failed = None;
    for id in ground.heap.whole_segments_of(owner) {
        let Block { address, size, pool, .. } = ground.heap.blocks[id];
        ground.heap.malloc_segment_goes(id);
        let Err(error) = give(ground, pool, address, size) else {
            ground.heap.remove_malloc_segment(id);
            continue;
        };
        ground.heap.malloc_segment_stays(id);
        if !matches!(error, Error::Source { .. }) {
            return Err(error);
        }
        tracing::error!(%error, "a segment of a private pool could not be given back; it is kept");
        failed = failed.or(Some(error));
    }
    ground.heap.forget_empty(owner);
    Ok(failed)
}

/// Calls the source of a private pool, in a capture too; `None` where it has none.
fn call<T>(
    ground: &mut Ground<'_>,
    owner: PoolId,
    call: impl FnOnce(&mut dyn SegmentSource) -> std::result::Result<T, SourceError>,
) -> Option<DriverResult<std::result::Result<T, SourceError>>> {
    let (driver, capturing): (&dyn Driver, _) = (ground.driver, ground.capturing());
    let source = ground.heap.private.segments_mut(owner)?.source()?;
    Some(in_relaxed_capture_mode(driver, capturing, || Ok(call(source))))
}

/// Whether some of these bytes are addresses of a view.
fn meets_view(heap: &Heap, address: u64, size: u64) -> bool {
    let end = address.saturating_add(size);
    heap.views.iter().any(|(_, view)| address < view.address.saturating_add(view.size) && view.address < end)
}
