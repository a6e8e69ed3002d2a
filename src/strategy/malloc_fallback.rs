//! The steps of PyTorch's allocator when no free block fits, in PyTorch's order: collect garbage, take new memory, give
//! back just enough and try again, give back everything and try again. Unlike PyTorch, one further step then searches
//! the free blocks again.
//!
//! Owns: the order of the steps, which makes every [`MallocLike`] a strategy (`malloc` of
//! c10/cuda/CUDACachingAllocator.cpp, 2.11).

use super::contract::{Goal, Means, Rules, Strategy};
use super::malloc_like::MallocLike;
use crate::backing::{InTurn, Miss, Served, StrategyContext};
use crate::config::Config;
use crate::error::Result;
use crate::heap::{FitRules, Layout, Request};

impl<T: MallocLike> Strategy for T {
    fn rules(&self, config: &Config) -> Rules {
        Rules::streams_apart(self.fit(config), T::FREE_USED_BY)
    }

    fn layout(&self, config: &Config, total: u64) -> Layout {
        self.divided(config, total)
    }

    fn serve(&mut self, context: &mut StrategyContext<'_>, request: &Request, means: Means) -> Served {
        match means {
            Means::AsMapped | Means::Cheap | Means::Passed => grow(self, context, request),
            Means::All => reclaim_and_grow(self, context, request),
        }
    }

    fn release(&mut self, context: &mut StrategyContext<'_>, goal: Goal) -> Result<bool> {
        self.reclaim(context, goal)
    }
}

/// Runs the first steps, which give back only garbage: old unused segments.
fn grow<S: MallocLike>(strategy: &mut S, context: &mut StrategyContext<'_>, request: &Request) -> Served {
    // Giving memory back waits for the GPU, and no capture allows such a wait.
    let collects = context.limits.by_fraction().is_some() && context.config.garbage_collection_threshold > 0.0;
    if !context.capturing() && collects {
        strategy.collect_garbage(context)?;
    }
    strategy.grow_within_limit(context, request)
}

/// Runs the last steps until one of them finds a block.
fn reclaim_and_grow<S: MallocLike>(strategy: &mut S, context: &mut StrategyContext<'_>, request: &Request) -> Served {
    if context.capturing() {
        return Err(Miss::OUT_OF_MEMORY);
    }
    if let Some(id) = strategy.make_room(context, request)? {
        return Ok(id);
    }
    // As in PyTorch, memory that becomes free here is given back rather than searched.
    context.reclaim_recorded_streams()?;
    strategy.reclaim(context, Goal::Everything)?;
    context.count_retry();
    strategy.grow_within_limit(context, request).or_try(|| fit_what_stayed(strategy, context, request))
}

/// Takes a block that became free while the caller waited for streams named by `record_stream`, and that could not be
/// released because other parts of its segment are live. PyTorch refuses the request here, although it would serve the
/// same request if it were repeated.
fn fit_what_stayed<S: MallocLike>(strategy: &S, context: &mut StrategyContext<'_>, request: &Request) -> Served {
    // The first search has already counted this request in the clock by which blocks age.
    let rules = FitRules { count_ages: false, ..strategy.fit(context.config) };
    context.fit(request, &rules).ok_or(Miss::OUT_OF_MEMORY)
}
