//! Strategy `slab`: objects of equal size, carved from slabs of whole pages.
//!
//! The rules are those of J. Bonwick, "The Slab Allocator: An Object-Caching Kernel Memory Allocator" (USENIX Summer
//! 1994), which the tutorial of `exact.rs` names last:
//! - each size of object has a cache of slabs of its own; a slab is one or more pages, and is cut into objects when it
//!   is made (section 3.2), here a few at a time;
//! - a slab has the fewest pages of which at most an eighth is unused ("internal fragmentation", section 3.2.2);
//! - a free takes no memory from the cache: slabs whose objects are all free are kept until memory is short
//!   (`kmem_cache_reap`, section 3.4).
//!
//! Pages are 2 MiB, the unit in which a device gives memory. Each power of two has eight sizes of objects
//! ([`Rounding::Classes`]), as is usual for slabs over any sizes. An object of several pages is a slab of its own. The
//! unused bytes at the end of a slab are a free block, which serves requests of exactly its size. Bonwick's colouring
//! spreads objects over cache lines, and is left out because it has no effect here.

use crate::backing::{Served, StrategyContext, malloc_largest};
use crate::config::Config;
use crate::heap::Rounding;
use crate::heap::{FitRules, Layout, Merging, Request};
use crate::strategy::malloc_like::{MallocLike, PAGE, least_segment};

/// The most objects of a slab that are cut in one step. A slab of the smallest objects has 4,096 objects.
const AT_ONCE: u64 = 64;
/// The largest part (1/n) of a slab that may be unused.
const LEFT_OVER: u64 = 8;

#[derive(Default)]
pub(crate) struct Slab;

impl MallocLike for Slab {
    fn fit(&self, _config: &Config) -> FitRules {
        FitRules { min_rest: [u64::MAX; 2], count_ages: true, ..FitRules::EXACT }
    }

    fn divided(&self, _config: &Config, _total: u64) -> Layout {
        Layout { rounding: Rounding::Classes, small_limit: 0, merging: Merging::Never, ..Layout::PYTORCH }
    }

    fn growth(&self, _config: &Config, request: &Request) -> u64 {
        least_segment(request.size)
    }

    /// Makes a slab, or a slab of fewer pages if the device has no room for it.
    fn grow(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        let Request { size, pool, .. } = *request;
        let pages = slab_for(size);
        let uncut = match context.heap().uncut_rest(pool, size)? {
            None => context.heap().empty_segment(pool, pages),
            rest => rest,
        };
        let slab = match uncut {
            Some(uncut) => context.take_block(uncut),
            None => malloc_largest(context, pool, [pages, least_segment(size)].into_iter())?,
        };
        Ok(context.cut_equally(slab, size, AT_ONCE))
    }
}

/// Returns the size in bytes of a slab for objects of `object` bytes.
fn slab_for(object: u64) -> u64 {
    let first = least_segment(object);
    let mut slab = first;
    // The rest is less than one object, so a slab of eight objects or more has less than an eighth unused.
    while slab % object > slab / LEFT_OVER && slab < first.saturating_mul(LEFT_OVER + 1) {
        slab = slab.saturating_add(PAGE);
    }
    slab
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::rounding::{MIN_BLOCK, ROUNDUP_INTERVALS};

    #[test]
    fn a_slab_has_the_fewest_pages_that_leave_an_eighth_over() {
        const KIB: u64 = 1 << 10;
        const MIB: u64 = 1 << 20;
        for (object, slab) in [
            (MIN_BLOCK, 2 * MIB),
            (640 * KIB, 2 * MIB),
            (MIB, 2 * MIB),
            (1152 * KIB, 6 * MIB),
            (2 * MIB, 2 * MIB),
            (3 * MIB, 6 * MIB),
            (5 * MIB, 10 * MIB),
            (104 * MIB, 104 * MIB),
        ] {
            assert_eq!(slab_for(object), slab, "{object}");
        }
        for size in (9..40).flat_map(|power| (0..16).map(move |step| (1u64 << power) + (step << power) / 16)) {
            let object = Rounding::Classes.round(size, &[0; ROUNDUP_INTERVALS]);
            let slab = slab_for(object);
            assert!(slab % object <= slab / LEFT_OVER && slab.is_multiple_of(PAGE), "{object}: {slab}");
            let fewer = (least_segment(object)..slab).step_by(PAGE as usize);
            assert!(fewer.into_iter().all(|less| less % object > less / LEFT_OVER), "{object}: {slab}");
        }
    }
}
