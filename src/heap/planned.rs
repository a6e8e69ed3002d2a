//! Places that a plan names: free bytes at an address, and where free memory lies.
//!
//! Owns: whether a named place is free for a request. Nothing here calls the driver.

use super::block::{Block, Kind, State};
use super::stitched::Window;
use super::tables::Heap;
use crate::error::Result;
use crate::fallible::TryPush;
use crate::ids::{BlockId, ChunkId, PoolIndex, ViewId};
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

    /// Takes these bytes of a view for a large pool, if the view is the one with this serial number still, and they are free.
    ///
    /// # Errors
    /// The host has no memory for the blocks. The bytes stay free.
    pub(crate) fn take_in_view(
        &mut self,
        window: Window,
        serial: u64,
        size: u64,
        pool: PoolIndex,
    ) -> Result<Option<BlockId>> {
        if !self.is_current(window, serial) || !self.is_window_open(window, size, pool) {
            return Ok(None);
        }
        self.reuse_view(window, size, pool, None).map(Some)
    }

    /// Returns whether the view is the one with this serial number still, and serves requests.
    pub(crate) fn is_current(&self, window: Window, serial: u64) -> bool {
        self.views.serial(window.view) == Some(serial)
    }

    /// Returns whether a large pool may take these bytes of a view.
    fn is_window_open(&self, window: Window, size: u64, pool: PoolIndex) -> bool {
        let Some((home, view)) = self.home.as_ref().zip(self.views.get(window.view)) else { return false };
        let (mut at, end) = (0, window.offset + size);
        for id in &view.chunks {
            let Some(chunk) = home.chunk(*id) else { return false };
            let (from, to) = (window.offset.max(at), end.min(at + chunk.size));
            let span = Span::new((chunk.address + from).saturating_sub(at), to.saturating_sub(from));
            if span.size > 0 && !self.blocks_over(span).all(|id| self.is_large_and_open(id, pool)) {
                return false;
            }
            at += chunk.size;
            if at >= end {
                return true;
            }
        }
        false
    }

    /// Returns a view that maps just these chunks, and its serial number.
    pub(crate) fn view_over(&self, chunks: &[ChunkId]) -> Option<(ViewId, u64)> {
        let sizes = chunks.iter().map(|id| self.home.as_ref()?.chunk(*id).map(|chunk| chunk.size));
        let size = sizes.sum::<Option<u64>>()?;
        let is_over = |id: &ViewId| self.views.get(*id).is_some_and(|view| view.chunks == chunks);
        let id = self.views.of_size(size..=size).find(is_over)?;
        Some((id, self.views.serial(id)?))
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
