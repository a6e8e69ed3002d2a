//! What happens when no free block fits: the strategies, and what they have in common.
//!
//! Owns: the [`Strategy`] trait. A strategy is the only part that calls the driver for memory; it tells the heap what
//! it got. It decides nothing on the hot path: its [`FitRules`] are plain data.

mod caching;
mod expandable;
mod ladder;
mod mapping;
mod stitch;

use crate::blocks::BlockId;
use crate::config::{Config, StrategyKind};
use crate::deferred::Deferred;
use crate::driver::{Driver, DriverError, DriverResult};
use crate::error::Error;
use crate::heap::{FitRules, Heap, Request};

/// All that a strategy may touch.
pub(crate) struct Ground<'a> {
    pub(crate) heap: &'a mut Heap,
    pub(crate) deferred: &'a mut Deferred,
    pub(crate) driver: &'a dyn Driver,
    pub(crate) config: &'a Config,
    /// The most bytes that may be held, if limited.
    pub(crate) limit: Option<u64>,
}

/// Why a miss could not be met.
#[derive(Debug)]
pub(crate) enum Miss {
    /// Too little memory, after all was tried.
    OutOfMemory,
    /// Something else went wrong.
    Failed(Error),
}

impl From<DriverError> for Miss {
    fn from(error: DriverError) -> Self {
        if error.is_out_of_memory() { Self::OutOfMemory } else { Self::Failed(error.into()) }
    }
}

impl From<Error> for Miss {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// What happens on a miss, and when memory is given back.
pub(crate) trait Strategy: Send {
    /// How requests find their blocks.
    fn rules(&self, config: &Config) -> FitRules;

    /// Makes a free block of at least the request's size, and takes it out of the free index.
    fn miss(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss>;

    /// Gives back every free byte that can be given back. The caller has made sure that no stream uses them.
    fn release_cached(&mut self, ground: &mut Ground<'_>) -> DriverResult<()>;

    /// Gives back what is not memory. The allocator is at its end.
    fn close(&mut self, _ground: &mut Ground<'_>) {}
}

/// The strategy of that name.
pub(crate) fn new(kind: StrategyKind) -> Box<dyn Strategy> {
    match kind {
        StrategyKind::Caching => Box::new(caching::Caching),
        StrategyKind::Stitch => Box::<stitch::Stitch>::default(),
        StrategyKind::Expandable => Box::<expandable::Expandable>::default(),
    }
}
