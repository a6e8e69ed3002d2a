//! Devices, allocators on them, and looks at both: what all parts of the suite use.

use crate::simulated::{self, Device};
use seamalloc::driver::{Call, Driver, StreamId};
use seamalloc::{Allocator, Config, StrategyKind};
use std::cell::Cell;
use std::sync::Arc;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const MAIN: StreamId = StreamId::DEFAULT;
pub(crate) const SIDE: StreamId = StreamId(8);
/// Chunks of 8 MiB, with the strategy that has any: requests of [`CHUNK`] bytes are met by two of them.
pub(crate) const SMALL_CHUNKS: &str = "chunk_size_mb:8";
pub(crate) const CHUNK: u64 = 16 * MIB;

/// Long programs are shorter by this factor where each operation checks all tables.
pub(crate) const SHORTER: u64 = if cfg!(feature = "paranoid") { 3 } else { 1 };

thread_local! {
    static OPTIONS: Cell<&'static str> = const { Cell::new("") };
}

/// From now on allocators that this thread makes have these options, beside those of the test.
pub(crate) fn use_options(options: &'static str) {
    OPTIONS.set(options);
}

pub(crate) fn on(kind: StrategyKind, device: &str) -> (Arc<Device>, Allocator) {
    with_options(kind, device, "")
}

pub(crate) fn with_options(kind: StrategyKind, device: &str, options: &str) -> (Arc<Device>, Allocator) {
    simulated::on(device, config_of(kind, options))
}

/// The options of a strategy's allocators, with those of a test.
pub(crate) fn config_of(kind: StrategyKind, options: &str) -> Config {
    let config = Config::parse(options).and_then(|config| config.overlaid(OPTIONS.get())).unwrap();
    Config { strategy: kind, ..config }
}

/// Returns the options of a strategy's allocators, with those of a test, in text.
pub(crate) fn text_of(kind: StrategyKind, options: &str) -> String {
    format!("strategy:{kind},{options},{}", OPTIONS.get())
}

pub(crate) fn in_small_chunks(kind: StrategyKind, device: &str, options: &str) -> (Arc<Device>, Allocator) {
    with_options(kind, device, &format!("{SMALL_CHUNKS},{options}"))
}

pub(crate) fn reserved(allocator: &Allocator) -> u64 {
    allocator.stats().reserved_bytes.all.current
}

pub(crate) fn calls(gpu: &Device, call: Call) -> u64 {
    gpu.call_stats().get(call).count
}

/// Bytes that the device says are held, against what the allocator says; the allocator's own rules; and no kernel has met
/// memory that was not there.
pub(crate) fn balanced(gpu: &Device, allocator: &Allocator) {
    let info = gpu.memory_info().unwrap();
    assert_eq!(info.total - info.free, reserved(allocator));
    allocator.reports().check().unwrap();
    let memory = allocator.reports().fragmentation();
    assert_eq!(memory.reserved, memory.allocated + memory.pending + memory.free + memory.unsettled, "{memory:?}");
    assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
}
