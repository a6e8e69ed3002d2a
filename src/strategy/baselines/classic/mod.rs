//! The classic allocators: lists of exact sizes, the buddy system, slabs, and the core of PyTorch's allocator. The
//! classic allocators are here for comparison, so each follows only the rules of its original.
//!
//! | file | the strategy |
//! |---|---|
//! | exact | lists of free blocks by size |
//! | buddy | powers of two |
//! | slab | objects of equal size over pages |
//! | tiny | TinyTorch's allocator: PyTorch's rules without PyTorch's options |
//!
//! None of the originals has streams, and most end the program when memory is short. Here each stream has lists of its
//! own, so memory is reused only in the order of its own stream. If memory is short, free memory is given back and the
//! driver is asked again (`malloc_fallback.rs`). If the device has no room for a whole buffer, tree or slab, a smaller
//! one is taken.

mod buddy;
mod exact;
mod slab;
mod tiny;

pub(crate) use buddy::Buddy;
pub(crate) use exact::Exact;
pub(crate) use slab::Slab;
pub(crate) use tiny::Tiny;

use crate::strategy::malloc_like::PAGE;

/// Returns the sizes from `most` down to `least`, in whole pages, each half of the size before. If `least` is larger
/// than `most`, returns `least` alone.
fn halved(most: u64, least: u64) -> impl Iterator<Item = u64> {
    let half = |size: u64| (size / 2).next_multiple_of(PAGE);
    std::iter::successors(Some(most.next_multiple_of(PAGE).max(least)), move |size| {
        (*size > least).then(|| half(*size).max(least))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_halved_down_to_the_least() {
        let pages =
            |most: u64, least: u64| halved(most * PAGE, least * PAGE).map(|size| size / PAGE).collect::<Vec<_>>();
        assert_eq!(pages(16, 3), [16, 8, 4, 3]);
        assert_eq!(pages(16, 4), [16, 8, 4]);
        assert_eq!(pages(5, 1), [5, 3, 2, 1]);
        assert_eq!(pages(4, 9), [9]);
    }
}
