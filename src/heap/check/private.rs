//! The rules of private pools.

use super::found::{Checked, Found};
use crate::heap::blocks::block::{Kind, State};
use crate::heap::pools::table::PrivatePair;
use crate::heap::tables::Heap;

impl Heap {
    /// Each pair of pools of a private pool belongs to this private pool and one stream.
    pub(super) fn pairs_of_private_pools_are_their_own(&self) -> Checked {
        for PrivatePair { owner, stream, large } in self.pools.pairs() {
            let pool = &self.pools[*large];
            let own = pool.private && pool.stream == *stream && self.owner_of(*large) == *owner;
            if !own || self.pools.private().get(*owner).is_none() {
                return Err(format!("a pair of private pool {owner} is not its own: {large:?}"));
            }
        }
        Ok(())
    }

    /// No block belongs to a vacant pool.
    pub(super) fn vacant_pools_are_empty(&self) -> Checked {
        for large in self.pools.vacant() {
            if self.blocks.iter().any(|(_, block)| block.pool.large() == *large) {
                return Err(format!("a block is part of vacant pool {large:?}"));
            }
        }
        Ok(())
    }

    /// A live block of a private pool takes the slow path of a free, and its view is pinned (stays until the pool is
    /// released). If the private pool has segments of its own, all its blocks lie in `malloc` segments.
    pub(super) fn blocks_of_private_pools_stay_theirs(&self) -> Checked {
        for (id, block) in self.blocks.iter().filter(|(_, block)| self.is_private(block.pool)) {
            let owner = self.owner_of(block.pool);
            let live = matches!(block.state, State::Allocated | State::Pending);
            let pinned = || self.home.views().get(block.view()).is_some_and(|view| view.pins.contains(&owner));
            if live && block.kind == Kind::View && !pinned() {
                return Err(format!("the view of {id:?} {block:?} is not pinned"));
            }
            if self.pools.private().segments(owner).is_some() && block.kind != Kind::Malloc {
                return Err(format!("{id:?} {block:?} of private pool {owner} is in no segment of its own"));
            }
            if block.state == State::Allocated && !block.has_uses() {
                return Err(format!("{id:?} {block:?} would be freed as any other"));
            }
        }
        Ok(())
    }

    /// Each block over a sleeping chunk belongs to a sleeping private pool, and the bytes of sleeping chunks are not
    /// held.
    pub(super) fn what_sleeps_is_not_held(&self, found: &mut Found) -> Checked {
        let mut bytes = [0; 2];
        for (id, chunk) in self.home.map().into_iter().flat_map(|home| home.chunks()).filter(|(_, chunk)| chunk.asleep)
        {
            for (class, size) in self.bytes_by_class(&chunk) {
                bytes[class as usize] += size;
            }
            let owners = self.blocks_over(chunk.span()).map(|id| self.owner_of(self.blocks[id].pool));
            if let Some(owner) = owners.into_iter().find(|owner| self.pools.private().asleep(*owner).is_none()) {
                return Err(format!("chunk {id:?} sleeps, and a part of it belongs to {owner}, which does not"));
            }
        }
        if bytes != self.home.asleep() {
            return Err(format!("{bytes:?} bytes sleep, {:?} counted", self.home.asleep()));
        }
        for (held, asleep) in found.held.iter_mut().zip(bytes) {
            *held -= asleep;
        }
        Ok(())
    }

    /// Only private pools that exist pin a view (keep it until they are released).
    pub(super) fn pins_are_of_private_pools(&self) -> Checked {
        let stray = self
            .home
            .views()
            .iter()
            .flat_map(|(_, view)| &view.pins)
            .find(|pin| self.pools.private().get(**pin).is_none());
        stray.map_or(Ok(()), |pin| Err(format!("a view is pinned by private pool {pin}, which is no more")))
    }
}
