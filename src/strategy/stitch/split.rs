//! Splits coarse chunks: free memory inside a chunk that is partly in use becomes chunks of its own.
//!
//! Owns: the choice of the chunks to split and of the cuts, and the room for a split. `backing/exchange.rs` makes the
//! calls.
//!
//! ```text
//! home   |aa....bbb...|     free bytes inside of the chunk serve no view but at its ends
//! home   |aa|...|bbb..|     now the three free granules in the middle serve any view
//! ```
//! Cuts lie at the granule borders inside free ranges, so each free range has at most two cuts. All parts keep their
//! places at home. A program that repeats itself therefore finds its free memory at the same places, only in smaller
//! chunks.

use super::release::ReleasableChunks;
use crate::backing::{
    ChunkPlace, Cut, Fate, InTurn, MissResult, Part, StrategyContext, add_chunks, exchange, lost_spans,
    split_through_host,
};
use crate::error::Result;
use crate::fallible::{Grown, TryPush};
use crate::heap::{Chunk, GRANULE, Heap, NewMemory, State};
use crate::ids::{BlockId, ChunkId};
use crate::span::Span;
use crate::strategy::estimates::Present;
use rustc_hash::FxHashMap;

/// The cost of mapping a part, in bytes that could be copied instead: 40 us at 750 GB/s.
const MAPPING: u64 = 30 << 20;

/// The most passes over all candidates. Splits make room for other splits, so one pass is not enough. A request may
/// split in several steps ([`MAX_SPLITS`](super::last_resort)).
const MAX_PASSES: u32 = 8;

/// The most chunks that are split behind one gate, and the most bytes that are copied behind one gate. Streams wait
/// during the copies.
const MOST_CHUNKS: usize = 16;
const MOST_COPIED: u64 = 64 << 20;

/// The most chunks that are tried for a split through host memory, when the device has no room for a copy.
const MAX_THROUGH_HOST: usize = 16;

/// The most chunks that one search tries in vain because bounds on views, or the driver, forbid the exchange.
const MAX_REFUSED: u32 = 64;

/// A chunk that is partly in use and contains whole free granules.
pub(super) struct Candidate {
    id: ChunkId,
    size: u64,
    /// The bytes in free granules.
    gain: u64,
    /// The bytes to copy, plus the cost of the new mappings in bytes.
    cost: u64,
    /// The number of chunks that the chunk becomes.
    parts: u64,
    /// The number of views that contain the chunk.
    views: u64,
}

impl Candidate {
    /// Returns the bytes to copy.
    fn copied(&self) -> u64 {
        self.size - self.gain
    }
}

/// The effect of all splits for which there is room.
#[derive(Default)]
pub(super) struct Splits {
    /// The bytes that the splits free: they lie in wholly free chunks, or memory can grow by as much.
    pub(super) gain: u64,
    /// The number of chunks that result from the split chunks.
    pub(super) parts: u64,
    /// The most mappings that are added to views over these chunks.
    pub(super) mappings: u64,
}

/// Returns the effect of all splits, if memory grows as far as it can and free chunks are given back. Each split makes
/// room for the copies of others. If there is no room for any copy, one chunk is split through host memory. Only parts
/// whose blocks are all `usable` count.
pub(super) fn all_splits(present: &Present<'_>, usable: impl Fn(BlockId) -> bool) -> Result<Splits> {
    let Present { heap, config, room, .. } = *present;
    let Some(home) = heap.home() else { return Ok(Splits::default()) };
    let mut candidates = candidates(heap)?;
    let mut free = room.saturating_add(ReleasableChunks::of(heap)?.bytes());
    let mut splits = Splits::default();
    let mut through_host = None;
    for _ in 0..MAX_PASSES {
        let before = candidates.len();
        let mut left = Vec::new();
        for candidate in candidates {
            let Candidate { id, size, gain, parts, views, .. } = candidate;
            if size - gain > free && through_host != Some(id) {
                left.try_push(candidate)?;
                continue;
            }
            free = free.saturating_add(gain);
            splits.parts += parts;
            splits.mappings += parts * views;
            // Free memory of a private pool counts as in use for the candidates. If that memory is `usable`, a chunk
            // may be usable as a whole, and then needs no split.
            let of_use = |span: Span| heap.blocks_over(span).all(&usable);
            let Some(chunk) = home.chunk(id).filter(|chunk| !of_use(chunk.span())) else { continue };
            visit_free_granules(heap, &chunk, |part| {
                splits.gain += if of_use(part) { part.size } else { 0 };
                Ok(())
            })?;
        }
        candidates = left;
        if candidates.len() == before {
            if config.spill.is_some() {
                break;
            }
            let owners = heap.owners_of_pieces()?;
            let mut tried = candidates.iter().take(MAX_THROUGH_HOST).map(|candidate| candidate.id);
            let may_go = |id: &ChunkId| home.chunk(*id).is_some_and(|of| heap.spill_candidate(&of, &owners).is_some());
            through_host = tried.find(may_go);
            if through_host.is_none() {
                break;
            }
        }
    }
    Ok(splits)
}

/// Returns the bytes that splits could free: the bytes of wholly free granules inside chunks that are partly in use.
pub(super) fn splittable(heap: &Heap) -> Grown<u64> {
    Ok(candidates(heap)?.iter().map(|candidate| candidate.gain).sum())
}

/// Chunks that are split together, behind one gate. Each gate waits for all work that the streams were given before.
#[derive(Default)]
struct Batch {
    cuts: Vec<Cut>,
    /// Each chunk, and the bytes that the split of the chunk frees.
    chunks: Vec<(Chunk, u64)>,
    gain: u64,
    /// The bytes of new memory. Live bytes are copied to this memory while the streams wait.
    copied: u64,
}

impl Batch {
    /// Returns whether the batch is full: with `copied` more bytes, streams would wait too long.
    fn is_full_for(&self, copied: u64) -> bool {
        self.cuts.len() >= MOST_CHUNKS || self.copied + copied > MOST_COPIED
    }

    fn add(&mut self, heap: &Heap, candidate: &Candidate) -> Grown<()> {
        let Some(chunk) = heap.home().and_then(|home| home.chunk(candidate.id)) else { return Ok(()) };
        self.chunks.try_push((chunk, candidate.gain))?;
        self.cuts.try_push(Cut { id: candidate.id, parts: parts(heap, &chunk)? })?;
        self.gain += candidate.gain;
        self.copied += candidate.copied();
        Ok(())
    }

    /// Splits the chunks. Returns the number of chunks that were not split, and the bytes that the other chunks freed.
    /// Adds the free parts of split chunks, which have lost their memory, to `lost`.
    fn split(self, context: &mut StrategyContext<'_>, lost: &mut Vec<Span>) -> MissResult<(u32, u64)> {
        let (mut next, mut refused, mut gained) = (0, 0, 0);
        while next < self.cuts.len() && context.may_exchange() {
            let done = exchange(context, &self.cuts[next..]).found()?.unwrap_or(0);
            for (cut, (chunk, gain)) in self.cuts.iter().zip(&self.chunks).skip(next).take(done) {
                lost_spans(chunk, &cut.parts).try_for_each(|span| lost.try_push(span))?;
                gained += gain;
            }
            // The chunk that could not be split is skipped.
            next += done + 1;
            refused += u32::from(next <= self.cuts.len());
        }
        Ok((refused, gained))
    }
}

/// Takes new memory for the free parts of split chunks, at the same addresses, as far as there is room.
fn renew(context: &mut StrategyContext<'_>, lost: &[Span]) -> MissResult<()> {
    let (mut added, mut left) = (Vec::new(), if lost.is_empty() { 0 } else { context.room() });
    for span in lost {
        let Some(room) = context.heap().block_around(*span).filter(|_| left >= span.size) else { continue };
        let memory = NewMemory { room, span: *span, pool: context.heap().idle() };
        let place = ChunkPlace { memory, chunk: span.size, mapped: false, slab: false };
        if add_chunks(context, place, &mut added).found()?.is_some() {
            left -= span.size;
        }
    }
    Ok(())
}

/// Splits some of the chunks, which [`StrategyContext::may_exchange`] must allow, until about `bytes` more bytes lie in
/// wholly free chunks or the device has room for them. Returns whether any chunk was split.
pub(super) fn split(context: &mut StrategyContext<'_>, bytes: u64) -> MissResult<bool> {
    let candidates = candidates(context.heap())?;
    if candidates.iter().map(|candidate| candidate.gain).sum::<u64>().saturating_add(context.room()) < bytes {
        return Ok(false);
    }
    let mut splitting =
        Splitting { batch: Batch::default(), lost: Vec::new(), gained: 0, refused: 0, too_many: u64::MAX };
    splitting.run(context, candidates, bytes)?;
    if splitting.gained == 0 && split_without_room(context)? {
        splitting.too_many = u64::MAX;
        splitting.run(context, self::candidates(context.heap())?, bytes)?;
        renew(context, &splitting.lost)?;
        return Ok(true);
    }
    renew(context, &splitting.lost)?;
    Ok(splitting.gained > 0)
}

/// Splits one chunk although there is no room for a copy of its live parts, through host memory. The memory of the
/// free parts is then room for copies of other chunks. Returns whether a chunk was split.
fn split_without_room(context: &mut StrategyContext<'_>) -> MissResult<bool> {
    for candidate in candidates(context.heap())?.iter().take(MAX_THROUGH_HOST) {
        let Some(chunk) = context.heap().home().and_then(|home| home.chunk(candidate.id)) else { continue };
        if !context.may_exchange() {
            break;
        }
        let parts = parts(context.heap(), &chunk)?;
        if split_through_host(context, candidate.id, parts)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The state of one call of [`split`].
struct Splitting {
    batch: Batch,
    /// The free parts of split chunks. They have no memory, which leaves room for copies of other chunks.
    lost: Vec<Span>,
    gained: u64,
    refused: u32,
    /// The fewest bytes to copy for which no room was found since the last split. Room for as many or more is not
    /// sought again, since a search walks over all chunks.
    too_many: u64,
}

impl Splitting {
    /// Returns whether the search ends: enough bytes are gained, or too many chunks were refused.
    fn is_over(&self, bytes: u64) -> bool {
        self.gained + self.batch.gain >= bytes || self.refused >= MAX_REFUSED
    }

    /// Splits these chunks until about `bytes` bytes are gained.
    fn run(&mut self, context: &mut StrategyContext<'_>, candidates: Vec<Candidate>, bytes: u64) -> MissResult<()> {
        for candidate in candidates {
            if self.is_over(bytes) {
                self.split(context)?;
            }
            if self.is_over(bytes) || !context.may_exchange() {
                break;
            }
            self.add(context, &candidate)?;
        }
        self.split(context)
    }

    /// Adds a chunk to the batch if there is room for its new memory. Splits the chunks of the batch first if the batch
    /// is full or leaves too little room.
    fn add(&mut self, context: &mut StrategyContext<'_>, candidate: &Candidate) -> MissResult<()> {
        let copied = candidate.copied();
        if !self.batch.cuts.is_empty() {
            // Free chunks are given back only for the first chunk of a batch, because each split makes room for others.
            let room = context.room().saturating_sub(self.batch.copied);
            if !self.batch.is_full_for(copied) && room >= copied {
                return Ok(self.batch.add(context.heap(), candidate)?);
            }
            self.split(context)?;
        }
        if copied >= self.too_many {
            return Ok(());
        }
        if !make_room(context, copied)? {
            self.too_many = copied;
            return Ok(());
        }
        Ok(self.batch.add(context.heap(), candidate)?)
    }

    /// Splits the chunks of the batch. The batch is empty afterwards.
    fn split(&mut self, context: &mut StrategyContext<'_>) -> MissResult<()> {
        let (refused, gained) = std::mem::take(&mut self.batch).split(context, &mut self.lost)?;
        self.gained += gained;
        self.refused += refused;
        if gained > 0 {
            self.too_many = u64::MAX;
        }
        Ok(())
    }
}

/// Makes room for `bytes` bytes of new memory by giving back free chunks. Their memory is taken again when memory grows
/// for the request. Returns whether there is room.
fn make_room(context: &mut StrategyContext<'_>, bytes: u64) -> Result<bool> {
    let missing = bytes.saturating_sub(context.room());
    if missing > 0 {
        // A chunk that is still mapped elsewhere could not be released, so earlier failed calls are undone first.
        context.retry_rollback()?;
        let releasable = ReleasableChunks::of(context.heap())?;
        if releasable.bytes() < missing {
            return Ok(false);
        }
        releasable.release(context, missing)?;
    }
    Ok(true)
}

/// Returns the chunks that may be split, the chunks with the largest gain for their cost first.
pub(super) fn candidates(heap: &Heap) -> Grown<Vec<Candidate>> {
    let mut found = Vec::new();
    let Some(home) = heap.home() else { return Ok(found) };
    let mut views: FxHashMap<ChunkId, u64> = FxHashMap::default();
    for chunk in heap.views().iter().flat_map(|(_, view)| &view.chunks) {
        views.try_reserve(1)?;
        *views.entry(*chunk).or_default() += 1;
    }
    for (id, chunk) in home.chunks().filter(|(_, chunk)| !chunk.pinned && !chunk.spilled && chunk.size > GRANULE) {
        let (mut gain, mut count, mut end) = (0, 0, chunk.address);
        visit_free_granules(heap, &chunk, |free| {
            gain += free.size;
            count += 1 + u64::from(free.start > end);
            end = free.end();
            Ok(())
        })?;
        if gain == 0 || gain == chunk.size {
            continue;
        }
        count += u64::from(end < chunk.end());
        let views = views.get(&id).copied().unwrap_or(0);
        let cost = chunk.size - gain + count * (2 + views) * MAPPING;
        found.try_push(Candidate { id, size: chunk.size, gain, cost, parts: count, views })?;
    }
    // The comparison is a.gain / a.cost > b.gain / b.cost, without fractions.
    let by_gain = |a: &Candidate, b: &Candidate| {
        let [a, b] = [(a, b), (b, a)].map(|(of, other)| u128::from(of.gain) * u128::from(other.cost));
        b.cmp(&a)
    };
    found.sort_unstable_by(|a, b| by_gain(a, b).then(a.id.cmp(&b.id)));
    Ok(found)
}

/// Returns the parts of a chunk: its runs of free granules, whose memory is given up, and the parts between the runs,
/// which are copied.
fn parts(heap: &Heap, chunk: &Chunk) -> Grown<Vec<Part>> {
    let mut parts = Vec::new();
    let mut at = chunk.address;
    visit_free_granules(heap, chunk, |free| {
        if free.start > at {
            parts.try_push(Part { size: free.start - at, fate: Fate::Copied })?;
        }
        parts.try_push(Part { size: free.size, fate: Fate::Lost })?;
        at = free.end();
        Ok(())
    })?;
    if at < chunk.end() {
        parts.try_push(Part { size: chunk.end() - at, fate: Fate::Copied })?;
    }
    Ok(parts)
}

/// Visits the runs of wholly free granules in a chunk, in the order of addresses.
fn visit_free_granules(heap: &Heap, chunk: &Chunk, mut visit: impl FnMut(Span) -> Grown<()>) -> Grown<()> {
    let mut run: Option<Span> = None;
    let mut end_run = |run: Option<Span>| {
        let granules = run.map(|run| (run.start.next_multiple_of(GRANULE), run.end() / GRANULE * GRANULE));
        match granules.filter(|(start, end)| start < end) {
            Some((start, end)) => visit(Span::between(start, end)),
            None => Ok(()),
        }
    };
    for id in heap.blocks_over(chunk.span()) {
        let part = heap.block(id).span().intersection(&chunk.span());
        let is_slab = heap.block(id).pool.is_small();
        match part.filter(|_| is_free(heap, id)) {
            None => end_run(run.take())?,
            // A slab ends a run of free granules, because a slab never becomes one block with large memory.
            Some(slab) if is_slab => {
                end_run(run.take())?;
                end_run(Some(slab))?;
            }
            Some(part) => run = Some(Span::between(run.map_or(part.start, |run| run.start), part.end())),
        }
    }
    end_run(run)
}

/// Returns whether a block is free and its contents may be lost. Private pools keep the contents of their free memory.
fn is_free(heap: &Heap, id: BlockId) -> bool {
    let block = heap.block(id);
    // A slab for small blocks counts as free only as a whole.
    block.state == State::Free && !heap.is_private(block.pool) && (!block.pool.is_small() || block.size == GRANULE)
}
