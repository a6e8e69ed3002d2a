//! The memory behind a live block, as the driver knows it.

use super::{Backing, Heap};
use crate::blocks::{BlockId, Kind};
use crate::driver::Handle;
use crate::error::{Error, Result};
use crate::views::ViewId;

/// Physical memory that a block lies in, and where in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Behind {
    pub(crate) memory: Memory,
    /// Bytes from its beginning to the block.
    pub(crate) offset: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Handles whose memory lies one behind the other, with the bytes of each.
    Handles(Vec<(Handle, u64)>),
    /// What `malloc` gave at this address.
    Plain(u64),
}

const GONE: Error = Error::Internal("a live block without memory");

impl Heap {
    /// No more handles than the block touches.
    pub(crate) fn behind(&self, id: BlockId) -> Result<Behind> {
        let block = &self.blocks[id];
        let (start, end) = (block.address, block.end());
        match block.kind {
            Kind::Home => {
                let home = self.home.as_ref().ok_or(GONE)?;
                let first = home.chunk_at(start).ok_or(GONE)?.1.address;
                let chunks = std::iter::successors(home.chunk_at(start), |(_, chunk)| home.chunk_at(chunk.end()));
                let chunks = chunks.map(|(_, chunk)| (Some(chunk.handle), chunk.size));
                touched(first, chunks, start, end)
            }
            Kind::View => {
                let (view, home) = self.views.get(ViewId(block.segment)).zip(self.home.as_ref()).ok_or(GONE)?;
                let mut at = view.address;
                let mapped = view.chunks.iter().map_while(|id| {
                    let chunk = home.chunk(*id).map(|chunk| (Some(chunk.handle), chunk.size));
                    let hole = || Some((None, view.holes.iter().find(|(offset, _)| view.address + offset == at)?.1));
                    let found = chunk.or_else(hole)?;
                    at += found.1;
                    Some(found)
                });
                touched(view.address, mapped, start, end)
            }
            Kind::Expandable => {
                let segment = self.segments.get(block.segment as usize).and_then(Option::as_ref).ok_or(GONE)?;
                let Backing::Expandable { unit, units } = &segment.backing else { return Err(GONE) };
                let first = (start - segment.address) / unit;
                let handles = units.iter().skip(first as usize).map(|handle| (*handle, *unit));
                touched(segment.address + first * unit, handles, start, end)
            }
            Kind::Malloc => {
                let segment = self.segments.get(block.segment as usize).and_then(Option::as_ref).ok_or(GONE)?;
                Ok(Behind { memory: Memory::Plain(segment.address), offset: start - segment.address })
            }
        }
    }
}

/// Of what lies one behind the other from `address` on, that which `[start, end)` touches. A part without a handle must lie
/// outside.
fn touched(
    mut address: u64,
    parts: impl Iterator<Item = (Option<Handle>, u64)>,
    start: u64,
    end: u64,
) -> Result<Behind> {
    let (mut handles, mut offset, mut reached) = (Vec::new(), 0, start);
    for (handle, size) in parts {
        if address >= end {
            break;
        }
        if address + size > start {
            if handles.is_empty() {
                offset = start - address;
            }
            handles.push((handle.ok_or(GONE)?, size));
            reached = address + size;
        }
        address += size;
    }
    if reached < end {
        return Err(GONE);
    }
    Ok(Behind { memory: Memory::Handles(handles), offset })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_block_touches_is_behind_it() {
        let parts = || [(None, 10), (Some(Handle(1)), 20), (Some(Handle(2)), 10), (None, 5)].into_iter();
        let behind = |start, end| touched(100, parts(), start, end).map(|Behind { memory, offset }| (memory, offset));
        let handles =
            |list: &[(u64, u64)]| Memory::Handles(list.iter().map(|(id, size)| (Handle(*id), *size)).collect());
        assert_eq!(behind(110, 130), Ok((handles(&[(1, 20)]), 0)));
        assert_eq!(behind(129, 131), Ok((handles(&[(1, 20), (2, 10)]), 19)));
        assert_eq!(behind(130, 140), Ok((handles(&[(2, 10)]), 0)));
        for (start, end) in [(109, 120), (135, 141), (135, 150)] {
            assert_eq!(behind(start, end), Err(GONE), "{start} to {end}");
        }
    }
}
