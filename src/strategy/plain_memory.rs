//! What strategies over the driver's `malloc` share, beside PyTorch's: their rules for streams, and pages.

use super::contract::{FreeUsedBy, Rules};
use crate::config::StreamSharing;
use crate::config::rounding::SMALL_SEGMENT;
use crate::heap::FitRules;

/// Bytes of a page, in which a device gives its memory.
pub(super) const PAGE: u64 = SMALL_SEGMENT;

/// Returns the rules of a strategy whose memory is of the driver's `malloc` and of one stream.
pub(super) fn rules_of_malloc(fit: FitRules) -> Rules {
    let free_used_by = FreeUsedBy::DeviceWaits;
    Rules {
        fit,
        polls_first: true,
        sharing: StreamSharing::Never,
        passes_memory_on: false,
        free_used_by,
        waits_for_oldest: false,
    }
}

/// Returns the least memory that is taken for a request of so many bytes: whole pages of 2 MiB, in which a device gives its
/// memory.
pub(super) fn least_segment(size: u64) -> u64 {
    size.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
}
