//! Exchange of physical memory under unchanged addresses, those of live blocks included.
//!
//! Owns: the order of the calls, and the way back when one of them fails.
//!
//! ```text
//! home   |aa....bbb...|     one chunk: a and b are live, dots are free
//! home   |aa|...|bbb..|     three chunks: the parts with live bytes are copies, the middle one is free memory, or none
//! ```
//! New memory is created before old memory is released: live contents are copied to it through temporary addresses, and
//! only then is the old memory unmapped, place by place, and the new memory mapped there. Until the last place is done,
//! the old memory still has all contents and can be mapped again.
//!
//! No work may use the memory from the copy to the end. The caller has waited for the device. A gate (`gate.rs`) holds
//! what other threads launch meanwhile; without one, the program has promised that they launch nothing.
//! If a map fails, the old memory is mapped again before the gate opens.

use super::context::{Miss, MissResult, StrategyContext};
use super::gate::copy_behind_gate;
use super::host_stock::{create_on_host, keep, make_room};
use super::mapping::{Mapping, Piece};
use super::place::Place;
use super::view::{drop_view, make_room_for};
use crate::driver::{Call, DriverError, DriverResult, GateCopy};
use crate::error::{Error, Result};
use crate::fallible::{TryCollect, with_room};
use crate::heap::{Chunk, GRANULE, Heap, ViewUsage};
use crate::ids::{Account, ChunkId, Class, Handle};
use crate::limits::Increase;
use crate::span::Span;

/// How often mapping live memory again is tried at once, if it fails.
const RESTORES: u32 = 4;

/// How the exchange treats the memory of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The part's contents are copied to new memory.
    Copied,
    /// The part's contents are copied to host memory. No part of such a chunk is `Copied`.
    Spilled,
    /// The part is free, and gets new memory with arbitrary contents.
    Renewed,
    /// The part is free, and loses its memory.
    Lost,
}

impl Fate {
    fn is_copied(self) -> bool {
        matches!(self, Self::Copied | Self::Spilled)
    }
}

/// A part of a chunk that becomes a chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Bytes: a multiple of the granule.
    pub(crate) size: u64,
    pub(crate) fate: Fate,
}

/// The new memory of an exchange.
struct NewMemory {
    /// The copied parts, mapped one behind the other.
    copied: Mapping,
    renewed: Mapping,
    /// For each piece of `copied`, whether it comes from the host stock. Empty for parts on the device.
    kept: Vec<bool>,
}

impl NewMemory {
    fn of(parts: &[Part], spilled: bool) -> Result<Self> {
        let of = |account: Account, fate: &dyn Fn(Fate) -> bool| {
            Mapping::of_new_pieces(account, parts.iter().filter(|part| fate(part.fate)).count())
        };
        let device = Account::Device(Class::Large);
        let copied = of(if spilled { Account::Host } else { device }, &Fate::is_copied)?;
        let kept = with_room(if spilled { copied.pieces.capacity() } else { 0 })?;
        Ok(Self { copied, renewed: of(device, &|fate| fate == Fate::Renewed)?, kept })
    }

    /// Takes host memory for all copied parts, from the host stock where a kept piece fits, otherwise newly created.
    fn make_on_host(&mut self, context: &mut StrategyContext<'_>, parts: &[Part]) -> DriverResult<()> {
        for size in parts.iter().filter(|part| part.fate.is_copied()).map(|part| part.size) {
            let handle = context.heap.host_stock_mut().take(size);
            self.kept.push(handle.is_some());
            self.copied.pieces.push(Piece { size, handle });
        }
        make_room(context, context.heap.spilled() + self.copied.pieces.iter().map(|piece| piece.size).sum::<u64>());
        for piece in self.copied.pieces.iter_mut().filter(|piece| piece.handle.is_none()) {
            piece.handle = Some(create_on_host(context, piece.size)?);
        }
        Ok(())
    }

    /// Returns the bytes of the pieces from the host stock.
    fn kept_bytes(&self) -> u64 {
        self.copied.pieces.iter().zip(&self.kept).filter(|(_, kept)| **kept).map(|(piece, _)| piece.size).sum()
    }

    /// Puts the pieces from the host stock back into it.
    fn put_back(&mut self, heap: &mut Heap) {
        for (piece, _) in self.copied.pieces.iter_mut().zip(&self.kept).filter(|(_, kept)| **kept) {
            if let Some(handle) = piece.handle.take() {
                heap.host_stock_mut().put(piece.size, handle);
            }
        }
    }

    /// Creates the new memory, and maps what gets contents from `source`, where the old memory is mapped. Adds the copies
    /// to `copies`, which has room for all parts.
    fn make(
        &mut self,
        context: &mut StrategyContext<'_>,
        parts: &[Part],
        source: Option<u64>,
        copies: &mut Vec<GateCopy>,
    ) -> DriverResult<()> {
        let driver = context.driver;
        let on_host = self.copied.owned == Some(Account::Host);
        if on_host {
            self.make_on_host(context, parts)?;
        }
        for part in parts {
            match part.fate {
                Fate::Copied | Fate::Spilled if on_host => {}
                Fate::Copied | Fate::Spilled => self.copied.create(driver, part.size, part.size)?,
                Fate::Renewed => self.renewed.create(driver, part.size, part.size)?,
                Fate::Lost => {}
            }
        }
        let size = self.copied.pieces.iter().map(|piece| piece.size).sum();
        // A chunk that is mapped nowhere has no contents to copy.
        let Some(mut from) = source.filter(|_| size > 0) else { return Ok(()) };
        let targets = Span::new(driver.reserve(size, GRANULE)?, size);
        context.heap.check_answer(Call::Reserve, targets, GRANULE)?;
        self.copied.place(targets, targets.start);
        self.copied.map(driver)?;
        let mut to = targets.start;
        for part in parts {
            if part.fate.is_copied() {
                copies.push(GateCopy { from, to, size: part.size });
                to += part.size;
            }
            from += part.size;
        }
        Ok(())
    }

    /// Starts to count the new memory as held beside the old if `held`, and stops otherwise.
    fn count(&self, heap: &mut Heap, held: bool) {
        for mapping in [&self.copied, &self.renewed] {
            let size = mapping.pieces.iter().map(|piece| piece.size).sum();
            let account = mapping.owned.unwrap_or(Account::Device(Class::Large));
            let (now, before) = if held { (size, 0) } else { (0, size) };
            heap.pending_rollback(account, now, before);
        }
    }

    /// Returns the bytes and the handle of each part.
    fn of_parts<'a>(&'a self, parts: &'a [Part]) -> impl Iterator<Item = (u64, Option<Handle>)> + 'a {
        let (mut copied, mut renewed) = (self.copied.pieces.iter(), self.renewed.pieces.iter());
        parts.iter().map(move |part| {
            let piece = match part.fate {
                Fate::Copied | Fate::Spilled => copied.next(),
                Fate::Renewed => renewed.next(),
                Fate::Lost => None,
            };
            (part.size, piece.and_then(|Piece { handle, .. }| *handle))
        })
    }
}

/// Exchanges the memory of a chunk for new memory in these parts, which add up to it. The CPU has waited for the
/// device. Lost parts become idle memory first, and views without users that map them are dropped.
///
/// # Errors
/// [`Miss::OutOfMemory`]: there is too little memory for the new parts beside the old one, or too little room for
/// mappings. After any error all addresses have the same memory as before; calls that could not be undone are retried
/// later (`PendingRollback`).
pub(super) fn exchange(context: &mut StrategyContext<'_>, id: ChunkId, parts: &[Part]) -> MissResult<()> {
    context.retry_rollback().map_err(|error| failure(context, error))?;
    let chunk = context.heap.home().and_then(|home| home.chunk(id));
    let chunk = chunk.ok_or(Error::Internal("a chunk that is gone is to be exchanged"))?;
    let spills = parts.iter().any(|part| part.fate == Fate::Spilled);
    let of_device = |part: &&Part| matches!(part.fate, Fate::Copied | Fate::Renewed);
    let bytes = parts.iter().filter(of_device).map(|part| part.size).sum();
    // New memory that takes nothing of the device is not subject to the device's bounds.
    if bytes > 0 {
        context.require(Increase::of(bytes))?;
    }
    let lost = lost_spans(&chunk, parts)?;
    if !lost.is_empty() {
        drop_views_over(context, id)?;
    }
    make_room_in_views(context, id, parts)?;
    let room = context.heap.reserve_exchange(id, parts.len(), lost.into_iter())?;
    let places = places_of(context, id, &chunk, parts.len())?;
    context.rollback.reserve(2)?;
    context.rollback.reserve_handles(1)?;
    context.rollback.reserve_places(places.len())?;
    if spills || chunk.spilled {
        context.heap.host_stock_mut().reserve(parts.len())?;
    }
    let mut new = NewMemory::of(parts, spills)?;
    let mut copies = with_room(parts.len())?;
    let moves = spills || chunk.spilled;
    let made = new.make(context, parts, places.first().map(Place::address), &mut copies);
    let copied = made.map_err(Miss::from).and_then(|()| match moves {
        // Memory moves between the device and the host only as the program has allowed it.
        true => {
            Ok(copies.iter().try_for_each(|copy| context.driver.copy(copy.from, copy.to, copy.size)).map(|()| None)?)
        }
        false => copy_behind_gate(context, &copies),
    });
    let gate = match copied {
        Ok(gate) => gate,
        Err(miss) => {
            undo(context, new);
            return Err(miss);
        }
    };
    // Old and new memory are both held during the exchange.
    new.count(context.heap, true);
    let mapped = map_everywhere(context, places, &new, parts);
    drop(gate);
    if let Err(error) = mapped {
        new.count(context.heap, false);
        undo(context, new);
        return Err(failure(context, error));
    }
    // Memory that moves between the device and the host is never counted twice on either side.
    if moves {
        new.count(context.heap, false);
    }
    context.heap.exchanged(id, new.of_parts(parts), spills, room)?;
    if spills {
        let spilled = context.heap.spilled();
        context.heap.host_stock_mut().note_spilled(spilled);
        context.heap.journal_mut().spill_reused(new.kept_bytes());
    }
    let account = if chunk.spilled { Account::Host } else { Account::Device(Class::Large) };
    let released = if chunk.spilled && keep(context, chunk.size, chunk.handle) {
        Ok(())
    } else {
        context.rollback.release(context.driver, (chunk.handle, chunk.size), account)
    };
    let unreleased = if let Err(error) = released {
        tracing::error!(%error, bytes = chunk.size, "memory that was exchanged could not be released yet");
        chunk.size
    } else {
        0
    };
    if !moves {
        new.count(context.heap, false);
    }
    context.heap.pending_rollback(account, unreleased, 0);
    new.copied.disown();
    context.rollback.undo(context.heap, context.driver, new.copied);
    Ok(())
}

/// Splits a chunk into these parts, as [`exchange`] does, and counts it.
///
/// # Errors
/// The errors of [`exchange`].
pub(crate) fn split_chunk(context: &mut StrategyContext<'_>, id: ChunkId, parts: &[Part]) -> MissResult<()> {
    exchange(context, id, parts)?;
    let copied = parts.iter().filter(|part| part.fate == Fate::Copied).map(|part| part.size).sum();
    context.heap.journal_mut().chunk_split(parts.len() as u64, copied);
    Ok(())
}

/// Returns the parts of a chunk that lose their memory, as spans of home.
fn lost_spans(chunk: &Chunk, parts: &[Part]) -> Result<Vec<Span>> {
    let mut at = chunk.address;
    let lost = parts.iter().filter_map(|part| {
        let span = Span::new(at, part.size);
        at += part.size;
        (part.fate == Fate::Lost).then_some(span)
    });
    Ok(lost.try_to_vec()?)
}

/// Drops the views over a chunk that have no users.
fn drop_views_over(context: &mut StrategyContext<'_>, id: ChunkId) -> Result<()> {
    let heap = &*context.heap;
    let over = heap.views().iter().filter(|(_, view)| heap.is_done_with(view) && view.chunks.contains(&id));
    over.map(|(view, _)| view).try_to_vec()?.into_iter().try_for_each(|view| drop_view(context, view))
}

/// Makes room within the bounds on views for the added mappings: each view over the chunk gets one for each part with
/// memory, in place of one.
fn make_room_in_views(context: &mut StrategyContext<'_>, id: ChunkId, parts: &[Part]) -> MissResult<()> {
    let mapped = parts.iter().filter(|part| part.fate != Fate::Lost).count();
    let views = context.heap.views().iter().filter(|(_, view)| view.chunks.contains(&id)).count();
    let mappings = views * mapped.saturating_sub(1);
    if mappings == 0 {
        return Ok(());
    }
    match make_room_for(context, ViewUsage { views: 0, mappings, addresses: 0 })? {
        None => Ok(()),
        refused => Err(Miss::OutOfMemory { refused }),
    }
}

/// Returns the places of a chunk, each with room for so many parts.
fn places_of(context: &StrategyContext<'_>, id: ChunkId, chunk: &Chunk, count: usize) -> Result<Vec<Place>> {
    let addresses = context.heap.places_of(id)?;
    let mut places = with_room(addresses.len())?;
    for start in addresses {
        let span = Span::new(start, chunk.size);
        places.push(Place::of(span, chunk.handle, count)?);
    }
    Ok(places)
}

/// Maps the new memory at all places, or at none.
fn map_everywhere(
    context: &mut StrategyContext<'_>,
    mut places: Vec<Place>,
    new: &NewMemory,
    parts: &[Part],
) -> DriverResult<()> {
    let driver = context.driver;
    let mapped = places.iter_mut().try_for_each(|place| place.exchange(driver, new.of_parts(parts)));
    if mapped.is_err() {
        for place in places.into_iter().rev() {
            context.rollback.restore(driver, place);
        }
        // Streams go on as soon as this returns: a call that failed once may well succeed the second time.
        for _ in 0..RESTORES {
            if context.rollback.is_whole() || context.retry_rollback().is_ok() {
                break;
            }
        }
    }
    mapped
}

/// Returns the reason why a request fails. While live memory is unmapped, nothing else is tried for the request:
/// another step could give back the addresses that the memory must be mapped at again.
fn failure(context: &StrategyContext<'_>, error: DriverError) -> Miss {
    if context.rollback.is_whole() { error.into() } else { Miss::Failed(error.into()) }
}

/// Gives back the new memory of a failed exchange. At a place that is not restored, it may still be mapped.
fn undo(context: &mut StrategyContext<'_>, mut new: NewMemory) {
    // Pieces that are still mapped are not put into the host stock; they are released once unmapped.
    if context.rollback.is_whole() && new.copied.unmap(context.driver).is_ok() {
        new.put_back(context.heap);
    }
    for mapping in [new.copied, new.renewed] {
        if context.rollback.is_whole() {
            context.rollback.undo(context.heap, context.driver, mapping);
        } else {
            context.rollback.keep(context.heap, mapping);
        }
    }
}
