//! The steps on a miss.
//!
//! Owns: the order of the steps for `Means::Cheap`, and the undoing of a step that fails. `serve.rs` runs the steps.

use super::at_home::{fit_rules_of, run_at_home};
use super::choose;
use super::grow::{Growth, HOME_MULTIPLE, grow_slab, release_added};
use super::others;
use super::remembered::{Choice, Key};
use super::split::splittable;
use super::{Joined, Stitch};
use crate::backing::{
    InTurn, Miss, MissResult, Served, StrategyContext, ViewPlan, build_view, has_host_memory, make_room, map_home,
    reserve_home,
};
use crate::error::Result;
use crate::heap::{GRANULE, PlanHash, Request};
use crate::ids::{BlockId, Class, PoolIndex};
use crate::span::Span;
use crate::streams::Until;

/// The most growths of home for one request. Two are enough unless addresses or mappings are at their bounds.
const MAX_GROWTHS: u32 = 8;

/// The number of waits after the first one that ask for exactly the missing bytes. The memory that a wait gets may lie
/// in parts of chunks that no view can join. After these waits, each wait asks for twice as much as the last one.
/// Otherwise the request would wait, and call the driver, once for each small range.
const EXACT_WAITS: u32 = 4;

/// The free bytes of the device into which memory grows only after chunks were split, on a machine where no chunk is
/// split through host memory. A split needs them for copies. Without them, free memory inside chunks could not be used.
const SPLIT_RESERVE: u64 = 20 << 20;

impl Stitch {
    /// Runs the steps for `Means::Cheap`.
    pub(super) fn miss(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        reserve_home(context, HOME_MULTIPLE, request.size)?;
        self.attempt(context, request, |stitch, context| match request.class {
            Class::Small => stitch.slab(context, request),
            Class::Large => stitch.stitch(context, request),
        })
    }

    /// Runs a step and maps the block that it finds. If the step finds none, the chunks that home grew by are released.
    pub(super) fn attempt(
        &mut self,
        context: &mut StrategyContext<'_>,
        request: &Request,
        step: impl FnOnce(&mut Self, &mut StrategyContext<'_>) -> Served,
    ) -> Served {
        self.added.clear();
        let usable = step(self, context).and_then(|id| {
            let span = Span::new(context.heap().block(id).address, request.size);
            map_home(context, span).inspect_err(|_| context.put_back(id))?;
            Ok(id)
        });
        if usable.is_err() {
            release_added(context, &self.added);
        }
        usable
    }

    /// Finds a slab for small blocks: a slab that was freed since the request missed, an idle slab, a new slab, or any
    /// free 2 MiB.
    pub(super) fn slab(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        let rules = fit_rules_of(context, request);
        if let Some(id) = context.fit(request, rules) {
            return Ok(id);
        }
        context.gather(request)?;
        let takes_idle = context.heap().takes_idle(request.pool);
        let idle = context.heap().best_fit(context.heap().idle().small(), GRANULE);
        if idle.is_some() && takes_idle {
            return context.take_slab(idle, request.pool);
        }
        while context.wait_on_gpu(request, request.size, self.until)? {
            if let Some(id) = context.fit(request, rules) {
                return Ok(id);
            }
        }
        let grown = self.keep_split_reserve(context, GRANULE);
        if let Some(id) = grown.and_then(|()| grow_slab(context, request.pool, &mut self.added)).found()? {
            return Ok(context.take_block(id));
        }
        let own = request.pool.large();
        let (own, with_idle) = ([own], [own, context.heap().idle()]);
        let pools: &[PoolIndex] = if takes_idle { &with_idle } else { &own };
        let (id, slab) = choose::slab_anywhere(context.heap(), pools)?.ok_or(Miss::OUT_OF_MEMORY)?;
        context.carve_slab(id, slab, request.pool)
    }

    /// Serves a large request from free memory, from freed memory that the GPU may still use (after waits on the GPU),
    /// and from new memory.
    fn stitch(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        // Passed memory is made idle before views are built, since memory that merges needs no view. The event that
        // tells what is passed costs a hundredth of what mapping a chunk costs.
        context.gather(request)?;
        // Views first take memory that needs waits, and free slabs only then: a small request waits for no other
        // stream, so without a free slab it would need a new slab.
        self.spares_slabs = context.heap().knows_streams();
        let joined = self.stitch_behind_waits(context, request);
        let spared = std::mem::replace(&mut self.spares_slabs, false);
        let joined =
            if let (Ok(Joined::Missing(_)), true) = (&joined, spared) { self.join(context, request) } else { joined };
        let missing = match joined? {
            Joined::Block(id) => return Ok(id),
            Joined::Missing(missing) => missing,
        };
        let block = self.grow(context, request, missing)?;
        if self.until != Until::ANY {
            context.count_growth_for_wait(request, missing)?;
        }
        Ok(block)
    }

    /// Serves a large request from free memory, and, after waits on the GPU, from freed memory that the GPU may still
    /// use.
    fn stitch_behind_waits(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> MissResult<Joined> {
        let mut missing = match self.join(context, request)? {
            Joined::Missing(missing) => missing,
            block => return Ok(block),
        };
        if context.take_recorded(request, missing, self.until)? {
            missing = match self.join(context, request)? {
                Joined::Missing(missing) => missing,
                block => return Ok(block),
            };
        }
        if let Some(id) = others::take(context, request, self.until.freed)? {
            return Ok(Joined::Block(id));
        }
        let (mut wanted, mut rounds) = (missing, 0);
        while context.wait_on_gpu(request, wanted, self.until)? {
            missing = match self.join(context, request)? {
                Joined::Missing(missing) => missing,
                block => return Ok(block),
            };
            rounds += 1;
            let at_least = if rounds > EXACT_WAITS { wanted.saturating_mul(2) } else { 0 };
            wanted = missing.max(at_least);
        }
        Ok(Joined::Missing(missing))
    }

    /// Grows by the missing bytes until the request fits. New memory between two ranges joins them into one, with which
    /// a view can begin or end, but not both. So a few more bytes may be missing than before.
    pub(super) fn grow(&mut self, context: &mut StrategyContext<'_>, request: &Request, mut missing: u64) -> Served {
        for _ in 0..MAX_GROWTHS {
            let growth = Growth::new(context, request, missing);
            self.keep_split_reserve(context, growth.bytes())?;
            growth.run(context, &mut self.added)?;
            missing = match self.join(context, request)? {
                Joined::Block(id) => return Ok(id),
                Joined::Missing(missing) => missing,
            };
        }
        Err(Miss::OUT_OF_MEMORY)
    }

    /// Refuses a growth that would leave too little room for splitting chunks, as long as splits may gain as many bytes
    /// as the growth.
    fn keep_split_reserve(&mut self, context: &mut StrategyContext<'_>, bytes: u64) -> MissResult<()> {
        // If fewer than `bytes` bytes are free, no split gains enough, and the driver need not be asked for the
        // device's free memory.
        let may_gain = self.has_host_memory != Some(true) && context.heap().not_allocated() >= bytes;
        let is_short = |room| room < bytes.saturating_add(SPLIT_RESERVE);
        if !may_gain || !self.may_reserve(context) || !context.known_room().is_some_and(is_short) {
            return Ok(());
        }
        let gains = splittable(context.heap())? >= bytes;
        if gains && self.split_reserve(context) > 0 { Err(Miss::OUT_OF_MEMORY) } else { Ok(()) }
    }

    /// Returns the free bytes of the device into which memory may not grow yet, since splits need them. The first call
    /// tries to get a granule of host memory: if the driver gives it, chunks are split through host memory, and 0 is
    /// returned.
    pub(super) fn split_reserve(&mut self, context: &mut StrategyContext<'_>) -> u64 {
        let reserves =
            self.may_reserve(context) && !*self.has_host_memory.get_or_insert_with(|| has_host_memory(context));
        if reserves { SPLIT_RESERVE } else { 0 }
    }

    /// Returns whether room may be reserved for splits at present. During a capture no chunk is split.
    fn may_reserve(&self, context: &StrategyContext<'_>) -> bool {
        context.may_exchange() && !self.spends_reserve
    }

    /// Serves the request from free memory: in one range, in an existing view, or in a new view. Returns the number of
    /// missing bytes if free memory is too little.
    pub(super) fn join(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> MissResult<Joined> {
        let Request { size, pool, .. } = *request;
        self.refused = None;
        if request.extends.is_some() {
            return self.extend(context, request);
        }
        if let Some(id) = context.fit(request, fit_rules_of(context, request)) {
            return Ok(Joined::Block(id));
        }
        // For the same request and the same free memory, the ranges chosen before are taken, without a walk over all
        // ranges.
        let key = Key::of(context.heap(), request, self.spares_slabs);
        match self.remembered.get(key) {
            Some(Choice::Missing(missing)) => return Ok(Joined::Missing(missing)),
            Some(Choice::View(plan)) => {
                if let Some(id) = reuse_view(context, plan, request)? {
                    return Ok(Joined::Block(id));
                }
            }
            None => {}
        }
        if let Some(id) = run_at_home(context, request)? {
            return Ok(Joined::Block(id));
        }
        let spans = match choose::spans(context.heap(), size, pool, self.spares_slabs)? {
            Ok(spans) => spans,
            Err(missing) => {
                self.remembered.put(key, Choice::Missing(missing));
                return Ok(Joined::Missing(missing));
            }
        };
        let hash = PlanHash::of(&spans);
        self.remembered.put(key, Choice::View(hash));
        if let Some(id) = reuse_view(context, hash, request)? {
            return Ok(Joined::Block(id));
        }
        if let Some(id) = others::take(context, request, self.until.freed)? {
            return Ok(Joined::Block(id));
        }
        let plan = ViewPlan::over(context.heap(), &spans, Some(hash))?;
        self.make_room_for(context, &plan)?;
        // If seamalloc's bounds or the driver forbid a view, the request gets new memory in one piece, which needs no
        // view.
        if self.refused.is_some() {
            return Ok(Joined::Missing(size));
        }
        build_view(context, plan, request).map(Joined::Block).or_try(|| Ok(Joined::Missing(size)))
    }

    /// Makes room for a view within the bounds on views (`max_views` and others) by dropping views unused longest. If
    /// there is still too little room, notes the view as refused.
    fn make_room_for(&mut self, context: &mut StrategyContext<'_>, plan: &ViewPlan) -> Result<()> {
        if plan.fits(context.heap(), context.config) {
            return Ok(());
        }
        self.refused = make_room(context, plan)?;
        if self.refused.is_some() && plan.fits_alone(context.config) {
            context.advance_epochs()?;
            self.refused = make_room(context, plan)?;
        }
        Ok(())
    }
}

/// Takes a block of a view that has served a request for which the same free ranges (`plan`) were chosen, or of another
/// view that fits. Returns `None` if no such view is free for the request.
pub(super) fn reuse_view(
    context: &mut StrategyContext<'_>,
    plan: PlanHash,
    request: &Request,
) -> Result<Option<BlockId>> {
    let (heap, Request { size, pool, .. }) = (context.heap(), *request);
    let window =
        heap.views().candidates(plan, size).find_map(|view| heap.window(view, size, |id| heap.is_open(id, pool)));
    window.map(|window| context.reuse_view(window, request, Some(plan))).transpose()
}
