//! Strategies: what happens when no free block fits, and which memory goes back to the driver.
//!
//! Owns: the table of the strategies. The contract is in `contract.rs`, and each strategy in a file or folder of its
//! own. To add one, write its file, give it a row in the table below, and name it in [`StrategyKind`].

mod caching;
mod classic;
mod contract;
mod estimates;
mod expandable;
#[cfg(test)]
mod first_fit;
mod gmlake;
mod malloc_async;
mod malloc_fallback;
mod malloc_like;
mod own_segments;
mod paddle;
mod stitch;

pub(crate) use contract::{FreeUsedBy, Goal, Means, Rules, Strategy, StreamOrdered};
pub(crate) use estimates::{Assumption, Estimates};
pub(crate) use own_segments::{ESTIMATES as OWN_SEGMENTS_ESTIMATES, rules_of_own_segments, serve_own_segments};

use crate::config::StrategyKind;
use crate::heap::Heap;
use std::ops::{Deref, DerefMut};

/// Defines the enum of all strategies, and the calls of the methods of each.
macro_rules! strategies {
    ($($name:ident($strategy:ty) for $($kind:ident)|+;)*) => {
        /// The strategy of an allocator, held by value: a box would fail if the host has no memory.
        pub(crate) enum AnyStrategy {
            $($name($strategy),)*
        }

        impl AnyStrategy {
            /// Makes the strategy of this name.
            pub(crate) fn new(kind: StrategyKind) -> Self {
                match kind {
                    $($(StrategyKind::$kind)|+ => Self::$name(Default::default()),)*
                }
            }

            /// Returns the strategy's estimates.
            pub(crate) fn estimates(&self) -> &dyn Estimates {
                match self {
                    $(Self::$name(strategy) => strategy,)*
                }
            }
        }

        impl Deref for AnyStrategy {
            type Target = dyn Strategy;

            fn deref(&self) -> &Self::Target {
                match self {
                    $(Self::$name(strategy) => strategy,)*
                }
            }
        }

        impl DerefMut for AnyStrategy {
            fn deref_mut(&mut self) -> &mut Self::Target {
                match self {
                    $(Self::$name(strategy) => strategy,)*
                }
            }
        }
    };
}

strategies! {
    Caching(caching::Caching) for Caching;
    Gmlake(gmlake::GmLake) for Gmlake;
    Stitch(stitch::Stitch) for Stitch;
    Expandable(expandable::Expandable) for Expandable;
    Exact(classic::Exact) for Exact;
    Buddy(classic::Buddy) for Buddy;
    Slab(classic::Slab) for Slab;
    Tiny(classic::Tiny) for Tiny;
    PaddleAutoGrowth(paddle::AutoGrowth) for PaddleAutoGrowth;
    PaddleNaiveBestFit(paddle::NaiveBestFit) for PaddleNaiveBestFit | PaddleThreadLocal;
    PaddleVmm(paddle::Vmm) for PaddleVmm;
    MallocAsync(malloc_async::MallocAsync) for MallocAsync;
}

impl AnyStrategy {
    /// Returns the strategy if it gives blocks back to the driver as they are freed.
    pub(crate) fn stream_ordered(&mut self) -> Option<&mut dyn StreamOrdered> {
        if let Self::MallocAsync(strategy) = self { Some(strategy) } else { None }
    }

    /// Returns about how many bytes of host memory the strategy's own tables take, beside those of the heap.
    pub(crate) fn host_bytes(&self) -> usize {
        if let Self::Stitch(strategy) = self { strategy.host_bytes() } else { 0 }
    }

    /// Checks the strategy's own rules that always hold, beyond those of the heap. For tests.
    ///
    /// # Errors
    /// Says which rule is broken, and where.
    pub(crate) fn check(&self, heap: &Heap) -> Result<(), String> {
        if let Self::Gmlake(_) = self { gmlake::check(heap) } else { Ok(()) }
    }
}
