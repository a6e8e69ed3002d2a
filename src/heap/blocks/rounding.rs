//! The rules by which a strategy rounds a request to a block size.
//!
//! Owns: [`Rounding`]. The crate of options has PyTorch's rules ([`round_size`]).

#[cfg(feature = "baselines")]
use crate::config::rounding::{MIN_BLOCK, ROUNDUP_INTERVALS};
use crate::config::rounding::{RoundupDivisions, round_size};

/// The rule by which the size of a request becomes the size of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// PyTorch's rule: multiples of 512 bytes, and `roundup_power2_divisions`.
    PyTorch,
    /// The next multiple of `of` bytes, after `padding` bytes were added. `of` is a multiple of 512.
    #[cfg(feature = "baselines")]
    Multiple { of: u64, padding: u64 },
    /// The next power of two, at least `least` bytes.
    #[cfg(feature = "baselines")]
    PowerOfTwo { least: u64 },
    /// The next size class. Each power of two has [`CLASSES`] classes, all multiples of 512.
    #[cfg(feature = "baselines")]
    Classes,
}

/// The number of size classes in each power of two. A block exceeds its request by at most an eighth of the request, or
/// by less than 512 bytes.
#[cfg(feature = "baselines")]
pub(crate) const CLASSES: u64 = 8;

impl Rounding {
    /// Returns the block size for a request of `size` bytes, which is at most [`MAX_REQUEST`].
    #[inline(always)]
    pub(crate) fn round(self, size: u64, divisions: &RoundupDivisions) -> u64 {
        match self {
            Self::PyTorch => round_size(size, divisions),
            #[cfg(feature = "baselines")]
            _ => self.round_otherwise(size),
        }
    }

    #[cfg(feature = "baselines")]
    fn round_otherwise(self, size: u64) -> u64 {
        match self {
            Self::PyTorch => round_size(size, &[0; ROUNDUP_INTERVALS]),
            Self::Multiple { of, padding } => up_to_multiple(size.saturating_add(padding).max(1), of),
            Self::PowerOfTwo { least } => size.max(least).checked_next_power_of_two().unwrap_or(1 << 63),
            Self::Classes => {
                let size = size.max(MIN_BLOCK);
                up_to_multiple(size, ((1 << size.ilog2()) / CLASSES).max(MIN_BLOCK))
            }
        }
    }

    /// Returns the largest request whose block has at most `block` bytes; 0 if there is no such request.
    pub(crate) fn largest_within(self, block: u64, divisions: &RoundupDivisions) -> u64 {
        let unpadded = match self {
            #[cfg(feature = "baselines")]
            Self::Multiple { of, padding } => return (block - block % of).saturating_sub(padding),
            #[cfg(feature = "baselines")]
            Self::Classes => {
                block - block % (block.checked_ilog2().map_or(1, |log| (1 << log) / CLASSES)).max(MIN_BLOCK)
            }
            Self::PyTorch => block,
            #[cfg(feature = "baselines")]
            Self::PowerOfTwo { .. } => block,
        };
        match unpadded {
            0 => 0,
            _ if self.round(unpadded, divisions) <= block => unpadded,
            // This request is a power of two. From 512 bytes on, no rule rounds a power of two up, so its block has the
            // same size.
            _ => 1 << unpadded.ilog2(),
        }
    }
}

/// Returns the next multiple of `of`, or the last multiple that fits in 64 bits, so that the size cannot wrap around.
#[cfg(feature = "baselines")]
fn up_to_multiple(size: u64, of: u64) -> u64 {
    size.checked_next_multiple_of(of).unwrap_or(u64::MAX - u64::MAX % of)
}

#[cfg(all(test, feature = "baselines"))]
mod tests {
    use super::*;

    const OFF: RoundupDivisions = [0; ROUNDUP_INTERVALS];

    #[test]
    fn every_rounding_holds_the_request_and_hardly_more() {
        let kinds = [
            (Rounding::Multiple { of: 1024, padding: 0 }, 1023),
            (Rounding::Multiple { of: 512, padding: 64 }, 64 + 511),
            (Rounding::PowerOfTwo { least: 1024 }, 0),
            (Rounding::Classes, 0),
        ];
        for (kind, most_over) in kinds {
            for size in
                (1..5000).chain((9..50).flat_map(|power| (0..40).map(move |step| (1 << power) + (step << power) / 37)))
            {
                let block = kind.round(size, &OFF);
                assert!(block >= size && block.is_multiple_of(MIN_BLOCK), "{kind:?} {size}: {block}");
                let most = match kind {
                    Rounding::PowerOfTwo { least } => (2 * size).max(least),
                    Rounding::Classes => size + (size / CLASSES).max(MIN_BLOCK),
                    _ => size + most_over,
                };
                assert!(block <= most, "{kind:?} {size}: {block}");
                // The largest request of a block gets this block, and a request of one more byte gets a larger block.
                let largest = kind.largest_within(block, &OFF);
                assert!(largest >= size && kind.round(largest, &OFF) == block, "{kind:?} {size}: {block} {largest}");
                assert!(kind.round(largest + 1, &OFF) > block, "{kind:?} {size}: {block} {largest}");
            }
        }
    }
}
