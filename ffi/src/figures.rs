//! Statistics and fragmentation: as structs that may grow, and as JSON.

use crate::boundary::{call, fill, optional_out, out_param, write_text};
use crate::ids::AllocatorId;
use crate::registry::borrow;
use crate::status::{Outcome, Status};
use seamalloc::driver::MemoryInfo;
use seamalloc::{Stat as Figure, StatByPool as FigureByPool, Stats as Figures, StrategyKind};
use seamalloc_trace::fragmentation_json;
use serde_json::{Map, Value, json};
use std::ffi::c_char;

/// One figure over time.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stat {
    /// Now.
    pub current: u64,
    /// The most at any time since `seam_reset_peak_stats`.
    pub peak: u64,
    /// All that was ever added, since `seam_reset_accumulated_stats`.
    pub allocated: u64,
    /// All that was ever taken away, since then.
    pub freed: u64,
}

/// One figure for all memory, for requests of up to 1 MiB, and for larger ones.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct StatByPool {
    /// Both together.
    pub all: Stat,
    /// Small requests.
    pub small_pool: Stat,
    /// Large requests.
    pub large_pool: Stat,
}

/// What an allocator has done and holds. Fields that end in `_bytes` are bytes, in `_ns` nanoseconds, others count. As
/// far as PyTorch has them (`torch.cuda.memory_stats`), names and meanings are its.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Of this struct: set it to `sizeof(seam_stats)` before the call. It comes back as what was filled in.
    pub size: usize,
    /// Blocks handed out and not freed by the program.
    pub allocation: StatByPool,
    /// Segments taken whole from the device (strategy `caching`).
    pub segment: StatByPool,
    /// Blocks handed out, or freed and waiting for other streams.
    pub active: StatByPool,
    /// Free blocks of a segment that has others in it (strategy `caching`).
    pub inactive_split: StatByPool,
    /// Bytes of the blocks in `allocation`.
    pub allocated_bytes: StatByPool,
    /// Bytes held of the device.
    pub reserved_bytes: StatByPool,
    /// Bytes of the blocks in `active`.
    pub active_bytes: StatByPool,
    /// Bytes of the blocks in `inactive_split`.
    pub inactive_split_bytes: StatByPool,
    /// Bytes as requested, before rounding, of the blocks in `active`.
    pub requested_bytes: StatByPool,
    /// Blocks of at least `max_split_size`.
    pub oversize_allocations: Stat,
    /// Segments of at least `max_split_size`.
    pub oversize_segments: Stat,
    /// Requests for which all cached memory was given back before they were tried once more.
    pub num_alloc_retries: u64,
    /// Requests that could not be met.
    pub num_ooms: u64,
    /// How often the CPU waited for all streams.
    pub num_sync_all_streams: u64,
    /// How often memory was taken from the device.
    pub num_device_alloc: u64,
    /// How often memory was given back to the device.
    pub num_device_free: u64,
    /// Mappings of physical chunks that exist now.
    pub mappings: u64,
    /// Of these, the ones in views.
    pub view_mappings: u64,
    /// Views that exist now.
    pub views: u64,
    /// Bytes of address space that they take.
    pub view_address_space_bytes: u64,
    /// Views built by stitching.
    pub views_built: u64,
    /// Requests served by a view that was there already.
    pub views_reused: u64,
    /// Views unmapped again.
    pub views_dropped: u64,
    /// GPU-side waits of a stream for work of another on freed memory.
    pub stream_waits: u64,
    /// Bytes of free memory handed from one stream to another behind such waits.
    pub stream_wait_bytes: u64,
    /// Bytes of freed memory that recorded streams still used, handed out behind such waits.
    pub recorded_wait_bytes: u64,
    /// Bytes by which memory grew rather than make a stream wait for work of the present round.
    pub overlap_growth_bytes: u64,
    /// Bytes of host memory that the allocator's tables take, about.
    pub host_bytes: u64,
    /// Operations that made a driver call.
    pub stalls: u64,
    /// Time of them in the driver, all together.
    pub stall_total_ns: u64,
    /// The longest, since `seam_reset_peak_stats`.
    pub stall_worst_ns: u64,
    /// With `split:last_resort`: chunks that were split.
    pub splits: u64,
    /// The chunks that they became.
    pub split_parts: u64,
    /// Bytes that were copied for that.
    pub split_copied_bytes: u64,
    /// Requests for which the CPU waited until work on the GPU was done with freed memory (see the option `wait_ms`).
    pub pending_waits: u64,
    /// For how many events they did.
    pub pending_wait_events: u64,
    /// How often they waited for all work of the device, at last.
    pub pending_wait_device: u64,
    /// How many of them ended at the bound.
    pub pending_wait_expired: u64,
    /// The time that they waited, all together.
    pub pending_wait_total_ns: u64,
    /// The longest that one of them waited, since `seam_reset_peak_stats`.
    pub pending_wait_worst_ns: u64,
    /// With the option `headroom`: how often the device was asked how much is free, to give memory back where that is too little.
    pub headroom_looks: u64,
    /// How often it was too little.
    pub headroom_short: u64,
    /// How often memory went back for it.
    pub headroom_yields: u64,
    /// The bytes that went back.
    pub headroom_yielded_bytes: u64,
    /// How often a tag fell asleep.
    pub sleeps: u64,
    /// How often one woke.
    pub wakes: u64,
    /// Bytes that waking all tags that sleep takes from the device.
    pub asleep_bytes: u64,
    /// Page-locked memory of the host for backups of tags.
    pub page_locked_bytes: u64,
    /// With `spill:host=SIZE`: bytes of the machine's memory in which live memory lies. No part of `reserved_bytes`.
    pub spilled_bytes: Stat,
    /// Requests that were served only because memory was spilled for them.
    pub spill_requests: u64,
    /// Pieces of memory that were spilled.
    pub spills: u64,
    /// Pieces that came back to the device.
    pub spill_returns: u64,
    /// Bytes of them.
    pub spill_returned_bytes: u64,
    /// The time in the driver that both took. A part of `stall_total_ns`.
    pub spill_total_ns: u64,
    /// Bytes of the machine's memory that are kept for the next spill, beside `spilled_bytes`. `seam_empty_cache` gives them back.
    pub spill_kept_bytes: u64,
    /// Bytes that were spilled to memory which was kept of an earlier spill.
    pub spill_reused_bytes: u64,
}

impl From<Figure> for Stat {
    fn from(Figure { current, peak, allocated, freed }: Figure) -> Self {
        Self { current, peak, allocated, freed }
    }
}

impl From<FigureByPool> for StatByPool {
    fn from(figure: FigureByPool) -> Self {
        Self { all: figure.all.into(), small_pool: figure.small_pool.into(), large_pool: figure.large_pool.into() }
    }
}

impl From<Figures> for Stats {
    fn from(figures: Figures) -> Self {
        Self {
            size: size_of::<Self>(),
            allocation: figures.allocation.into(),
            segment: figures.segment.into(),
            active: figures.active.into(),
            inactive_split: figures.inactive_split.into(),
            allocated_bytes: figures.allocated_bytes.into(),
            reserved_bytes: figures.reserved_bytes.into(),
            active_bytes: figures.active_bytes.into(),
            inactive_split_bytes: figures.inactive_split_bytes.into(),
            requested_bytes: figures.requested_bytes.into(),
            oversize_allocations: figures.oversize_allocations.into(),
            oversize_segments: figures.oversize_segments.into(),
            num_alloc_retries: figures.num_alloc_retries,
            num_ooms: figures.num_ooms,
            num_sync_all_streams: figures.num_sync_all_streams,
            num_device_alloc: figures.num_device_alloc,
            num_device_free: figures.num_device_free,
            mappings: figures.mappings,
            view_mappings: figures.view_mappings,
            views: figures.views,
            view_address_space_bytes: figures.view_address_space_bytes,
            views_built: figures.views_built,
            views_reused: figures.views_reused,
            views_dropped: figures.views_dropped,
            stream_waits: figures.stream_waits,
            stream_wait_bytes: figures.waits.bytes,
            recorded_wait_bytes: figures.waits.recorded_bytes,
            overlap_growth_bytes: figures.waits.grown_bytes,
            host_bytes: figures.host_bytes,
            stalls: figures.stalls.count,
            stall_total_ns: figures.stalls.total_ns,
            stall_worst_ns: figures.stalls.worst_ns,
            splits: figures.splits.chunks,
            split_parts: figures.splits.parts,
            split_copied_bytes: figures.splits.copied_bytes,
            pending_waits: figures.pending_waits.requests,
            pending_wait_events: figures.pending_waits.events,
            pending_wait_device: figures.pending_waits.device,
            pending_wait_expired: figures.pending_waits.expired,
            pending_wait_total_ns: figures.pending_waits.total_ns,
            pending_wait_worst_ns: figures.pending_waits.worst_ns,
            headroom_looks: figures.headroom.looks,
            headroom_short: figures.headroom.short,
            headroom_yields: figures.headroom.yields,
            headroom_yielded_bytes: figures.headroom.yielded_bytes,
            sleeps: figures.sleep.sleeps,
            wakes: figures.sleep.wakes,
            asleep_bytes: figures.sleep.asleep_bytes,
            page_locked_bytes: figures.sleep.page_locked_bytes,
            spilled_bytes: figures.spilled_bytes.into(),
            spill_requests: figures.spills.requests,
            spills: figures.spills.chunks,
            spill_returns: figures.spills.returned_chunks,
            spill_returned_bytes: figures.spills.returned_bytes,
            spill_total_ns: figures.spills.total_ns,
            spill_kept_bytes: figures.spill_kept_bytes,
            spill_reused_bytes: figures.spills.reused_bytes,
        }
    }
}

/// What an allocator has done so far and holds now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_get_stats(allocator: AllocatorId, stats: *mut Stats) -> Status {
    // SAFETY: as for every function (see the header).
    unsafe { fill(stats, || Ok(borrow(allocator)?.allocator.stats().into())) }
}

/// Sets every peak to the present value.
#[unsafe(no_mangle)]
pub extern "C" fn seam_reset_peak_stats(allocator: AllocatorId) -> Status {
    call(|| {
        borrow(allocator)?.allocator.reports().reset_peaks();
        Ok(())
    })
}

/// Sets every accumulated figure to 0.
#[unsafe(no_mangle)]
pub extern "C" fn seam_reset_accumulated_stats(allocator: AllocatorId) -> Status {
    call(|| {
        borrow(allocator)?.allocator.reports().reset_accumulated();
        Ok(())
    })
}

/// The statistics as JSON: the fields of `seam_stats` by their names, the device, the options in force, the driver calls by
/// name with their number and time, a histogram of the stalls (below 1 us, 2 us, 4 us, ...), and what guard mode holds and
/// has found.
///
/// At most `capacity` bytes are written to `buffer`, the NUL at the end included, or nothing where they do not suffice
/// (`SEAM_STATUS_BUFFER_TOO_SMALL`). `*length` gets the length of the text, without the NUL; it may be NULL. With a capacity
/// of 0, `buffer` may be NULL too. The length may differ from call to call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_stats_json(
    allocator: AllocatorId,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    // SAFETY: as for every function (see the header).
    unsafe { write_text(buffer, capacity, length, || Ok(stats_json(allocator)?.to_string())) }
}

/// The largest request, in bytes, that some stream could be given of what is held free, stitched where that is allowed.
/// Walks over all free ranges.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_largest_free(allocator: AllocatorId, bytes: *mut u64) -> Status {
    let look = || Ok(borrow(allocator)?.allocator.reports().fragmentation().largest_reachable());
    // SAFETY: as for every function (see the header).
    unsafe { out_param(bytes, 0, "bytes", look) }
}

/// The largest request, in bytes, that some stream could be given now: of what is held free, and of what the device and the
/// limits leave; of both together where the strategy joins them. Walks over all free ranges, and asks the driver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_largest_request(allocator: AllocatorId, bytes: *mut u64) -> Status {
    let look = || Ok(borrow(allocator)?.allocator.reports().largest_request()?);
    // SAFETY: as for every function (see the header).
    unsafe { out_param(bytes, 0, "bytes", look) }
}

/// The memory of the allocator's device in bytes, whoever holds it: free, and in all. Either may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_memory_info(allocator: AllocatorId, free: *mut u64, total: *mut u64) -> Status {
    let mut info = MemoryInfo { free: 0, total: 0 };
    let ask = || {
        info = borrow(allocator)?.allocator.driver().memory_info().map_err(seamalloc::Error::from)?;
        Ok(info.total)
    };
    // SAFETY: as for every function (see the header).
    let status = unsafe { optional_out(total, 0, ask) };
    // SAFETY: as above.
    if let Some(free) = unsafe { free.as_mut() } {
        *free = info.free;
    }
    status
}

/// How the memory is divided up now, as JSON: what is free for whom, in how many ranges, and how much of it one request
/// could have, as it lies and by stitching. Walks over all free ranges. The buffer is as in `seam_stats_json`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_fragmentation_json(
    allocator: AllocatorId,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    let look = || Ok(fragmentation_json(&borrow(allocator)?.allocator.reports().fragmentation()).to_string());
    // SAFETY: as for every function (see the header).
    unsafe { write_text(buffer, capacity, length, look) }
}

/// Logs what an allocator has done so far, at the level `info`: on standard error, where the environment variable
/// SEAMALLOC_LOG asks for it.
#[unsafe(no_mangle)]
pub extern "C" fn seam_log_summary(allocator: AllocatorId) -> Status {
    call(|| {
        borrow(allocator)?.log_summary();
        Ok(())
    })
}

fn stats_json(allocator: AllocatorId) -> Outcome<Value> {
    let instance = borrow(allocator)?;
    let driver = instance.allocator.driver();
    let figures = instance.allocator.stats();
    let (strategy, instead_of) = (figures.strategy.name(), figures.instead_of.map(StrategyKind::name));
    let histogram = figures.stalls.by_us;
    let guard = figures.guard;
    let stats = Stats::from(figures);
    let calls = driver.call_stats();
    let calls: Map<_, _> = calls
        .iter()
        .map(|(call, made)| (call.name().to_owned(), json!({"count": made.count, "total_ns": made.total_ns})))
        .collect();
    let guard = json!({
        "guarded": guard.guarded,
        "unguarded": guard.unguarded,
        "held_bytes": guard.held_bytes,
        "slack_bytes": guard.slack_bytes,
        "quarantined": guard.quarantined,
        "quarantined_bytes": guard.quarantined_bytes,
        "findings": guard.findings,
    });
    let splits = json!({
        "chunks": stats.splits,
        "parts": stats.split_parts,
        "copied_bytes": stats.split_copied_bytes,
    });
    let spills = json!({
        "requests": stats.spill_requests,
        "chunks": stats.spills,
        "reused_bytes": stats.spill_reused_bytes,
        "kept_bytes": stats.spill_kept_bytes,
        "returned_chunks": stats.spill_returns,
        "returned_bytes": stats.spill_returned_bytes,
        "total_ns": stats.spill_total_ns,
    });
    let pending_waits = json!({
        "requests": stats.pending_waits,
        "events": stats.pending_wait_events,
        "device": stats.pending_wait_device,
        "expired": stats.pending_wait_expired,
        "total_ns": stats.pending_wait_total_ns,
        "worst_ns": stats.pending_wait_worst_ns,
    });
    let headroom = json!({
        "looks": stats.headroom_looks,
        "short": stats.headroom_short,
        "yields": stats.headroom_yields,
        "yielded_bytes": stats.headroom_yielded_bytes,
    });
    let sleep = json!({
        "sleeps": stats.sleeps,
        "wakes": stats.wakes,
        "asleep_bytes": stats.asleep_bytes,
        "page_locked_bytes": stats.page_locked_bytes,
    });
    let mut stats = json!({
        "device": driver.properties().name,
        "options": instance.allocator.config().to_string(),
        "allocation": by_pool(stats.allocation),
        "segment": by_pool(stats.segment),
        "active": by_pool(stats.active),
        "inactive_split": by_pool(stats.inactive_split),
        "allocated_bytes": by_pool(stats.allocated_bytes),
        "reserved_bytes": by_pool(stats.reserved_bytes),
        "active_bytes": by_pool(stats.active_bytes),
        "inactive_split_bytes": by_pool(stats.inactive_split_bytes),
        "requested_bytes": by_pool(stats.requested_bytes),
        "oversize_allocations": figure(stats.oversize_allocations),
        "oversize_segments": figure(stats.oversize_segments),
        "num_alloc_retries": stats.num_alloc_retries,
        "num_ooms": stats.num_ooms,
        "num_sync_all_streams": stats.num_sync_all_streams,
        "num_device_alloc": stats.num_device_alloc,
        "num_device_free": stats.num_device_free,
        "mappings": stats.mappings,
        "view_mappings": stats.view_mappings,
        "views": stats.views,
        "view_address_space_bytes": stats.view_address_space_bytes,
        "views_built": stats.views_built,
        "views_reused": stats.views_reused,
        "views_dropped": stats.views_dropped,
        "stream_waits": stats.stream_waits,
        "stream_wait_bytes": stats.stream_wait_bytes,
        "recorded_wait_bytes": stats.recorded_wait_bytes,
        "overlap_growth_bytes": stats.overlap_growth_bytes,
        "host_bytes": stats.host_bytes,
        "stalls": stats.stalls,
        "stall_total_ns": stats.stall_total_ns,
        "stall_worst_ns": stats.stall_worst_ns,
        "stall_histogram": histogram,
        "splits": splits,
        "spilled_bytes": figure(stats.spilled_bytes),
        "pending_waits": pending_waits,
        "guard": guard,
        "driver_calls": calls,
    });
    // Beside the rest: the macro can take no more.
    (stats["strategy"], stats["instead_of"], stats["headroom"]) = (json!(strategy), json!(instead_of), headroom);
    (stats["sleep"], stats["spills"]) = (sleep, spills);
    Ok(stats)
}

fn by_pool(StatByPool { all, small_pool, large_pool }: StatByPool) -> Value {
    json!({"all": figure(all), "small_pool": figure(small_pool), "large_pool": figure(large_pool)})
}

fn figure(Stat { current, peak, allocated, freed }: Stat) -> Value {
    json!({"current": current, "peak": peak, "allocated": allocated, "freed": freed})
}
