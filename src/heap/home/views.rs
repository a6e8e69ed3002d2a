//! Views: address ranges in which chunks that are not neighbours at home are mapped at contiguous addresses.
//!
//! Owns: which views exist, and which views are tried first for a request. A view holds no memory, only mappings. A
//! view stays when its block is freed, so that the same request finds the view again without a driver call.

use super::view::{Extent, NewView, PlanHash, View, ViewUsage};
use crate::fallible::{Grown, with_room};
use crate::heap::host_bytes::map_bytes;
use crate::heap::sorted::SortedSet;
use crate::ids::{ChunkId, PoolId, PoolIndex, ViewId};
use crate::span::Span;
use rustc_hash::FxHashMap;
use std::ops::RangeInclusive;

/// The most views that are examined when a request looks for a view by size.
const MAX_TRIED: usize = 32;
/// The most choices of free ranges that are remembered, each with the views that served it. A training step makes
/// dozens to hundreds of choices.
const MAX_PLANS: usize = 4096;
/// The most views that are remembered for one choice of the free ranges for a request.
const MAX_VIEWS_PER_PLAN: u8 = 8;

/// The table of all views.
#[derive(Debug, Default)]
pub(crate) struct Views {
    slots: Vec<Option<View>>,
    vacant: Vec<ViewId>,
    by_size: SortedSet<(u64, ViewId)>,
    /// For each choice of the free ranges that a request would join: the views that have served such requests, in the
    /// order of their first use, each with its serial number. If the first view is in use, the next view is tried. So a
    /// step takes the same views as the step before, whichever views were built in between.
    by_plan: FxHashMap<(PlanHash, u8), (ViewId, u64)>,
    /// The list of views without users: the first view, which has been unused longest, and the last view.
    unused: Option<(ViewId, ViewId)>,
    mappings: usize,
    address_space: u64,
    clock: u64,
    serials: u64,
}

impl Views {
    /// Returns the number of mappings in all views together.
    pub(crate) fn mappings(&self) -> usize {
        self.mappings
    }

    /// Returns the number of views.
    pub(crate) fn count(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }

    /// Returns the bytes of address space of all views together.
    pub(crate) fn address_space(&self) -> u64 {
        self.address_space
    }

    /// Returns the usage of all views together.
    pub(crate) fn usage(&self) -> ViewUsage {
        ViewUsage { views: self.count(), mappings: self.mappings, addresses: self.address_space }
    }

    /// Returns about how many bytes of host memory the tables take.
    pub(crate) fn host_bytes(&self) -> usize {
        /// The bytes for a view that one stream has used: the entry of this use, and the view's place in the order of
        /// sizes.
        const PER_VIEW: usize = size_of::<(PoolIndex, u64)>() + 2 * size_of::<(u64, ViewId)>();
        self.slots.capacity() * size_of::<Option<View>>()
            + self.count() * PER_VIEW
            + self.mappings * size_of::<ChunkId>()
            + map_bytes(&self.by_plan)
    }

    pub(crate) fn get(&self, id: ViewId) -> Option<&View> {
        self.slots.get(id.0 as usize).and_then(Option::as_ref)
    }

    fn get_mut(&mut self, id: ViewId) -> Option<&mut View> {
        self.slots.get_mut(id.0 as usize).and_then(Option::as_mut)
    }

    /// Makes room for a view over these chunks, before the view is built.
    pub(crate) fn prepare(&mut self, chunks: Vec<ChunkId>) -> Grown<NewView> {
        if self.vacant.is_empty() {
            self.slots.try_reserve(1)?;
        }
        // The list of vacant slots gets room for every slot, so that no slot needs host memory to become vacant.
        self.vacant.try_reserve((self.slots.len() + 1).saturating_sub(self.vacant.len()))?;
        self.by_size.reserve(1)?;
        Ok(NewView { chunks, last_uses: with_room(1)? })
    }

    /// Adds a view without users.
    pub(crate) fn add(&mut self, address: u64, size: u64, new: NewView) -> ViewId {
        let id = self.insert(Span::new(address, size), size, None, new);
        self.by_size.insert((size, id));
        id
    }

    /// Adds a view without chunks at reserved addresses. The view grows for one allocation and serves no other request.
    pub(super) fn add_growing(&mut self, reservation: Span, new: NewView) -> ViewId {
        let id = self.insert(reservation, 0, Some(Extent::default()), new);
        self.retire(id);
        id
    }

    fn insert(&mut self, reservation: Span, size: u64, growing: Option<Extent>, new: NewView) -> ViewId {
        let NewView { chunks, last_uses } = new;
        let Span { start: address, size: addresses } = reservation;
        let id = self.vacant.pop().unwrap_or(ViewId(self.slots.len() as u32));
        self.mappings += chunks.len();
        self.address_space += addresses;
        self.serials += 1;
        let (holes, pins, users) = (Vec::new(), Vec::new(), 0);
        let (tick, serial, before, after) = (self.clock, self.serials, ViewId::NONE, ViewId::NONE);
        let view = Some(View {
            address,
            size,
            addresses,
            growing,
            chunks,
            holes,
            users,
            last_uses,
            pins,
            tick,
            serial,
            before,
            after,
        });
        match self.slots.get_mut(id.0 as usize) {
            Some(vacant) => *vacant = view,
            None => self.slots.push(view),
        }
        self.enqueue(id);
        id
    }

    /// Appends a view to the list of unused views.
    fn enqueue(&mut self, id: ViewId) {
        let before = self.unused.map_or(ViewId::NONE, |(_, last)| last);
        self.unused = Some((self.unused.map_or(id, |(first, _)| first), id));
        if let Some(view) = self.get_mut(id) {
            (view.before, view.after) = (before, ViewId::NONE);
        }
        if let Some(view) = self.get_mut(before) {
            view.after = id;
        }
    }

    /// Takes a view out of the list of unused views.
    fn dequeue(&mut self, id: ViewId) {
        let Some((view, (first, last))) = self.get(id).zip(self.unused) else { return };
        let (before, after) = (view.before, view.after);
        if let Some(view) = self.get_mut(before) {
            view.after = after;
        }
        if let Some(view) = self.get_mut(after) {
            view.before = before;
        }
        let ends = (if first == id { after } else { first }, if last == id { before } else { last });
        self.unused = Some(ends).filter(|(first, _)| *first != ViewId::NONE);
    }

    /// Returns the views without users. The view that is unused longest comes first.
    pub(crate) fn unused(&self) -> impl Iterator<Item = (ViewId, &View)> {
        let first = self.unused.and_then(|(first, _)| Some((first, self.get(first)?)));
        std::iter::successors(first, |(_, view)| Some((view.after, self.get(view.after)?)))
    }

    /// Removes a view from the table and returns it.
    pub(crate) fn remove(&mut self, id: ViewId) -> Option<View> {
        if self.get(id)?.users == 0 {
            self.dequeue(id);
        }
        let view = self.slots.get_mut(id.0 as usize).and_then(Option::take)?;
        self.vacant.push(id);
        self.by_size.remove(&(view.size, id));
        self.mappings -= view.mappings();
        self.address_space -= view.addresses;
        Some(view)
    }

    /// Notes that a view has no mappings any more, but still has its addresses. The view serves no more requests.
    pub(crate) fn forget_chunks(&mut self, id: ViewId) {
        let Some(view) = self.slots.get_mut(id.0 as usize).and_then(Option::as_mut) else { return };
        self.mappings -= view.mappings();
        (view.chunks, view.holes) = (Vec::new(), Vec::new());
        self.retire(id);
        if let Some(view) = self.get_mut(id) {
            view.size = 0;
        }
    }

    /// Makes room for `more` chunks, or holes (ranges without memory), in each view over a chunk.
    pub(crate) fn reserve_splice(&mut self, id: ChunkId, more: usize) -> Grown<()> {
        let mut over = self.slots.iter_mut().flatten().filter(|view| view.chunks.contains(&id));
        over.try_for_each(|view| view.chunks.try_reserve(more).and_then(|()| view.holes.try_reserve(more)))
    }

    /// Replaces a chunk by other chunks in each view that maps the chunk. For each part, `new` has the span of the part
    /// in the old chunk and the number of the new chunk, or [`ChunkId::NONE`] where no memory is mapped. A view with
    /// such a hole serves no more requests. Each view has room for all parts. `bytes` returns the size of a chunk.
    pub(crate) fn splice(&mut self, id: ChunkId, new: &[(Span, ChunkId)], bytes: impl Fn(ChunkId) -> Option<u64>) {
        let chunks = new.iter().filter(|(_, of)| *of != ChunkId::NONE).count();
        for index in 0..self.slots.len() {
            let Some(Some(view)) = self.slots.get_mut(index) else { continue };
            let Some(at) = view.chunks.iter().position(|of| *of == id) else { continue };
            let offset = view.offset_of(at, &bytes);
            let mut others = new.iter().map(|(_, of)| *of);
            view.chunks[at] = others.next().unwrap_or(ChunkId::NONE);
            let more = others.len();
            view.chunks.extend(others);
            view.chunks[at + 1..].rotate_right(more);
            for (hole, _) in new.iter().filter(|(_, of)| *of == ChunkId::NONE) {
                let hole = Span::new(offset + hole.start, hole.size);
                let place = view.holes.partition_point(|other| *other < hole);
                view.holes.insert(place, hole);
            }
            self.mappings = self.mappings + chunks - 1;
            if chunks < new.len() {
                self.retire(ViewId(index as u32));
            }
        }
    }

    /// Makes room for `more` holes (ranges without memory) in a view.
    pub(crate) fn reserve_holes(&mut self, id: ViewId, more: usize) -> Grown<()> {
        self.get_mut(id).map_or(Ok(()), |view| view.holes.try_reserve(more))
    }

    /// Notes that one chunk of a view is no longer mapped. `index` is the chunk's number in the view, and `hole` its
    /// offset and bytes. The view stays for users of its other parts, and serves no more requests.
    pub(crate) fn cut(&mut self, id: ViewId, index: usize, hole: Span) {
        let Some(view) = self.slots.get_mut(id.0 as usize).and_then(Option::as_mut) else { return };
        let Some(chunk) = view.chunks.get_mut(index) else { return };
        *chunk = ChunkId::NONE;
        let at = view.holes.partition_point(|other| *other < hole);
        view.holes.insert(at, hole);
        self.mappings -= 1;
        self.retire(id);
    }

    /// Sets how much of a growing view is handed out. With `None`, the view grows no more.
    pub(super) fn set_growing(&mut self, id: ViewId, growing: Option<Extent>) {
        if let Some(view) = self.get_mut(id) {
            view.growing = growing;
        }
    }

    /// Makes room for `more` chunks after the chunks of a view.
    pub(super) fn reserve_chunks(&mut self, id: ViewId, more: usize) -> Grown<()> {
        self.get_mut(id).map_or(Ok(()), |view| view.chunks.try_reserve(more))
    }

    /// Notes that chunks of `bytes` bytes together are mapped after the chunks of a view. The list has room for the
    /// chunks.
    pub(in crate::heap) fn append(&mut self, id: ViewId, chunks: impl Iterator<Item = ChunkId>, bytes: u64) {
        let Some(view) = self.slots.get_mut(id.0 as usize).and_then(Option::as_mut) else { return };
        let before = view.chunks.len();
        view.chunks.extend(chunks);
        view.size += bytes;
        self.mappings += view.chunks.len() - before;
    }

    /// Notes that only the first `chunks` chunks of a view are left, holes (ranges without memory) included, with
    /// `size` bytes.
    pub(super) fn truncate(&mut self, id: ViewId, chunks: usize, size: u64) {
        let Some(view) = self.slots.get_mut(id.0 as usize).and_then(Option::as_mut) else { return };
        let before = view.mappings();
        view.chunks.truncate(chunks);
        view.holes.retain(|hole| hole.start < size);
        view.size = size;
        self.mappings -= before - view.mappings();
    }

    fn retire(&mut self, id: ViewId) {
        let Some(view) = self.get_mut(id) else { return };
        view.serial = 0;
        let size = view.size;
        self.by_size.remove(&(size, id));
    }

    /// Remembers that a view served a request for which these free ranges (`plan`) were chosen, if the host has memory
    /// for the entry.
    pub(crate) fn remember(&mut self, plan: PlanHash, id: ViewId) {
        if self.by_plan.len() >= MAX_PLANS {
            let mut by_plan = std::mem::take(&mut self.by_plan);
            by_plan.retain(|_, known| self.if_current(*known).is_some());
            // Without this step, the next call would again walk over all remembered choices.
            if by_plan.len() >= MAX_PLANS / 2 {
                by_plan.clear();
            }
            self.by_plan = by_plan;
        }
        let Some(serial) = self.get(id).map(|view| view.serial) else { return };
        if self.by_plan.try_reserve(1).is_err() {
            return;
        }
        let known = |rank: &u8| {
            let known = self.by_plan.get(&(plan, *rank)).and_then(|known| self.if_current(*known));
            known.is_none_or(|known| known == id)
        };
        let rank = (0..MAX_VIEWS_PER_PLAN).find(known).unwrap_or(MAX_VIEWS_PER_PLAN - 1);
        self.by_plan.insert((plan, rank), (id, serial));
    }

    /// Returns the view if its serial number is still the same, or `None`.
    fn if_current(&self, (id, serial): (ViewId, u64)) -> Option<ViewId> {
        self.get(id).is_some_and(|view| view.serial == serial).then_some(id)
    }

    /// Makes room to note that a stream's pool has freed one more block of the view.
    pub(crate) fn reserve_use(&mut self, id: ViewId, pool: PoolIndex) -> Grown<()> {
        let Some(view) = self.get_mut(id) else { return Ok(()) };
        if view.users == 0 && view.last_uses.iter().any(|(of, _)| *of == pool) {
            return Ok(());
        }
        view.last_uses.try_reserve(view.users as usize + 1)
    }

    /// Notes that a block is handed out through the view.
    pub(crate) fn used(&mut self, id: ViewId) {
        self.clock += 1;
        let tick = self.clock;
        let Some(view) = self.get_mut(id) else { return };
        view.tick = tick;
        view.users += 1;
        if view.users == 1 {
            self.dequeue(id);
        }
    }

    /// Notes that a stream has freed a block of the view in an epoch.
    pub(crate) fn freed(&mut self, id: ViewId, stream: PoolIndex, epoch: u64) {
        let Some(view) = self.get_mut(id) else { return };
        view.users -= 1;
        match view.last_uses.iter_mut().find(|(of, _)| *of == stream) {
            Some((_, last)) => *last = epoch,
            None => view.last_uses.push((stream, epoch)),
        }
        if view.users == 0 {
            self.enqueue(id);
        }
    }

    /// Makes room to note that a private pool hands out a block of the view.
    pub(crate) fn reserve_pin(&mut self, id: ViewId) -> Grown<()> {
        self.get_mut(id).map_or(Ok(()), |view| view.pins.try_reserve(1))
    }

    /// Notes that a private pool has handed out a block of the view.
    pub(crate) fn pin(&mut self, id: ViewId, owner: PoolId) {
        if let Some(view) = self.get_mut(id)
            && !view.pins.contains(&owner)
        {
            view.pins.push(owner);
        }
    }

    /// Forgets the blocks of views that a private pool handed out (its pins), because the pool is released.
    pub(crate) fn unpin(&mut self, owner: PoolId) {
        self.slots.iter_mut().flatten().for_each(|view| view.pins.retain(|pin| *pin != owner));
    }

    /// Counts the uses of views by the pool `from` as uses by the pool in `to`, in the epoch in `to`. Drops these uses
    /// if `to` is `None`.
    pub(crate) fn move_uses(&mut self, from: PoolIndex, to: Option<(PoolIndex, u64)>) {
        for view in self.slots.iter_mut().flatten() {
            let Some(at) = view.last_uses.iter().position(|(of, _)| *of == from) else { continue };
            view.last_uses.swap_remove(at);
            let Some((pool, epoch)) = to else { continue };
            match view.last_uses.iter_mut().find(|(of, _)| *of == pool) {
                Some((_, last)) => *last = epoch.max(*last),
                None => view.last_uses.push((pool, epoch)),
            }
        }
    }

    /// Drops the uses of views by the pools for which `by` returns `true`, because the GPU has passed these uses.
    pub(crate) fn forget_uses(&mut self, by: impl Fn(PoolIndex) -> bool) {
        self.slots.iter_mut().flatten().for_each(|view| view.last_uses.retain(|(pool, _)| !by(*pool)));
    }

    /// Returns the views to examine for `size` bytes: first the views that have served requests for which the same free
    /// ranges (`plan`) were chosen, then the smallest views that are large enough.
    pub(crate) fn candidates(&self, plan: PlanHash, size: u64) -> impl Iterator<Item = ViewId> + '_ {
        let known = (0..MAX_VIEWS_PER_PLAN).filter_map(move |rank| self.if_current(*self.by_plan.get(&(plan, rank))?));
        let fitting = self.by_size.from((size, ViewId(0))).iter().map(|(_, id)| *id).take(MAX_TRIED);
        known.chain(fitting)
    }

    /// Returns the views with these sizes, the smallest view first.
    pub(crate) fn of_size(&self, sizes: RangeInclusive<u64>) -> impl Iterator<Item = ViewId> + '_ {
        let last = *sizes.end().max(sizes.start());
        let from = self.by_size.from((*sizes.start(), ViewId(0)));
        from.iter().take_while(move |(size, _)| *size <= last).map(|(_, id)| *id)
    }

    /// Returns every view with its number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ViewId, &View)> {
        (0..).map(ViewId).zip(&self.slots).filter_map(|(id, view)| Some((id, view.as_ref()?)))
    }
}

#[cfg(test)]
mod tests;
