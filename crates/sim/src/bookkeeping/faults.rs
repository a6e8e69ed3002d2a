//! Reports of a device beyond the driver's answers: invalid uses of memory, and resources that were not given back.
//!
//! Owns: the reports and their text. Memory and streams find the faults.

use std::fmt;

use seamalloc_driver::StreamId;
use seamalloc_driver::units::format_bytes;

/// Addresses that a kernel uses, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// The first address.
    pub address: u64,
    /// The number of addresses.
    pub size: u64,
}

impl Range {
    /// Returns the part of `self` that also lies in `other`, if any.
    pub(crate) fn overlap(self, other: Self) -> Option<Self> {
        let address = self.address.max(other.address);
        let end = self.address.saturating_add(self.size).min(other.address.saturating_add(other.size));
        (address < end).then(|| Self { address, size: end - address })
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:#x}", format_bytes(self.size), self.address)
    }
}

/// A use of memory that on a real GPU may lose the context, or give wrong results without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// A kernel uses addresses without memory.
    UnmappedUse {
        /// The first stretch without memory.
        range: Range,
        /// The kernel's stream.
        stream: StreamId,
    },
    /// A kernel uses memory that is mapped, but has no access by `set_access`.
    NoAccess {
        /// The first stretch without access.
        range: Range,
        /// The kernel's stream.
        stream: StreamId,
    },
    /// A kernel uses memory that the allocator filled last: freed memory, or the bytes around an allocation. The driver
    /// allows this use, which is always a mistake of the program. Only guard mode fills memory, and only the simulated
    /// GPU detects this use.
    MarkedUse {
        /// The first stretch of filled bytes.
        range: Range,
        /// The kernel's stream.
        stream: StreamId,
    },
    /// Memory was unmapped while a kernel may still use it.
    UnmapInUse {
        /// The part of the memory that the kernel uses.
        range: Range,
        /// The kernel's stream.
        stream: StreamId,
    },
    /// Memory of a stream-ordered pool was freed on a stream that is not ordered after a kernel that may still use the
    /// memory.
    FreedInUse {
        /// The part of the memory that the kernel uses.
        range: Range,
        /// The kernel's stream.
        stream: StreamId,
    },
}

impl Fault {
    /// Returns the addresses that were used wrongly, and the stream of the kernel.
    #[must_use]
    pub fn place(&self) -> (Range, StreamId) {
        match *self {
            Self::UnmappedUse { range, stream }
            | Self::NoAccess { range, stream }
            | Self::MarkedUse { range, stream }
            | Self::UnmapInUse { range, stream }
            | Self::FreedInUse { range, stream } => (range, stream),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnmappedUse { range, stream } => {
                write!(f, "a kernel on stream {stream} uses {range}, where nothing is mapped")
            }
            Self::NoAccess { range, stream } => {
                write!(f, "a kernel on stream {stream} uses {range}, mapped but without access")
            }
            Self::MarkedUse { range, stream } => {
                write!(
                    f,
                    "a kernel on stream {stream} uses {range}, which the allocator has filled: it is not the program's"
                )
            }
            Self::UnmapInUse { range, stream } => {
                write!(f, "{range} was unmapped while a kernel on stream {stream} may still use it")
            }
            Self::FreedInUse { range, stream } => {
                write!(
                    f,
                    "{range} was freed on a stream that does not wait for a kernel on stream {stream}, which uses it"
                )
            }
        }
    }
}

/// Resources that are still held on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leaks {
    /// Reservations of address space.
    pub reservations: usize,
    /// Handles that were not released.
    pub handles: usize,
    /// Mappings.
    pub mappings: usize,
    /// Allocations of `malloc`.
    pub mallocs: usize,
    /// Pools of stream-ordered memory.
    pub pools: usize,
    /// Allocations from pools.
    pub pooled: usize,
    /// Streams that an allocator created.
    pub streams: usize,
    /// Events.
    pub events: usize,
    /// Buffers of page-locked host memory.
    pub host_buffers: usize,
    /// Physical bytes of the handles, mappings, allocations and pools together.
    pub bytes: u64,
    /// Bytes of host memory that [`create_on_host`](seamalloc_driver::VirtualMemory::create_on_host) made.
    pub host_bytes: u64,
}

impl Leaks {
    /// Returns whether all resources were given back.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Leaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("nothing held");
        }
        let Self {
            reservations,
            handles,
            mappings,
            mallocs,
            pools,
            pooled,
            streams,
            events,
            host_buffers,
            bytes,
            host_bytes,
        } = self;
        write!(
            f,
            "still held: {reservations} reservations, {handles} handles, {mappings} mappings, {mallocs} mallocs, \
             {events} events, {}",
            format_bytes(*bytes)
        )?;
        if pools + pooled + streams > 0 {
            write!(f, ", {pools} pools, {pooled} allocations of pools, {streams} streams")?;
        }
        if *host_buffers > 0 {
            write!(f, ", {host_buffers} buffers of the host")?;
        }
        if *host_bytes > 0 {
            write!(f, ", {} of the machine", format_bytes(*host_bytes))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_name_address_size_and_stream() {
        let (range, stream) = (Range { address: 0x4000, size: 4096 }, StreamId(7));
        for fault in [
            Fault::UnmappedUse { range, stream },
            Fault::NoAccess { range, stream },
            Fault::MarkedUse { range, stream },
            Fault::UnmapInUse { range, stream },
            Fault::FreedInUse { range, stream },
        ] {
            let text = fault.to_string();
            for part in ["0x4000", "4.00 KiB", "stream 0x7"] {
                assert!(text.contains(part), "{text}");
            }
        }
    }

    #[test]
    fn ranges_overlap_in_what_both_have() {
        let range = |address, size| Range { address, size };
        assert_eq!(range(0, 10).overlap(range(5, 10)), Some(range(5, 5)));
        assert_eq!(range(5, 10).overlap(range(0, 10)), Some(range(5, 5)));
        assert_eq!(range(0, 10).overlap(range(10, 10)), None);
        assert_eq!(range(0, 10).overlap(range(3, 0)), None);
        assert_eq!(range(u64::MAX, 10).overlap(range(0, u64::MAX)), None);
    }

    #[test]
    fn leaks_say_what_is_held() {
        assert!(Leaks::default().is_empty());
        let leaks = Leaks { handles: 3, bytes: 6 << 20, ..Leaks::default() };
        assert!(!leaks.is_empty());
        assert!(leaks.to_string().contains("3 handles") && leaks.to_string().contains("6.00 MiB"), "{leaks}");
    }
}
