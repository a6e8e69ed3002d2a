//! The allocators of the literature and of other projects, for comparisons. They are in builds with the feature
//! `baselines` alone.
//!
//! PyTorch's two, `caching` and `expandable`, are not among them: programs run on those where a device lacks virtual
//! memory.

mod classic;
mod gmlake;
mod malloc_async;
mod paddle;

pub(super) use classic::{Buddy, Exact, Slab, Tiny};
pub(super) use gmlake::{GmLake, check};
pub(super) use malloc_async::MallocAsync;
pub(super) use paddle::{AutoGrowth, NaiveBestFit, Vmm};
