//! Blocks: the table of blocks, the free blocks by size, and the steps that split and merge neighbours.
//!
//! Owns: every block of the heap, and how a block is found. A block has the numbers of its pool and of its segment.
//! This folder does not know what pools and segments are, and calls no other part of the heap.
//!
//! | file | owns |
//! |---|---|
//! | block | the table: slots addressed by small numbers, with links instead of pointers |
//! | free_index | the free blocks of one pool, by size |
//! | live, starts | live blocks by address; the blocks at home by the addresses that they cover |
//! | table | all blocks, with these indexes |
//! | links, merging | blocks beside each other, splits and merges |
//! | search | free blocks by size, blocks at home by address |
//! | request, fit | a request, and the search for a free block that serves it |
//! | rounding | how a request is rounded to the size of a block |
//! | layout | how memory is divided, for strategies that differ from PyTorch |

pub(super) mod block;
mod fit;
mod free_index;
pub(super) mod layout;
mod links;
mod live;
mod merging;
pub(super) mod request;
pub(super) mod rounding;
mod search;
pub(super) mod starts;
pub(super) mod table;
