//! Exchange of physical memory under unchanged addresses. The addresses of live blocks stay unchanged too.
//!
//! Owns: the order of the calls, and how they are undone when a call fails.
//!
//! ```text
//! home   |aa....bbb...|     one chunk: a and b are live, dots are free
//! home   |aa|...|bbb..|     three chunks: the parts with live bytes are copies, the middle one has no memory
//! ```
//! New memory is created before old memory is released. Live contents are copied to the new memory through temporary
//! addresses. Only then, place by place, the old memory is unmapped and the new memory is mapped. Until the last place
//! is done, the old memory still has all contents and can be mapped again.
//!
//! No work may use the memory from the copy to the end. The caller has waited for the device. A gate (`gate.rs`) holds
//! the work that other threads launch meanwhile. Without a gate, the program has promised that no other thread launches
//! work. If a map fails, the old memory is mapped again before the gate opens. Closing a gate takes long, since all
//! earlier work has to end first. So several chunks are exchanged behind one gate.

use super::context::{Miss, MissResult, StrategyContext};
use super::gate::{ClosedGate, copy_behind_gate};
use super::host_stock::{create_on_host, keep, make_room};
use super::mapping::{Mapping, Piece};
use super::place::Place;
use super::view::{drop_view, make_room_for};
use crate::driver::{Call, DriverError, DriverResult, GateCopy};
use crate::error::{Error, Result};
use crate::fallible::{Grown, TryCollect, with_room};
use crate::heap::{Chunk, ExchangeRoom, GRANULE, Heap, ViewUsage};
use crate::ids::{Account, ChunkId, Class, Handle};
use crate::limits::Increase;
use crate::span::Span;

/// How often mapping live memory again is tried immediately after a failure.
const RESTORES: u32 = 4;

/// How an exchange treats the contents of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The part's contents are copied to new memory.
    Copied,
    /// The part's contents are copied to host memory. No part of such a chunk is `Copied`.
    Spilled,
    /// The part is free, and loses its memory.
    Lost,
}

impl Fate {
    fn is_copied(self) -> bool {
        matches!(self, Self::Copied | Self::Spilled)
    }
}

/// A part of a chunk. The exchange turns each part into a chunk of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// The bytes of the part, a multiple of the granule.
    pub(crate) size: u64,
    pub(crate) fate: Fate,
}

/// The new memory of an exchange.
struct NewMemory {
    /// The copied parts, mapped at contiguous addresses.
    copied: Mapping,
    /// For each piece of `copied`, whether the piece comes from the host stock (host memory kept from earlier spills).
    /// The list is empty for new memory on the device.
    kept: Vec<bool>,
}

impl NewMemory {
    fn of(parts: &[Part], spilled: bool) -> Result<Self> {
        let account = if spilled { Account::Host } else { Account::Device(Class::Large) };
        let copied = parts.iter().filter(|part| part.fate.is_copied()).count();
        let kept = with_room(if spilled { copied } else { 0 })?;
        Ok(Self { copied: Mapping::of_new_pieces(account, copied)?, kept })
    }

    /// Takes host memory for all copied parts: pieces kept from earlier spills (the host stock) where they fit,
    /// otherwise new memory.
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

    /// Returns the total bytes of the pieces from the host stock (host memory kept from earlier spills).
    fn kept_bytes(&self) -> u64 {
        self.copied.pieces.iter().zip(&self.kept).filter(|(_, kept)| **kept).map(|(piece, _)| piece.size).sum()
    }

    /// Puts the pieces that came from the host stock (host memory kept from earlier spills) back into it.
    fn put_back(&mut self, heap: &mut Heap) {
        for (piece, _) in self.copied.pieces.iter_mut().zip(&self.kept).filter(|(_, kept)| **kept) {
            if let Some(handle) = piece.handle.take() {
                heap.host_stock_mut().put(piece.size, handle);
            }
        }
    }

    /// Creates the new memory. If the old memory is mapped at `source`, the new memory is mapped at temporary
    /// addresses, and the copies to it are added to `copies`, which has room for all parts.
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
        for part in parts.iter().filter(|part| part.fate.is_copied() && !on_host) {
            self.copied.create(driver, part.size, part.size)?;
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

    /// Counts the new memory as held beside the old memory if `held` is true, and stops counting otherwise.
    fn count(&self, heap: &mut Heap, held: bool) {
        let size = self.copied.pieces.iter().map(|piece| piece.size).sum();
        let account = self.copied.owned.unwrap_or(Account::Device(Class::Large));
        let (now, before) = if held { (size, 0) } else { (0, size) };
        heap.pending_rollback(account, now, before);
    }

    /// Returns the bytes and the handle of each part.
    fn of_parts<'a>(&'a self, parts: &'a [Part]) -> impl Iterator<Item = (u64, Option<Handle>)> + 'a {
        let mut copied = self.copied.pieces.iter();
        parts.iter().map(move |part| {
            let piece = if part.fate.is_copied() { copied.next() } else { None };
            (part.size, piece.and_then(|Piece { handle, .. }| *handle))
        })
    }
}

/// A chunk, and the parts that the chunk is cut into. The parts add up to the chunk.
pub(crate) struct Cut {
    pub(crate) id: ChunkId,
    pub(crate) parts: Vec<Part>,
}

impl Cut {
    /// Returns a chunk as a cut with a single part.
    pub(super) fn whole(id: ChunkId, size: u64, fate: Fate) -> Grown<Self> {
        let mut parts = with_room(1)?;
        parts.push(Part { size, fate });
        Ok(Self { id, parts })
    }

    /// Returns the bytes of new memory on the device that cutting the chunk into parts needs.
    fn copied(&self) -> u64 {
        self.parts.iter().filter(|part| part.fate == Fate::Copied).map(|part| part.size).sum()
    }

    fn has(&self, fate: Fate) -> bool {
        self.parts.iter().any(|part| part.fate == fate)
    }

    /// Returns how many mappings replace the chunk's mapping at each of its places.
    fn mapped(&self) -> usize {
        self.parts.iter().filter(|part| part.fate != Fate::Lost).count()
    }
}

/// A chunk whose memory is exchanged, with room for all later steps.
struct Exchange<'a> {
    cut: &'a Cut,
    chunk: Chunk,
    room: ExchangeRoom,
    places: Vec<Place>,
    new: NewMemory,
}

impl Exchange<'_> {
    fn spills(&self) -> bool {
        self.cut.has(Fate::Spilled)
    }

    /// Returns whether contents move between the device and the host.
    fn moves(&self) -> bool {
        self.spills() || self.chunk.spilled
    }
}

/// Exchanges the memory of chunks for new memory in parts, all behind one gate. The CPU has waited for the device.
/// Before the exchange, lost parts (free parts that lose their memory) become idle memory, and views without users over
/// a chunk with lost parts are dropped. Returns how many chunks were exchanged, counted from the first. The remaining
/// chunks may lack memory for the exchange.
///
/// # Errors
/// [`Miss::OutOfMemory`] if there is too little memory for the new parts of the first chunk beside the old ones, too
/// little room for mappings, or no gate. After any error, all addresses of the chunks that were not exchanged have the
/// same memory as before. Calls that could not be undone are retried later (`PendingRollback`).
pub(crate) fn exchange(context: &mut StrategyContext<'_>, cuts: &[Cut]) -> MissResult<usize> {
    context.retry_rollback().map_err(|error| failure(context, error))?;
    let mut exchanges = prepare(context, cuts)?;
    let gate = match copy_contents(context, &mut exchanges) {
        Ok(gate) => gate,
        Err(miss) => {
            exchanges.into_iter().for_each(|of| undo(context, of.new));
            return Err(miss);
        }
    };
    let (mut done, mut mapped) = (0, Ok(()));
    for Exchange { cut, places, new, .. } in &mut exchanges {
        // Old and new memory are both held during the exchange.
        new.count(context.heap, true);
        mapped = map_everywhere(context, std::mem::take(places), new, &cut.parts);
        if mapped.is_err() {
            new.count(context.heap, false);
            break;
        }
        done += 1;
    }
    drop(gate);
    for (index, of) in exchanges.into_iter().enumerate() {
        if index < done { commit(context, of)? } else { undo(context, of.new) }
    }
    match mapped {
        Ok(()) => Ok(done),
        Err(error) => failure_after(context, done, error),
    }
}

/// Makes room in all tables for the exchange of these chunks, and drops the views that prevent the exchange.
fn prepare<'a>(context: &mut StrategyContext<'_>, cuts: &'a [Cut]) -> MissResult<Vec<Exchange<'a>>> {
    let bytes = cuts.iter().map(Cut::copied).sum();
    // The device's bounds apply only to new memory on the device.
    if bytes > 0 {
        context.require(Increase::of(bytes))?;
    }
    for cut in cuts.iter().filter(|cut| cut.has(Fate::Lost)) {
        drop_views_over(context, cut.id)?;
    }
    make_room_in_views(context, cuts)?;
    for cut in cuts {
        let chunk = chunk_of(context.heap, cut.id)?;
        lost_spans(&chunk, &cut.parts).try_for_each(|span| context.heap.gather_span(span).map(drop))?;
    }
    // Every table gets room for the parts of all chunks.
    let parts = cuts.iter().map(|cut| cut.parts.len()).sum();
    let lost = cuts.iter().flat_map(|cut| &cut.parts).filter(|part| part.fate == Fate::Lost).count();
    let mut exchanges = with_room(cuts.len())?;
    let mut places_of_all = 0;
    for cut in cuts {
        let chunk = chunk_of(context.heap, cut.id)?;
        let room = context.heap.reserve_exchange(cut.id, parts, lost)?;
        let places = places_of(context, cut.id, &chunk, cut.parts.len())?;
        places_of_all += places.len();
        let new = NewMemory::of(&cut.parts, cut.has(Fate::Spilled))?;
        exchanges.push(Exchange { cut, chunk, room, places, new });
    }
    context.rollback.reserve(cuts.len())?;
    context.rollback.reserve_handles(cuts.len())?;
    context.rollback.reserve_places(places_of_all)?;
    if exchanges.iter().any(Exchange::moves) {
        context.heap.host_stock_mut().reserve(parts)?;
    }
    Ok(exchanges)
}

/// Creates the new memory, and copies live contents to the new memory, behind a gate where one is needed. The first
/// chunk must succeed. Later chunks for which there is too little memory are left out.
fn copy_contents<'a>(
    context: &mut StrategyContext<'a>,
    exchanges: &mut Vec<Exchange<'_>>,
) -> MissResult<Option<ClosedGate<'a>>> {
    let mut copies = with_room(exchanges.iter().map(|of| of.cut.parts.len()).sum())?;
    for index in 0..exchanges.len() {
        let before = copies.len();
        let Exchange { cut, places, new, .. } = &mut exchanges[index];
        match new.make(context, &cut.parts, places.first().map(Place::address), &mut copies).map_err(Miss::from) {
            Ok(()) => {}
            Err(Miss::OutOfMemory { .. }) if index > 0 => {
                copies.truncate(before);
                exchanges.drain(index..).for_each(|of| undo(context, of.new));
                break;
            }
            Err(miss) => return Err(miss),
        }
    }
    // With the option `spill`, memory moves between the device and the host without a gate: the program has promised
    // that no work uses the memory.
    if context.spill.is_some() && exchanges.iter().any(Exchange::moves) {
        copies.iter().try_for_each(|copy| context.driver.copy(copy.from, copy.to, copy.size))?;
        return Ok(None);
    }
    copy_behind_gate(context, &copies)
}

/// Notes an exchange whose new memory is mapped, and releases the old memory. A chunk whose contents stay on the device
/// counts as split.
fn commit(context: &mut StrategyContext<'_>, exchange: Exchange<'_>) -> Result<()> {
    let (spills, moves) = (exchange.spills(), exchange.moves());
    let Exchange { cut, chunk, room, mut new, .. } = exchange;
    // Memory that moves between the device and the host is never counted twice on either side.
    if moves {
        new.count(context.heap, false);
    }
    context.heap.exchanged(cut.id, new.of_parts(&cut.parts), spills, room)?;
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
        context.heap.journal_mut().chunk_split(cut.parts.len() as u64, cut.copied());
    }
    context.heap.pending_rollback(account, unreleased, 0);
    new.copied.disown();
    context.rollback.undo(context.heap, context.driver, new.copied);
    Ok(())
}

fn chunk_of(heap: &Heap, id: ChunkId) -> Result<Chunk> {
    let chunk = heap.home().and_then(|home| home.chunk(id));
    chunk.ok_or(Error::Internal("a chunk that is gone is to be exchanged"))
}

/// Returns the parts of a chunk that lose their memory, as spans of home.
pub(crate) fn lost_spans(chunk: &Chunk, parts: &[Part]) -> impl Iterator<Item = Span> {
    let mut at = chunk.address;
    parts.iter().filter_map(move |part| {
        let span = Span::new(at, part.size);
        at += part.size;
        (part.fate == Fate::Lost).then_some(span)
    })
}

/// Drops the views over a chunk that have no users.
fn drop_views_over(context: &mut StrategyContext<'_>, id: ChunkId) -> Result<()> {
    let heap = &*context.heap;
    let over = heap.views().iter().filter(|(_, view)| heap.is_done_with(view) && view.chunks.contains(&id));
    over.map(|(view, _)| view).try_to_vec()?.into_iter().try_for_each(|view| drop_view(context, view))
}

/// Makes room for the added mappings within the bounds on views. In each view over a chunk, a mapping for each part
/// with memory replaces the chunk's mapping.
fn make_room_in_views(context: &mut StrategyContext<'_>, cuts: &[Cut]) -> MissResult<()> {
    let views = |id: ChunkId| context.heap.views().iter().filter(|(_, view)| view.chunks.contains(&id)).count();
    let mappings = cuts.iter().map(|cut| views(cut.id) * cut.mapped().saturating_sub(1)).sum();
    if mappings == 0 {
        return Ok(());
    }
    match make_room_for(context, ViewUsage { views: 0, mappings, addresses: 0 })? {
        None => Ok(()),
        refused => Err(Miss::OutOfMemory { refused }),
    }
}

/// Returns the places at which a chunk is mapped. Each place has room for `count` parts.
fn places_of(context: &StrategyContext<'_>, id: ChunkId, chunk: &Chunk, count: usize) -> Result<Vec<Place>> {
    let addresses = context.heap.places_of(id)?;
    let mut places = with_room(addresses.len())?;
    for start in addresses {
        let span = Span::new(start, chunk.size);
        places.push(Place::of(span, chunk.handle, count)?);
    }
    Ok(places)
}

/// Maps the new memory at all places of a chunk, or at none.
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
        // Streams continue as soon as this function returns, and a call that failed once may well succeed the second
        // time.
        for _ in 0..RESTORES {
            if context.rollback.is_whole() || context.retry_rollback().is_ok() {
                break;
            }
        }
    }
    mapped
}

/// Returns the reason why a request fails. While live memory is unmapped, no other step is tried for the request:
/// another step could give back the addresses at which the live memory must be mapped again.
fn failure(context: &StrategyContext<'_>, error: DriverError) -> Miss {
    if context.rollback.is_whole() { error.into() } else { Miss::Failed(error.into()) }
}

/// Returns how many chunks were exchanged if the next chunk lacked memory, or else the reason why the request fails.
fn failure_after(context: &StrategyContext<'_>, done: usize, error: DriverError) -> MissResult<usize> {
    match failure(context, error) {
        Miss::OutOfMemory { .. } if done > 0 => Ok(done),
        miss => Err(miss),
    }
}

/// Gives back the new memory of a failed exchange. The new memory may still be mapped at a place that is not restored.
fn undo(context: &mut StrategyContext<'_>, mut new: NewMemory) {
    // Pieces that are still mapped are not put into the host stock. The rollback releases them after unmapping them.
    if context.rollback.is_whole() && new.copied.unmap(context.driver).is_ok() {
        new.put_back(context.heap);
    }
    if context.rollback.is_whole() {
        context.rollback.undo(context.heap, context.driver, new.copied);
    } else {
        context.rollback.keep(context.heap, new.copied);
    }
}
