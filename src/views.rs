//! Views: address ranges in which chunks that are not neighbours at home are mapped one behind the other.
//!
//! Owns: which views there are, and which to try first for a request. A view holds no memory, only mappings; it stays
//! behind when its block is freed, so that the same request finds it again without a driver call.

use crate::home::ChunkId;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// How many views are looked at closely for one request.
const MOST_TRIED: usize = 32;
/// For how many sizes the view that served them is remembered. Programs that repeat themselves have some hundred.
const MOST_REMEMBERED: usize = 4096;

/// Which view: an index into [`Views`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ViewId(pub(crate) u32);

/// Chunks mapped one behind the other.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) chunks: Vec<ChunkId>,
    /// Live and pending blocks in it.
    pub(crate) users: u32,
    /// Of each stream (its large pool) that has used it, the epoch in which it freed a block of it last. No view is
    /// unmapped before all of these have passed.
    pub(crate) last_uses: Vec<(u32, u64)>,
    /// When it was used last, for dropping the one unused longest.
    pub(crate) tick: u64,
}

/// Every view.
#[derive(Debug, Default)]
pub(crate) struct Views {
    slots: Vec<Option<View>>,
    vacant: Vec<ViewId>,
    by_size: BTreeSet<(u64, ViewId)>,
    /// The view that last served a request of this size.
    served: FxHashMap<u64, ViewId>,
    mappings: usize,
    clock: u64,
}

impl Views {
    /// Mappings in all views together.
    pub(crate) fn mappings(&self) -> usize {
        self.mappings
    }

    /// Bytes of host memory in the tables, about.
    pub(crate) fn host_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Option<View>>()
            + self.mappings * size_of::<ChunkId>()
            + self.served.capacity() * 13
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
        self.by_size.insert((size, id));
        let view = Some(View { address, size, chunks, users: 0, last_uses: Vec::with_capacity(1), tick: self.clock });
        match self.slots.get_mut(id.0 as usize) {
            Some(vacant) => *vacant = view,
            None => self.slots.push(view),
        }
        id
    }

    /// Takes a view out.
    pub(crate) fn remove(&mut self, id: ViewId) -> Option<View> {
        let view = self.slots.get_mut(id.0 as usize).and_then(Option::take)?;
        self.vacant.push(id);
        self.by_size.remove(&(view.size, id));
        self.served.retain(|_, served| *served != id);
        self.mappings -= view.chunks.len();
        Some(view)
    }

    /// The view's mappings are gone, but not yet its addresses: it serves nobody any more.
    pub(crate) fn forget_chunks(&mut self, id: ViewId) {
        let Some(view) = self.slots.get_mut(id.0 as usize).and_then(Option::as_mut) else { return };
        self.mappings -= view.chunks.len();
        view.chunks = Vec::new();
        self.by_size.remove(&(view.size, id));
        self.served.retain(|_, served| *served != id);
    }

    /// A block of `size` bytes is handed out through the view.
    pub(crate) fn used(&mut self, id: ViewId, size: u64) {
        self.clock += 1;
        let tick = self.clock;
        if self.served.len() >= MOST_REMEMBERED && !self.served.contains_key(&size) {
            self.served.clear();
        }
        self.served.insert(size, id);
        if let Some(view) = self.get_mut(id) {
            view.users += 1;
            view.tick = tick;
        }
    }

    /// A stream has freed a block of the view in an epoch.
    pub(crate) fn freed(&mut self, id: ViewId, stream: u32, epoch: u64) {
        let Some(view) = self.get_mut(id) else { return };
        view.users -= 1;
        match view.last_uses.iter_mut().find(|(of, _)| *of == stream) {
            Some((_, last)) => *last = epoch,
            None => view.last_uses.push((stream, epoch)),
        }
    }

    /// The views worth a look for `size` bytes: the one that served it last, then the smallest first.
    pub(crate) fn candidates(&self, size: u64) -> impl Iterator<Item = ViewId> + '_ {
        let served = self.served.get(&size).copied();
        let fitting = self.by_size.range((size, ViewId(0))..).map(|(_, id)| *id).take(MOST_TRIED);
        served.into_iter().chain(fitting.filter(move |id| Some(*id) != served))
    }

    /// Every view with its number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ViewId, &View)> {
        (0..).map(ViewId).zip(&self.slots).filter_map(|(id, view)| Some((id, view.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_used_again_and_what_is_remembered_is_bounded() {
        let mut views = Views::default();
        let first = views.add(0, 100, vec![ChunkId(0), ChunkId(1)]);
        for size in 0..3 * MOST_REMEMBERED as u64 {
            views.used(first, size);
            assert!(views.served.len() <= MOST_REMEMBERED);
        }
        assert_eq!(views.candidates(3 * MOST_REMEMBERED as u64 - 1).next(), Some(first), "too small, but it served it");
        assert_eq!(views.candidates(99).collect::<Vec<_>>(), [first]);
        assert!(views.remove(first).is_some() && views.remove(first).is_none());
        assert_eq!((views.mappings(), views.candidates(1).count()), (0, 0));
        assert_eq!(views.add(0, 5, vec![ChunkId(2)]), first);
    }

    #[test]
    fn the_smallest_that_may_suffice_comes_first() {
        let mut views = Views::default();
        let [large, small, middle] = [30, 10, 20].map(|size| views.add(0, size, vec![ChunkId(0)]));
        assert_eq!(views.candidates(11).collect::<Vec<_>>(), [middle, large]);
        views.used(large, 11);
        assert_eq!(views.candidates(11).collect::<Vec<_>>(), [large, middle]);
        views.forget_chunks(middle);
        assert_eq!(views.candidates(1).collect::<Vec<_>>(), [small, large]);
    }
}
