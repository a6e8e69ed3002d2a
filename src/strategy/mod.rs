//! Strategies: what happens when no free block fits, and which memory goes back to the driver.
//!
//! Owns: the factory. The contract is in `contract.rs`, and each strategy in a file or folder of its own. To add one,
//! write its file, name it in [`StrategyKind`], and construct it here.

mod caching;
mod contract;
mod expandable;
mod gmlake;
mod malloc_fallback;
mod own_segments;
mod stitch;

pub(crate) use contract::{Assumption, FreeUsedBy, Goal, Means, Rules, Strategy};
pub(crate) use own_segments::{REPORT_STRATEGY as OWN_SEGMENTS_STRATEGY, rules_of_own_segments, serve_own_segments};

use crate::config::StrategyKind;

/// Makes the strategy of this name.
pub(crate) fn new(kind: StrategyKind) -> Box<dyn Strategy> {
    match kind {
        StrategyKind::Caching => Box::new(caching::Caching),
        StrategyKind::Gmlake => Box::new(gmlake::GmLake),
        StrategyKind::Stitch => Box::<stitch::Stitch>::default(),
        StrategyKind::Expandable => Box::new(expandable::Expandable),
    }
}
