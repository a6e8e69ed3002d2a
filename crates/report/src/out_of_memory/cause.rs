//! The reasons why free memory did not serve a request, and the changes that would have helped.
//!
//! Owns: [`Cause`], [`Limit`] and [`Advice`]. `diagnose` decides which of their values are true.

use seamalloc_config::{Split, StreamSharing};
use seamalloc_driver::units::{format_bytes, format_bytes_exactly};
use std::fmt;

/// The reason why the free memory did not serve the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Cause {
    /// The bytes in use and the request together are more than this allocator may or can hold: no arrangement of memory
    /// would help.
    #[default]
    TooLittle,
    /// The request alone is more than the device has, or than the limit allows: the request would not fit even if all
    /// memory were freed.
    RequestTooLarge,
    /// Enough memory was freed, but work on the GPU still uses this memory, for longer than the request may wait.
    StillUsed {
        /// The option `wait_ms`, in milliseconds.
        most_ms: u64,
    },
    /// A stream capture is under way: until its end, the CPU cannot wait and no memory is given back.
    Capture,
    /// The missing memory is free in private pools, which keep this memory until the pools are released.
    PrivatePools,
    /// The strategy serves a request from one contiguous free range of its stream (`gmlake`: a large request also from
    /// several ranges), or from new memory, and neither is available.
    OneRange,
    /// The request is for a private pool with segments of its own: none of these segments has a free range that is
    /// large enough, and no new segment was available.
    OwnSegments,
    /// The missing memory is free on other streams, from which this stream may not take it, or not yet.
    OtherStreams {
        /// The rule by which the stream may take memory of others.
        sharing: StreamSharing,
    },
    /// A view for the request would exceed `max_views`, `max_view_mappings` or `max_view_address_space`.
    ViewBounds,
    /// The missing memory lies in the free parts of chunks that are partly in use. A view can have only two such
    /// chunks, one at each end.
    PartsOfChunks,
    /// The figures of the report show enough memory: the driver refused a call for another reason, or had no contiguous
    /// addresses.
    Refused,
}

/// A limit on how much an allocator may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Limit {
    /// The option `per_process_memory_fraction`, or
    /// `MemoryLimits::set_fraction`.
    Fraction,
    /// The option `memory_limit`, or `MemoryLimits::set_bytes`.
    Bytes,
    /// The fraction and the limit in bytes: each of them alone forbids the increase.
    Both,
}

/// A change with which the request would have been served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Advice {
    /// The option `sharing:wait`.
    ShareStreams {
        /// Bytes that lie free on other streams.
        free: u64,
    },
    /// A longer wait, by the option `wait_ms`, or a wait without a bound.
    WaitLonger {
        /// Bytes that were freed and are still used.
        pending: u64,
    },
    /// Higher bounds on views. All named bounds must be raised together, since otherwise another bound would be reached
    /// next.
    MoreViews {
        /// The option `max_views`: at least this many.
        views: Option<usize>,
        /// The option `max_view_mappings`: at least this many.
        mappings: Option<usize>,
        /// The option `max_view_address_space`: at least this many bytes.
        address_space: Option<u64>,
    },
    /// The option `split`, if the program obeys the rules of [`Split`](seamalloc_config::Split).
    SplitChunks {
        /// Bytes in free granules (2 MiB) of chunks that are partly in use.
        free: u64,
        /// The value of the option: `last_resort`, its default, or `ungated` on a device without gates.
        split: Split,
    },
    /// The option `strategy:stitch`.
    Stitch {
        /// The option `chunk_size_mb`, in bytes, if the free ranges are so small that it takes smaller chunks than
        /// usual to join them.
        chunk_size: Option<u64>,
    },
    /// The option `strategy:caching`, whose memory needs no ranges of virtual addresses. The driver has refused such
    /// ranges.
    PlainMemory,
    /// A higher limit.
    RaiseLimit {
        /// The limit that was exceeded.
        limit: Limit,
        /// At least this many bytes.
        to: u64,
        /// The device's memory in bytes, to which a fraction refers.
        total: u64,
    },
    /// A smaller headroom, by the option `headroom`.
    LowerHeadroom {
        /// At most this many bytes.
        to: u64,
    },
    /// Memory of the device that others hold: other processes, other allocators, libraries.
    FreeDevice {
        /// At least this many bytes must become free.
        missing: u64,
        /// The bytes that are held outside of this allocator, including the driver's own context.
        elsewhere: u64,
    },
    /// A smaller request, or less live memory: a smaller batch, recomputation.
    AskLess {
        /// The least number of live bytes that must be freed: with less freed, the request fits in no arrangement of
        /// memory. The figure is 0 if too much live memory is not the cause, or if freeing all live memory would not be
        /// enough. The figure never exceeds the live bytes.
        missing: u64,
        /// A request of up to this many bytes could be served at present; 0 if none could.
        at_most: u64,
    },
}

impl Advice {
    /// Returns the value of `per_process_memory_fraction` for a limit of `to` bytes, rounded up to four digits; 1 is no
    /// limit.
    #[must_use]
    pub fn fraction(to: u64, total: u64) -> f64 {
        const DIGITS: f64 = 1e4;
        // If rounding made the product too small, the last digit is raised by one.
        let part = (to as f64 / total.max(1) as f64 * DIGITS).ceil() / DIGITS;
        let enough = (total as f64 * part) as u64 >= to;
        (if enough { part } else { part + 1.0 / DIGITS }).min(1.0)
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ShareStreams { free } => {
                write!(
                    f,
                    "the option sharing:wait, which passes on what other streams have free ({})",
                    format_bytes(free)
                )
            }
            Self::WaitLonger { pending } => write!(
                f,
                "a longer wait, which the option wait_ms bounds: work on the GPU still uses {} that was freed",
                format_bytes(pending)
            ),
            Self::MoreViews { views, mappings, address_space } => {
                let named = [
                    views.map(|to| format!("max_views:{to}")),
                    mappings.map(|to| format!("max_view_mappings:{to}")),
                    address_space.map(|to| format!("max_view_address_space:{}", format_bytes_exactly(to))),
                ];
                let named: Vec<String> = named.into_iter().flatten().collect();
                let options = if named.len() > 1 { "options" } else { "option" };
                write!(f, "the {options} {}, or more", named.join(","))
            }
            Self::SplitChunks { free, split } => {
                let condition = match split {
                    Split::Ungated => "if no other thread launches work while memory is allocated",
                    _ => "behind a gate that holds all streams: the default",
                };
                write!(
                    f,
                    "the option split:{}, which gets at what lies free inside of chunks ({}), {condition}",
                    split.name(),
                    format_bytes(free)
                )
            }
            Self::Stitch { chunk_size } => {
                f.write_str("the option strategy:stitch, which joins free memory wherever it lies")?;
                chunk_size.map_or(Ok(()), |size| write!(f, ", with chunk_size_mb:{}", size >> 20))
            }
            Self::PlainMemory => {
                f.write_str("the option strategy:caching, which needs no ranges of addresses: the driver refused them")
            }
            Self::RaiseLimit { limit, to, total } => {
                let fraction = format!("per_process_memory_fraction:{}", Self::fraction(to, total));
                let bytes = format!("memory_limit:{}", format_bytes_exactly(to));
                let options = match limit {
                    Limit::Fraction => fraction,
                    Limit::Bytes => bytes,
                    Limit::Both => format!("{bytes},{fraction}"),
                };
                write!(f, "a higher limit, {} at least ({options}), for which the device has room", format_bytes(to))
            }
            Self::LowerHeadroom { to } => write!(
                f,
                "a smaller headroom, {} at most (headroom:{}), which leaves as much of the device to others",
                format_bytes(to),
                format_bytes_exactly(to)
            ),
            Self::FreeDevice { missing, elsewhere } => write!(
                f,
                "{} less in the hands of others, who hold {} of the device outside of this allocator (other processes \
                 and their caches, which empty_cache there gives back; libraries; the CUDA context)",
                format_bytes(missing),
                format_bytes(elsewhere),
            ),
            Self::AskLess { missing, at_most } => {
                // If too much memory is live, a smaller request would only move the failure to the next request.
                if missing > 0 {
                    let missing = format_bytes(missing);
                    write!(f, "at least {missing} less that is live at this point, by a smaller batch for example")
                } else {
                    write!(f, "a smaller request: up to {} could be met now", format_bytes(at_most))
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_is_never_too_small() {
        for (to, total) in [(1, 3), (2 << 20, 100 << 20), (150_109_880_319, 150_109_880_320), (7, 0), (u64::MAX, 9)] {
            let fraction = Advice::fraction(to, total);
            assert!(fraction <= 1.0 && (fraction == 1.0 || (total as f64 * fraction) as u64 >= to), "{to} of {total}");
        }
        assert_eq!(Advice::fraction(1, 2), 0.5);
    }
}
