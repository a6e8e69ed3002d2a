//! Strategy `tiny`: TinyTorch's allocator, the core of PyTorch's.
//!
//! Its rules are those of `TinyTorch/Allocator.cpp` (keith2018/TinyTorch, 1572420): multiples of 512 bytes (`roundSize`);
//! a pool of small blocks up to 1 MiB and one of large ones (`getPool`); segments of 2 MiB, of 20 MiB below 10 MiB, of
//! multiples of 2 MiB from there on (`getAllocationSize`); best fit (`getFreeBlock`); a small rest of 512 bytes or a large
//! one above 1 MiB becomes a block (`shouldSplit`); both neighbours merge (`tryMergeBlocks`); where no segment can be had,
//! all that are wholly free are released, and it is tried once more (`mallocImpl`, `releaseCachedBlocks`).
//!
//! The strategy has none of PyTorch's options. Until memory is short, it makes the same choices as `caching` with its
//! defaults.

use crate::config::Config;
use crate::config::rounding::{LARGE_SEGMENT, MIN_BLOCK, SMALL_LIMIT, segment_size};
use crate::heap::Rounding;
use crate::heap::{FitRules, Layout, Request};
use crate::strategy::malloc_like::MallocLike;

#[derive(Default)]
pub(crate) struct Tiny;

impl MallocLike for Tiny {
    fn fit(&self, _config: &Config) -> FitRules {
        FitRules { min_rest: [SMALL_LIMIT + MIN_BLOCK, MIN_BLOCK], count_ages: true, ..FitRules::BEST }
    }

    fn divided(&self, _config: &Config, _total: u64) -> Layout {
        Layout { rounding: Rounding::Multiple { of: MIN_BLOCK, padding: 0 }, ..Layout::PYTORCH }
    }

    fn growth(&self, _config: &Config, request: &Request) -> u64 {
        segment_size(request.size, LARGE_SEGMENT)
    }
}
