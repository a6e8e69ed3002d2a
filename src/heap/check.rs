//! The rules that always hold, checked one by one.

use super::{Backing, Heap, Segment};
use crate::blocks::{BlockId, Kind, State};
use crate::rounding::MIN_BLOCK;
use crate::stats::Class;

impl Heap {
    /// Walks everything and checks every rule that always holds. For tests and the `paranoid` feature: O(blocks).
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        let mut sums = [[0u64; 3]; 2];
        let mut held = self.unsettled;
        let (mut seen, mut pieces, mut home_bytes) = (0, 0, 0);
        for (index, segment) in self.segments.iter().enumerate() {
            let Some(segment) = segment else { continue };
            let mut at = segment.address;
            let mut previous = BlockId::NONE;
            let mut id = segment.head;
            while id.is_some() {
                let block = &self.blocks[id];
                let say = |what: &str| Err(format!("{what}: segment {index}, block {id:?} {block:?}"));
                if block.address != at || block.size == 0 || !block.size.is_multiple_of(MIN_BLOCK) {
                    return say("a block does not begin where the last one ends, or has an odd size");
                }
                let shared = block.kind == Kind::Home;
                if block.prev != previous || block.segment as usize != index || !(shared || block.pool == segment.pool)
                {
                    return say("a block is linked or assigned wrongly");
                }
                let before = self.blocks[previous].state;
                if self.joins(previous, id) || (block.state == State::Unmapped && before == State::Unmapped) {
                    return say("two neighbours of the same kind are not merged");
                }
                let pool = &self.pools[block.pool as usize];
                if block.state != State::Unmapped {
                    // What a large block has of a slab stays small memory.
                    let slab = self.home.as_ref().is_some_and(|home| shared && home.is_slab(at));
                    held[if slab { Class::Small } else { pool.class } as usize] += block.size;
                }
                let sum = &mut sums[pool.class as usize];
                match block.state {
                    State::Vacant => return say("a vacant slot is linked"),
                    State::Free => {
                        let mut found = pool.free.best_fit(&self.blocks, block.size);
                        while found != id && found.is_some() {
                            found = pool.free.successor(&self.blocks, found);
                            if self.blocks[found].size > block.size {
                                return say("a free block is not in the index");
                            }
                        }
                        if found.is_none() {
                            return say("a free block is not in the index");
                        }
                    }
                    State::Allocated => {
                        if self.addresses.get(&block.address) != Some(&id) {
                            return say("a live block is not in the address table");
                        }
                        sum[0] += 1;
                        sum[1] += block.size;
                    }
                    State::Pending => sum[2] += block.size,
                    State::Piece => pieces += block.size,
                    State::Unmapped => {
                        if !pool.unmapped.contains(&(block.address, id)) {
                            return say("an unmapped block is not in its set");
                        }
                    }
                }
                if block.state != State::Unmapped {
                    home_bytes += if shared { block.size } else { 0 };
                }
                if shared && self.home.as_ref().map(|home| home.covering(&self.blocks, at)) != Some(id) {
                    return say("home does not find a block by its address");
                }
                if shared && self.home.as_ref().map(|home| home.covering(&self.blocks, block.end() - 1)) != Some(id) {
                    return say("home does not find a block by its last byte");
                }
                at = block.end();
                seen += 1;
                previous = id;
                id = block.next;
            }
            if at != segment.address + segment.size {
                return Err(format!("the blocks of segment {index} do not fill it: {at:#x}"));
            }
        }
        let mut stitched = 0;
        let mut users = 0;
        for (id, block) in self.blocks.iter().filter(|(_, block)| block.kind == Kind::View) {
            let mut held = 0;
            let mut piece = block.left;
            while piece.is_some() && held <= block.size {
                if self.blocks[piece].state != State::Piece || self.blocks[piece].pool != block.pool {
                    return Err(format!("a piece of {id:?} {block:?} is not one: {:?}", self.blocks[piece]));
                }
                held += self.blocks[piece].size;
                piece = self.blocks[piece].right;
            }
            if held != block.size {
                return Err(format!("the pieces of {id:?} {block:?} are {held} bytes"));
            }
            let sum = &mut sums[self.pools[block.pool as usize].class as usize];
            match block.state {
                State::Allocated if self.addresses.get(&block.address) == Some(&id) => {
                    sum[0] += 1;
                    sum[1] += block.size;
                }
                State::Pending => sum[2] += block.size,
                _ => return Err(format!("a stitched block is neither live nor pending: {block:?}")),
            }
            stitched += block.size;
            users += 1;
            seen += 1;
        }
        self.check_private()?;
        let using: u32 = self.views.iter().map(|(_, view)| view.users).sum();
        if stitched != pieces || users != using {
            return Err(format!("{stitched} bytes stitched of {pieces} in pieces, {users} blocks of {using} users"));
        }
        let chunks: u64 = self.home.iter().flat_map(|home| home.chunks()).map(|(_, chunk)| chunk.size).sum();
        let at_home = |segment: &&Segment| matches!(segment.backing, Backing::Home);
        if self.segments.iter().flatten().any(|segment| at_home(&segment)) && chunks != home_bytes {
            return Err(format!("{chunks} bytes in chunks, {home_bytes} in blocks at home"));
        }
        let free: usize = self.pools.iter().map(|pool| pool.free.len()).sum();
        let free_blocks = self.blocks.iter().filter(|(_, block)| block.state == State::Free).count();
        if seen != self.blocks.len() || free != free_blocks {
            return Err(format!("{seen} blocks seen of {}, {free} indexed of {free_blocks} free", self.blocks.len()));
        }
        let [live, live_bytes, pending] = [0, 1, 2].map(|i| sums[0][i] + sums[1][i]);
        let counted = &self.counters;
        let figures = [
            ("allocations", live, counted.allocation.current()),
            ("addresses", live, self.addresses.len() as u64),
            ("allocated bytes", live_bytes, counted.allocated_bytes.current()),
            ("active bytes", live_bytes + pending, counted.active_bytes.current()),
            ("large reserved bytes", held[0], counted.reserved_bytes.of(Class::Large)),
            ("small reserved bytes", held[1], counted.reserved_bytes.of(Class::Small)),
        ];
        match figures.into_iter().find(|(_, is, counted)| is != counted) {
            Some((name, is, counted)) => Err(format!("{name}: {is} found, {counted} counted")),
            None => Ok(()),
        }
    }
}
