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
mod epochs;
mod grow;
mod view;

use self::epochs::Epochs;
use super::mapping::Unsettled;
use super::{Ground, Miss, Strategy};
use crate::blocks::BlockId;
use crate::config::{Config, Sharing};
use crate::driver::DriverResult;
use crate::heap::{FitRules, Request};
use crate::home::GRANULE;
use crate::rounding::MIN_BLOCK;
use crate::stats::Class;

/// How often home grows for one request: twice is enough but where addresses or mappings are at their bounds.
const MOST_GROWTHS: u32 = 8;

/// State of the strategy; what is free where stands in the heap.
#[derive(Default)]
pub(super) struct Stitch {
    unsettled: Unsettled,
    epochs: Epochs,
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
        }
    }

    fn miss(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss> {
        if ground.heap.home.is_none() {
            grow::reserve_home(ground)?;
        }
        match request.class {
            Class::Small => self.slab(ground, request),
            Class::Large => self.stitch(ground, request),
        }
    }

    fn release_cached(&mut self, ground: &mut Ground<'_>) -> DriverResult<()> {
        self.unsettled.settle(ground)?;
        grow::wait_for_all(ground)?;
        self.epochs.all_passed(ground);
        grow::release_free_chunks(ground, &mut self.unsettled)
    }

    fn close(&mut self, ground: &mut Ground<'_>) {
        self.epochs.destroy_events(ground);
    }
}

impl Stitch {
    /// A new slab for small blocks: one that is idle, a new one, or 2 MiB of whatever is free.
    fn slab(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss> {
        self.gather(ground, request, GRANULE)?;
        let idle = ground.heap.pools[ground.heap.idle as usize + 1].free.best_fit(&ground.heap.blocks, GRANULE);
        if idle.is_some() {
            ground.heap.take_free(idle);
            ground.heap.blocks[idle].pool = request.pool;
            return Ok(idle);
        }
        match grow::grow_slab(ground, &mut self.unsettled, request.pool) {
            Err(Miss::OutOfMemory) => {}
            grown => {
                let id = grown?;
                ground.heap.take_free(id);
                return Ok(id);
            }
        }
        let (id, address) = choose::slab_anywhere(ground.heap, request.pool - 1).ok_or(Miss::OutOfMemory)?;
        let id = ground.heap.carve(id, address, GRANULE)?;
        ground.heap.make_slab(id, request.pool);
        Ok(id)
    }

    fn stitch(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss> {
        let mut missing = match self.join(ground, request)? {
            Ok(id) => return Ok(id),
            Err(missing) => missing,
        };
        for step in [Self::gather, Self::wait_for] {
            if step(self, ground, request, missing)? {
                missing = match self.join(ground, request)? {
                    Ok(id) => return Ok(id),
                    Err(missing) => missing,
                };
            }
        }
        match self.grow(ground, request, missing) {
            Err(Miss::OutOfMemory) => self.last_resort(ground, request),
            done => done,
        }
    }

    /// Grows by what is missing until the request fits. New memory between two ranges makes one of them, of which only
    /// one end can be a view's: then a little more is missing than before.
    fn grow(&mut self, ground: &mut Ground<'_>, request: &Request, mut missing: u64) -> Result<BlockId, Miss> {
        for _ in 0..MOST_GROWTHS {
            grow::grow(ground, &mut self.unsettled, request, missing)?;
            missing = match self.join(ground, request)? {
                Ok(id) => return Ok(id),
                Err(missing) => missing,
            };
        }
        Err(Miss::OutOfMemory)
    }

    /// Whether `more` mappings keep within the bound, once views unused long are dropped.
    fn has_room(&mut self, ground: &mut Ground<'_>, more: usize) -> DriverResult<bool> {
        if ground.heap.views.mappings() + more > ground.config.max_view_mappings {
            self.epochs.advance(ground)?;
        }
        view::make_room(ground, more)
    }

    /// The CPU waits for all that may still use freed memory, so that every free byte counts.
    fn last_resort(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss> {
        ground.heap.counters.num_sync_all_streams += 1;
        ground.deferred.synchronize(ground.heap, ground.driver)?;
        if ground.config.sharing != Sharing::Never {
            grow::wait_for_all(ground)?;
            self.epochs.all_passed(ground);
            ground.heap.make_all_idle();
        }
        let missing = match self.join(ground, request)? {
            Ok(id) => return Ok(id),
            Err(missing) => missing,
        };
        self.grow(ground, request, missing)
    }

    /// What every stream has passed belongs to all.
    fn gather(&mut self, ground: &mut Ground<'_>, request: &Request, _missing: u64) -> DriverResult<bool> {
        self.epochs.gather(ground, request.pool & !1)
    }

    /// Memory of other streams, behind GPU-side waits.
    fn wait_for(&mut self, ground: &mut Ground<'_>, request: &Request, missing: u64) -> DriverResult<bool> {
        self.epochs.wait_for(ground, request.pool, missing)
    }

    /// The request out of what is free: in one range, in a view that is there, or in a new one; or the bytes missing.
    fn join(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<Result<BlockId, u64>, Miss> {
        let Request { size, pool, .. } = *request;
        let id = ground.heap.fit(request, &self.rules(ground.config));
        if id.is_some() {
            return Ok(Ok(id));
        }
        if let Some(window) = view::find(ground.heap, size, pool) {
            ground.heap.counters.views_reused += 1;
            return Ok(Ok(ground.heap.take_window(window, size, pool)?));
        }
        match choose::ranges(ground.heap, size, pool) {
            Ok(ranges) => {
                let plan = view::Plan::over(ground.heap, &ranges)?;
                if self.has_room(ground, plan.mappings())? {
                    return Ok(Ok(view::build(ground, &mut self.unsettled, plan, request)?));
                }
                // As many mappings as there may be: memory in one piece needs none.
                Ok(Err(size))
            }
            Err(missing) => Ok(Err(missing)),
        }
    }
}
