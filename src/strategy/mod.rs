//! Strategies: what happens when no free block fits, and which memory goes back to the driver.
//!
//! Owns: the factory. The contract is in `contract.rs`, and each strategy in a file or folder of its own. To add one,
//! write its file, name it in [`StrategyKind`], and construct it here.

mod caching;
mod classic;
mod contract;
mod expandable;
mod gmlake;
mod malloc_async;
mod malloc_fallback;
mod own_segments;
mod paddle;
mod plain_memory;
mod stitch;

pub(crate) use contract::{Assumption, FreeUsedBy, Goal, Means, Rules, Strategy};
pub(crate) use own_segments::{REPORT_STRATEGY as OWN_SEGMENTS_STRATEGY, rules_of_own_segments, serve_own_segments};

use crate::config::StrategyKind;
use std::ops::{Deref, DerefMut};

macro_rules! strategies {
    ($($name:ident: $strategy:ty,)*) => {
        /// The strategy of an allocator, where it lies: a box of it could not be had if the host has no memory.
        pub(crate) enum AnyStrategy {
            $($name($strategy),)*
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
    Caching: caching::Caching,
    Gmlake: gmlake::GmLake,
    Stitch: stitch::Stitch,
    Expandable: expandable::Expandable,
    Exact: classic::Exact,
    Buddy: classic::Buddy,
    Slab: classic::Slab,
    Tiny: classic::Tiny,
    PaddleAutoGrowth: paddle::AutoGrowth,
    PaddleNaiveBestFit: paddle::NaiveBestFit,
    PaddleVmm: paddle::Vmm,
    MallocAsync: malloc_async::MallocAsync,
}

/// Makes the strategy of this name.
pub(crate) fn new(kind: StrategyKind) -> AnyStrategy {
    match kind {
        StrategyKind::Caching => AnyStrategy::Caching(caching::Caching),
        StrategyKind::Gmlake => AnyStrategy::Gmlake(gmlake::GmLake),
        StrategyKind::Stitch => AnyStrategy::Stitch(stitch::Stitch::default()),
        StrategyKind::Expandable => AnyStrategy::Expandable(expandable::Expandable),
        StrategyKind::Exact => AnyStrategy::Exact(classic::Exact),
        StrategyKind::Buddy => AnyStrategy::Buddy(classic::Buddy),
        StrategyKind::Slab => AnyStrategy::Slab(classic::Slab),
        StrategyKind::Tiny => AnyStrategy::Tiny(classic::Tiny),
        StrategyKind::PaddleAutoGrowth => AnyStrategy::PaddleAutoGrowth(paddle::AutoGrowth),
        StrategyKind::PaddleNaiveBestFit | StrategyKind::PaddleThreadLocal => {
            AnyStrategy::PaddleNaiveBestFit(paddle::NaiveBestFit)
        }
        StrategyKind::PaddleVmm => AnyStrategy::PaddleVmm(paddle::Vmm),
        StrategyKind::MallocAsync => AnyStrategy::MallocAsync(malloc_async::MallocAsync::default()),
    }
}
