//! The classic allocators: exact-size lists, the buddy system, slabs, and the core of PyTorch's. They are here to be compared
//! with, each by its own rules and with no more than those.
//!
//! | file | the strategy |
//! |---|---|
//! | exact | lists of free blocks by size |
//! | buddy | powers of two |
//! | slab | objects of equal size over pages |
//! | tiny | TinyTorch's: PyTorch's rules without its options |
//!
//! None of the originals has streams, and most end the program when memory is short. Here each stream has lists of its own, so
//! memory is never used again before its stream has passed, and a shortage gives free memory back and tries again
//! (`malloc_fallback.rs`). A buffer, tree or slab that cannot be had whole is taken smaller.

mod buddy;
mod exact;
mod slab;
mod tiny;

pub(super) use buddy::Buddy;
pub(super) use exact::Exact;
pub(super) use slab::Slab;
pub(super) use tiny::Tiny;

/// Returns sizes from `most` on, each half of the one before, down to `least`. If that is more, it is the only one.
fn halved(most: u64, least: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(most.max(least)), move |size| (*size > least).then(|| (size / 2).max(least)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_halved_down_to_the_least() {
        assert_eq!(halved(16, 3).collect::<Vec<_>>(), [16, 8, 4, 3]);
        assert_eq!(halved(16, 4).collect::<Vec<_>>(), [16, 8, 4]);
        assert_eq!(halved(4, 9).collect::<Vec<_>>(), [9]);
    }
}
