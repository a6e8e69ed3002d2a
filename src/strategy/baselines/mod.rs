//! The allocators of the literature and of other projects, for comparisons. Only builds with the feature `baselines`
//! contain them.
//!
//! PyTorch's two allocators, `caching` and `expandable`, are not in this folder, since programs run on them if a device
//! lacks virtual memory.

mod classic;
mod gmlake;
mod malloc_async;
mod paddle;

pub(super) use classic::{Buddy, Exact, Slab, Tiny};
pub(super) use gmlake::{GmLake, check};
pub(super) use malloc_async::MallocAsync;
pub(super) use paddle::{AutoGrowth, NaiveBestFit, Vmm};
