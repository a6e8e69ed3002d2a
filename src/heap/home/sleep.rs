//! Private pools with chunks of their own, which can sleep. The memory of a sleeping pool is released. Its blocks,
//! views and addresses stay.
//!
//! Owns: which chunks belong to such a pool, where they are mapped, which of their bytes are live, and how they are
//! counted. `backing/sleep.rs` makes the calls.

use super::chunk_map::Chunk;
use super::saved::Saved;
use crate::error::{Error, Result};
use crate::fallible::{Grown, TryCollect, TryPush};
use crate::heap::blocks::block::{Block, Kind, State};
use crate::heap::pools::pool::Pool;
use crate::heap::tables::Heap;
use crate::ids::{ChunkId, Handle, PoolId, PoolIndex, ViewId};
use crate::report::observer::Action;
use crate::report::stats::SleepStats;
use crate::span::Span;
use rustc_hash::FxHashMap;

/// A place at which a chunk of [`Sleeper`] is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlaceOfChunk {
    /// The view in which the place lies; `None` for a place at home.
    pub(crate) view: Option<ViewId>,
    pub(crate) span: Span,
    /// The index of the chunk in [`Sleeper::chunks`].
    pub(crate) chunk: usize,
}

/// The chunks of a private pool, and where they are mapped.
#[derive(Debug)]
pub(crate) struct Sleeper {
    /// The chunks, in the order of their addresses.
    pub(crate) chunks: Vec<(ChunkId, Chunk)>,
    /// First the places at home, then the places of one view after the other. Each of these groups is in the order of
    /// addresses.
    pub(crate) places: Vec<PlaceOfChunk>,
}

impl Sleeper {
    /// Returns the total bytes of all chunks.
    pub(crate) fn bytes(&self) -> u64 {
        self.chunks.iter().map(|(_, chunk)| chunk.size).sum()
    }

    /// Returns, for each chunk, an address at which the chunk is mapped, or `None`.
    pub(crate) fn addresses(&self) -> Grown<Vec<Option<u64>>> {
        let mut addresses = self.chunks.iter().map(|_| None).try_to_vec()?;
        for place in self.places.iter().rev() {
            addresses[place.chunk] = Some(place.span.start);
        }
        Ok(addresses)
    }

    /// Returns the index of the chunk that holds an address of home, or `None`.
    pub(crate) fn chunk_at(&self, address: u64) -> Option<usize> {
        let behind = self.chunks.partition_point(|(_, chunk)| chunk.address <= address);
        let at = behind.checked_sub(1)?;
        self.chunks.get(at).filter(|(_, chunk)| address < chunk.end()).map(|_| at)
    }
}

impl Heap {
    /// Returns the bytes of live and pending blocks of sleeping private pools.
    pub(crate) fn live_asleep(&self) -> u64 {
        if self.home.asleep == [0; 2] {
            return 0;
        }
        let free = |(index, _): (PoolIndex, &Pool)| {
            let mut bytes = 0;
            let visited = self.blocks.visit_free(index, 0, |id| {
                bytes += self.blocks[id].size;
                Ok(())
            });
            if self.is_asleep(index) && visited.is_ok() { bytes } else { 0 }
        };
        self.home.asleep.iter().sum::<u64>().saturating_sub(self.pools.iter().map(free).sum())
    }

    /// Returns the chunks of a private pool with chunks of its own, and all places of these chunks.
    ///
    /// # Errors
    /// The host has no memory for the lists, or a chunk does not belong to the pool alone.
    pub(crate) fn sleeper(&self, owner: PoolId) -> Result<Sleeper> {
        let Some(home) = &self.home.map else { return Ok(Sleeper { chunks: Vec::new(), places: Vec::new() }) };
        let mut chunks = Vec::new();
        for (id, chunk) in home.chunks() {
            let is_owned = |id| self.is_owned_by(self.blocks[id].pool, owner);
            if !self.blocks_over(chunk.span()).any(is_owned) {
                continue;
            }
            if !self.blocks_over(chunk.span()).all(is_owned) {
                return Err(Error::Internal("a chunk of a private pool is not its own"));
            }
            chunks.try_push((id, chunk))?;
        }
        chunks.sort_unstable_by_key(|(_, chunk)| chunk.address);
        let mut number = FxHashMap::default();
        number.try_reserve(chunks.len())?;
        number.extend(chunks.iter().enumerate().map(|(at, (id, _))| (*id, at)));
        let mut places = Vec::new();
        for (at, (_, chunk)) in chunks.iter().enumerate().filter(|(_, (_, chunk))| !home.is_bare(chunk.address, 1)) {
            places.try_push(PlaceOfChunk { view: None, span: chunk.span(), chunk: at })?;
        }
        for (view, of) in self.home.views.iter() {
            let mut at = 0;
            for id in &of.chunks {
                let size = home.chunk(*id).map_or_else(|| of.hole_at(at), |chunk| chunk.size);
                if let Some(chunk) = number.get(id) {
                    let span = Span::new(of.address + at, size);
                    places.try_push(PlaceOfChunk { view: Some(view), span, chunk: *chunk })?;
                }
                at += size;
            }
        }
        Ok(Sleeper { chunks, places })
    }

    /// Returns the spans of a chunk in which live or pending blocks lie.
    pub(crate) fn live_in(&self, chunk: &Chunk) -> Grown<Vec<Span>> {
        let mut spans: Vec<Span> = Vec::new();
        for id in self.blocks_over(chunk.span()) {
            let block = &self.blocks[id];
            if !matches!(block.state, State::Allocated | State::Pending | State::Piece) {
                continue;
            }
            let Some(part) = block.span().intersection(&chunk.span()) else { continue };
            match spans.last_mut().filter(|last| last.end() == part.start) {
                Some(last) => last.size += part.size,
                None => spans.try_push(part)?,
            }
        }
        Ok(spans)
    }

    /// Makes room to pin each view over the chunks.
    pub(crate) fn reserve_sleep(&mut self, sleeper: &Sleeper) -> Grown<()> {
        sleeper.places.iter().filter_map(|place| place.view).try_for_each(|view| self.home.views.reserve_pin(view))
    }

    /// Notes that the chunks of a private pool have no memory any more. All views over the chunks stay.
    pub(crate) fn fall_asleep(&mut self, owner: PoolId, sleeper: &Sleeper, saved: Saved) {
        for view in sleeper.places.iter().filter_map(|place| place.view) {
            self.home.views.pin(view, owner);
        }
        for (id, chunk) in &sleeper.chunks {
            self.count_asleep(chunk, true);
            self.notify_sleep(Action::Asleep, chunk);
            if let Some(home) = &mut self.home.map {
                home.set_handle(*id, None);
            }
        }
        self.journal.fell_asleep();
        self.pools.private_mut().set_asleep(owner, Some(saved));
    }

    /// Notes that the chunks of a private pool have memory again, with these handles.
    pub(crate) fn wake_up(&mut self, owner: PoolId, sleeper: &Sleeper, handles: impl Iterator<Item = Handle>) {
        for ((id, chunk), handle) in sleeper.chunks.iter().zip(handles) {
            self.count_asleep(chunk, false);
            self.notify_sleep(Action::Awake, chunk);
            if let Some(home) = &mut self.home.map {
                home.set_handle(*id, Some(handle));
            }
        }
        self.journal.woke_up();
        self.pools.private_mut().set_asleep(owner, None);
    }

    fn notify_sleep(&mut self, action: Action, chunk: &Chunk) {
        let pool = self.blocks[self.covering(chunk.address)].pool;
        self.notify_range(action, Kind::Home, chunk.span(), pool);
    }

    /// Counts the bytes of a chunk as asleep instead of held, or as held instead of asleep.
    fn count_asleep(&mut self, chunk: &Chunk, asleep: bool) {
        for (class, size) in self.bytes_by_class(chunk) {
            if asleep {
                self.journal.held(class, size, 0);
                self.home.asleep[class as usize] += size;
            } else {
                self.journal.held(class, 0, size);
                self.home.asleep[class as usize] -= size;
            }
        }
    }

    /// Returns the figures of sleeping tags.
    pub(crate) fn sleep_stats(&self) -> SleepStats {
        let mut stats = SleepStats::default();
        (stats.sleeps, stats.wakes) = (self.journal.counters().sleeps, self.journal.counters().wakes);
        stats.asleep_bytes = self.home.asleep.iter().sum();
        stats.page_locked_bytes = self.pools.private().stock().bytes();
        stats
    }

    /// Returns the bytes of the chunks of a sleeping private pool; 0 if the pool is awake.
    pub(crate) fn bytes_asleep(&self, owner: PoolId) -> u64 {
        if self.pools.private().asleep(owner).is_none() {
            return 0;
        }
        let of_owner = |chunk: &Chunk| self.is_owned_by(self.blocks[self.covering(chunk.address)].pool, owner);
        let chunks = self.home.map.iter().flat_map(|home| home.chunks()).map(|(_, chunk)| chunk);
        chunks.filter(|chunk| chunk.asleep && of_owner(chunk)).map(|chunk| chunk.size).sum()
    }

    /// Ends the sleep of a released private pool without live blocks. The pool's addresses at home become free, and the
    /// addresses of its views are given back with the next memory that goes back to the driver. Returns whether the
    /// pool no longer sleeps.
    ///
    /// # Errors
    /// The host has no memory for a list. The pool still sleeps, with fewer chunks.
    pub(crate) fn forget_asleep(&mut self, owner: PoolId) -> Result<bool> {
        if self.pools.private().asleep(owner).is_none() {
            return Ok(true);
        }
        let live = |block: &Block| matches!(block.state, State::Allocated | State::Pending | State::Piece);
        if self.blocks.iter().any(|(_, block)| live(block) && self.is_owned_by(block.pool, owner)) {
            return Ok(false);
        }
        let Sleeper { chunks, places } = self.sleeper(owner)?;
        for places in places.chunk_by(|place, next| place.view == next.view) {
            if let Some(view) = places.first().and_then(|place| place.view) {
                self.forget_places(view, places, &chunks)?;
            }
        }
        for (id, chunk) in chunks {
            let blocks = self.blocks_over(chunk.span()).try_to_vec()?;
            let Some(first) = blocks.first() else { continue };
            let mut slots = self.reserve_parts(*first, blocks.len())?;
            for (class, size) in self.bytes_by_class(&chunk) {
                self.home.asleep[class as usize] -= size;
            }
            if let Some(home) = &mut self.home.map {
                self.journal.mappings_removed(u64::from(!home.is_bare(chunk.address, 1)));
                home.remove_chunk(id);
            }
            for id in blocks {
                if let Some(part) = self.blocks[id].span().intersection(&chunk.span()) {
                    self.lose_memory(id, part, &mut slots);
                }
            }
        }
        self.pools.private_mut().set_asleep(owner, None);
        Ok(true)
    }

    /// Notes that sleeping chunks have no addresses in a view any more. Other chunks of the view stay mapped.
    fn forget_places(&mut self, id: ViewId, places: &[PlaceOfChunk], chunks: &[(ChunkId, Chunk)]) -> Result<()> {
        let Some(view) = self.home.views.get(id) else { return Ok(()) };
        if view.mappings() == places.len() {
            let mappings = view.mappings();
            self.unmapped_view(id, mappings);
            return Ok(());
        }
        let address = view.address;
        self.reserve_holes(id, places.len())?;
        for PlaceOfChunk { span, chunk, .. } in places {
            let of = chunks.get(*chunk).map(|(chunk, _)| *chunk);
            let index =
                self.home.views.get(id).and_then(|view| view.chunks.iter().position(|chunk| Some(*chunk) == of));
            if let Some(index) = index {
                self.cut_view(id, index, Span::new(span.start - address, span.size));
            }
        }
        Ok(())
    }
}
