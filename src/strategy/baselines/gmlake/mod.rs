//! Strategy `gmlake`: GMLake's own algorithm (ASPLOS 2024), for comparison.
//!
//! Owns: the five states of GMLake's BestFit, and the steps when memory is short. Memory comes in primitive blocks
//! (pBlocks) of uniform 2 MiB chunks. A stitched block (sBlock) maps the chunks of several pBlocks once more, into one
//! range.
//!
//! ```text
//! pBlocks  |1.1.1.|    |2X2X|    |3.3.3.3.3X|      chunks of three allocations; X in use, dots free
//! sBlock   |1.1.1.3.3.3.|                          six chunks in one range: inactive while all six are free
//! ```
//! A large request is rounded up to whole chunks. The request is served by the first of these states that holds:
//! 1. exact match: an inactive pBlock of exactly this size, else an inactive sBlock of this size;
//! 2. single block: the smallest larger pBlock is split. If there is none, the head of an inactive sBlock of up to
//!    `reuseLimit` times the size serves, as in the authors' release;
//! 3. multiple blocks, for requests of at least `fragLimit` bytes: free pBlocks, the largest first, are stitched, and
//!    the last one is split;
//! 4. insufficient blocks: the missing bytes are created as one more pBlock, which is stitched to all free pBlocks.
//!    Below `fragLimit` a whole pBlock is created, with the size that PyTorch would give a segment;
//! 5. out of memory, after all cached memory was given back.
//!
//! A free only changes states: the chunks become free in every pBlock and sBlock that maps them, and sBlocks stay.
//! sBlocks are dropped by least recent use (StitchFree) in three cases: after a stitch, while their total exceeds
//! `autoGC`; if the driver makes no more mappings; and when a pBlock under them is given back. No bound refuses a
//! stitch: `max_view_mappings` and the other bounds on views apply to `stitch` only. Requests of up to 1 MiB are served
//! from segments of 2 MiB by `malloc`, as in PyTorch's native allocator. Blocks serve their own stream only.
//!
//! The authors' released code has these rules, in GMLake/src/CUDACachingAllocator.cpp of
//! github.com/intelligent-machine-learning/glake at commit 0274a9c:
//!
//! | lines | rule |
//! |---|---|
//! | 118 to 126, 2249 to 2257 | requests of up to 1 MiB are small; larger ones below 10 MiB share segments of 20 MiB; from 10 MiB on, and for all memory made of chunks, sizes are multiples of 2 MiB |
//! | 2289 to 2303 | the smallest inactive sBlock of up to `reuseLimit` times the size serves with its head |
//! | 1088 to 1114, 2738 | the points of a request at which stitching is tried, and which of these points `defragLevel` skips |
//! | 2743, 2766 to 2771, 2820 | `fragLimit` is compared with the rounded request; the largest pBlocks first; the last one is split |
//! | 2975 to 2986 | a new sBlock is made first; if all sBlocks together then exceed `autoGC`, inactive ones are dropped |
//! | 2892 to 2918, 2611 | if the driver refuses a stitch, inactive sBlocks are dropped: 4 times the request's size, then 16 times, then all; after each drop the stitch is tried again |
//! | 3152 to 3188 | the same if the driver refuses a new pBlock although the device has the memory |
//!
//! If the paper and the released code differ, or the code has an error, the strategy follows the rule that helps
//! GMLake. docs/decisions/0023-gmlake-differences.md lists these points. pBlocks lie at home and sBlocks are views, so
//! tables, accounting and checks are those of the strategy `stitch`. The algorithm of `stitch` is not used.

mod check;
mod pblock;
mod sblock;
mod states;

pub(crate) use check::check;
pub(crate) use states::GmLake;
