//! Strategy `stitch`: a request gets contiguous addresses for as long as enough memory is free anywhere.
//!
//! Owns: what happens on a miss, in this order: a view that is there already, a new view over free ranges, growth by
//! exactly what is missing. Physical memory is accounted at home only ([`crate::home`]); a view only maps it.
//!
//! ```text
//! home  |1 XX..|2 YYYY|3 ....|4 .ZZZ|      four chunks; X, Y, Z live, dots free; no seven free in a row
//! view  |1 --##|3 ####|4 #---|             a block of seven: the tail of chunk 1, chunk 3, the head of chunk 4
//! ```

mod choose;
pub(super) mod epochs;
mod give_back;
pub(super) mod grow;
mod last_resort;
mod outlook;
pub(super) mod view;

use self::epochs::Epochs;
use self::give_back::Spare;
use super::home;
use super::mapping::Unsettled;
use super::{Ground, Miss, Premise, Strategy};
use crate::blocks::BlockId;
use crate::config::{Config, Sharing};
use crate::driver::DriverResult;
use crate::heap::{FitRules, Heap, Request};
use crate::home::{ChunkId, GRANULE};
use crate::ids::StreamId;
use crate::rounding::MIN_BLOCK;
use crate::stats::Class;
use crate::views::Choice;

/// How often home grows for one request: twice is enough but where addresses or mappings are at their bounds.
const MOST_GROWTHS: u32 = 8;

/// How often a request waits for just what it is short of. What comes may lie in parts of chunks that no view can join;
/// beyond this it waits for twice as much each time, or it would wait, and call the driver, once for each small range.
const EXACT_WAITS: u32 = 4;

/// State of the strategy; what is free where stands in the heap.
#[derive(Default)]
pub(super) struct Stitch {
    unsettled: Unsettled,
    epochs: Epochs,
    /// Chunks that were added for the request at hand: they go again if it fails.
    grown: Vec<ChunkId>,
}

impl Strategy for Stitch {
    fn rules(&self, _config: &Config) -> FitRules {
        FitRules {
            growing_edge: false,
            max_split_size: u64::MAX,
            max_non_split_rounding: u64::MAX,
            min_rest: [MIN_BLOCK; 2],
            no_split_from: u64::MAX,
            count_ages: false,
            takes_idle: true,
            asks_first: false,
        }
    }

    fn miss(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss> {
        if ground.heap.home.is_none() {
            home::reserve(ground, grow::HOMES)?;
        }
        self.attempt(ground, request, |stitch, ground| match request.class {
            Class::Small => stitch.slab(ground, request),
            Class::Large => stitch.stitch(ground, request),
        })
    }

    fn map_home(&mut self, ground: &mut Ground<'_>, id: BlockId, size: u64) -> Result<(), Miss> {
        let address = ground.heap.blocks[id].address;
        Ok(grow::map_home(ground, &mut self.unsettled, address, size)?)
    }

    fn freed_much(&mut self, ground: &mut Ground<'_>, large: u32) -> DriverResult<()> {
        self.epochs.end(ground, large)
    }

    fn ebb(&mut self, ground: &mut Ground<'_>) -> DriverResult<()> {
        // A stream alone has nobody to meet.
        self.epochs.first_with_memory(ground).map_or(Ok(()), |own| self.epochs.gather(ground, own).map(|_| ()))
    }

    fn last_resort(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss> {
        if ground.capturing() {
            self.epochs.ask(ground)?;
            return self.miss(ground, request);
        }
        self.wait_and_replace(ground, request)
    }

    fn release_cached(&mut self, ground: &mut Ground<'_>) -> DriverResult<()> {
        self.unsettled.settle(ground)?;
        ground.wait_for_all()?;
        self.epochs.all_passed(ground);
        ground.heap.make_all_idle();
        view::finish_drops(ground)?;
        Spare::of(ground.heap).give_back(ground, &mut self.unsettled, u64::MAX)?;
        home::release(ground)
    }

    fn trim(&mut self, ground: &mut Ground<'_>, down_to: u64, may_wait: bool) -> DriverResult<bool> {
        self.unsettled.settle(ground)?;
        view::finish_drops(ground)?;
        if may_wait {
            ground.wait_for_all()?;
            self.epochs.all_passed(ground);
        } else {
            self.epochs.advance(ground)?;
        }
        let missing = ground.heap.reserved().saturating_sub(down_to);
        let spare = Spare::of(ground.heap);
        if !may_wait && spare.bytes() < missing {
            return Ok(false);
        }
        spare.give_back(ground, &mut self.unsettled, missing)?;
        Ok(true)
    }

    fn waits_for_others(&self, large: u32) -> bool {
        self.epochs.waits_for_others(large)
    }

    fn freed_under(&mut self, ground: &mut Ground<'_>, large: u32, stream: StreamId) -> DriverResult<bool> {
        self.epochs.freed_under(ground, large, stream)
    }

    fn stream_passed(&mut self, ground: &mut Ground<'_>, large: u32) {
        self.epochs.passed(ground, large);
        if !ground.heap.is_private(large) {
            ground.heap.make_passed_idle(large, u64::MAX);
        }
    }

    fn sharing(&self, config: &Config) -> Sharing {
        config.sharing
    }

    fn reach(&self, heap: &Heap, _config: &Config, pool: u32, across: bool) -> u64 {
        outlook::reach(heap, pool, across)
    }

    fn growth(&self, heap: &Heap, _config: &Config, request: &Request, premise: Premise) -> u64 {
        outlook::growth(heap, request, premise)
    }

    fn close(&mut self, ground: &mut Ground<'_>) {
        self.epochs.destroy_events(ground);
    }
}

impl Stitch {
    /// What a step finds, made usable. Where it finds nothing, what home grew by for it goes again.
    fn attempt(
        &mut self,
        ground: &mut Ground<'_>,
        request: &Request,
        step: impl FnOnce(&mut Self, &mut Ground<'_>) -> Result<BlockId, Miss>,
    ) -> Result<BlockId, Miss> {
        self.grown.clear();
        let usable = step(self, ground).and_then(|id| {
            self.map_home(ground, id, request.size).inspect_err(|_| ground.heap.index(id))?;
            Ok(id)
        });
        if usable.is_err() {
            grow::take_back(ground, &mut self.unsettled, &self.grown);
        }
        usable
    }

    /// A slab for small blocks: one that was freed meanwhile, one that is idle, a new one, or 2 MiB of whatever is free.
    fn slab(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss> {
        let id = ground.heap.fit(request, &self.rules(ground.config));
        if id.is_some() {
            return Ok(id);
        }
        self.gather(ground, request)?;
        let idle = ground.heap.pools[ground.heap.idle as usize + 1].free.best_fit(&ground.heap.blocks, GRANULE);
        if idle.is_some() {
            self.map_home(ground, idle, GRANULE)?;
            ground.heap.take_free(idle);
            ground.heap.assign(idle, request.pool);
            return Ok(idle);
        }
        match grow::grow_slab(ground, &mut self.unsettled, request.pool, &mut self.grown) {
            Err(Miss::OutOfMemory) => {}
            grown => {
                let id = grown?;
                ground.heap.take_free(id);
                return Ok(id);
            }
        }
        let (id, address) =
            choose::slab_anywhere(ground.heap, &[request.pool - 1, ground.heap.idle]).ok_or(Miss::OutOfMemory)?;
        // Before it is cut out: where this fails, nothing has changed.
        grow::map_home(ground, &mut self.unsettled, address, GRANULE)?;
        let id = ground.heap.carve(id, address, GRANULE)?;
        ground.heap.make_slab(id, request.pool);
        Ok(id)
    }

    fn stitch(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss> {
        // Before views: what meets and merges needs none, and an event costs a tenth of a mapping.
        self.gather(ground, request)?;
        let mut missing = match self.join(ground, request)? {
            Ok(id) => return Ok(id),
            Err(missing) => missing,
        };
        let (mut wanted, mut rounds) = (missing, 0);
        while self.wait_for(ground, request, wanted)? {
            missing = match self.join(ground, request)? {
                Ok(id) => return Ok(id),
                Err(missing) => missing,
            };
            rounds += 1;
            let at_least = if rounds > EXACT_WAITS { wanted.saturating_mul(2) } else { 0 };
            wanted = missing.max(at_least);
        }
        self.grow(ground, request, missing)
    }

    /// Grows by what is missing until the request fits. New memory between two ranges makes one of them, of which only
    /// one end can be a view's: then a little more is missing than before.
    fn grow(&mut self, ground: &mut Ground<'_>, request: &Request, mut missing: u64) -> Result<BlockId, Miss> {
        for _ in 0..MOST_GROWTHS {
            grow::grow(ground, &mut self.unsettled, request, missing, &mut self.grown)?;
            missing = match self.join(ground, request)? {
                Ok(id) => return Ok(id),
                Err(missing) => missing,
            };
        }
        Err(Miss::OutOfMemory)
    }

    /// Whether a view keeps within the bounds, once views unused long are dropped.
    fn has_room(&mut self, ground: &mut Ground<'_>, plan: &view::Plan) -> DriverResult<bool> {
        if plan.fits(ground) || view::make_room(ground, plan)? {
            return Ok(true);
        }
        if !plan.fits_alone(ground) {
            return Ok(false);
        }
        self.epochs.advance(ground)?;
        view::make_room(ground, plan)
    }

    /// What every stream has passed belongs to all.
    fn gather(&mut self, ground: &mut Ground<'_>, request: &Request) -> DriverResult<bool> {
        self.epochs.gather(ground, request.pool & !1)
    }

    /// Memory of other streams, behind GPU-side waits.
    fn wait_for(&mut self, ground: &mut Ground<'_>, request: &Request, missing: u64) -> Result<bool, Miss> {
        self.epochs.wait_for(ground, request, missing)
    }

    /// The request out of what is free: in one range, in a view that is there, or in a new one; or the bytes missing.
    fn join(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<Result<BlockId, u64>, Miss> {
        let Request { size, pool, .. } = *request;
        ground.heap.counters.views_refused = None;
        let id = ground.heap.fit(request, &self.rules(ground.config));
        if id.is_some() {
            return Ok(Ok(id));
        }
        // What only pools keep apart needs no view.
        if let Some(first) = choose::run_at_home(ground.heap, size, pool) {
            let id = ground.heap.join_run(first, pool, size)?;
            ground.heap.take_free(id);
            return Ok(Ok(id));
        }
        match choose::ranges(ground.heap, size, pool) {
            Ok(ranges) => {
                let choice = Choice::of(&ranges);
                if let Some(window) = view::find(ground.heap, choice, size, pool) {
                    ground.heap.counters.views_reused += 1;
                    ground.heap.views.remember(choice, window.view);
                    return Ok(Ok(ground.heap.take_window(window, size, pool)?));
                }
                let plan = view::Plan::over(ground.heap, &ranges, choice)?;
                // At a bound, ours or the driver's, memory in one piece needs no view.
                if !self.has_room(ground, &plan)? {
                    return Ok(Err(size));
                }
                match view::build(ground, &mut self.unsettled, plan, request) {
                    Err(Miss::OutOfMemory) => Ok(Err(size)),
                    built => built.map(Ok),
                }
            }
            Err(missing) => Ok(Err(missing)),
        }
    }
}
