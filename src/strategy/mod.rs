//! Strategies: the steps when no free block fits, and the choice of the memory that is given back to the driver.
//!
//! Owns: the table of the strategies. `contract.rs` has the contract, and each strategy has a file or a folder of its
//! own. To add a strategy, write its file, add a row to the table below, and name it in [`StrategyKind`].
//!
//! ```text
//! stitch/         this project's strategy: free memory is joined wherever it lies
//! caching.rs      PyTorch's native allocator      expandable.rs   PyTorch's expandable segments
//! baselines/      the allocators of the literature, with the feature `baselines`
//! ```

#[cfg(feature = "baselines")]
mod baselines;
mod caching;
mod contract;
mod estimates;
mod expandable;
#[cfg(test)]
mod first_fit;
mod malloc_fallback;
mod malloc_like;
mod own_segments;
mod stitch;

pub(crate) use contract::{FreeUsedBy, Goal, Means, Rules, Strategy, StreamOrdered};
pub(crate) use estimates::{Assumption, Estimates, Present};
pub(crate) use own_segments::{ESTIMATES as OWN_SEGMENTS_ESTIMATES, rules_of_own_segments, serve_own_segments};

use crate::config::{ConfigError, StrategyKind};
use crate::heap::Heap;
use std::ops::{Deref, DerefMut};

/// Defines the enum of all strategies, and calls the methods of the strategy in use.
macro_rules! strategies {
    ($($(#[$built:meta])? $name:ident($strategy:ty) for $($kind:ident)|+;)*) => {
        /// The strategy of an allocator, held by value, since a box would fail without host memory.
        pub(crate) enum AnyStrategy {
            $($(#[$built])? $name($strategy),)*
        }

        impl AnyStrategy {
            /// Makes the strategy with this name.
            ///
            /// # Errors
            /// [`ConfigError::WithoutBaselines`] if the strategy is not in this build.
            pub(crate) fn new(kind: StrategyKind) -> Result<Self, ConfigError> {
                match kind {
                    $($(#[$built])? $(StrategyKind::$kind)|+ => Ok(Self::$name(Default::default())),)*
                    kind => Err(ConfigError::WithoutBaselines { strategy: kind.name() }),
                }
            }

            /// Returns the strategy's estimates.
            pub(crate) fn estimates(&self) -> &dyn Estimates {
                match self {
                    $($(#[$built])? Self::$name(strategy) => strategy,)*
                }
            }
        }

        impl Deref for AnyStrategy {
            type Target = dyn Strategy;

            fn deref(&self) -> &Self::Target {
                match self {
                    $($(#[$built])? Self::$name(strategy) => strategy,)*
                }
            }
        }

        impl DerefMut for AnyStrategy {
            fn deref_mut(&mut self) -> &mut Self::Target {
                match self {
                    $($(#[$built])? Self::$name(strategy) => strategy,)*
                }
            }
        }
    };
}

strategies! {
    Stitch(stitch::Stitch) for Stitch;
    Caching(caching::Caching) for Caching;
    Expandable(expandable::Expandable) for Expandable;
    #[cfg(feature = "baselines")]
    Gmlake(baselines::GmLake) for Gmlake;
    #[cfg(feature = "baselines")]
    Exact(baselines::Exact) for Exact;
    #[cfg(feature = "baselines")]
    Buddy(baselines::Buddy) for Buddy;
    #[cfg(feature = "baselines")]
    Slab(baselines::Slab) for Slab;
    #[cfg(feature = "baselines")]
    Tiny(baselines::Tiny) for Tiny;
    #[cfg(feature = "baselines")]
    PaddleAutoGrowth(baselines::AutoGrowth) for PaddleAutoGrowth;
    #[cfg(feature = "baselines")]
    PaddleNaiveBestFit(baselines::NaiveBestFit) for PaddleNaiveBestFit | PaddleThreadLocal;
    #[cfg(feature = "baselines")]
    PaddleVmm(baselines::Vmm) for PaddleVmm;
    #[cfg(feature = "baselines")]
    MallocAsync(baselines::MallocAsync) for MallocAsync;
}

impl AnyStrategy {
    /// Returns the strategy if it gives blocks back to the driver when they are freed; `None` otherwise.
    pub(crate) fn stream_ordered(&mut self) -> Option<&mut dyn StreamOrdered> {
        match self {
            #[cfg(feature = "baselines")]
            Self::MallocAsync(strategy) => Some(strategy),
            _ => None,
        }
    }

    /// Returns the approximate bytes of host memory that the strategy's own tables take, besides the tables of the
    /// heap.
    pub(crate) fn host_bytes(&self) -> usize {
        if let Self::Stitch(strategy) = self { strategy.host_bytes() } else { 0 }
    }

    /// Checks the invariants of the strategy itself, besides those of the heap. For tests.
    ///
    /// # Errors
    /// A text that names the broken rule and its place.
    pub(crate) fn check(&self, heap: &Heap) -> Result<(), String> {
        match (self, heap) {
            #[cfg(feature = "baselines")]
            (Self::Gmlake(_), heap) => baselines::check(heap),
            _ => Ok(()),
        }
    }
}

/// Returns whether a strategy takes plain memory (`cudaMalloc`) for any requests.
pub(crate) const fn has_plain_memory(kind: StrategyKind) -> bool {
    !matches!(
        kind,
        StrategyKind::Expandable | StrategyKind::Stitch | StrategyKind::PaddleVmm | StrategyKind::MallocAsync
    )
}

/// Returns whether views join free memory at home, wherever it lies, for the requests that need it. Snapshots then show
/// memory at home as memory of no single stream.
pub(crate) const fn joins_free_memory(kind: StrategyKind) -> bool {
    matches!(kind, StrategyKind::Stitch)
}
