//! Blocks: the table of them, the free ones by size, and the steps that split and merge neighbours.
//!
//! Owns: every block of the heap. Knows the numbers of pools and segments, and nothing of streams, chunks or views.
//!
//! | file | owns |
//! |---|---|
//! | block | the table: slots addressed by small numbers, with links instead of pointers |
//! | free_index | the free blocks of one pool, by size |
//! | links, merging | blocks beside each other, and which of them merge |
//! | request, fit | a request, and the search for a free block that serves it |
//! | layout | how memory is divided, for strategies that differ from PyTorch |

pub(super) mod block;
pub(super) mod fit;
pub(super) mod free_index;
pub(super) mod layout;
pub(super) mod links;
pub(super) mod merging;
pub(super) mod request;
