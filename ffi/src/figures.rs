//! Statistics and fragmentation: as structs that may grow in later versions, and as JSON.

use crate::boundary::{call, fill, optional_out, out_param, write_text};
use crate::ids::AllocatorId;
use crate::registry::borrow;
use crate::status::{Failure, Outcome, Status};
use seamalloc::driver::MemoryInfo;
use seamalloc::{Stat as Figure, StatByPool as FigureByPool, Stats as Figures};
use seamalloc_trace::fragmentation_json;
use serde_json::{Map, Value, json};
use std::ffi::c_char;

/// One figure over time.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stat {
    /// The value now.
    pub current: u64,
    /// The highest value since `seam_reset_peak_stats`.
    pub peak: u64,
    /// The sum of all increases since `seam_reset_accumulated_stats`.
    pub allocated: u64,
    /// The sum of all decreases since `seam_reset_accumulated_stats`.
    pub freed: u64,
}

/// One figure for all memory, for requests of up to 1 MiB, and for larger ones.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct StatByPool {
    /// Small and large requests together.
    pub all: Stat,
    /// Small requests.
    pub small_pool: Stat,
    /// Large requests.
    pub large_pool: Stat,
}

/// Makes the struct of C, each of whose fields is a figure of the allocator's. To add a statistic for C, add a field at
/// the end with its figure. `tests/library/header.rs` makes the struct in the header from the same lines.
macro_rules! figures {
    (
        $(#[$about:meta])*
        pub struct $Struct:ident of $Figures:ident {
            $(#[$size_doc:meta])* pub size: usize,
            $( $(#[$doc:meta])* pub $field:ident: $type:ty = $($figure:ident).+, )*
        }
    ) => {
        $(#[$about])*
        pub struct $Struct {
            $(#[$size_doc])* pub size: usize,
            $( $(#[$doc])* pub $field: $type, )*
        }

        impl From<&$Figures> for $Struct {
            fn from(figures: &$Figures) -> Self {
                Self { size: size_of::<Self>(), $( $field: figures.$($figure).+.into(), )* }
            }
        }

        /// The figures in the struct of C.
        #[cfg(test)]
        const FIGURES: &[&[&str]] = &[ $( &[ $(stringify!($figure)),+ ], )* ];
    };
}

figures! {
    /// The statistics of an allocator: its operations so far, and the memory that it holds. Fields whose names end in
    /// `_bytes` are in bytes, those in `_ns` in nanoseconds; all others are counts. Statistics that PyTorch has too
    /// (`torch.cuda.memory_stats`) have PyTorch's names and meanings.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, Default)]
    pub struct Stats of Figures {
        /// The size of this struct: set it to `sizeof(seam_stats)` before the call. After the call it is the size that
        /// was filled in.
        pub size: usize,
        /// Blocks handed out and not freed by the program.
        pub allocation: StatByPool = allocation,
        /// Segments taken whole from the device (strategy `caching`).
        pub segment: StatByPool = segment,
        /// Blocks handed out, or freed and waiting for other streams.
        pub active: StatByPool = active,
        /// Free blocks of segments that contain other blocks too (strategy `caching`).
        pub inactive_split: StatByPool = inactive_split,
        /// Bytes of the blocks in `allocation`.
        pub allocated_bytes: StatByPool = allocated_bytes,
        /// Bytes held of the device.
        pub reserved_bytes: StatByPool = reserved_bytes,
        /// Bytes of the blocks in `active`.
        pub active_bytes: StatByPool = active_bytes,
        /// Bytes of the blocks in `inactive_split`.
        pub inactive_split_bytes: StatByPool = inactive_split_bytes,
        /// Bytes as requested, before rounding, of the blocks in `active`.
        pub requested_bytes: StatByPool = requested_bytes,
        /// Blocks of at least `max_split_size`.
        pub oversize_allocations: Stat = oversize_allocations,
        /// Segments of at least `max_split_size`.
        pub oversize_segments: Stat = oversize_segments,
        /// Requests for which all cached memory was given back before they were tried once more.
        pub num_alloc_retries: u64 = num_alloc_retries,
        /// Requests that could not be met.
        pub num_ooms: u64 = num_ooms,
        /// How often the CPU waited for all streams.
        pub num_sync_all_streams: u64 = num_sync_all_streams,
        /// How often memory was taken from the device.
        pub num_device_alloc: u64 = num_device_alloc,
        /// How often memory was given back to the device.
        pub num_device_free: u64 = num_device_free,
        /// Mappings of physical chunks that exist now.
        pub mappings: u64 = mappings,
        /// The part of `mappings` that is in views.
        pub view_mappings: u64 = view_mappings,
        /// Views that exist now.
        pub views: u64 = views,
        /// Bytes of address space that the views take.
        pub view_address_space_bytes: u64 = view_address_space_bytes,
        /// Views built by stitching.
        pub views_built: u64 = views_built,
        /// Requests served by a view that existed already.
        pub views_reused: u64 = views_reused,
        /// Views unmapped again.
        pub views_dropped: u64 = views_dropped,
        /// How often one stream waited, on the GPU, for another stream's work on freed memory.
        pub stream_waits: u64 = stream_waits,
        /// Bytes of free memory that one stream got from another after the waits in `stream_waits`.
        pub stream_wait_bytes: u64 = waits.bytes,
        /// Bytes of freed memory that streams named by `seam_record_stream` still used, and that requests got after the
        /// waits in `stream_waits`.
        pub recorded_wait_bytes: u64 = waits.recorded_bytes,
        /// Bytes by which memory grew because a stream would otherwise have waited for recent work of another stream.
        pub overlap_growth_bytes: u64 = waits.grown_bytes,
        /// Bytes of host memory that the allocator's tables take, approximately.
        pub host_bytes: u64 = host_bytes,
        /// Operations that made a driver call (stalls).
        pub stalls: u64 = stalls.count,
        /// The total time of the stalls in the driver.
        pub stall_total_ns: u64 = stalls.total_ns,
        /// The longest time of one stall in the driver, since `seam_reset_peak_stats`.
        pub stall_worst_ns: u64 = stalls.worst_ns,
        /// Chunks that were split (option `split:last_resort`).
        pub splits: u64 = splits.chunks,
        /// The chunks that were made from the split chunks.
        pub split_parts: u64 = splits.parts,
        /// Bytes that were copied for the splits.
        pub split_copied_bytes: u64 = splits.copied_bytes,
        /// Requests for which the CPU waited until work on the GPU was done with freed memory (see the option
        /// `wait_ms`).
        pub pending_waits: u64 = pending_waits.requests,
        /// The events for which the requests in `pending_waits` waited.
        pub pending_wait_events: u64 = pending_waits.events,
        /// How often the requests in `pending_waits` waited, in the end, for all work of the device.
        pub pending_wait_device: u64 = pending_waits.device,
        /// How many of the waits in `pending_waits` ended at the bound `wait_ms`.
        pub pending_wait_expired: u64 = pending_waits.expired,
        /// The total time of the waits in `pending_waits`.
        pub pending_wait_total_ns: u64 = pending_waits.total_ns,
        /// The longest of the waits in `pending_waits`, since `seam_reset_peak_stats`.
        pub pending_wait_worst_ns: u64 = pending_waits.worst_ns,
        /// How often the allocator asked the device how much memory is free, to give memory back if that is too little
        /// (option `headroom`).
        pub headroom_looks: u64 = headroom.looks,
        /// How often the allocator found too little free memory when it asked (`headroom_looks`).
        pub headroom_short: u64 = headroom.short,
        /// How often memory was given back for the headroom.
        pub headroom_yields: u64 = headroom.yields,
        /// The bytes that were given back for the headroom.
        pub headroom_yielded_bytes: u64 = headroom.yielded_bytes,
        /// How often a tag fell asleep.
        pub sleeps: u64 = sleep.sleeps,
        /// How often a tag woke.
        pub wakes: u64 = sleep.wakes,
        /// Bytes that the allocator takes from the device when all sleeping tags wake.
        pub asleep_bytes: u64 = sleep.asleep_bytes,
        /// Page-locked host memory for backups of tags.
        pub page_locked_bytes: u64 = sleep.page_locked_bytes,
        /// Bytes of host memory in which live memory lies (option `spill:host=SIZE`, and for a moment during a split on
        /// a full device). `reserved_bytes` does not include them.
        pub spilled_bytes: Stat = spilled_bytes,
        /// Requests that were served only because memory was spilled for them.
        pub spill_requests: u64 = spills.requests,
        /// Chunks that were spilled.
        pub spills: u64 = spills.chunks,
        /// Spilled chunks that came back to the device.
        pub spill_returns: u64 = spills.returned_chunks,
        /// Bytes of the spilled chunks that came back.
        pub spill_returned_bytes: u64 = spills.returned_bytes,
        /// The total time of spills and returns in the driver, a part of `stall_total_ns`.
        pub spill_total_ns: u64 = spills.total_ns,
        /// Bytes of host memory that are kept for the next spill, in addition to `spilled_bytes`. `seam_empty_cache`
        /// gives them back.
        pub spill_kept_bytes: u64 = spill_kept_bytes,
        /// Bytes that were spilled to host memory kept from an earlier spill.
        pub spill_reused_bytes: u64 = spills.reused_bytes,
    }
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

/// Fills in the statistics of an allocator: its operations so far, and the memory that it holds now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_get_stats(allocator: AllocatorId, stats: *mut Stats) -> Status {
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { fill(stats, || Ok((&borrow(allocator)?.allocator.stats()).into())) }
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

/// Writes the statistics as JSON: the fields of `seam_stats` by their names, the device, the options in force, the
/// driver calls by name with their number and time, a histogram of the stalls (below 1 us, 2 us, 4 us, ...), and the
/// memory and the findings of guard mode.
///
/// At most `capacity` bytes are written to `buffer`, including the NUL at the end, or none if the text is longer
/// (`SEAM_STATUS_BUFFER_TOO_SMALL`). `*length` gets the length of the text, without the NUL; `length` may be NULL. With
/// a capacity of 0, `buffer` may be NULL too. The length may differ from call to call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_stats_json(
    allocator: AllocatorId,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { write_text(buffer, capacity, length, || Ok(stats_json(allocator)?.to_string())) }
}

/// Returns the largest request, in bytes, that at least one stream could get from the free memory that is held, by
/// stitching where that is allowed. The call walks over all free ranges.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_largest_free(allocator: AllocatorId, bytes: *mut u64) -> Status {
    let look = || Ok(borrow(allocator)?.allocator.reports().fragmentation().largest_reachable());
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { out_param(bytes, 0, "bytes", look) }
}

/// Returns the largest request, in bytes, that at least one stream could get now: from the free memory that is held,
/// from the memory that the device and the limits leave, or from both together if the strategy joins them. The call
/// walks over all free ranges, and asks the driver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_largest_request(allocator: AllocatorId, bytes: *mut u64) -> Status {
    let look = || Ok(borrow(allocator)?.allocator.reports().largest_request()?);
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { out_param(bytes, 0, "bytes", look) }
}

/// Returns the free and the total memory of the allocator's device in bytes, whichever process holds it. Either pointer
/// may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_memory_info(allocator: AllocatorId, free: *mut u64, total: *mut u64) -> Status {
    let mut info = MemoryInfo { free: 0, total: 0 };
    let ask = || {
        info = borrow(allocator)?.allocator.driver().memory_info().map_err(seamalloc::Error::from)?;
        Ok(info.total)
    };
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    let status = unsafe { optional_out(total, 0, ask) };
    // SAFETY: as above.
    if let Some(free) = unsafe { free.as_mut() } {
        *free = info.free;
    }
    status
}

/// Writes how the memory is divided up now, as JSON: for whom memory is free, in how many ranges, and how much of it
/// one request could get, with and without stitching. The call walks over all free ranges. The buffer is as in
/// `seam_stats_json`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_fragmentation_json(
    allocator: AllocatorId,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    let look = || Ok(fragmentation_json(&borrow(allocator)?.allocator.reports().fragmentation()).to_string());
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { write_text(buffer, capacity, length, look) }
}

/// Logs the figures of an allocator so far, at the level `info`: on standard error, if the environment variable
/// SEAMALLOC_LOG asks for this level.
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
    let mut stats = json_of(&instance.allocator.stats())?;
    let calls = driver.call_stats();
    let calls = calls
        .iter()
        .map(|(call, made)| (call.name().to_owned(), json!({"count": made.count, "total_ns": made.total_ns})));
    stats.insert("device".to_owned(), driver.properties().name.as_str().into());
    stats.insert("options".to_owned(), instance.allocator.config().to_string().into());
    stats.insert("driver_calls".to_owned(), Value::Object(calls.collect()));
    Ok(stats.into())
}

/// Returns the figures by their names. Members of the groups in [`RENAMED`] have the names of `seam_stats`.
fn json_of(figures: &Figures) -> Outcome<Map<String, Value>> {
    let failed = |error| Failure::new(Status::Internal, error);
    let Value::Object(mut stats) = serde_json::to_value(figures).map_err(failed)? else { return Ok(Map::new()) };
    // The options include `max_split_size`.
    stats.remove("max_split_size");
    let kept = stats.remove("spill_kept_bytes");
    if let (Some(Value::Object(spills)), Some(kept)) = (stats.get_mut("spills"), kept) {
        spills.insert("kept_bytes".to_owned(), kept);
    }
    for (group, names) in RENAMED {
        let Some(Value::Object(mut group)) = stats.remove(group) else { continue };
        stats.extend(names.iter().filter_map(|(figure, name)| Some(((*name).to_owned(), group.remove(*figure)?))));
    }
    Ok(stats)
}

/// Groups of figures whose members have other names in JSON: for each member, its name in the group and its name in
/// JSON.
const RENAMED: [(&str, &[(&str, &str)]); 2] = [
    (
        "waits",
        &[
            ("bytes", "stream_wait_bytes"),
            ("recorded_bytes", "recorded_wait_bytes"),
            ("grown_bytes", "overlap_growth_bytes"),
        ],
    ),
    (
        "stalls",
        &[
            ("count", "stalls"),
            ("total_ns", "stall_total_ns"),
            ("worst_ns", "stall_worst_ns"),
            ("by_us", "stall_histogram"),
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Figures that only JSON or Rust has, and the struct of C lacks. The struct lacks `guard.*` too.
    const NOT_IN_C: [&str; 7] = [
        "strategy",
        "instead_of",
        "max_split_size",
        "waits.age_total",
        "waits.age_least",
        "waits.age_most",
        "stalls.by_us",
    ];

    /// Returns the names of the figures. The name of a figure in a group begins with the name of the group.
    fn names(stats: &Map<String, Value>) -> BTreeSet<String> {
        let of = |(name, value): (&String, &Value)| match value {
            Value::Object(group) if !group.contains_key("current") && !group.contains_key("all") => {
                group.keys().map(|figure| format!("{name}.{figure}")).collect()
            }
            _ => vec![name.clone()],
        };
        stats.iter().flat_map(of).collect()
    }

    /// A new statistic appears in the JSON automatically. The test fails until the struct of C or the list above has
    /// the statistic.
    #[test]
    fn every_figure_is_in_the_struct_of_c() {
        let Value::Object(all) = serde_json::to_value(Figures::default()).unwrap() else { panic!("no object") };
        let of_c: Vec<String> = FIGURES.iter().map(|figure| figure.join(".")).collect();
        let known: BTreeSet<String> = of_c.iter().cloned().chain(NOT_IN_C.map(str::to_owned)).collect();
        let found = names(&all).into_iter().filter(|name| !name.starts_with("guard.")).collect();
        assert_eq!(known, found);
        assert_eq!(known.len(), of_c.len() + NOT_IN_C.len(), "a figure is in C twice");
    }

    #[test]
    fn names_in_json_are_those_of_c_where_they_differ() {
        let found = names(&json_of(&Figures::default()).unwrap());
        let renamed = RENAMED.iter().flat_map(|(_, names)| *names).map(|(_, name)| *name);
        for name in renamed.chain(["spills.kept_bytes", "spilled_bytes", "guard.findings", "pending_waits.requests"]) {
            assert!(found.contains(name), "{name}: {found:?}");
        }
        for name in ["max_split_size", "spill_kept_bytes", "waits.bytes", "stalls.count"] {
            assert!(!found.contains(name), "{name}: {found:?}");
        }
    }
}
