//! Requests that follow a plan ([`planning`](crate::planning)).
//!
//! Owns: how a planned request gets its place, and what happens at the end of a step.

use super::core::{Allocator, Core};
use super::prepared::{Order, Prepared};
use crate::backing::{Miss, StrategyContext, ViewPlan, make_room, map_home, prepare_view};
use crate::config::StreamSharing;
use crate::error::Result;
use crate::fallible::TryCollect;
use crate::heap::{Heap, Kind, Request};
use crate::ids::{BlockId, Class, PoolIndex, StreamId, ViewId};
use crate::planning::{PlannedPlace, Planner, chunks_of};
use crate::span::Span;
use crate::streams::Epochs;
use parking_lot::MutexGuard;

impl Allocator {
    /// Sets who finds the places of requests, with the strategy `planned`; with others it has no effect. Without a planner,
    /// `planned` does as `stitch`.
    pub fn set_planner(&self, planner: Box<dyn Planner>) {
        let before = match &mut self.lock_if_possible("a planner").planning {
            Some(planning) => planning.set_planner(planner),
            None => None,
        };
        // Dropping it may call anything.
        drop(before);
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
        let Request { size: rounded, pool, .. } = request;
        if core.planning.as_mut().is_some_and(|planning| planning.step_is_over(rounded, pool, live, held)) {
            core.end_step(pool);
        }
        let placed = core.planned_place(&request)?;
        let (id, address) = match placed {
            Some(id) => {
                if core.heap.block(id).kind == Kind::Home {
                    core.make_usable(id, &request)?;
                }
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
        let Some(place) = planning.next_place(&self.heap, request.size, request.pool) else { return Ok(None) };
        let Request { size, pool, .. } = *request;
        let is_lost =
            matches!(place, PlannedPlace::View { window, serial, .. } if !self.heap.is_current(window, serial));
        let taken = match place {
            PlannedPlace::Home(span) => match self.heap.take_at(span, pool)? {
                Some(id) => Some(id),
                None => self.place_of_others(&[span], request, |heap| heap.take_at(span, pool))?,
            },
            PlannedPlace::View { spans, window, serial } => match self.heap.take_in_view(window, serial, size, pool)? {
                Some(id) => Some(id),
                None => {
                    let spans = spans.iter().copied().try_to_vec()?;
                    self.place_of_others(&spans, request, |heap| heap.take_in_view(window, serial, size, pool))?
                }
            },
            PlannedPlace::Missing => None,
        };
        if taken.is_none()
            && let Some(planning) = &mut self.planning
        {
            planning.displaced(is_lost);
        }
        Ok(taken)
    }

    /// Takes a place of which other streams have a part, behind waits, where streams wait for each other.
    #[cold]
    fn place_of_others(
        &mut self,
        spans: &[Span],
        request: &Request,
        take: impl FnOnce(&mut Heap) -> Result<Option<BlockId>>,
    ) -> Result<Option<BlockId>> {
        if self.streams.shortage.in_force(self.config.sharing) != StreamSharing::Wait
            || !spans.iter().all(|span| is_free_behind_waits(&self.heap, &self.streams.epochs, *span, request))
        {
            return Ok(None);
        }
        self.timed(|_, context| {
            if !context.may_wait_for_others(request)? {
                return Ok(None);
            }
            context.wait_for_spans(request, spans)?;
            take(context.heap)
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

    /// Builds the views through which places in several pieces are handed out.
    fn build_planned_views(&mut self) {
        let Some(mut planning) = self.planning.take_if(|planning| planning.lacks_views()) else { return };
        let built = self.timed(|_, context| planning.build_views(|spans| view_over(context, spans)));
        self.planning = Some(planning);
        if let Err(error) = built {
            tracing::warn!(%error, "a view of a plan could not be built; its requests are served without places");
        }
    }

    /// Maps bare memory at home that the next step is expected to use.
    fn map_planned(&mut self) {
        let Some(planning) = self.planning.take() else { return };
        let mapped = self.timed(|_, context| planning.expected_spans().try_for_each(|span| map_home(context, span)));
        self.planning = Some(planning);
        if let Err(error) = mapped {
            tracing::warn!(%error, "memory of a plan could not be mapped yet; its requests map it");
        }
    }

    /// Adds memory while a plan lacks little for all its requests. Returns whether there is another plan now.
    fn enlarge(&mut self, pool: PoolIndex, apart: bool) -> bool {
        let mut is_enlarged = false;
        while let Some(bytes) = self.planning.as_ref().map(|planning| planning.lacking()).filter(|bytes| *bytes > 0) {
            let grown = self.timed(|strategy, context| strategy.grow_ahead(context, pool, bytes));
            let Some(planning) = self.planning.as_mut().filter(|_| grown.is_ok()) else { break };
            is_enlarged = true;
            if let Err(error) = planning.plan_again(&self.heap, apart) {
                tracing::warn!(%error, "a step could not be planned again; its plan has not all places");
                break;
            }
        }
        is_enlarged
    }

    /// Ends the step of the plans.
    #[cold]
    fn end_step(&mut self, pool: PoolIndex) {
        let apart = self.streams.shortage.in_force(self.config.sharing) != StreamSharing::Wait;
        let Some(planning) = &mut self.planning else { return };
        let mut ended = planning.end_step(&self.heap, apart);
        if self.heap.private().capturing() {
            return;
        }
        if ended.is_ok() && self.enlarge(pool, apart) {
            ended = self.planning.as_ref().map_or(Ok(None), |planning| planning.given_back_outside());
        }
        self.build_planned_views();
        self.map_planned();
        let Some(planning) = &mut self.planning else { return };
        let used = match ended {
            Ok(Some(used)) => used,
            Ok(None) => return,
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

/// Returns a view over the chunks of these spans: one that exists, or a new one within the bounds on views. `None`: memory is not so
/// any more, or there can be none.
fn view_over(context: &mut StrategyContext<'_>, spans: &[Span]) -> Result<Option<(ViewId, u64, u64)>> {
    let Some((chunks, offset)) = chunks_of(context.heap, spans)? else { return Ok(None) };
    if let Some((view, serial)) = context.heap.view_over(&chunks) {
        return Ok(Some((view, serial, offset)));
    }
    let plan = ViewPlan::over(context.heap, spans, None)?;
    if !plan.fits(context.heap, context.config) && make_room(context, &plan)?.is_some() {
        return Ok(None);
    }
    match prepare_view(context, plan) {
        Ok(view) => {
            Ok(context.heap.view_over(&chunks).filter(|of| of.0 == view).map(|(_, serial)| (view, serial, offset)))
        }
        Err(Miss::OutOfMemory { .. }) => Ok(None),
        Err(Miss::Failed(error)) => Err(error),
    }
}

/// Returns whether all bytes of a span are free for a request, or would be behind waits for other streams.
fn is_free_behind_waits(heap: &Heap, epochs: &Epochs, span: Span, request: &Request) -> bool {
    heap.blocks_over(span)
        .all(|id| heap.is_large_and_open(id, request.pool) || epochs.recorded_at(heap, request.pool, id).is_some())
}
