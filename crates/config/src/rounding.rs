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

/// The number of equal parts between each power of two and the next; a request is rounded up to the end of a part. 0:
/// off. The first entry also applies below 1 MiB, the last above 32 GiB.
pub type RoundupDivisions = [u32; ROUNDUP_INTERVALS];

/// Returns the block size for a request of `size` bytes. No request above [`MAX_REQUEST`] is ever served.
#[inline]
#[must_use]
pub fn round_size(size: u64, divisions: &RoundupDivisions) -> u64 {
    if size < MIN_BLOCK {
        return MIN_BLOCK;
    }
    let interval = (size.ilog2() as usize).saturating_sub(20).min(ROUNDUP_INTERVALS - 1);
    let divisions = u64::from(divisions[interval]);
    if divisions > 1 && size > MIN_BLOCK * divisions {
        let power = 1u64 << size.ilog2();
        // The width is not 0: `size` exceeds 512 times the divisions, so each division has at least 512 bytes.
        let width = power / divisions;
        return up_to_multiple(size, width.next_multiple_of(MIN_BLOCK));
    }
    up_to_multiple(size, MIN_BLOCK)
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

/// Returns the next multiple of `of`, or the last multiple that fits in 64 bits, so that the size cannot wrap around.
#[inline]
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
        // "a size of 1200 with 4 divisions between 1024 and 2048 rounds to 1280". The test uses MiB, since the option's
        // first interval begins at 1 MiB.
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
