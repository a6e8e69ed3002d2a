//! How a request is rounded to a block size, and a miss to a segment size.
//!
//! Owns: the constants and rules of PyTorch's allocator (c10/core/AllocatorConfig.h and `round_size`,
//! `get_allocation_size` of c10/cuda/CUDACachingAllocator.cpp, 2.11), which every strategy here shares so that they can
//! be compared.

/// Block sizes are multiples of this, in bytes (`kMinBlockSize`).
pub const MIN_BLOCK: u64 = 512;
/// Requests of up to this many bytes are small (`kSmallSize`).
pub const SMALL_LIMIT: u64 = 1 << 20;
/// Small requests share segments of this size, in bytes (`kSmallBuffer`).
pub const SMALL_SEGMENT: u64 = 2 << 20;
/// Large requests below this many bytes share segments of [`LARGE_SEGMENT`] (`kMinLargeAlloc`).
pub const MIN_LARGE: u64 = 10 << 20;
/// Default size of the segments that large requests share, in bytes (`large_segment_size_mb`).
pub const LARGE_SEGMENT: u64 = 20 << 20;
/// The sizes of larger segments are multiples of this, in bytes (`kRoundLarge`).
pub const ROUND_LARGE: u64 = 2 << 20;
/// The largest request that can be served, in bytes (PyTorch refuses more than 1 EB).
pub const MAX_REQUEST: u64 = 1 << 60;
/// The powers of two, from 1 MiB to 32 GiB, for which `roundup_power2_divisions` has a value each.
pub const ROUNDUP_INTERVALS: usize = 16;

/// The number of parts of each power of two to which a request is rounded up; 0 turns this off. The first entry also
/// applies below 1 MiB, the last above 32 GiB.
pub type RoundupDivisions = [u32; ROUNDUP_INTERVALS];

/// Returns the block size for a request of `size` bytes. No request above [`MAX_REQUEST`] is ever served.
#[must_use]
pub fn round_size(size: u64, divisions: &RoundupDivisions) -> u64 {
    if size < MIN_BLOCK {
        return MIN_BLOCK;
    }
    let interval = (size.ilog2() as usize).saturating_sub(20).min(ROUNDUP_INTERVALS - 1);
    let divisions = u64::from(divisions[interval]);
    if divisions > 1 && size > MIN_BLOCK * divisions {
        let power = 1u64 << size.ilog2();
        // Not 0: `size` exceeds 512 times the divisions, so their width is at least 512.
        let width = power / divisions;
        return up_to_multiple(size, width.next_multiple_of(MIN_BLOCK));
    }
    up_to_multiple(size, MIN_BLOCK)
}

/// How a request becomes the size of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// PyTorch's: multiples of 512 bytes, and `roundup_power2_divisions`.
    PyTorch,
    /// The next multiple of `of` bytes, itself a multiple of 512, with `padding` bytes added before.
    #[cfg(feature = "baselines")]
    Multiple { of: u64, padding: u64 },
    /// The next power of two, at least `least` bytes.
    #[cfg(feature = "baselines")]
    PowerOfTwo { least: u64 },
    /// The next size class. There are [`CLASSES`] classes in each power of two, all of them multiples of 512.
    #[cfg(feature = "baselines")]
    Classes,
}

/// The number of classes of size in each power of two: a block is at most an eighth larger than the request.
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

    /// Returns the largest request whose block has at most `block` bytes; 0 if there is none.
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
            // From 512 on, powers of two are never rounded up.
            _ => 1 << unpadded.ilog2(),
        }
    }
}

/// Returns the segment size for a miss of `size` bytes, which are already rounded.
#[must_use]
pub fn segment_size(size: u64, large_segment: u64) -> u64 {
    if size <= SMALL_LIMIT {
        SMALL_SEGMENT
    } else if size < MIN_LARGE {
        large_segment
    } else {
        up_to_multiple(size, ROUND_LARGE)
    }
}

/// Returns the next multiple, or the last one that fits in 64 bits, so that the size cannot wrap around.
fn up_to_multiple(size: u64, of: u64) -> u64 {
    size.checked_next_multiple_of(of).unwrap_or(u64::MAX - u64::MAX % of)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const OFF: RoundupDivisions = [0; ROUNDUP_INTERVALS];

    #[test]
    fn sizes_round_up_to_512() {
        for (size, want) in [(0, 512), (1, 512), (511, 512), (512, 512), (513, 1024), (MIB + 1, MIB + 512)] {
            assert_eq!(round_size(size, &OFF), want, "{size}");
        }
    }

    #[test]
    fn power_of_two_divisions_are_those_of_pytorchs_documentation() {
        // "a size of 1200 with 4 divisions between 1024 and 2048 rounds to 1280"; in MiB, as the option starts there.
        let four = [4; ROUNDUP_INTERVALS];
        assert_eq!(round_size(1200 * MIB, &four), 1280 * MIB);
        assert_eq!(round_size(1024 * MIB, &four), 1024 * MIB);
        assert_eq!(round_size(2047 * MIB, &four), 2048 * MIB);
        // Small sizes are rounded to a multiple of 512 only.
        assert_eq!(round_size(2048, &four), 2048);
        assert_eq!(round_size(2049, &four), 2560);
        // One division is the same as none.
        assert_eq!(round_size(1200 * MIB + 1, &[1; ROUNDUP_INTERVALS]), 1200 * MIB + 512);
    }

    #[test]
    fn each_interval_has_its_own_divisions() {
        let mut divisions = OFF;
        divisions[8] = 2; // 256 MiB up to 512 MiB
        assert_eq!(round_size(300 * MIB, &divisions), 384 * MIB);
        assert_eq!(round_size(600 * MIB + 5, &divisions), 600 * MIB + 512);
        divisions[15] = 2;
        assert_eq!(round_size((33 << 30) + 1, &divisions), 48 << 30);
        assert_eq!(round_size((65 << 30) + 1, &divisions), 96 << 30, "beyond the last interval, the last serves");
    }

    #[cfg(feature = "baselines")]
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
                // The largest request of a block is one that gets it, and a byte more is not.
                let largest = kind.largest_within(block, &OFF);
                assert!(largest >= size && kind.round(largest, &OFF) == block, "{kind:?} {size}: {block} {largest}");
                assert!(kind.round(largest + 1, &OFF) > block, "{kind:?} {size}: {block} {largest}");
            }
        }
    }

    #[test]
    fn segments_are_those_of_pytorch() {
        for (size, want) in [
            (512, 2 * MIB),
            (MIB, 2 * MIB),
            (MIB + 512, 20 * MIB),
            (10 * MIB - 512, 20 * MIB),
            (10 * MIB, 10 * MIB),
            (11 * MIB, 12 * MIB),
        ] {
            assert_eq!(segment_size(size, LARGE_SEGMENT), want, "{size}");
        }
    }
}
