//! Views: address ranges in which chunks that are not neighbours at home are mapped one behind the other.
//!
//! Owns: which views there are, and which to try first for a request. A view holds no memory, only mappings; it stays
//! behind when its block is freed, so that the same request finds it again without a driver call.

use super::host_bytes::map_bytes;
use crate::config::Config;
use crate::ids::{ChunkId, PoolId, PoolIndex, ViewId};
use crate::span::Span;
use rustc_hash::{FxHashMap, FxHasher};
use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::ops::RangeInclusive;

/// How many views are looked at closely for one request.
const MOST_TRIED: usize = 32;
/// For how many plans the view that served them is remembered. A step of training makes some dozen to some hundred.
const MOST_REMEMBERED: usize = 4096;
/// How many views are remembered for one plan.
const MOST_ALIKE: u8 = 8;

/// The spans of home that a request would get if there were no views yet, as a hash. A program that repeats itself finds
/// home as it was and gets the same spans, so the view that served them before serves them again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PlanHash(u64);

impl PlanHash {
    /// The hash of these spans, in their order.
    pub(crate) fn of(spans: &[Span]) -> Self {
        let mut hasher = FxHasher::default();
        spans.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// Chunks mapped one behind the other.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// In their order; [`ChunkId::NONE`] in a hole.
    pub(crate) chunks: Vec<ChunkId>,
    /// Where a chunk went back to the driver while another part was in use: offsets from the view's start, in order.
    pub(crate) holes: Vec<Span>,
    /// Live and pending blocks in it.
    pub(crate) users: u32,
    /// Of each stream (its large pool) that has used it, the epoch in which it freed a block of it last. No view is
    /// unmapped before all of these have passed.
    pub(crate) last_uses: Vec<(PoolIndex, u64)>,
    /// Private pools that have handed out blocks through it: until they are released it stays, for graphs may use it.
    pub(crate) pins: Vec<PoolId>,
    /// When it was used last.
    pub(crate) tick: u64,
    /// Which of all views ever it is, so that what is remembered of one is not taken for the next in its slot. 0 once it
    /// serves nobody any more.
    serial: u64,
    /// Its neighbours among the unused.
    before: ViewId,
    after: ViewId,
}

impl View {
    /// How many chunks are mapped.
    pub(crate) fn mappings(&self) -> usize {
        self.chunks.len() - self.holes.len()
    }

    /// Its addresses.
    pub(crate) fn span(&self) -> Span {
        Span::new(self.address, self.size)
    }
}

/// What views take of all that is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ViewUsage {
    pub(crate) views: usize,
    pub(crate) mappings: usize,
    /// Bytes of address space.
    pub(crate) addresses: u64,
}

impl ViewUsage {
    pub(crate) fn is_within(&self, config: &Config) -> bool {
        self.views <= config.max_views
            && self.mappings <= config.max_view_mappings
            && self.addresses <= config.max_view_address_space
    }
}

/// Every view.
#[derive(Debug, Default)]
pub(crate) struct Views {
    slots: Vec<Option<View>>,
    vacant: Vec<ViewId>,
    by_size: BTreeSet<(u64, ViewId)>,
    /// The views that have served a plan, in the order in which they were found to, each with its serial number. Where the
    /// first is in use, the next is tried: a step takes what the step before took, whatever was built since.
    by_plan: FxHashMap<(PlanHash, u8), (ViewId, u64)>,
    /// Views that nobody uses, linked: the one unused longest, and the one unused shortest.
    unused: Option<(ViewId, ViewId)>,
    mappings: usize,
    address_space: u64,
    clock: u64,
    serials: u64,
}

impl Views {
    /// Mappings in all views together.
    pub(crate) fn mappings(&self) -> usize {
        self.mappings
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }

    /// Bytes of address space of all views together.
    pub(crate) fn address_space(&self) -> u64 {
        self.address_space
    }

    /// All of these.
    pub(crate) fn usage(&self) -> ViewUsage {
        ViewUsage { views: self.count(), mappings: self.mappings, addresses: self.address_space }
    }

    /// Bytes of host memory in the tables, about.
    pub(crate) fn host_bytes(&self) -> usize {
        /// Of a view that one stream has used: that, and its place in the order of sizes.
        const BESIDE: usize = size_of::<(PoolIndex, u64)>() + 2 * size_of::<(u64, ViewId)>();
        self.slots.capacity() * size_of::<Option<View>>()
            + self.count() * BESIDE
            + self.mappings * size_of::<ChunkId>()
            + map_bytes(&self.by_plan)
    }

    pub(crate) fn get(&self, id: ViewId) -> Option<&View> {
        self.slots.get(id.0 as usize).and_then(Option::as_ref)
    }

    fn get_mut(&mut self, id: ViewId) -> Option<&mut View> {
        self.slots.get_mut(id.0 as usize).and_then(Option::as_mut)
    }

    /// Adds a view that nobody uses yet.
    pub(crate) fn add(&mut self, address: u64, size: u64, chunks: Vec<ChunkId>) -> ViewId {
        let id = self.vacant.pop().unwrap_or(ViewId(self.slots.len() as u32));
        self.mappings += chunks.len();
        self.address_space += size;
        self.by_size.insert((size, id));
        self.serials += 1;
        let (holes, pins, last_uses) = (Vec::new(), Vec::new(), Vec::with_capacity(1));
        let (tick, serial, before, after) = (self.clock, self.serials, ViewId::NONE, ViewId::NONE);
        let view = View { address, size, chunks, holes, users: 0, last_uses, pins, tick, serial, before, after };
        let view = Some(view);
        match self.slots.get_mut(id.0 as usize) {
            Some(vacant) => *vacant = view,
            None => self.slots.push(view),
        }
        self.enqueue(id);
        id
    }

    /// Nobody uses the view from now on: it is the last of the unused.
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

    /// Takes a view out of the unused.
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

    /// The views that nobody uses, the one unused longest first.
    pub(crate) fn unused(&self) -> impl Iterator<Item = (ViewId, &View)> {
        let first = self.unused.and_then(|(first, _)| Some((first, self.get(first)?)));
        std::iter::successors(first, |(_, view)| Some((view.after, self.get(view.after)?)))
    }

    /// Takes a view out.
    pub(crate) fn remove(&mut self, id: ViewId) -> Option<View> {
        if self.get(id)?.users == 0 {
            self.dequeue(id);
        }
        let view = self.slots.get_mut(id.0 as usize).and_then(Option::take)?;
        self.vacant.push(id);
        self.by_size.remove(&(view.size, id));
        self.mappings -= view.mappings();
        self.address_space -= view.size;
        Some(view)
    }

    /// The view's mappings are gone, but not yet its addresses: it serves nobody any more.
    pub(crate) fn forget_chunks(&mut self, id: ViewId) {
        let Some(view) = self.slots.get_mut(id.0 as usize).and_then(Option::as_mut) else { return };
        self.mappings -= view.mappings();
        (view.chunks, view.holes) = (Vec::new(), Vec::new());
        self.retire(id);
    }

    /// The chunk at this place of the view, by number and by offset and bytes, is not mapped any more. The view stays for
    /// those who use other parts of it, and serves nobody else.
    pub(crate) fn cut(&mut self, id: ViewId, index: usize, hole: Span) {
        let Some(view) = self.slots.get_mut(id.0 as usize).and_then(Option::as_mut) else { return };
        let Some(chunk) = view.chunks.get_mut(index) else { return };
        *chunk = ChunkId::NONE;
        let at = view.holes.partition_point(|other| *other < hole);
        view.holes.insert(at, hole);
        self.mappings -= 1;
        self.retire(id);
    }

    fn retire(&mut self, id: ViewId) {
        let Some(view) = self.get_mut(id) else { return };
        view.serial = 0;
        let size = view.size;
        self.by_size.remove(&(size, id));
    }

    /// The view meets this plan from now on.
    pub(crate) fn remember(&mut self, plan: PlanHash, id: ViewId) {
        if self.by_plan.len() >= MOST_REMEMBERED {
            let mut by_plan = std::mem::take(&mut self.by_plan);
            by_plan.retain(|_, known| self.still(*known).is_some());
            // Else the next would look through all of them again.
            if by_plan.len() >= MOST_REMEMBERED / 2 {
                by_plan.clear();
            }
            self.by_plan = by_plan;
        }
        let Some(serial) = self.get(id).map(|view| view.serial) else { return };
        let known = |rank: &u8| {
            let known = self.by_plan.get(&(plan, *rank)).and_then(|known| self.still(*known));
            known.is_none_or(|known| known == id)
        };
        let rank = (0..MOST_ALIKE).find(known).unwrap_or(MOST_ALIKE - 1);
        self.by_plan.insert((plan, rank), (id, serial));
    }

    /// What is remembered, if it is still there.
    fn still(&self, (id, serial): (ViewId, u64)) -> Option<ViewId> {
        self.get(id).is_some_and(|view| view.serial == serial).then_some(id)
    }

    /// A block is handed out through the view.
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

    /// A stream has freed a block of the view in an epoch.
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

    /// A private pool has handed out a block of the view.
    pub(crate) fn pin(&mut self, id: ViewId, owner: PoolId) {
        if let Some(view) = self.get_mut(id)
            && !view.pins.contains(&owner)
        {
            view.pins.push(owner);
        }
    }

    /// A private pool is no more.
    pub(crate) fn unpin(&mut self, owner: PoolId) {
        self.slots.iter_mut().flatten().for_each(|view| view.pins.retain(|pin| *pin != owner));
    }

    /// The uses by one stream's pool count from now on as those of another's in an epoch, or not at all.
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

    /// The GPU has passed all uses by these streams' pools.
    pub(crate) fn forget_uses(&mut self, by: impl Fn(PoolIndex) -> bool) {
        self.slots.iter_mut().flatten().for_each(|view| view.last_uses.retain(|(pool, _)| !by(*pool)));
    }

    /// The views worth a look for `size` bytes: the one that met this plan before, then the smallest first.
    pub(crate) fn candidates(&self, plan: PlanHash, size: u64) -> impl Iterator<Item = ViewId> + '_ {
        let known = (0..MOST_ALIKE).filter_map(move |rank| self.still(*self.by_plan.get(&(plan, rank))?));
        let fitting = self.by_size.range((size, ViewId(0))..).map(|(_, id)| *id).take(MOST_TRIED);
        known.chain(fitting)
    }

    /// The views of these sizes, the smallest first.
    pub(crate) fn of_size(&self, sizes: RangeInclusive<u64>) -> impl Iterator<Item = ViewId> + '_ {
        let (first, last) = ((*sizes.start(), ViewId(0)), (*sizes.end().max(sizes.start()), ViewId(u32::MAX)));
        self.by_size.range(first..=last).map(|(_, id)| *id)
    }

    /// Every view with its number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ViewId, &View)> {
        (0..).map(ViewId).zip(&self.slots).filter_map(|(id, view)| Some((id, view.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_PLAN: PlanHash = PlanHash(0);

    #[test]
    fn slots_are_used_again_and_what_is_remembered_is_bounded() {
        let mut views = Views::default();
        let first = views.add(0, 100, vec![ChunkId(0), ChunkId(1)]);
        let last = 3 * MOST_REMEMBERED as u64;
        for plan in 1..=last {
            views.remember(PlanHash(plan), first);
            assert!(views.by_plan.len() <= MOST_REMEMBERED);
        }
        assert_eq!(views.candidates(PlanHash(last), 1000).next(), Some(first), "too small, but it met this plan");
        assert_eq!(views.candidates(NO_PLAN, 99).collect::<Vec<_>>(), [first]);
        assert!(views.remove(first).is_some() && views.remove(first).is_none());
        assert_eq!((views.mappings(), views.candidates(PlanHash(last), 1).count()), (0, 0));
        assert_eq!(views.add(0, 5, vec![ChunkId(2)]), first);
    }

    #[test]
    fn the_smallest_that_may_suffice_comes_first() {
        let mut views = Views::default();
        let [large, small, middle] = [30, 10, 20].map(|size| views.add(0, size, vec![ChunkId(0)]));
        assert_eq!(views.candidates(NO_PLAN, 11).collect::<Vec<_>>(), [middle, large]);
        views.forget_chunks(middle);
        assert_eq!(views.candidates(NO_PLAN, 1).collect::<Vec<_>>(), [small, large]);
    }

    #[test]
    fn what_has_met_a_plan_is_tried_in_the_order_in_which_it_was_found() {
        let mut views = Views::default();
        let ids: Vec<_> = (0..12).map(|_| views.add(0, 10, vec![ChunkId(0)])).collect();
        for id in [ids[5], ids[2], ids[5], ids[9], ids[2]] {
            views.remember(PlanHash(1), id);
        }
        let tried = |views: &Views| views.candidates(PlanHash(1), 100).collect::<Vec<_>>();
        assert_eq!(tried(&views), [ids[5], ids[2], ids[9]]);
        assert_eq!(views.candidates(PlanHash(2), 100).count(), 0);
        views.remove(ids[2]);
        assert_eq!(tried(&views), [ids[5], ids[9]]);
        ids.iter().for_each(|id| views.remember(PlanHash(1), *id));
        assert_eq!(tried(&views).len(), MOST_ALIKE as usize);
        assert_eq!(tried(&views)[0], ids[5]);
    }

    #[test]
    fn the_unused_are_kept_in_the_order_in_which_they_fell_out_of_use() {
        let mut views = Views::default();
        let [a, b, c, d] = [1, 2, 3, 4].map(|size| views.add(0, size, vec![ChunkId(0)]));
        let unused = |views: &Views| views.unused().map(|(id, _)| id).collect::<Vec<_>>();
        assert_eq!(unused(&views), [a, b, c, d]);
        for id in [b, d, d, a] {
            views.used(id);
        }
        assert_eq!(unused(&views), [c]);
        views.freed(d, PoolIndex::DEFAULT, 1);
        assert_eq!(unused(&views), [c], "one of its two users is left");
        for id in [a, d, b] {
            views.freed(id, PoolIndex::DEFAULT, 1);
        }
        assert_eq!(unused(&views), [c, a, d, b]);
        for (gone, left) in [(d, vec![c, a, b]), (c, vec![a, b]), (b, vec![a]), (a, vec![])] {
            views.remove(gone);
            assert_eq!(unused(&views), left);
        }
        let used = views.add(0, 1, vec![ChunkId(0)]);
        views.used(used);
        assert!(views.remove(used).is_some() && unused(&views).is_empty());
    }

    #[test]
    fn what_is_remembered_of_a_view_does_not_pass_to_the_next_in_its_slot() {
        let mut views = Views::default();
        let old = views.add(0, 10, vec![ChunkId(0)]);
        views.remember(PlanHash(1), old);
        views.remove(old);
        assert_eq!(views.add(0, 10, vec![ChunkId(1)]), old);
        assert_eq!(views.candidates(PlanHash(1), 100).count(), 0);
        views.remember(PlanHash(1), old);
        assert_eq!(views.candidates(PlanHash(1), 100).collect::<Vec<_>>(), [old]);
    }

    #[test]
    fn a_view_with_a_hole_stays_and_serves_nobody() {
        let mut views = Views::default();
        let view = views.add(0, 30, vec![ChunkId(0), ChunkId(1), ChunkId(2)]);
        assert_eq!((views.count(), views.mappings(), views.address_space()), (1, 3, 30));
        views.used(view);
        views.cut(view, 2, Span::new(20, 10));
        views.cut(view, 1, Span::new(10, 10));
        assert_eq!((views.mappings(), views.count(), views.candidates(PlanHash(0), 10).count()), (1, 1, 0));
        let kept = views.get(view).map(|view| (view.chunks.clone(), view.holes.clone(), view.mappings()));
        assert_eq!(
            kept,
            Some((vec![ChunkId(0), ChunkId::NONE, ChunkId::NONE], vec![Span::new(10, 10), Span::new(20, 10)], 1))
        );
        assert!(views.remove(view).is_some());
        assert_eq!((views.count(), views.mappings(), views.address_space()), (0, 0, 0));
    }
}
