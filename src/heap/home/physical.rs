//! The physical memory of a live block, as the driver knows it.

use super::segment::Backing;
use crate::error::{Error, Result};
use crate::fallible::TryPush;
use crate::heap::blocks::block::Kind;
use crate::heap::tables::Heap;
use crate::ids::{BlockId, Handle};

/// The physical memory in which a block lies, and the block's offset in this memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PhysicalSpan {
    pub(crate) memory: Physical,
    /// The bytes from the start of the memory to the block.
    pub(crate) offset: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Physical {
    /// The handles of memory that is mapped at contiguous addresses, with the bytes of each handle.
    Handles(Vec<(Handle, u64)>),
    /// Memory of the driver's `malloc`, given by its address.
    Plain(u64),
}

const GONE: Error = Error::Internal("a live block without memory");

impl Heap {
    /// Returns the physical memory of a live block, with no more handles than the block touches.
    pub(crate) fn physical(&self, id: BlockId) -> Result<PhysicalSpan> {
        let block = &self.blocks[id];
        self.pools.private().must_be_awake(self.owner_of(block.pool))?;
        let (start, end) = (block.address, block.end());
        match block.kind {
            Kind::Home => {
                let home = self.home.map.as_ref().ok_or(GONE)?;
                let first = home.chunk_at(start).ok_or(GONE)?.1.address;
                let chunks = std::iter::successors(home.chunk_at(start), |(_, chunk)| home.chunk_at(chunk.end()));
                let chunks = chunks.map(|(_, chunk)| (Some(chunk.handle), chunk.size));
                touched(first, chunks, start, end)
            }
            Kind::View => {
                let (view, home) = self.home.views.get(block.view()).zip(self.home.map.as_ref()).ok_or(GONE)?;
                let mut at = view.address;
                let mapped = view.chunks.iter().map_while(|id| {
                    let chunk = home.chunk(*id).map(|chunk| (Some(chunk.handle), chunk.size));
                    let hole = || Some((None, view.holes.iter().find(|hole| view.address + hole.start == at)?.size));
                    let found = chunk.or_else(hole)?;
                    at += found.1;
                    Some(found)
                });
                touched(view.address, mapped, start, end)
            }
            Kind::Expandable => {
                let segment = self.segment(block.segment).ok_or(GONE)?;
                let Backing::Expandable { unit, units } = &segment.backing else { return Err(GONE) };
                let first = (start - segment.span.start) / unit;
                let handles = units.iter().skip(first as usize).map(|handle| (*handle, *unit));
                touched(segment.span.start + first * unit, handles, start, end)
            }
            Kind::Guarded => {
                let memory = self.guarded_memory(id).ok_or(GONE)?;
                let handles = std::iter::once((Some(memory.handle), memory.mapped.size));
                touched(memory.mapped.start, handles, start, end)
            }
            Kind::Malloc => {
                let segment = self.segment(block.segment).ok_or(GONE)?;
                Ok(PhysicalSpan { memory: Physical::Plain(segment.span.start), offset: start - segment.span.start })
            }
        }
    }
}

/// Returns the handles that `[start, end)` touches. The parts lie at contiguous addresses from `address` on. Parts
/// without a handle must lie outside of `[start, end)`.
fn touched(
    mut address: u64,
    parts: impl Iterator<Item = (Option<Handle>, u64)>,
    start: u64,
    end: u64,
) -> Result<PhysicalSpan> {
    let (mut handles, mut offset, mut reached) = (Vec::new(), 0, start);
    for (handle, size) in parts {
        if address >= end {
            break;
        }
        if address + size > start {
            if handles.is_empty() {
                offset = start - address;
            }
            handles.try_push((handle.ok_or(GONE)?, size))?;
            reached = address + size;
        }
        address += size;
    }
    if reached < end {
        return Err(GONE);
    }
    Ok(PhysicalSpan { memory: Physical::Handles(handles), offset })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_block_touches_is_its_memory() {
        let parts = || [(None, 10), (Some(Handle(1)), 20), (Some(Handle(2)), 10), (None, 5)].into_iter();
        let physical =
            |start, end| touched(100, parts(), start, end).map(|PhysicalSpan { memory, offset }| (memory, offset));
        let handles =
            |list: &[(u64, u64)]| Physical::Handles(list.iter().map(|(id, size)| (Handle(*id), *size)).collect());
        assert_eq!(physical(110, 130), Ok((handles(&[(1, 20)]), 0)));
        assert_eq!(physical(129, 131), Ok((handles(&[(1, 20), (2, 10)]), 19)));
        assert_eq!(physical(130, 140), Ok((handles(&[(2, 10)]), 0)));
        for (start, end) in [(109, 120), (135, 141), (135, 150)] {
            assert_eq!(physical(start, end), Err(GONE), "{start} to {end}");
        }
    }
}
