//! Which operation a number means, and the operations on blocks: handed out, used by kernels, grown, and freed in every way.

use super::dice::Dice;
use super::oracle::Use;
use super::setup::MIB;
use super::world::{FIRST_STREAM, Live, World, found};
use seamalloc::driver::sim::Range;
use seamalloc::driver::{PlainMemory, StreamId};
use seamalloc::{Advice, Block, Error, Growing, PoolId, RawBlock};
use std::time::Duration;

/// Blocks live at most: more take longer to look at than they show.
const MAX_LIVE: usize = 160;
/// Blocks of a job whose operations repeat themselves.
const SLOTS: u64 = 32;
/// Blocks of others at most.
const MAX_OTHERS: usize = 4;

impl World {
    pub(super) fn carry_out(&mut self, dice: &mut Dice) {
        match dice.below(1000) {
            0..220 => self.slot(dice),
            220..400 => self.allocate(dice),
            400..620 => self.free(dice),
            620..640 => self.launch(dice),
            640..660 => self.reserve(dice),
            660..665 => self.reserve_owned(dice),
            665..715 => self.resize(dice),
            715..730 => self.advise(dice),
            730..740 => self.unspill(),
            740..775 => self.sleep_or_wake(dice),
            775..800 => self.give_back(dice),
            800..816 => self.limit(dice),
            816..834 => match dice.below(3) {
                0 => self.gpu.set_run_ahead(dice.below(300_000)),
                _ => self.gpu.advance(dice.below(30_000_000)),
            },
            834..846 => self.forget_stream(dice),
            846..866 => self.make_pool(dice),
            866..882 => self.release_pool(dice),
            882..896 => self.route(dice),
            896..916 => self.capture(dice),
            916..936 => self.replay(dice),
            936..944 => self.fix(dice),
            944..956 => self.others(dice),
            956..964 => self.leave_to_callback(dice),
            964..984 => self.checkpoint(dice),
            984..992 => self.wrong_address(dice),
            _ => {
                self.allocator.reports().reset_peaks();
                self.allocator.reports().reset_accumulated();
                drop((
                    self.allocator.reports().flight(),
                    self.allocator.reports().largest_request(),
                    self.allocator.driver().memory_info(),
                ));
            }
        }
    }

    fn size(&self, dice: &mut Dice) -> u64 {
        let capacity = self.setup.capacity;
        let size = match dice.below(12) {
            0 => 1 + dice.below(512),
            1 => 1 + dice.below(MIB),
            2 => MIB - 600 + dice.below(1200),
            3 => 2 * MIB * (1 + dice.below(12)),
            4 => 1 + dice.below(10 * MIB),
            5 => 10 * MIB - 700 + dice.below(1400),
            6 => 1 + dice.below(40 * MIB),
            7 => 20 * MIB,
            8 => 1 + dice.below(capacity / 3),
            9 => 1 + dice.below(capacity / 16),
            10 => 512 * (1 + dice.below(64)),
            _ => MIB * (1 + dice.below(64)),
        };
        size.min(capacity)
    }

    /// Returns any stream of the program, captured or not.
    pub(super) fn stream(&self, dice: &mut Dice) -> StreamId {
        match dice.below(10) {
            0..4 => StreamId::DEFAULT,
            4..7 => StreamId(FIRST_STREAM),
            _ => StreamId(FIRST_STREAM + dice.below(self.setup.streams)),
        }
    }

    pub(super) fn is_captured(&self, stream: StreamId) -> bool {
        self.capture.as_ref().is_some_and(|capture| capture.stream == stream)
    }

    fn is_left(&self, address: u64) -> bool {
        self.desk.lock().may_free.contains(&address)
    }

    /// Returns a live block that is not left to a callback.
    pub(super) fn block(&self, dice: &mut Dice, grows: bool) -> Option<u64> {
        let of_kind: Vec<u64> = self.live.iter().filter(|(_, live)| live.grows || !grows).map(|(at, _)| *at).collect();
        let address = of_kind[dice.index(of_kind.len())?];
        (!self.is_left(address)).then_some(address)
    }

    fn live_bytes(&self) -> u64 {
        self.live.values().map(|live| live.size).sum()
    }

    /// Takes a step of a job: allocates or frees the block of a slot, in each pass with the same size.
    fn slot(&mut self, dice: &mut Dice) {
        let slot = dice.below(SLOTS);
        let held = self.slots.remove(&slot);
        if let Some(address) = held.filter(|at| self.live.contains_key(at) && !self.is_left(*at)) {
            let live = self.live[&address].clone();
            self.log(|| format!("{}: free {address:#x} of slot {slot}", self.operation));
            return match self.allocator.free(address) {
                Ok(()) => self.gone(address, &live),
                Err(error) => {
                    self.refused("free", &error);
                    self.still_live(address, None);
                }
            };
        }
        let (size, stream) = (self.size(dice).min(self.setup.capacity / 8), self.stream(dice));
        if self.live_bytes() + size > self.setup.capacity {
            return;
        }
        self.log(|| format!("{}: allocate {size} on {stream} for slot {slot}", self.operation));
        let done = self.allocator.allocate(size, stream);
        self.follow();
        match done {
            Ok(address) => {
                self.slots.insert(slot, address);
                self.handed_out(dice, address, size, stream, None);
            }
            Err(error) => self.refused("allocate", &error),
        }
    }

    fn allocate(&mut self, dice: &mut Dice) {
        // Between a little less and a third more than the device has is live.
        let most = self.setup.capacity / 100 * (60 + self.operation / 64 % 80);
        if self.live.len() >= MAX_LIVE || self.live_bytes() > most {
            return self.free(dice);
        }
        let (size, stream) = (self.size(dice), self.stream(dice));
        let own = self.capture.as_ref().filter(|capture| capture.stream == stream).map(|capture| capture.pool);
        let pool = match own {
            // A graph uses memory of the pool that its capture pins.
            Some(pool) => dice.one_in(3).then_some(pool),
            None if dice.one_in(3) => dice.index(self.pools.len()).map(|at| self.pools[at].id),
            None => None,
        };
        let only_held = pool.is_some() && dice.one_in(6);
        self.log(|| format!("{}: allocate {size} on {stream} in {pool:?}", self.operation));
        let done = match pool {
            None => self.allocator.allocate(size, stream).map(Some),
            Some(pool) if only_held => self.allocator.pools().allocate_held(pool, size, stream),
            Some(pool) => self.allocator.pools().allocate(pool, size, stream).map(Some),
        };
        self.follow();
        match done {
            Ok(Some(address)) => self.handed_out(dice, address, size, stream, pool),
            Ok(None) => {}
            Err(error) => self.refused("allocate", &error),
        }
    }

    /// Returns the private pool of a block that was asked for without a pool.
    fn pool_of(&self, address: u64) -> Option<PoolId> {
        let has = |id: &PoolId| {
            let blocks = self.allocator.pools().blocks(*id).unwrap_or_default();
            blocks.iter().any(|block| block.address == address)
        };
        self.routes.iter().map(|(pool, _)| *pool).find(has)
    }

    fn handed_out(&mut self, dice: &mut Dice, address: u64, size: u64, stream: StreamId, pool: Option<PoolId>) {
        self.log(|| format!("    {address:#x}"));
        self.count("blocks handed out");
        let pool = pool.or_else(|| self.pool_of(address));
        let has = match self.allocator.reports().size_of(address) {
            Ok(has) if has >= size && address.is_multiple_of(512) => has,
            other => found!("{size} bytes are handed out at {address:#x}, which has {other:?}"),
        };
        let captured = self.is_captured(stream);
        let live = Live { size: has, stream: Some(stream), pool, grows: false, captured, restored: false };
        if let Some(before) = self.live.insert(address, live) {
            found!("{address:#x} is handed out, and was live: {before:?}");
        }
        self.whole();
        if !self.live.contains_key(&address) {
            return;
        }
        self.apart();
        if captured {
            return self.captured(address, has, stream, pool);
        }
        self.is_passed(address, has, stream, pool);
        self.kernel(dice, address, stream, None);
    }

    /// Launches a kernel that uses a block. In a capture nothing runs.
    pub(super) fn kernel(&mut self, dice: &mut Dice, address: u64, stream: StreamId, untold: Option<StreamId>) {
        let Some(live) = self.live.get(&address) else { return };
        let in_capture = live.captured && self.capture.is_some() || self.is_captured(stream);
        if in_capture || live.size == 0 || self.is_asleep(address) {
            return;
        }
        let size = live.size;
        let ns = match dice.below(6) {
            0 => 1_000_000,
            1 => 100_000_000,
            _ => dice.below(60_000),
        };
        let pieces = self.pieces(address, size);
        if self.runs(stream, Range { address, size }, ns) {
            let ends = self.gpu.done_at(stream).unwrap_or(u64::MAX);
            self.uses.add(&pieces, Use { stream, ends, untold, graph_of: None });
        }
    }

    /// Returns whether a use of a block by `stream` can be told to the allocator.
    fn can_be_told(&self, address: u64, stream: StreamId) -> bool {
        let live = &self.live[&address];
        let in_capture = live.captured && self.capture.is_some();
        !self.is_captured(stream) && !in_capture
    }

    fn launch(&mut self, dice: &mut Dice) {
        let Some(address) = self.block(dice, false) else { return };
        let stream = self.stream(dice);
        if !self.can_be_told(address, stream) || self.is_asleep(address) {
            return;
        }
        self.log(|| format!("{}: use {address:#x} on {stream}", self.operation));
        if self.live[&address].stream != Some(stream)
            && let Err(error) = self.allocator.record_stream(address, stream)
        {
            return self.refused("record_stream", &error);
        }
        self.whole();
        self.kernel(dice, address, stream, None);
    }

    fn free(&mut self, dice: &mut Dice) {
        let Some(address) = self.block(dice, false) else { return };
        let stream = self.stream(dice);
        let live = self.live[&address].clone();
        let told = self.can_be_told(address, stream) && !self.is_asleep(address);
        let how = dice.below(10);
        self.log(|| format!("{}: free {address:#x} ({how}) with {stream}", self.operation));
        self.whole();
        let mut named = None;
        let done = match how {
            0 | 1 if told => {
                if let Err(error) = self.allocator.record_stream(address, stream) {
                    return self.refused("record_stream", &error);
                }
                self.kernel(dice, address, stream, None);
                self.allocator.free(address)
            }
            2 if told => {
                named = Some(stream);
                self.kernel(dice, address, stream, None);
                self.allocator.free_on(address, stream)
            }
            3 if told && !live.restored => {
                named = Some(stream);
                self.count("freed under another stream");
                self.kernel(dice, address, stream, live.stream.filter(|own| *own != stream));
                self.allocator.free_with_current_stream(address, stream)
            }
            4 | 5 if told && live.stream.is_some() && !live.grows => {
                named = Some(stream);
                // The errors of a plain value are only logged.
                let plain = how == 5;
                if plain {
                    self.disarm();
                }
                self.kernel(dice, address, stream, None);
                self.free_owned(address, stream, plain)
            }
            _ => self.allocator.free(address),
        };
        match done {
            Ok(()) => self.gone(address, &live),
            Err(error) => {
                self.refused("free", &error);
                self.still_live(address, named);
            }
        }
    }

    /// Frees by a [`Block`], which knows its last use, or by the plain value that it leaves.
    fn free_owned(&self, address: u64, last_use: StreamId, plain: bool) -> Result<(), Error> {
        let live = &self.live[&address];
        let stream = live.stream.unwrap_or_default();
        let mut block = Block::from_raw(&*self.allocator, RawBlock { address, size: live.size, stream });
        block.set_last_use(last_use);
        if plain {
            return self.allocator.free(block.into_raw().address);
        }
        let freed = block.free();
        if freed.is_err() {
            // Else it would be freed here.
            let _ = block.into_raw();
        }
        freed
    }

    fn gone(&mut self, address: u64, live: &Live) {
        if let (true, Some(pool), true) = (live.captured, live.pool, self.capture.is_some()) {
            let pieces = self.pieces(address, live.size);
            self.uses.leave_to_graphs_of(&pieces, pool);
        }
        self.live.remove(&address);
        if !self.guarded && self.allocator.free(address).is_ok() {
            found!("{address:#x} is freed twice");
        }
    }

    /// Checks that a free which failed changed nothing, and tells the allocator again of the use that it named.
    fn still_live(&mut self, address: u64, named: Option<StreamId>) {
        if self.live[&address].grows {
            match self.allocator.growing().extent(address) {
                Ok(extent) => self.resized(address, extent.len),
                Err(error) => found!("a free that failed left nothing of {address:#x}: {error}"),
            }
        } else if let Err(error) = self.allocator.reports().size_of(address) {
            found!("a free that failed left nothing of {address:#x}: {error}");
        }
        if let Some(stream) = named {
            self.disarm();
            if let Err(error) = self.allocator.record_stream(address, stream) {
                found!("a use of {address:#x} by {stream} cannot be told: {error}");
            }
        }
    }

    fn resized(&mut self, address: u64, len: u64) {
        if let Some(live) = self.live.get_mut(&address) {
            live.size = len;
        }
    }

    fn reserve(&mut self, dice: &mut Dice) {
        if self.live.len() >= MAX_LIVE {
            return;
        }
        let (capacity, stream) = (MIB * (1 + dice.below(80)), self.stream(dice));
        if self.is_captured(stream) {
            return;
        }
        let pool = if dice.one_in(3) { dice.index(self.pools.len()).map(|at| self.pools[at].id) } else { None };
        self.log(|| format!("{}: reserve {capacity} on {stream} in {pool:?}", self.operation));
        let done = match pool {
            None => self.allocator.growing().reserve(capacity, stream),
            Some(pool) => self.allocator.growing().reserve_in(pool, capacity, stream),
        };
        self.follow();
        match done {
            Ok(address) => {
                self.log(|| format!("    {address:#x}"));
                let (stream, captured) = (Some(stream), false);
                let live = Live { size: 0, stream, pool, grows: true, captured, restored: false };
                if let Some(before) = self.live.insert(address, live) {
                    found!("{address:#x} is reserved, and was live: {before:?}");
                }
            }
            Err(error) => self.refused("reserve", &error),
        }
    }

    /// Makes an allocation that grows and is owned. Another stream uses it last; then it is dropped, or becomes a plain address.
    fn reserve_owned(&mut self, dice: &mut Dice) {
        let (capacity, stream, last_use) = (MIB * (1 + dice.below(40)), self.stream(dice), self.stream(dice));
        if self.live.len() >= MAX_LIVE || self.is_captured(stream) || self.is_captured(last_use) {
            return;
        }
        self.log(|| format!("{}: reserve {capacity} on {stream}, used last on {last_use}", self.operation));
        // Errors of a drop, and of a name for the last use, are only logged.
        self.disarm();
        let allocator = std::sync::Arc::clone(&self.allocator);
        let mut growing = match Growing::new(&*allocator, capacity, stream) {
            Ok(growing) => growing,
            Err(error) => return self.refused("reserve", &error),
        };
        let grown = growing.grow(1 + dice.below(capacity));
        let (address, size) = (growing.address(), growing.len());
        self.follow();
        if let Err(error) = grown {
            self.refused("grow", &error);
        }
        let live = Live { size, stream: Some(stream), pool: None, grows: true, captured: false, restored: false };
        if let Some(before) = self.live.insert(address, live) {
            found!("{address:#x} is reserved, and was live: {before:?}");
        }
        self.whole();
        self.apart();
        self.is_passed(address, size, stream, None);
        self.kernel(dice, address, last_use, None);
        growing.set_last_use(last_use);
        if dice.one_in(2) {
            let _ = growing.into_address();
            return;
        }
        self.live.remove(&address);
        drop(growing);
        if self.allocator.growing().extent(address).is_ok() {
            found!("{address:#x} is dropped, and live");
        }
    }

    fn resize(&mut self, dice: &mut Dice) {
        let Some(address) = self.block(dice, true).filter(|address| !self.is_asleep(*address)) else { return };
        let extent = |world: &Self| match world.allocator.growing().extent(address) {
            Ok(extent) if extent.len <= extent.capacity && extent.len <= extent.mapped => extent,
            other => found!("the extent of {address:#x} is {other:?}"),
        };
        let before = extent(self);
        let size = match dice.below(3) {
            0 => before.len + dice.below(3 * MIB),
            _ => dice.below(before.capacity + 2),
        };
        let how = dice.below(3);
        self.log(|| format!("{}: resize ({how}) {address:#x} from {} to {size}", self.operation, before.len));
        let done = match how {
            0 => self.allocator.growing().grow(address, size),
            1 => self.allocator.growing().resize(address, size),
            _ => self.allocator.growing().shrink(address, size),
        };
        self.follow();
        // A callback may have freed it, which is refused while it grows.
        if !self.live.contains_key(&address) {
            return;
        }
        let after = extent(self);
        self.resized(address, after.len);
        if let Err(error) = done {
            self.refused("resize", &error);
        }
        self.whole();
        self.apart();
        let live = self.live[&address].clone();
        let Some(stream) = live.stream.filter(|stream| !self.is_captured(*stream)) else { return };
        if after.len > before.len {
            self.count("growths");
        }
        // Kernels of the allocation itself may still use the memory that it had before.
        if after.mapped > before.mapped {
            self.is_passed(address + before.mapped, after.mapped - before.mapped, stream, live.pool);
        }
        self.kernel(dice, address, stream, None);
    }

    fn advise(&mut self, dice: &mut Dice) {
        let Some(address) = self.block(dice, false) else { return };
        let advice = dice.pick(&Advice::ALL);
        self.log(|| format!("{}: {address:#x} is {}", self.operation, advice.name()));
        self.judge("advise", |world| world.allocator.spill().advise(address, advice));
    }

    fn unspill(&mut self) {
        self.log(|| format!("{}: unspill", self.operation));
        self.judge("unspill", |world| world.allocator.spill().restore());
    }

    /// Carries out an operation of which only the error is of interest.
    pub(super) fn judge<T>(&mut self, what: &'static str, call: impl FnOnce(&mut Self) -> Result<T, Error>) {
        let done = call(self);
        self.follow();
        if let Err(error) = done {
            self.refused(what, &error);
        }
    }

    fn give_back(&mut self, dice: &mut Dice) {
        let (how, bytes) = (dice.below(8), dice.below(self.setup.capacity));
        self.log(|| format!("{}: give back ({how}) {bytes}", self.operation));
        self.judge("give back", |world| {
            let before = world.allocator.reports().reserved();
            let given = match how {
                0 | 1 => world.allocator.empty_cache()?,
                2 => world.allocator.trim(bytes)?,
                3 => {
                    let spare = world.allocator.lending().lendable();
                    if spare.held < spare.live {
                        found!("more is live than held: {spare:?}");
                    }
                    world.allocator.lending().lend(bytes)?
                }
                4 => {
                    world.gpu.advance(11_000_000);
                    world.allocator.lending().enforce_headroom()?
                }
                5 => world.allocator.lending().release_passed()?,
                6 => world.allocator.tags().release_backups().map(|_| 0)?,
                _ => {
                    world.idle_clock += bytes % 200_000;
                    let now = Duration::from_millis(world.idle_clock);
                    world.idle.tick(&world.allocator, now)?
                }
            };
            if before != world.allocator.reports().reserved() + given && how < 3 {
                found!(
                    "{given} bytes were given back of {before}, and {} are left",
                    world.allocator.reports().reserved()
                );
            }
            Ok(())
        });
    }

    fn limit(&mut self, dice: &mut Dice) {
        let capacity = self.setup.capacity;
        let (by_fraction, limited, part) = (dice.one_in(3), dice.one_in(3), dice.below(100));
        self.log(|| format!("{}: limit ({by_fraction}) {limited} {part}", self.operation));
        self.judge("limit", |world| match by_fraction {
            true => world.allocator.limits().set_fraction(if limited { (1 + part) as f64 / 100.0 } else { 1.0 }),
            false => world.allocator.limits().set_bytes(limited.then_some(capacity / 4 + capacity / 100 * part)),
        });
    }

    fn forget_stream(&mut self, dice: &mut Dice) {
        let stream = StreamId(FIRST_STREAM + dice.below(self.setup.streams));
        if self.capture.is_some() {
            return;
        }
        self.log(|| format!("{}: forget stream {stream}", self.operation));
        match self.allocator.streams().forget(stream) {
            Ok(()) => self.forgot(stream),
            Err(error) => self.refused("forget_stream", &error),
        }
    }

    fn fix(&mut self, dice: &mut Dice) {
        let Some(address) = self.block(dice, false) else { return };
        self.log(|| format!("{}: fix the memory of {address:#x}", self.operation));
        self.judge("fix_memory", |world| world.allocator.sharing().pin_physical(address));
    }

    /// Lets others take memory of the device, or give it back.
    fn others(&mut self, dice: &mut Dice) {
        if self.capture.is_some() {
            return;
        }
        if self.others.len() < MAX_OTHERS && dice.one_in(2) {
            let size = 2 * MIB * (1 + dice.below(8));
            if let Ok(address) = self.gpu.malloc(size) {
                self.log(|| format!("{}: others take {size}", self.operation));
                self.others.push((address, size));
            }
        } else if let Some((address, size)) = self.others.pop() {
            self.log(|| format!("{}: others give {size}", self.operation));
            self.disarm();
            if let Err(error) = self.gpu.free(address) {
                found!("others cannot give back: {error}");
            }
        }
    }

    fn leave_to_callback(&mut self, dice: &mut Dice) {
        let Some(address) = self.block(dice, false).filter(|address| !self.live[address].grows) else { return };
        if self.setup.pressure && self.capture.is_none() {
            self.log(|| format!("{}: a callback may free {address:#x}", self.operation));
            self.desk.lock().may_free.push(address);
        }
    }

    /// Checks that an address at which nothing was handed out is refused.
    fn wrong_address(&mut self, dice: &mut Dice) {
        let near = self.block(dice, false).unwrap_or(0).wrapping_add(512 * (1 + dice.below(64)));
        let address = if dice.one_in(3) { dice.next() >> dice.below(40) } else { near };
        if address == 0 || self.guarded || self.live.contains_key(&address) {
            return;
        }
        let (stream, allocator) = (self.stream(dice), &self.allocator);
        let done = [
            allocator.free(address),
            allocator.free_on(address, stream),
            allocator.free_with_current_stream(address, stream),
            allocator.record_stream(address, stream),
            allocator.reports().size_of(address).map(drop),
            allocator.growing().grow(address, 1),
            allocator.growing().shrink(address, 0),
            allocator.sharing().pin_physical(address),
            allocator.spill().advise(address, Advice::Cold),
        ];
        if let Some(at) = done.iter().position(Result::is_ok) {
            found!("operation {at} takes {address:#x}, at which nothing was handed out");
        }
    }
}
