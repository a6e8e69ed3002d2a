//! Checks of address ranges: whether work of the device may use a range, and which physical memory is mapped there.
//!
//! Owns: the rules of a use. The checks change no state.

use super::{Memory, Piece};
use crate::bookkeeping::faults::{Fault, Range};
use crate::bookkeeping::refusal::{Answer, refuse};
use seamalloc_driver::{Status, StreamId};

/// Bytes of a word, the unit of copies.
const WORD: u64 = 8;

impl<P> Memory<P> {
    /// Returns two answers: whether a part of `range` is mapped, and whether a part belongs to `malloc`.
    pub(crate) fn kinds_in(&self, range: Range) -> (bool, bool) {
        let end = range.address.saturating_add(range.size);
        let mapped = self.mappings.range(..end).next_back().is_some_and(|(at, found)| at + found.size > range.address);
        let plain = self.mallocs.range(..end).next_back().is_some_and(|(at, found)| at + found.size > range.address);
        (mapped, plain)
    }

    /// Checks a kernel's use of `range`. The fault names the first part that may not be used.
    pub(crate) fn check_use(&self, range: Range, stream: StreamId) -> Result<(), Fault> {
        let end = range.address.saturating_add(range.size);
        let stretch = |from: u64, to: u64| Range { address: from, size: to.min(end) - from };
        let mut at = range.address;
        while at < end {
            let mapping =
                self.mappings.range(..=at).next_back().map(|(start, found)| (start + found.size, found.access));
            let malloc = self.mallocs.range(..=at).next_back().map(|(start, found)| (start + found.size, true));
            let pooled = self.pooled.range(..=at).next_back().map(|(start, found)| (start + found.size, true));
            at = match [mapping, malloc, pooled].into_iter().flatten().find(|(to, _)| *to > at) {
                Some((to, true)) => to,
                Some((to, false)) => return Err(Fault::NoAccess { range: stretch(at, to), stream }),
                None => {
                    let mapped = self.mappings.range(at..).next().map_or(end, |(start, _)| *start);
                    let malloced = self.mallocs.range(at..).next().map_or(mapped, |(start, _)| mapped.min(*start));
                    let to = self.pooled.range(at..).next().map_or(malloced, |(start, _)| malloced.min(*start));
                    return Err(Fault::UnmappedUse { range: stretch(at, to), stream });
                }
            };
        }
        Ok(())
    }

    /// Refuses a range that is empty or that the device may not use.
    pub(crate) fn check_usable(&self, range: Range, stream: StreamId) -> Answer<()> {
        if range.size == 0 {
            return Err(refuse(Status::INVALID_VALUE, "a size of 0".to_owned()));
        }
        self.check_use(range, stream).map_err(|fault| refuse(Status::INVALID_VALUE, fault.to_string()))
    }

    /// Refuses a copy whose ranges are not whole words of 8 bytes, may not be used by the device, or share memory.
    pub(crate) fn check_copy(&self, from: Range, to: Range) -> Answer<()> {
        for range in [from, to] {
            if !range.address.is_multiple_of(WORD) || !range.size.is_multiple_of(WORD) {
                return Err(refuse(Status::INVALID_VALUE, format!("{range}: not whole words of {WORD} bytes")));
            }
            self.check_usable(range, StreamId::DEFAULT)?;
        }
        let mut sources = self.physical_at(from);
        sources.sort_unstable_by_key(|piece| (piece.memory, piece.offset));
        let reads = |written: Piece| {
            let end = written.offset + written.size;
            let before = sources.partition_point(|read| (read.memory, read.offset) < (written.memory, end));
            let last =
                before.checked_sub(1).and_then(|at| sources.get(at)).filter(|read| read.memory == written.memory);
            last.is_some_and(|read| read.offset + read.size > written.offset)
        };
        if self.physical_at(to).into_iter().any(reads) {
            return Err(refuse(Status::INVALID_VALUE, format!("{from} and {to} are the same memory in part")));
        }
        Ok(())
    }

    /// Returns the physical memory of `range`, in the order of addresses. Parts without memory are left out.
    pub(crate) fn physical_at(&self, range: Range) -> Vec<Piece> {
        let end = range.address.saturating_add(range.size);
        let first = self.mappings.range(..=range.address).next_back().map_or(range.address, |(start, _)| *start);
        let mapped = self.mappings.range(first..end.max(first)).map(|(at, found)| (*at, found.size, found.physical, 0));
        let first = self.mallocs.range(..=range.address).next_back().map_or(range.address, |(start, _)| *start);
        let malloced = self.mallocs.range(first..end.max(first)).map(|(at, found)| (*at, found.size, found.number, 0));
        let first = self.pooled.range(..=range.address).next_back().map_or(range.address, |(start, _)| *start);
        let pooled = self.pooled.range(first..end.max(first));
        let pooled = pooled.map(|(at, found)| (*at, found.size, found.number, found.offset));
        let mut found: Vec<_> = mapped.chain(malloced).chain(pooled).collect();
        found.sort_unstable();
        let piece = |(at, size, memory, offset)| {
            let part = range.overlap(Range { address: at, size })?;
            Some(Piece { memory, offset: offset + part.address - at, size: part.size })
        };
        found.into_iter().filter_map(piece).collect()
    }
}
