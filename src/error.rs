//! What can go wrong in an allocator, typed by what the caller can do about it.

use crate::driver::DriverError;
use crate::units::format_bytes;
use std::fmt;

/// The result of an allocator's operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation did not happen. Live allocations are as they were before the call; free memory may have gone back to
/// the driver.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// There is not enough memory. Free some and try again; the report says what is held where.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// No device has this much memory.
    #[error("a request of {size} bytes is larger than any allocation may be (2^60 bytes)")]
    RequestTooLarge {
        /// Bytes asked for.
        size: u64,
    },
    /// The address is not that of a live allocation of this allocator: freed already, or never handed out.
    #[error("{address:#x} is not the address of a live allocation (freed twice, or of another allocator?)")]
    InvalidAddress {
        /// The address.
        address: u64,
    },
    /// An option is outside of what it takes.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// The device cannot do what the strategy needs.
    #[error(
        "strategy `{strategy}` needs virtual memory management, which {device} does not have; `caching` works without"
    )]
    NoVirtualMemory {
        /// The strategy's name.
        strategy: &'static str,
        /// The device's name.
        device: String,
    },
    /// The driver failed in another way than for want of memory.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A rule that always holds inside the allocator did not. Please report it.
    #[error("internal error in memquilt: {0}")]
    Internal(&'static str),
}

impl Error {
    /// Whether freeing memory and trying again may help.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory(_))
    }
}

/// Who held what when a request could not be met. All sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The device's name.
    pub device: String,
    /// What the program asked for.
    pub requested: u64,
    /// What would have been taken from the driver for it.
    pub segment: u64,
    /// The device's memory.
    pub device_total: u64,
    /// What the device had free after all that could be given back was; 0 where the driver did not say.
    pub device_free: u64,
    /// What this allocator may hold at most, if it is limited.
    pub limit: Option<u64>,
    /// What it holds.
    pub reserved: u64,
    /// Of `reserved`, in blocks that the program has not freed.
    pub allocated: u64,
    /// Of `reserved`, in freed blocks that other streams still use.
    pub pending: u64,
    /// The largest free block that this request might have taken: of its stream and pool.
    pub largest_free: u64,
    /// Free bytes in pools of other streams, small and large, which this strategy does not share.
    pub free_on_other_streams: u64,
}

impl OutOfMemory {
    /// Bytes held but not handed out and not waiting.
    #[must_use]
    pub fn unallocated(&self) -> u64 {
        self.reserved.saturating_sub(self.allocated.saturating_add(self.pending))
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "out of memory: tried to allocate {}. {} has a total capacity of {} of which {} is free.",
            format_bytes(self.requested),
            self.device,
            format_bytes(self.device_total),
            format_bytes(self.device_free),
        )?;
        if let Some(limit) = self.limit {
            write!(f, " This allocator may hold {}.", format_bytes(limit))?;
        }
        write!(
            f,
            " It holds {}: {} allocated, {} freed but still used by other streams, {} unallocated. The largest free block for \
             this request is {}",
            format_bytes(self.reserved),
            format_bytes(self.allocated),
            format_bytes(self.pending),
            format_bytes(self.unallocated()),
            format_bytes(self.largest_free),
        )?;
        if self.free_on_other_streams > 0 {
            write!(f, "; {} lies free in pools of other streams", format_bytes(self.free_on_other_streams))?;
        }
        f.write_str(".")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_names_every_figure() {
        let report = OutOfMemory {
            device: "sim:h200".into(),
            requested: 3 << 30,
            segment: 3 << 30,
            device_total: 80 << 30,
            device_free: 1 << 30,
            limit: Some(79 << 30),
            reserved: 78 << 30,
            allocated: 60 << 30,
            pending: 2 << 30,
            largest_free: 2 << 30,
            free_on_other_streams: 5 << 30,
        };
        assert_eq!(report.unallocated(), 16 << 30);
        let text = Error::OutOfMemory(Box::new(report)).to_string();
        for part in ["3.00 GiB", "80.00 GiB", "1.00 GiB is free", "79.00 GiB", "16.00 GiB unallocated", "5.00 GiB lies"]
        {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
    }
}
