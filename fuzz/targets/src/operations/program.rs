//! A program's operations, made of an input's bytes.
//!
//! Owns: the operations there are, and what their numbers stand for. Numbers that choose among things
//! there are (blocks, streams, pools) are taken modulo how many there are. An operation takes a few bytes, so that a short
//! input is a long program.

use super::bytes::{Bytes, pick};
use seamalloc::driver::{Call, CaptureMode, Status};

pub(super) const MIB: u64 = 1 << 20;

/// The statuses that a failing call returns: shortage, which is overcome where possible, and worse.
const STATUSES: [Status; 5] =
    [Status::OUT_OF_MEMORY, Status::OUT_OF_MEMORY, Status::UNKNOWN, Status::INVALID_VALUE, Status::NOT_SUPPORTED];

/// Requested bytes. Most are parts of the device, so that a dozen blocks fill it, or what was freed just now, so that the
/// memory of a free is asked for soon after it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Size {
    Tiny(u8),
    Small(u8),
    AroundOneMib(u8),
    AroundTenMib(u8),
    /// Multiples of 2 MiB.
    Chunks(u8),
    /// So many 64ths of the device.
    Part(u8),
    Odd(u8, u8),
    /// As much as the n-th last block that was freed.
    Freed(u8),
    /// As much as the n-th last block that was freed, and the one before it.
    TwoFreed(u8),
    /// As much as the last few blocks that were freed, 2 to 5 of them.
    ManyFreed(u8),
    /// Half of the last block that was freed.
    HalfFreed,
    /// All that is not live, or a half or a quarter of it.
    Rest(u8),
}

impl Size {
    pub(super) fn read(bytes: &mut Bytes<'_>) -> Self {
        match bytes.next() {
            0..20 => Self::Tiny(bytes.next()),
            20..40 => Self::Small(bytes.next()),
            40..52 => Self::AroundOneMib(bytes.next()),
            52..60 => Self::AroundTenMib(bytes.next()),
            60..90 => Self::Chunks(bytes.next()),
            at @ 90..150 => Self::Part(at % 12),
            150..165 => Self::Odd(bytes.next(), bytes.next()),
            at @ 165..210 => Self::Freed(at % 4),
            at @ 210..225 => Self::TwoFreed(at % 4),
            at @ 225..237 => Self::ManyFreed(at),
            237..243 => Self::HalfFreed,
            at => Self::Rest(at % 3),
        }
    }

    /// A size that is no part of a small block.
    pub(super) fn read_large(bytes: &mut Bytes<'_>) -> Self {
        match bytes.next() {
            at @ 0..64 => Self::Chunks(at % 8),
            at @ 64..192 => Self::Part(at % 12),
            at => Self::Odd(at, 1 + at % 16),
        }
    }
}

/// How a block is chosen among those that are live.
#[derive(Clone, Copy, Debug)]
pub(super) enum Which {
    Any(u8),
    /// The n-th last that was handed out.
    Newest(u8),
    /// One that a kernel of another stream uses, else one that any kernel uses.
    InUse(u8),
    /// The one of the operation before.
    Last,
}

impl Which {
    pub(super) fn read(bytes: &mut Bytes<'_>) -> Self {
        match bytes.next() {
            at @ 0..96 => Self::Any(at),
            at @ 96..150 => Self::Newest(at % 4),
            at @ 150..216 => Self::InUse(at),
            _ => Self::Last,
        }
    }
}

/// How long a kernel runs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kernel {
    /// Other requests may overtake it.
    Short,
    Long,
    /// 2^n seconds: it ends only where somebody waits for it. Of two streams with such kernels one is far behind the other.
    Endless(u8),
}

impl Kernel {
    pub(super) fn read(bytes: &mut Bytes<'_>) -> Self {
        match bytes.next() {
            0..64 => Self::Short,
            64..112 => Self::Long,
            at => Self::Endless(at % 16),
        }
    }

    pub(super) fn ns(self) -> u64 {
        match self {
            Self::Short => 30_000,
            Self::Long => 1_000_000,
            Self::Endless(n) => 1_000_000_000 << n,
        }
    }
}

/// How a block is freed.
#[derive(Clone, Copy, Debug)]
pub(super) enum How {
    Plainly,
    /// After a use on a stream that `record_stream` names.
    Recorded(u8, Kernel),
    /// `free_on`, after a use on that stream.
    On(u8, Kernel),
    /// `free_with_current_stream`, after a use on that stream that nobody named.
    Under(u8, Kernel),
}

impl How {
    pub(super) fn read(bytes: &mut Bytes<'_>) -> Self {
        match bytes.next() {
            0..112 => Self::Plainly,
            112..160 => Self::Recorded(bytes.next(), Kernel::read(bytes)),
            160..200 => Self::On(bytes.next(), Kernel::read(bytes)),
            _ => Self::Under(bytes.next(), Kernel::read(bytes)),
        }
    }
}

/// How far time goes on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Until {
    Us(u32),
    /// A stream has done its work.
    Done(u8),
}

/// An operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    Allocate {
        size: Size,
        stream: u8,
        kernel: Kernel,
    },
    AllocateIn {
        pool: u8,
        size: Size,
        stream: u8,
        kernel: Kernel,
        only_held: bool,
    },
    Free {
        block: Which,
        how: How,
    },
    Launch {
        block: Which,
        stream: u8,
        kernel: Kernel,
    },
    Advance(Until),
    RunAhead {
        us: u8,
    },
    EmptyCache,
    /// To so many 256ths of the device.
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
    /// The newest graph is the first.
    LaunchGraph {
        graph: u8,
        stream: u8,
        kernel: Kernel,
    },
    TakeCheckpoint {
        pool: u8,
    },
    Restore {
        checkpoint: u8,
    },
    /// The callback may free the block.
    LeaveToCallback {
        block: Which,
    },
    Share {
        block: Which,
    },
    OpenShared {
        handle: [u8; 24],
    },
    WrongAddress {
        address: u64,
    },
    NextToBlock {
        block: Which,
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
        really: bool,
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
