//! The device and the options of a program.
//!
//! Owns: which there are. Most devices are small, so that memory runs short soon after the first requests.

use super::bytes::Bytes;
use super::program::MIB;
use seamalloc::StrategyKind;

/// Capacities of the device in MiB.
const CAPACITIES: [u64; 8] = [32, 64, 64, 96, 128, 128, 512, 4096];
/// Streams beside the default one: few, so that memory of one meets that of another, or many.
const STREAMS: [u64; 8] = [1, 1, 2, 2, 2, 3, 5, 30];

/// Half of the programs are of the default strategy, which has the most to get wrong.
const STRATEGIES: [StrategyKind; 8] = [
    StrategyKind::Stitch,
    StrategyKind::Stitch,
    StrategyKind::Stitch,
    StrategyKind::Stitch,
    StrategyKind::Stitch,
    StrategyKind::Gmlake,
    StrategyKind::Expandable,
    StrategyKind::Caching,
];

/// Each of these is an option of one program in so many.
const SELDOM: u8 = 12;

/// The device and the options.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) capacity: u64,
    pub(super) streams: u64,
    /// Whether a callback frees memory under pressure, and calls the allocator.
    pub(super) callback: bool,
    /// The options as text.
    pub(super) options: String,
}

impl Setup {
    pub(super) fn read(bytes: &mut Bytes<'_>) -> Self {
        let capacity = bytes.pick(&CAPACITIES) * MIB;
        let streams = bytes.pick(&STREAMS);
        // The book is of physical memory, which must stay where it is; `tests/content/attack` has programs with splits.
        let mut options = format!("strategy:{},split:off", bytes.pick(&STRATEGIES));
        let mut add = |option: &str| options += &format!(",{option}");
        let sharing = bytes.next();
        match sharing % 8 {
            0 => add("sharing:never"),
            1 | 2 => add("sharing:completed"),
            // Most devices here are so large that streams would share nothing by default.
            3..=6 => add("sharing:wait"),
            _ => {}
        }
        if bytes.one_in(4) {
            add(&format!("chunk_size_mb:{}", bytes.pick(&[2, 4, 6, 20, 64])));
        }
        if bytes.one_in(4) {
            add(&format!("max_views:{}", bytes.next() % 6));
        }
        if bytes.one_in(SELDOM) {
            // `autoGC` is what makes `gmlake` drop views.
            add(&format!("max_view_mappings:{},autoGC:0", bytes.next() % 40));
        }
        if bytes.one_in(SELDOM) {
            add(&format!("max_view_address_space:{}MiB", 2 * (u64::from(bytes.next()) + 1)));
        }
        for option in [
            "max_split_size_mb:24",
            "roundup_power2_divisions:4",
            "garbage_collection_threshold:0.6,per_process_memory_fraction:0.8",
            "fragLimit:33554432,defragLevel:1",
            "large_segment_size_mb:12",
        ] {
            if bytes.one_in(SELDOM) {
                add(option);
            }
        }
        Self { capacity, streams, callback: bytes.one_in(4), options }
    }
}
