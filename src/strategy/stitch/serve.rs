//! The steps that are tried for a request, by the means that it may use.

use super::Stitch;
use super::at_home::{FIT, at_home};
use super::choose;
use super::miss::reuse_view;
use super::others;
use super::release::ReleasableChunks;
use crate::backing::{InTurn, Miss, Served, StrategyContext, drop_spilled, finish_drops, release_home};
use crate::config::{Config, StreamSharing};
use crate::error::Result;
use crate::heap::{PlanHash, Request};
use crate::ids::{ChunkId, Class};
use crate::strategy::contract::{Abilities, FreeUsedBy, Goal, Means, Rules, Strategy};
use crate::streams::Until;

impl Strategy for Stitch {
    fn rules(&self, config: &Config) -> Rules {
        Rules {
            polls_first: false,
            sharing: config.sharing,
            passes_memory_on: true,
            waits_for_oldest: true,
            abilities: Abilities::MAPPED,
            ..Rules::streams_apart(FIT, FreeUsedBy::Epoch)
        }
    }

    fn serve(&mut self, context: &mut StrategyContext<'_>, request: &Request, means: Means) -> Served {
        self.until = Until::ANY;
        let served = match means {
            Means::Cheap => {
                self.refused = None;
                self.miss_in_round(context, request)
            }
            Means::AsMapped => self.serve_as_mapped(context, request),
            Means::Passed => self.replace_passed(context, request),
            Means::All if context.capturing() => self.poll_and_miss(context, request),
            Means::All => self.wait_and_replace(context, request),
        };
        self.spends_reserve = false;
        context.note_new_wait(request);
        served.or_try(|| Err(Miss::OutOfMemory { refused: self.refused }))
    }

    fn release(&mut self, context: &mut StrategyContext<'_>, goal: Goal) -> Result<bool> {
        context.retry_rollback()?;
        let target = match goal {
            Goal::Unkept => return Ok(true),
            Goal::Passed { enough } => {
                finish_drops(context)?;
                context.advance_epochs()?;
                ReleasableChunks::of(context.heap())?.release(context, enough)?;
                return Ok(true);
            }
            Goal::Everything => {
                context.wait_for_all()?;
                context.make_all_idle()?;
                drop_spilled(context)?;
                finish_drops(context)?;
                ReleasableChunks::of(context.heap())?.release(context, u64::MAX)?;
                release_home(context)?;
                return Ok(true);
            }
            Goal::DownTo { .. } | Goal::Towards { .. } => goal.target(),
        };
        let Some(target) = target else { return Ok(true) };
        finish_drops(context)?;
        if target.may_wait {
            context.wait_for_all()?
        } else {
            context.advance_epochs()?
        }
        let excess = target.excess(context.heap());
        let releasable = ReleasableChunks::of(context.heap())?;
        let Some(suffices) = target.suffices(context.heap(), releasable.bytes()) else { return Ok(false) };
        releasable.release(context, excess)?;
        Ok(suffices)
    }
}

impl Stitch {
    /// Returns the approximate bytes of host memory that the strategy's own tables take, besides the tables of the
    /// heap.
    pub(in crate::strategy) fn host_bytes(&self) -> usize {
        self.remembered.host_bytes() + self.added.capacity() * size_of::<ChunkId>()
    }

    /// Runs the steps for `Means::Cheap`: first without a wait for work of the present round, then with any wait.
    fn miss_in_round(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        if context.config.sharing != StreamSharing::Wait {
            return self.miss(context, request);
        }
        self.until = context.begin_round(request)?;
        let served = self.miss(context, request);
        match (served, std::mem::replace(&mut self.until, Until::ANY)) {
            (Err(Miss::OutOfMemory { .. }), until) if until != Until::ANY => self.miss(context, request),
            (served, _) => served,
        }
    }

    /// Serves the request from free memory without a new view. Before the allocator builds a view, it waits for further
    /// events, which may free memory in one piece.
    fn serve_as_mapped(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        if request.class == Class::Small || request.extends.is_some() {
            return self.miss(context, request);
        }
        let Request { size, pool, .. } = *request;
        self.attempt(context, request, |_, context| {
            if let Some(id) = at_home(context, request)? {
                return Ok(id);
            }
            if let Some(plan) = choose::spans(context.heap(), size, pool, false)?.ok().map(|spans| PlanHash::of(&spans))
                && let Some(id) = reuse_view(context, plan, request)?
            {
                return Ok(id);
            }
            others::take(context, request, Until::ANY.freed)?.ok_or(Miss::OUT_OF_MEMORY)
        })
    }

    /// In a capture, queries the events that were recorded before it began, then tries the miss again.
    fn poll_and_miss(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        context.poll_in_capture()?;
        self.miss(context, request)
    }
}
