//! The names of the options.
//!
//! Owns: the lists of them. `syntax.rs` reads and writes their values.

use super::classic::ClassicOptions;
use super::paddle::PaddleFlags;

/// Options of PyTorch without effect here.
pub(super) const WITHOUT_EFFECT: [&str; 6] = [
    "release_lock_on_cudamalloc",
    "graph_capture_record_stream_reuse",
    "pinned_use_cuda_host_register",
    "pinned_num_register_threads",
    "pinned_use_background_threads",
    "pinned_reserve_segment_size_mb",
];

/// Why they have none.
pub(super) const OF_PYTORCH: &str =
    "it concerns page-locked memory, locking or graph capture in PyTorch's own allocator";

/// Options that earlier versions had, and the sentence that says what to write in place of each.
pub(super) const REMOVED: [(&str, &str); 6] = [
    ("arenas", "leave it out: all threads share one heap"),
    ("plan", "leave it out: `strategy:stitch` needs no plan"),
    ("sharing_threshold", "leave it out, or choose `sharing:wait` or `sharing:never`"),
    ("memory_fraction", "write `per_process_memory_fraction`"),
    ("FLAGS_vmm_v2_remap_on_oom", "leave it out: free handles are always moved together before a request is refused"),
    ("FLAGS_vmm_v2_small_pool_handle_size_in_mb", "leave it out: a handle of small requests has 2 MiB"),
];

/// The name of every option but those of other allocators' families ([`option_list`]).
const OPTIONS: [&str; 35] = [
    "strategy",
    "sharing",
    "spill",
    "backup_cache",
    "split",
    "wait_ms",
    "idle_release_s",
    "flight_recorder",
    "flight_dump",
    "broker",
    "broker_guarantee",
    "broker_weight",
    "broker_wait_ms",
    "chunk_size_mb",
    "max_view_mappings",
    "max_views",
    "max_view_address_space",
    "fragLimit",
    "reuseLimit",
    "defragLevel",
    "autoGC",
    "guard",
    "guard_sample",
    "guard_min_size",
    "guard_quarantine_mb",
    "backend",
    "expandable_segments",
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "large_segment_size_mb",
    "roundup_power2_divisions",
    "garbage_collection_threshold",
    "per_process_memory_fraction",
    "memory_limit",
    "headroom",
];

/// The names of all options that have an effect.
pub(super) fn option_list() -> impl Iterator<Item = &'static str> {
    OPTIONS.into_iter().chain(ClassicOptions::NAMES).chain(PaddleFlags::NAMES)
}

/// The names of all options, with or without effect.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    option_list().chain(WITHOUT_EFFECT)
}
