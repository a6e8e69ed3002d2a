//! Requests that follow a plan ([`planning`](crate::planning)).
//!
//! Owns: how a planned request gets its place, and what happens at the end of a step.

use super::core::{Allocator, Core};
use super::prepared::{Order, Prepared};
use crate::config::StreamSharing;
use crate::error::Result;
use crate::heap::{Heap, Request};
use crate::ids::{BlockId, Class, StreamId};
use crate::planning::Planner;
use crate::span::Span;
use crate::streams::Epochs;
use parking_lot::MutexGuard;

impl Allocator {
    /// Sets who finds the places of requests, with the strategy `planned`; with others it has no effect. Without a planner,
    /// `planned` does as `stitch`.
    pub fn set_planner(&self, planner: Box<dyn Planner>) {
        if let Some(planning) = &mut self.lock_if_possible("a planner").planning {
            planning.set_planner(planner);
        }
    }

    /// Serves a public request, in its place if a plan has one for it.
    pub(super) fn allocate_planned(
        &self,
        guard: &mut MutexGuard<'_, Core>,
        size: u64,
        stream: StreamId,
    ) -> Result<u64> {
        let core = &mut **guard;
        let order = Order::new(size, stream, None);
        let request = core.public_request(size, stream)?;
        if request.class == Class::Small {
            return self.serve_prepared(guard, &order, Prepared { request, private: None });
        }
        let (live, held) = (core.heap.counters().allocated_bytes.current(), core.heap.reserved());
        if core.planning.as_mut().is_some_and(|planning| planning.step_is_over(live, held)) {
            core.end_step();
        }
        let placed = core.planned_place(&request)?;
        let (id, address) = match placed {
            Some(id) => {
                core.make_usable(id, &request)?;
                (id, core.heap.hand_out(id, &request, &core.rules.fit)?)
            }
            None => {
                let address = self.serve_prepared(guard, &order, Prepared { request, private: None })?;
                (guard.heap.live(address)?, address)
            }
        };
        guard.note_planned(id, placed.is_some())?;
        Ok(address)
    }
}

impl Core {
    /// Takes the place that the plan has for a request, if it is free.
    fn planned_place(&mut self, request: &Request) -> Result<Option<BlockId>> {
        let Some(planning) = &mut self.planning else { return Ok(None) };
        let Some(span) = planning.next_place(&self.heap, request.size, request.pool) else { return Ok(None) };
        let taken = match self.heap.take_at(span, request.pool)? {
            Some(id) => Some(id),
            None => self.place_of_others(span, request)?,
        };
        if taken.is_none()
            && let Some(planning) = &mut self.planning
        {
            planning.displaced();
        }
        Ok(taken)
    }

    /// Takes a place of which other streams have a part, behind waits, where streams wait for each other.
    #[cold]
    fn place_of_others(&mut self, span: Span, request: &Request) -> Result<Option<BlockId>> {
        if self.streams.shortage.in_force(self.config.sharing) != StreamSharing::Wait
            || !is_free_behind_waits(&self.heap, &self.streams.epochs, span, request)
        {
            return Ok(None);
        }
        self.timed(|_, context| {
            if !context.may_wait_for_others(request)? {
                return Ok(None);
            }
            context.wait_for_spans(request, &[span])?;
            context.heap.take_at(span, request.pool)
        })
    }

    /// Notes that a large request was served, so that its step can be planned.
    fn note_planned(&mut self, id: BlockId, as_planned: bool) -> Result<()> {
        if let Some(planning) = &mut self.planning {
            // Its free is to be noted too.
            self.heap.set_has_uses(id, true);
            planning.served(&self.heap, id, as_planned);
        }
        self.checked()
    }

    /// Notes that the program frees a block.
    pub(super) fn note_free(&mut self, id: BlockId, in_use: bool) {
        let Some(planning) = &mut self.planning else { return };
        let block = self.heap.block(id);
        if !block.pool.is_small() && !self.heap.is_private(block.pool) {
            planning.freed(&self.heap, id, in_use);
        }
    }

    /// Ends the step of the plans.
    #[cold]
    fn end_step(&mut self) {
        let apart = self.streams.shortage.in_force(self.config.sharing) != StreamSharing::Wait;
        let Some(planning) = &mut self.planning else { return };
        let used = match planning.end_step(&self.heap, apart) {
            Ok(Some(used)) if !self.heap.private().capturing() => used,
            Ok(_) => return,
            Err(error) => return tracing::warn!(%error, "a step could not be planned; it is served without a plan"),
        };
        let (keep, before) = (planning.kept(), self.heap.reserved());
        let given = self.timed(|strategy, context| strategy.give_back_outside(context, &used, keep));
        if let Some(planning) = &mut self.planning {
            planning.gave_back(before, self.heap.reserved());
        }
        if let Err(error) = given {
            tracing::warn!(%error, "memory that no plan uses could not be given back; it is kept");
        }
    }
}

/// Returns whether all bytes of a span are free for a request, or would be behind waits for other streams.
fn is_free_behind_waits(heap: &Heap, epochs: &Epochs, span: Span, request: &Request) -> bool {
    heap.blocks_over(span)
        .all(|id| heap.is_large_and_open(id, request.pool) || epochs.recorded_at(heap, request.pool, id).is_some())
}
