//! A program: the options of an allocator, and operations, made of an input's bytes.
//!
//! Owns: the operations there are, and what their numbers stand for. Numbers that choose among things there are (blocks,
//! streams, pools) are taken modulo how many there are, so that every input is a program.

use arbitrary::{Arbitrary, Unstructured};
use seamalloc::StrategyKind;
use seamalloc::driver::{Call, CaptureMode, Status};

pub(super) const MIB: u64 = 1 << 20;

/// Capacities of the device in MiB.
const CAPACITIES: [u64; 4] = [64, 256, 1024, 4096];
/// Streams in use: few, so that memory of one meets that of another, or many.
const STREAMS: [u64; 4] = [1, 2, 5, 30];

/// Half of the programs are of the default strategy, which has the most to get wrong.
const STRATEGIES: [StrategyKind; 6] = [
    StrategyKind::Stitch,
    StrategyKind::Stitch,
    StrategyKind::Stitch,
    StrategyKind::Gmlake,
    StrategyKind::Expandable,
    StrategyKind::Caching,
];

/// What a failing call answers: shortage, which is overcome where possible, and worse.
const STATUSES: [Status; 5] =
    [Status::OUT_OF_MEMORY, Status::OUT_OF_MEMORY, Status::UNKNOWN, Status::INVALID_VALUE, Status::NOT_SUPPORTED];

pub(super) fn pick<T: Copy>(from: &[T], at: u8) -> T {
    from[usize::from(at) % from.len()]
}

/// The device and the options.
#[derive(Arbitrary, Debug)]
pub(super) struct Setup {
    strategy: u8,
    capacity: u8,
    streams: u8,
    sharing: Option<u8>,
    chunk_size: Option<u8>,
    max_views: Option<u8>,
    max_view_mappings: Option<u8>,
    max_view_address_space: Option<u8>,
    max_split_size: bool,
    roundup: bool,
    garbage_collection: bool,
    defragmentation: bool,
    large_segments: bool,
    /// Whether a callback frees memory under pressure, and calls the allocator.
    pub(super) callback: bool,
}

impl Setup {
    pub(super) fn capacity(&self) -> u64 {
        pick(&CAPACITIES, self.capacity) * MIB
    }

    pub(super) fn streams(&self) -> u64 {
        pick(&STREAMS, self.streams)
    }

    /// The options as text.
    pub(super) fn options(&self) -> String {
        let mut options = format!("strategy:{}", pick(&STRATEGIES, self.strategy));
        let mut add = |option: String| options += &format!(",{option}");
        if let Some(at) = self.sharing {
            add(format!("sharing:{}", pick(&["never", "completed", "wait"], at)));
        }
        if let Some(at) = self.chunk_size {
            add(format!("chunk_size_mb:{}", pick(&[2, 4, 6, 20, 64], at)));
        }
        if let Some(views) = self.max_views {
            add(format!("max_views:{}", views % 6));
        }
        if let Some(mappings) = self.max_view_mappings {
            add(format!("max_view_mappings:{}", mappings % 40));
        }
        if let Some(bytes) = self.max_view_address_space {
            add(format!("max_view_address_space:{}MiB", 2 * (u64::from(bytes) + 1)));
        }
        let flags = [
            (self.max_split_size, "max_split_size_mb:24"),
            (self.roundup, "roundup_power2_divisions:4"),
            (self.garbage_collection, "garbage_collection_threshold:0.6,per_process_memory_fraction:0.8"),
            (self.defragmentation, "fragLimit:33554432,defragLevel:1"),
            (self.large_segments, "large_segment_size_mb:12"),
        ];
        flags.iter().filter(|(on, _)| *on).for_each(|(_, option)| add((*option).to_owned()));
        options
    }
}

/// Requested bytes: most of them around the sizes at which rules change.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum Size {
    Tiny(u8),
    Small(u16),
    AroundOneMib(i8),
    Chunks(u8),
    UpTo16Mib(u16),
    AroundTenMib(i8),
    UpTo64Mib(u16),
    OfDevice(u8),
}

impl Size {
    pub(super) fn bytes(self, capacity: u64) -> u64 {
        let around = |middle: u64, by: i8| middle.saturating_add_signed(i64::from(by) * 8);
        match self {
            Self::Tiny(n) => 1 + u64::from(n) * 4,
            Self::Small(n) => 1 + u64::from(n) * 16,
            Self::AroundOneMib(by) => around(MIB, by),
            Self::Chunks(n) => 2 * MIB * (1 + u64::from(n) % 24),
            Self::UpTo16Mib(n) => 1 + u64::from(n) * 256,
            Self::AroundTenMib(by) => around(10 * MIB, by),
            Self::UpTo64Mib(n) => 1 + u64::from(n) * 1024,
            Self::OfDevice(n) => capacity / 512 * (u64::from(n) + 1),
        }
    }
}

/// How a block is freed.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum How {
    Plainly,
    /// After a use on a stream that `record_stream` names.
    Recorded(u8),
    /// `free_on`, after a use on that stream.
    On(u8),
    /// `free_under`, after a use on that stream that nobody named.
    Under(u8),
}

/// An operation. Blocks, pools and the like are numbers among those there are.
#[derive(Clone, Debug)]
pub(super) enum Op {
    OnBlock(OnBlock),
    Other(Other),
}

impl<'a> Arbitrary<'a> for Op {
    /// Three of four operations are on blocks, so that there are some for the others to matter to.
    fn arbitrary(bytes: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        match bytes.ratio(3, 4)? {
            true => Ok(Self::OnBlock(bytes.arbitrary()?)),
            false => Ok(Self::Other(bytes.arbitrary()?)),
        }
    }
}

/// An operation on a block, or time that goes on.
#[derive(Arbitrary, Clone, Debug)]
pub(super) enum OnBlock {
    Allocate { size: Size, stream: u8 },
    AllocateIn { pool: u8, size: Size, stream: u8, only_held: bool },
    Free { block: u8, how: How },
    Launch { block: u8, stream: u8, long: bool },
    Advance { us: u16 },
}

/// Any other operation.
#[derive(Arbitrary, Clone, Debug)]
pub(super) enum Other {
    RunAhead {
        us: u16,
    },
    EmptyCache,
    Trim {
        part: u8,
    },
    Limit {
        part: Option<u8>,
    },
    Fraction {
        percent: u8,
    },
    ForgetStream {
        stream: u8,
        destroy: bool,
    },
    /// The program gives a stream up without a word, and makes one with the same handle.
    ReplaceStream {
        stream: u8,
    },
    BorrowStream {
        stream: u8,
    },
    CreatePool,
    OpenPoolWithSegments {
        unsplit: bool,
        own_source: bool,
    },
    /// A pool without uses, whose memory waits for the device, is used again.
    ReopenPool {
        which: u8,
    },
    KeepPoolUnsplit {
        pool: u8,
    },
    RetainPool {
        pool: u8,
    },
    ReleasePool {
        pool: u8,
    },
    EmptyPool {
        pool: u8,
    },
    BeginRoute {
        pool: u8,
        stream: u8,
    },
    EndRoute {
        pool: u8,
    },
    BeginCapture {
        pool: u8,
        stream: u8,
        mode: u8,
    },
    EndCapture,
    LaunchGraph {
        graph: u8,
        stream: u8,
    },
    TakeCheckpoint {
        pool: u8,
    },
    Restore {
        checkpoint: u8,
    },
    /// The callback may free the block.
    LeaveToCallback {
        block: u8,
    },
    Share {
        block: u8,
    },
    OpenShared {
        handle: [u8; 24],
    },
    WrongAddress {
        address: u64,
    },
    NextToBlock {
        block: u8,
        by: u8,
    },
    TooLarge {
        which: u8,
        stream: u8,
    },
    ConnectPeer {
        ordinal: u8,
    },
    Fail {
        call: u8,
        nth: u8,
        status: u8,
    },
    FailNoMore,
    /// Every later call fails, as after a failed kernel. Seldom, since little can happen afterwards.
    LoseContext {
        really: [bool; 8],
    },
    ResetStats,
    Look,
}

pub(super) fn call(at: u8) -> Call {
    pick(&Call::ALL, at)
}

pub(super) fn status(at: u8) -> Status {
    pick(&STATUSES, at)
}

pub(super) fn capture_mode(at: u8) -> CaptureMode {
    pick(&[CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed], at)
}

/// Requests that no device can meet, and some that overflow a careless sum.
pub(super) fn too_large(at: u8) -> u64 {
    pick(&[u64::MAX, u64::MAX - 511, 1 << 63, (1 << 60) + 1, 1 << 60, 1 << 47], at)
}
