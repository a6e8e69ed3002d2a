//! The typed options: the meaning, default and range of each.
//!
//! Owns: [`Config`] and its parts. `syntax.rs` reads and writes them as text.

use super::classic::ClassicOptions;
use super::error::ConfigError;
use super::guard::{GuardOptions, VALUES};
use super::paddle::PaddleFlags;
use super::strategy_kind::StrategyKind;
use crate::config::rounding::{LARGE_SEGMENT, ROUNDUP_INTERVALS, RoundupDivisions};

pub(super) const MIB: u64 = 1 << 20;
/// PyTorch's lower bound of `large_segment_size_mb`: a segment must hold any request that shares one.
const MIN_LARGE_SEGMENT_MB: u64 = 10;

/// When memory freed on one stream may serve another. Only the strategy `stitch` shares memory between streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum StreamSharing {
    /// Never, as in PyTorch.
    Never,
    /// When the GPU has completed the work before the free.
    Completed,
    /// At once, behind a GPU-side wait for the free, and for the streams that `record_stream` named. Programs run far ahead of the GPU,
    /// so that waiting for completion alone gains nothing.
    #[default]
    Wait,
}

impl StreamSharing {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::Never, Self::Completed, Self::Wait];

    /// Returns the name, as in options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Completed => "completed",
            Self::Wait => "wait",
        }
    }
}

/// Whether chunks of physical memory that are partly in use are split, so that what lies free inside of them serves any
/// request, with the strategy `stitch`. The parts in use get other physical memory under the same addresses, contents kept.
///
/// # No work may use the memory meanwhile
/// Before an exchange the CPU waits for the device. Until the allocation returns, no thread may give it work that uses memory
/// of the allocator: its addresses have no memory for some microseconds. A program whose threads take turns keeps to this by
/// itself, as PyTorch does with one training loop. One whose threads launch kernels beside each other does not.
/// Memory of private pools (CUDA graphs) is exchanged too, so no graph may be launched meanwhile.
///
/// Memory that other processes were given is never exchanged; nothing is, during captures, in guard mode, or once another
/// device has access. Memory that is registered elsewhere (NCCL, RDMA) must be named to
/// [`Sharing::pin_physical`](crate::operations::Sharing::pin_physical).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Split {
    /// Never.
    #[default]
    Off,
    /// Before a request is refused.
    LastResort,
}

impl Split {
    /// Every choice.
    pub const ALL: [Self; 2] = [Self::Off, Self::LastResort];

    /// Returns the name, as in options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::LastResort => "last_resort",
        }
    }
}

/// The options of an allocator. The defaults are PyTorch's, except that the strategy is `stitch`.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What happens on a miss. `expandable_segments:True` is the same as [`StrategyKind::Expandable`].
    pub strategy: StrategyKind,
    /// Whether the program has chosen the strategy: by its name in text, by [`Self::with_strategy`] or [`Self::of_strategy`], or here. Then a
    /// device without the virtual memory that it needs is an error, [`Error::NoVirtualMemory`](crate::Error::NoVirtualMemory). Otherwise
    /// `caching` takes the place of the default there, with a warning ([`Reports::fallback_from`](crate::operations::Reports::fallback_from)). Any strategy
    /// but the default counts as chosen.
    pub strategy_named: bool,
    /// Blocks of at least this many bytes are not split, and serve only requests of at least this size. `None`: no
    /// limit. At least [`Config::large_segment_size`]. As in PyTorch, blocks of expandable segments are split all the
    /// same.
    pub max_split_size: Option<u64>,
    /// By how many bytes an unsplit block of at least `max_split_size` may exceed the request it serves.
    pub max_non_split_rounding: u64,
    /// Bytes of the segments that requests from 1 to 10 MiB share, and the unit in which expandable segments of large
    /// requests grow. A multiple of 2 MiB, more than 10 MiB.
    pub large_segment_size: u64,
    /// The number of parts into which each power of two is divided for rounding a request up, from 1 MiB to 32 GiB. 0:
    /// off.
    pub roundup_power2_divisions: RoundupDivisions,
    /// Above this part (0 to 1) of the memory limit, unused segments older than the average are given back before a
    /// new one is taken. 0: never. Without effect unless [`Config::memory_fraction`] is below 1, as in PyTorch.
    pub garbage_collection_threshold: f64,
    /// The part (0 to 1) of the device's memory that the allocator may hold. `None`, or 1: no limit.
    pub memory_fraction: Option<f64>,
    /// The most physical bytes that the allocator may hold at any moment, for any purpose: all that it has taken from
    /// the driver and not given back. `None`: no limit. If `memory_fraction` allows less, the lower limit counts.
    pub memory_limit: Option<u64>,
    /// The bytes of the device that stay free for others: NCCL, cuBLAS, other processes. Memory does not grow into them: what is free is
    /// used first, then given back, and then the request is refused. Where others take of them nevertheless, free memory goes back at a miss
    /// until they are free again ([`DeviceLending::enforce_headroom`](crate::operations::DeviceLending::enforce_headroom)). The limits hold beside it. 0: none.
    pub headroom: u64,
    /// When memory freed on one stream may serve another, with the strategy `stitch`.
    pub sharing: StreamSharing,
    /// Whether chunks that are partly in use are split.
    pub split: Split,
    /// How many bytes of the machine's memory may be taken, with the strategy `stitch`, so that live memory which does not fit
    /// the device lies there. Before a request is refused, chunks that were not used for long are then backed by the
    /// machine's memory, at their addresses and with their contents; kernels that use them take longer. `None`: none.
    ///
    /// What a program must keep to is what [`Split`] asks: while it allocates, no other thread launches work that uses memory of
    /// the allocator.
    pub spill: Option<u64>,
    /// The most bytes of page-locked memory of the machine that are kept while they serve nothing, with the strategy `stitch`:
    /// what backups of tags lay in ([`Backup`](crate::Backup)), for the next tag that sleeps, and what was spilled to, for
    /// the next spill. To have a GiB of it takes the machine a third of a second for spilling, and about half of that for backups. What
    /// serves at present does not count. 0: none is kept. `None`: all of the backups' until
    /// [`Tags::release_backups`](crate::operations::Tags::release_backups), and of spilling as much as lay spilled at most, until
    /// [`Allocator::empty_cache`](crate::Allocator::empty_cache).
    pub backup_cache: Option<u64>,
    /// The longest time, in milliseconds, that one request may wait for freed memory that work on the GPU still uses, before it
    /// is refused, with the strategy `stitch`. It waits for what was freed first, until it can be served and an eighth of what
    /// was pending is free. `None`: as long as that takes, and in the end for the whole device. With a number, 0 included, the
    /// CPU does not wait for the device: no chunk is split, and memory of private pools that have ended stays theirs until
    /// [`Allocator::empty_cache`](crate::Allocator::empty_cache) or [`Allocator::trim`](crate::Allocator::trim).
    pub wait_ms: Option<u64>,
    /// After how many seconds in which the program has allocated and freed nothing its free memory goes back to the driver, with
    /// the strategy `stitch`, in the C library and under PyTorch; in Rust [`IdleRelease`](crate::IdleRelease) does it. Not
    /// before a thousand times as long as the driver would take to give it again: 10 s for each GiB. `None`: never.
    pub idle_release_s: Option<u64>,
    /// The most bytes of a chunk of physical memory, with the strategy `stitch`: a multiple of 2 MiB, up to 1 GiB.
    /// Smaller chunks take more time in the driver (about 35 us each) and leave less memory unusable. `None`: 20 MiB,
    /// and more where a request would need over 130 of them.
    pub chunk_size: Option<u64>,
    /// The most chunks that all views together may map, with the strategy `stitch`. Each costs the host about 4.3 KB in the
    /// driver. At this bound and the next two, views unused longest are dropped; where all are in use,
    /// memory grows in one piece, which needs no view.
    pub max_view_mappings: usize,
    /// The most views there may be, with the strategy `stitch`. Each is a reservation of the driver's, and a search for
    /// the one unused longest looks at all of them.
    pub max_views: usize,
    /// The most bytes of address space that all views together may take, with the strategy `stitch`. Home takes up to
    /// twice the device's memory in addition. All devices of a process share one address space.
    pub max_view_address_space: u64,
    /// `fragLimit`, with the strategy `gmlake`: requests of fewer bytes are not stitched. A lower limit saves memory
    /// and costs driver calls.
    pub frag_limit: u64,
    /// `reuseLimit`, with the strategy `gmlake`: an inactive stitched block may be up to this many times as large as the
    /// request that it serves. At least 1: no larger.
    pub reuse_limit: f64,
    /// `defragLevel`, with the strategy `gmlake`: 0 stitches whenever no single block is large enough; 1 only once no
    /// more memory can be had; 2 only after all cached memory was given back too; 3 and more never.
    pub defrag_level: u32,
    /// `autoGC`, with the strategy `gmlake`: the address space of all stitched blocks, in GiB, above which those unused
    /// longest are dropped after a stitch. It refuses none: what is in use, or may be on the GPU, can exceed it. Each GiB costs
    /// the host 2.2 MB in the driver (512 mappings of 4.3 KB).
    pub auto_gc: u64,
    /// The options of the strategies `exact` and `buddy`.
    pub classic: ClassicOptions,
    /// The flags of the strategies of Paddle.
    pub paddle: PaddleFlags,
    /// How many of its last operations the allocator keeps, 16 bytes of host memory each: the flight recorder
    /// ([`Reports::flight`](crate::operations::Reports::flight)). 0: none, and 4 KiB. At most 2^26.
    pub flight_recorder: usize,
    /// The file to which the flight recorder is written when a request is refused, in the C library and under PyTorch; in Rust
    /// `seamalloc_trace::flight` does it. `{pid}` and `{device}` stand for the numbers of the process and of the device. `None`: it is
    /// not written.
    pub flight_dump: Option<String>,
    /// Whether free memory is lent between processes of one user on one device: the socket of a broker (`seamalloc broker`), or `auto` for
    /// `broker.sock` in `$XDG_RUNTIME_DIR/seamalloc` or `/tmp/seamalloc-UID`. A request that the device refuses then asks the others that
    /// have opted in to give free memory back, and they are asked in turn. In the C library and under PyTorch; in Rust
    /// `seamalloc_broker::Membership` does it. Where no broker listens, everything is as with `off`, which is `None`, and one that starts
    /// later is found within a second.
    pub broker: Option<String>,
    /// The bytes, of what it holds, below which no other process asks this one to give memory back, with the option `broker`. Memory
    /// goes in whole pieces: it may end below by less than one (with `stitch` a chunk). It keeps nobody from using memory that this
    /// process does not hold yet.
    pub broker_guarantee: u64,
    /// How much this process keeps beyond its guarantee while others are short, relative to others, with the option `broker`: where both
    /// have enough to give, one of weight 2 is left with twice as much as one of weight 1. 1 to 1,000,000.
    pub broker_weight: u32,
    /// The longest time, in milliseconds, that one request may wait for memory of other processes before it is refused, with the option
    /// `broker`. Nobody waits where no other process has opted in. 0: they are asked once.
    pub broker_wait_ms: u64,
    /// Guard mode, which finds mistakes of the program, at a high cost. Off by default, and free of cost then.
    pub guard: GuardOptions,
}

/// This many mappings take 0.28 GB of host memory at most.
const MAX_VIEW_MAPPINGS: usize = 64 << 10;
/// A quarter of the mappings, so that views reach this bound first only if they have fewer than four chunks on average.
/// Recorded jobs have some hundred views.
const MAX_VIEWS: usize = 16 << 10;
/// In bytes. The driver was seen to reserve 64 TiB and no more: half of them suffice for the views of eight devices.
const MAX_VIEW_ADDRESS_SPACE: u64 = 4 << 40;
/// In bytes: every large request. The default of GMLake's release is 512 MiB (CUDACachingAllocator.cpp:2715); its
/// tutorial says to lower it if too much memory stays fragmented, and to raise it if stitching does not end. It ends on
/// every recorded job, and two of them reserve a fifth to a third less with this value.
const FRAG_LIMIT: u64 = 2 << 20;
/// The default of GMLake's release, and the value in all of its examples.
const REUSE_LIMIT: f64 = 10.0;
/// The default of GMLake's release, in GiB (CUDACachingAllocator.cpp:2729): 512,000 mappings, which cost the host 2.2 GB. The
/// README of the release sets 80, with which the same memory takes slightly more driver calls.
const AUTO_GC: u64 = 1000;

/// Operations: 256 KiB, an eighth or a quarter of what a core keeps at hand (L2), so that writing round and round drives little else
/// out.
const FLIGHT_RECORDER: usize = 16 << 10;
/// In milliseconds: the phases of training and generation that take turns on a GPU take seconds.
const BROKER_WAIT_MS: u64 = 10_000;
/// So that a share of the memory of the largest devices can be computed in 128 bits.
const MAX_BROKER_WEIGHT: u32 = 1_000_000;

/// Operations: 1 GiB.
const MAX_FLIGHT_RECORDER: usize = 1 << 26;

impl Default for Config {
    fn default() -> Self {
        Self {
            strategy: StrategyKind::default(),
            strategy_named: false,
            max_split_size: None,
            max_non_split_rounding: LARGE_SEGMENT,
            large_segment_size: LARGE_SEGMENT,
            roundup_power2_divisions: [0; ROUNDUP_INTERVALS],
            garbage_collection_threshold: 0.0,
            memory_fraction: None,
            memory_limit: None,
            headroom: 0,
            sharing: StreamSharing::default(),
            split: Split::default(),
            spill: None,
            backup_cache: None,
            wait_ms: None,
            idle_release_s: None,
            chunk_size: None,
            max_view_mappings: MAX_VIEW_MAPPINGS,
            max_views: MAX_VIEWS,
            max_view_address_space: MAX_VIEW_ADDRESS_SPACE,
            frag_limit: FRAG_LIMIT,
            reuse_limit: REUSE_LIMIT,
            defrag_level: 0,
            auto_gc: AUTO_GC,
            classic: ClassicOptions::DEFAULT,
            paddle: PaddleFlags::DEFAULT,
            flight_recorder: FLIGHT_RECORDER,
            flight_dump: None,
            broker: None,
            broker_guarantee: 0,
            broker_weight: 1,
            broker_wait_ms: BROKER_WAIT_MS,
            guard: GuardOptions::OFF,
        }
    }
}

impl Config {
    /// The default options with another strategy.
    #[must_use]
    pub fn with_strategy(strategy: StrategyKind) -> Self {
        Self::default().of_strategy(strategy)
    }

    /// Returns these options with another strategy, which the program has chosen.
    #[must_use]
    pub fn of_strategy(self, strategy: StrategyKind) -> Self {
        Self { strategy, strategy_named: true, ..self }
    }

    /// Returns whether a device must have what the strategy needs.
    pub(crate) fn insists_on_strategy(&self) -> bool {
        self.strategy_named || self.strategy != StrategyKind::default()
    }

    /// Returns whether chunks may be split: that takes a wait for the device, which a bound on waits forbids.
    pub(crate) fn splits(&self) -> bool {
        self.split != Split::Off && self.wait_ms.is_none()
    }

    /// Returns whether streams are safe by the rule of Paddle's `StreamSafeCUDAAllocator`.
    pub(crate) fn paddle_stream_safe(&self) -> bool {
        self.paddle.use_stream_safe_cuda_allocator && StrategyKind::PADDLE.contains(&self.strategy)
    }

    /// Checks the ranges of options, and options that depend on one another.
    ///
    /// # Errors
    /// [`ConfigError::BadValue`] for the first option that is outside of its range.
    pub fn validated(self) -> Result<Self, ConfigError> {
        let bad = |option: &str, found: String, expected: String| {
            Err(ConfigError::BadValue { option: option.to_owned(), found, expected })
        };
        let segment = self.large_segment_size;
        if segment <= MIN_LARGE_SEGMENT_MB * MIB || !segment.is_multiple_of(2 * MIB) || segment > 1 << 40 {
            let expected = format!("an even number of MiB above {MIN_LARGE_SEGMENT_MB}, up to 1048576");
            return bad("large_segment_size_mb", in_mib(segment), expected);
        }
        let least = || format!("at least large_segment_size_mb ({})", segment / MIB);
        if let Some(size) = self.max_split_size.filter(|size| *size < segment) {
            return bad("max_split_size_mb", in_mib(size), least());
        }
        if self.max_non_split_rounding < segment {
            return bad("max_non_split_rounding_mb", in_mib(self.max_non_split_rounding), least());
        }
        let threshold = self.garbage_collection_threshold;
        if !(threshold == 0.0 || (threshold > 0.0 && threshold < 1.0)) {
            return bad("garbage_collection_threshold", threshold.to_string(), "a number above 0 and below 1".into());
        }
        let chunk_sizes = 2 * MIB..=1024 * MIB;
        let odd = |size: &u64| !chunk_sizes.contains(size) || !size.is_multiple_of(2 * MIB);
        if let Some(size) = self.chunk_size.filter(odd) {
            return bad("chunk_size_mb", in_mib(size), "an even number of MiB from 2 to 1024".into());
        }
        if let Some(fraction) = self.memory_fraction.filter(|fraction| !(0.0..=1.0).contains(fraction)) {
            return bad("per_process_memory_fraction", fraction.to_string(), "a number from 0 to 1".into());
        }
        if let Some(division) = self.roundup_power2_divisions.iter().find(|d| **d != 0 && !d.is_power_of_two()) {
            return bad("roundup_power2_divisions", division.to_string(), "a power of two, or 0 for off".into());
        }
        if let Some((option, found, expected)) = self.classic.out_of_range().or_else(|| self.paddle.out_of_range()) {
            return bad(option, found, expected.into());
        }
        if self.flight_recorder > MAX_FLIGHT_RECORDER {
            let expected = format!("a whole number of operations up to {MAX_FLIGHT_RECORDER}, or 0");
            return bad("flight_recorder", self.flight_recorder.to_string(), expected);
        }
        let is_no_path = |path: &String| path.is_empty() || path.contains([',', '[', ']', '\0', '\n']);
        for (option, path) in [("flight_dump", &self.flight_dump), ("broker", &self.broker)] {
            if let Some(path) = path.as_ref().filter(|path| is_no_path(path)) {
                return bad(option, path.clone(), "the name of a file, without commas and brackets".into());
            }
        }
        if !(1..=MAX_BROKER_WEIGHT).contains(&self.broker_weight) {
            let expected = format!("a whole number from 1 to {MAX_BROKER_WEIGHT}");
            return bad("broker_weight", self.broker_weight.to_string(), expected);
        }
        if !self.guard.is_whole() {
            return bad("guard", self.guard.to_string(), VALUES.into());
        }
        if self.guard.sample == 0 {
            return bad("guard_sample", "0".into(), "a whole number from 1".into());
        }
        if !(self.reuse_limit >= 1.0 && self.reuse_limit.is_finite()) {
            return bad("reuseLimit", self.reuse_limit.to_string(), "a number of at least 1".into());
        }
        Ok(self)
    }
}

fn in_mib(bytes: u64) -> String {
    if bytes.is_multiple_of(MIB) { format!("{}", bytes / MIB) } else { format!("{bytes} bytes") }
}
