//! Strategy `tiny`: TinyTorch's allocator, which is the core of PyTorch's.
//!
//! The rules are those of `TinyTorch/Allocator.cpp` (keith2018/TinyTorch, 1572420). Sizes are multiples of 512 bytes
//! (`roundSize`). There is a pool of small blocks up to 1 MiB and a pool of large blocks (`getPool`). A segment has 2
//! MiB for small requests, 20 MiB for large requests below 10 MiB, and a multiple of 2 MiB for others
//! (`getAllocationSize`). A request takes the best fit (`getFreeBlock`). The bytes that a request leaves of a block
//! become a free block if they are at least 512 bytes in the small pool, or more than 1 MiB in the large pool
//! (`shouldSplit`). A freed block merges with both neighbours (`tryMergeBlocks`). If no segment can be had, all wholly
//! free segments are released, and the driver is asked once more (`mallocImpl`, `releaseCachedBlocks`).
//!
//! The strategy has none of PyTorch's options. Until memory is short, it makes the same choices as `caching` with
//! default options.

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
