//! The reports of guard mode: the allocation to which an address belongs, and the mistakes of the program.
//!
//! Owns: the plain values and their texts. `features/guard/` finds the mistakes.

use seamalloc_driver::StreamId;
use seamalloc_driver::units::format_bytes;
use std::fmt;

/// An allocation in the records of guard mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct GuardedAllocation {
    /// The number of the allocation: the first one of the allocator is 1.
    pub number: u64,
    /// The address of the allocation's first byte.
    pub address: u64,
    /// Bytes as requested.
    pub size: u64,
    /// Bytes with rounding. A guarded allocation has no mapped memory after these bytes.
    pub rounded: u64,
    /// The stream that the allocation was made for.
    pub stream: StreamId,
    /// Whether the allocation has memory of its own between addresses without memory.
    pub guarded: bool,
    /// The free of the allocation; `None` while the allocation is live.
    pub freed: Option<Freed>,
}

/// The free of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Freed {
    /// The number of allocations made before the free.
    pub after: u64,
    /// The stream that the free named; the allocation's stream if the free named none.
    pub stream: StreamId,
    /// The state of the memory after the free.
    pub memory: FreedMemory,
}

/// The state of freed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum FreedMemory {
    /// The memory stays mapped until the GPU has passed its uses on all streams.
    Mapped,
    /// The memory is unmapped, and its addresses are kept from reuse.
    Unmapped,
    /// The allocation was not guarded: its memory serves other requests.
    Reused,
}

/// The place of an address relative to an allocation, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Place {
    /// This many bytes after the first byte, within the requested size.
    Inside(u64),
    /// This many bytes after the last requested byte: 0 is the byte directly after it.
    Behind(u64),
    /// This many bytes before the first byte: 1 is the byte directly before it.
    Before(u64),
}

/// The allocation to which an address belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Explanation {
    /// The address.
    pub address: u64,
    /// The place of the address relative to the allocation.
    pub place: Place,
    /// The allocation to which the address belongs, or at whose edge the address lies.
    pub allocation: GuardedAllocation,
}

/// A mistake of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Finding {
    /// An allocation was freed that was freed already. The second free did nothing.
    DoubleFree(Explanation),
    /// An address inside of an allocation, or at its edge, was freed. The free did nothing.
    WrongFree(Explanation),
    /// The bytes after an allocation were written, the first one at this address.
    Overrun(Explanation),
    /// The bytes before an allocation were written, the last one at this address.
    Underrun(Explanation),
    /// Memory was written after its free, the first byte seen at this address.
    WriteAfterFree(Explanation),
    /// Memory was freed before the GPU had passed another stream's work on the memory, and `record_stream` did not name
    /// this stream. Another use of the memory could begin before that work ends, unless the allocation's stream waits
    /// for the other stream first. In guard mode the memory waits for the other stream, so that this run is not harmed.
    MissingRecordStream {
        /// The allocation.
        allocation: GuardedAllocation,
        /// The stream that used the memory.
        used_on: StreamId,
    },
}

impl Finding {
    /// Returns the allocation in which the mistake was made.
    #[must_use]
    pub fn allocation(&self) -> &GuardedAllocation {
        match self {
            Self::DoubleFree(of)
            | Self::WrongFree(of)
            | Self::Overrun(of)
            | Self::Underrun(of)
            | Self::WriteAfterFree(of) => &of.allocation,
            Self::MissingRecordStream { allocation, .. } => allocation,
        }
    }

    /// Returns a short name: `double_free`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::DoubleFree(_) => "double_free",
            Self::WrongFree(_) => "wrong_free",
            Self::Overrun(_) => "overrun",
            Self::Underrun(_) => "underrun",
            Self::WriteAfterFree(_) => "write_after_free",
            Self::MissingRecordStream { .. } => "missing_record_stream",
        }
    }
}

/// The memory that guard mode holds, and the mistakes that it has found. All figures are 0 if guard mode is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct GuardStats {
    /// Allocations that were guarded so far.
    pub guarded: u64,
    /// Allocations that should have been guarded, and were not: there was too little memory, a limit forbade it, or
    /// more than a quarter of their memory would have been slack.
    pub unguarded: u64,
    /// Physical bytes of guarded allocations, live and freed ones that are still mapped.
    pub held_bytes: u64,
    /// The part of `held_bytes` that no allocation asked for: the loss from mapping in units of 2 MiB.
    pub slack_bytes: u64,
    /// Freed allocations whose addresses are kept from reuse.
    pub quarantined: u64,
    /// Bytes of address space of the quarantined allocations.
    pub quarantined_bytes: u64,
    /// Mistakes found.
    pub findings: u64,
}

impl fmt::Display for GuardedAllocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, address, size, stream, .. } = self;
        write!(f, "allocation #{number} ({} at {address:#x}, of stream {stream}", bytes(*size))?;
        match self.freed {
            None => f.write_str(", live)"),
            Some(Freed { after, stream, memory }) => {
                let became = match memory {
                    FreedMemory::Mapped => "still mapped",
                    FreedMemory::Unmapped => "unmapped since",
                    FreedMemory::Reused => "its memory serves others",
                };
                write!(f, ", freed on stream {stream} after allocation #{after}, {became})")
            }
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, place, allocation } = self;
        match place {
            Place::Inside(0) => write!(f, "{address:#x} is the first byte of {allocation}"),
            Place::Inside(offset) => write!(f, "{address:#x} is {} into {allocation}", bytes(*offset)),
            Place::Behind(0) => write!(f, "{address:#x} is the first byte behind {allocation}"),
            Place::Behind(distance) => write!(f, "{address:#x} is {} behind the end of {allocation}", bytes(*distance)),
            Place::Before(distance) => write!(f, "{address:#x} is {} before {allocation}", bytes(*distance)),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DoubleFree(of) => write!(f, "freed twice: {of}"),
            Self::WrongFree(of) => write!(f, "freed at a wrong address: {of}"),
            Self::Overrun(of) => write!(f, "written beyond the end: {of}"),
            Self::Underrun(of) => write!(f, "written before the beginning: {of}"),
            Self::WriteAfterFree(of) => write!(f, "written after the free: {of}"),
            Self::MissingRecordStream { allocation, used_on } => write!(
                f,
                "freed without record_stream: {allocation} is used by work of stream {used_on}, which has not ended. \
                 Before the free, name stream {used_on} with record_stream, or let stream {} wait for it",
                allocation.stream
            ),
        }
    }
}

/// A number of bytes, exact while it is small.
fn bytes(count: u64) -> String {
    match count {
        1 => "1 byte".to_owned(),
        0..10_000 => format!("{count} bytes"),
        _ => format!("{} ({count} bytes)", format_bytes(count)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_say_what_an_author_needs() {
        let live = GuardedAllocation {
            number: 123,
            address: 0x4000,
            size: 1000,
            rounded: 1024,
            stream: StreamId(7),
            guarded: true,
            freed: None,
        };
        let freed = Freed { after: 150, stream: StreamId(9), memory: FreedMemory::Unmapped };
        let freed = GuardedAllocation { freed: Some(freed), size: 3 << 20, ..live };
        let of = |place, allocation| Explanation { address: 0x4100, place, allocation };
        for (finding, text) in [
            (
                Finding::DoubleFree(of(Place::Inside(0), freed)),
                "freed twice: 0x4100 is the first byte of allocation #123 (3.00 MiB (3145728 bytes) at 0x4000, of \
                 stream 0x7, freed on stream 0x9 after allocation #150, unmapped since)",
            ),
            (
                Finding::Overrun(of(Place::Behind(4), live)),
                "written beyond the end: 0x4100 is 4 bytes behind the end of allocation #123 (1000 bytes at 0x4000, of \
                 stream 0x7, live)",
            ),
            (
                Finding::MissingRecordStream { allocation: live, used_on: StreamId(8) },
                "freed without record_stream: allocation #123 (1000 bytes at 0x4000, of stream 0x7, live) is used by \
                 work of stream 0x8, which has not ended. Before the free, name stream 0x8 with record_stream, or let \
                 stream 0x7 wait for it",
            ),
        ] {
            assert_eq!(finding.to_string(), text);
        }
    }
}
