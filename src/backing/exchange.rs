//! Physical memory is exchanged for other physical memory under the same addresses, of live blocks too.
//!
//! Owns: the order of the calls, and the way back when one of them fails.
//!
//! ```text
//! home   |aa....bbb...|     one chunk: a and b are live, dots are free
//! home   |aa|...|bbb..|     three chunks: the parts with live bytes hold copies, the middle one is free memory
//! ```
//! New memory comes before old memory goes: it is created, what is live is copied to it through addresses of its own, and
//! only then is the old memory unmapped, place by place, and the new memory mapped there. Until the last place is done, all
//! can be mapped as it was, since the old memory still has everything. So the device must have room for the whole chunk once
//! more.
//!
//! No work may use the memory from the copy to the end. The caller has waited for the device, and
//! [`StrategyContext::exchanges`] is the program's word that nobody gives it more.

use super::context::{Miss, StrategyContext};
use super::mapping::{Mapping, Piece};
use crate::config::Increase;
use crate::driver::{Call, Driver, DriverResult};
use crate::error::{Error, Result};
use crate::fallible::TryCollect;
use crate::heap::{Chunk, GRANULE};
use crate::ids::{ChunkId, Class, Handle};
use crate::span::Span;

/// A part of a chunk that becomes a chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Bytes: a multiple of the granule.
    pub(crate) size: u64,
    /// Whether its contents are kept.
    pub(crate) keeps: bool,
}

/// What is mapped at a place of the old memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Old {
    /// All of it, for use.
    Usable,
    /// All of it, but the device may not use it.
    Mapped,
    Gone,
}

/// A place at which the memory is exchanged.
#[derive(Debug)]
pub(super) struct Place {
    span: Span,
    handle: Handle,
    old: Old,
    /// How many bytes of the new memory are mapped.
    new: u64,
}

impl Place {
    pub(super) fn address(&self) -> u64 {
        self.span.start
    }

    /// Maps other memory there.
    fn exchange(&mut self, driver: &dyn Driver, new: impl Iterator<Item = (u64, Handle)>) -> DriverResult<()> {
        driver.unmap(self.span.start, self.span.size)?;
        self.old = Old::Gone;
        for (size, handle) in new {
            driver.map(self.span.start + self.new, size, 0, handle)?;
            self.new += size;
        }
        driver.set_access(self.span.start, self.span.size)
    }

    /// Maps the old memory there again.
    pub(super) fn restore(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        let Span { start, size } = self.span;
        if self.new > 0 {
            driver.unmap(start, self.new)?;
            self.new = 0;
        }
        if self.old == Old::Gone {
            driver.map(start, size, 0, self.handle)?;
            self.old = Old::Mapped;
        }
        if self.old == Old::Mapped {
            driver.set_access(start, size)?;
            self.old = Old::Usable;
        }
        Ok(())
    }
}

/// The new memory of an exchange.
struct NewMemory {
    /// The parts that keep their contents, mapped one behind the other.
    kept: Mapping,
    /// The other parts.
    free: Mapping,
}

impl NewMemory {
    fn of(parts: &[Part]) -> Result<Self> {
        let kept = parts.iter().filter(|part| part.keeps).count();
        Ok(Self {
            kept: Mapping::of_new_pieces(Class::Large, kept)?,
            free: Mapping::of_new_pieces(Class::Large, parts.len() - kept)?,
        })
    }

    /// Creates the memory, and copies the contents to it from `source`, where the old memory is mapped.
    fn make(&mut self, context: &StrategyContext<'_>, parts: &[Part], source: Option<u64>) -> DriverResult<()> {
        let driver = context.driver;
        for part in parts {
            let of = if part.keeps { &mut self.kept } else { &mut self.free };
            of.create(driver, part.size, part.size)?;
        }
        let size = self.kept.pieces.iter().map(|piece| piece.size).sum();
        let Some(source) = source.filter(|_| size > 0) else { return Ok(()) };
        let copies = Span::new(driver.reserve(size, GRANULE)?, size);
        context.heap.check_answer(Call::Reserve, copies, GRANULE)?;
        self.kept.place(copies, copies.start);
        self.kept.map(driver)?;
        let (mut from, mut to) = (source, copies.start);
        for part in parts {
            if part.keeps {
                driver.copy(from, to, part.size)?;
                to += part.size;
            }
            from += part.size;
        }
        Ok(())
    }

    /// Returns the bytes and handles, in the order of these parts.
    fn in_order<'a>(&'a self, parts: &'a [Part]) -> impl Iterator<Item = (u64, Handle)> + Clone + 'a {
        let (mut kept, mut free) = (self.kept.pieces.iter(), self.free.pieces.iter());
        let pieces = parts.iter().filter_map(move |part| if part.keeps { kept.next() } else { free.next() });
        pieces.filter_map(|Piece { size, handle }| Some((*size, (*handle)?)))
    }
}

/// Exchanges the memory of a chunk for new memory in these parts, which add up to it. The CPU has waited for the device.
///
/// # Errors
/// [`Miss::OutOfMemory`]: there is too little memory for the new parts beside the old one, or too little room for mappings.
/// Nothing has changed, whatever the error; what could not be undone is tried again (`PendingRollback`).
pub(crate) fn exchange(
    context: &mut StrategyContext<'_>,
    id: ChunkId,
    parts: &[Part],
) -> std::result::Result<(), Miss> {
    context.retry_rollback()?;
    let chunk = context.heap.home().and_then(|home| home.chunk(id));
    let chunk = chunk.ok_or(Error::Internal("a chunk that is gone is to be exchanged"))?;
    if !context.allows(Increase::of(chunk.size)) {
        return Err(Miss::OUT_OF_MEMORY);
    }
    let places = places_of(context, id, &chunk, parts.len())?;
    let ids = context.heap.reserve_exchange(id, parts.len())?;
    context.rollback.reserve(2)?;
    context.rollback.reserve_handles(1)?;
    context.rollback.reserve_places(places.len())?;
    let mut new = NewMemory::of(parts)?;
    if let Err(error) = new.make(context, parts, places.first().map(Place::address)) {
        undo(context, new);
        return Err(error.into());
    }
    // Both are held for a moment.
    context.heap.pending_rollback(Class::Large, chunk.size, 0);
    if let Err(error) = map_everywhere(context, places, &new, parts) {
        context.heap.pending_rollback(Class::Large, 0, chunk.size);
        undo(context, new);
        return Err(error.into());
    }
    context.heap.exchanged(id, new.in_order(parts), ids)?;
    new.kept.disown();
    context.rollback.undo(context.heap, context.driver, new.kept);
    let released = context.rollback.release(context.driver, (chunk.handle, chunk.size), Class::Large);
    if let Err(error) = released {
        tracing::error!(%error, bytes = chunk.size, "memory that was exchanged could not be released yet");
    } else {
        context.heap.pending_rollback(Class::Large, 0, chunk.size);
    }
    Ok(())
}

/// Returns the places of a chunk, if there is room for the mappings of `count` chunks at each.
fn places_of(
    context: &StrategyContext<'_>,
    id: ChunkId,
    chunk: &Chunk,
    count: usize,
) -> std::result::Result<Vec<Place>, Miss> {
    let places = context.heap.places_of(id)?;
    let mappings = context.heap.views().mappings() + places.len() * count;
    if mappings > context.config.max_view_mappings {
        return Err(Miss::OUT_OF_MEMORY);
    }
    let place = |start| Place { span: Span::new(start, chunk.size), handle: chunk.handle, old: Old::Usable, new: 0 };
    Ok(places.into_iter().map(place).try_to_vec()?)
}

/// Maps the new memory at all places, or at none.
fn map_everywhere(
    context: &mut StrategyContext<'_>,
    mut places: Vec<Place>,
    new: &NewMemory,
    parts: &[Part],
) -> DriverResult<()> {
    let driver = context.driver;
    let mapped = places.iter_mut().try_for_each(|place| place.exchange(driver, new.in_order(parts)));
    if mapped.is_err() {
        // All others first: a place that cannot be restored is one at which the program's memory is missing.
        for place in places.into_iter().rev() {
            context.rollback.restore(driver, place);
        }
    }
    mapped
}

/// Gives back new memory that came to nothing. While a place is not restored, it may still be mapped there.
fn undo(context: &mut StrategyContext<'_>, new: NewMemory) {
    for mapping in [new.kept, new.free] {
        if context.rollback.is_whole() {
            context.rollback.undo(context.heap, context.driver, mapping);
        } else {
            context.rollback.keep(context.heap, mapping);
        }
    }
}
