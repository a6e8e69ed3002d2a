//! Places that a plan names: free bytes at an address, and where free memory lies.
//!
//! Owns: whether a named place is free for a request. Nothing here calls the driver.

use super::block::{Block, Kind, State};
use super::tables::Heap;
use crate::error::Result;
use crate::fallible::TryPush;
use crate::ids::{BlockId, PoolIndex};
use crate::span::Span;

impl Heap {
    /// Takes these bytes of home for a large pool, if they are its own free memory or idle. Returns a block of just these bytes,
    /// which is in no index.
    ///
    /// # Errors
    /// The host has no memory for the blocks. The bytes stay free.
    #[inline]
    pub(crate) fn take_at(&mut self, span: Span, pool: PoolIndex) -> Result<Option<BlockId>> {
        let id = self.covering(span.start);
        let block = &self.blocks[id];
        if !self.is_large_and_open(id, pool) || block.address > span.start {
            return Ok(None);
        }
        if block.end() >= span.end() { self.carve(id, span).map(Some) } else { self.take_run_at(id, span, pool) }
    }

    /// Does the same for bytes of several blocks, which only pools separate.
    #[cold]
    fn take_run_at(&mut self, first: BlockId, span: Span, pool: PoolIndex) -> Result<Option<BlockId>> {
        if !self.blocks_over(span).all(|id| self.is_large_and_open(id, pool)) {
            return Ok(None);
        }
        let before = self.blocks[first].address;
        self.join_run(first, pool, span.end() - before)?;
        let id = self.covering(span.start);
        self.carve(id, span).map(Some)
    }

    /// Returns whether a large pool may take the whole block: free memory of its own, or idle memory.
    #[inline]
    pub(crate) fn is_large_and_open(&self, id: BlockId, pool: PoolIndex) -> bool {
        let block = &self.blocks[id];
        block.state == State::Free && (block.pool == pool || block.pool == self.idle)
    }

    /// Returns the spans of home in which a block lies: its own, or those of its pieces. Other blocks have none.
    pub(crate) fn home_spans(&self, id: BlockId) -> impl Iterator<Item = Span> + '_ {
        let first = match self.blocks[id].kind {
            Kind::Home => id,
            Kind::View => self.blocks[id].left,
            _ => BlockId::NONE,
        };
        let is_view = self.blocks[id].kind == Kind::View;
        let next = move |piece: &BlockId| if is_view { self.blocks[*piece].right.some() } else { None };
        std::iter::successors(first.some(), next).map(|piece| self.blocks[piece].span())
    }

    /// Returns the free spans of home that large requests may take, with the pool of each, in the order of their addresses.
    pub(crate) fn free_spans(&self) -> Result<Vec<(Span, PoolIndex)>> {
        let mut spans: Vec<(Span, PoolIndex)> = Vec::new();
        let Some(home) = &self.home else { return Ok(spans) };
        let next = |id: &BlockId| self.blocks[*id].next.some();
        for id in std::iter::successors(self.head_of(home.segment).some(), next) {
            let Block { state, pool, .. } = self.blocks[id];
            if state == State::Free && !pool.is_small() && !self.is_private(pool) {
                spans.try_push((self.blocks[id].span(), pool))?;
            }
        }
        Ok(spans)
    }
}
