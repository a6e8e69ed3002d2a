//! From the records of a step to a problem, and from its answer to addresses.
//!
//! Owns: which memory a plan may use, in which order, and which requests live on in the next step.
//!
//! ```text
//! home      |WW..|aaa.|....|.W..|....|....|    W lives on for good; a is of this step and live at its end; dots free
//! ranges       [1] [    3       ] [2        ]  parts of chunks that are held anyhow; then whole chunks, the longest run first
//! ```
//! A range may lie in pieces: [`stretches`](super::stretches).
//! What is live at a step's end and was requested in it counts as free: the next step makes the same request again, and the plan
//! says where.

use super::carried::{Carried, CommonPlaces};
use super::places::{PlannedPlaces, Stitched};
use super::problem::{Lifetime, Place, Places, PlanPart, PlanProblem, Taken};
use super::recorder::{Ended, Key, NEVER, NOWHERE, Record};
use super::stretches::{FreeParts, Stretch};
use crate::config::rounding::MIN_BLOCK;
use crate::error::Result;
use crate::fallible::{Grown, TryCollect, TryPush, with_room};
use crate::heap::{Heap, State};
use crate::ids::PoolIndex;
use crate::span::Span;

/// In bytes: a smaller range can serve no large request.
const LEAST_RANGE: u64 = 1 << 20;

/// Where the ranges and the requests of a problem come from.
#[derive(Debug)]
pub(super) struct Origin {
    parts: Vec<OriginPart>,
    records: usize,
}

#[derive(Debug, Default)]
struct OriginPart {
    /// The number of each request's record.
    numbers: Vec<u32>,
    ranges: Vec<Stretch>,
}

/// The pools of a step's requests, each with the number of its part.
struct Parts {
    pools: Vec<PoolIndex>,
    /// The part that gets idle memory.
    main: usize,
    apart: bool,
}

impl Parts {
    fn of(records: &[Record], apart: bool) -> Grown<Self> {
        let mut found: Vec<(PoolIndex, u64)> = Vec::new();
        for Key { size, pool } in records.iter().map(|record| record.key) {
            match found.iter_mut().find(|(known, _)| *known == pool) {
                Some((_, bytes)) => *bytes += size,
                None => found.try_push((pool, size))?,
            }
        }
        let main = found.iter().enumerate().max_by_key(|(_, (_, bytes))| *bytes).map_or(0, |(index, _)| index);
        let pools = found.into_iter().map(|(pool, _)| pool).try_to_vec()?;
        Ok(if apart { Self { pools, main, apart } } else { Self { pools, main: 0, apart } })
    }

    fn count(&self) -> usize {
        if self.apart { self.pools.len() } else { 1 }
    }

    /// Returns the part that may use memory of a pool.
    fn of_memory(&self, pool: PoolIndex, idle: PoolIndex) -> Option<usize> {
        if !self.apart || pool == idle { Some(self.main) } else { self.of_request(pool) }
    }

    fn of_request(&self, pool: PoolIndex) -> Option<usize> {
        if self.apart { self.pools.iter().position(|known| *known == pool) } else { Some(0) }
    }
}

/// Makes the problem of a step that has ended. `since`: requests that came after it. `apart`: streams do not wait for each other's
/// memory.
pub(super) fn problem(
    ended: &Ended,
    carried: &Carried,
    common: &mut CommonPlaces,
    since: &[Record],
    heap: &Heap,
    apart: bool,
) -> Result<(PlanProblem, Origin)> {
    let parts = Parts::of(&ended.records, apart)?;
    let mut origin = Origin { parts: Vec::new(), records: ended.records.len() };
    let mut problem = PlanProblem::default();
    for _ in 0..parts.count() {
        origin.parts.try_push(OriginPart::default())?;
        problem.parts.try_push(PlanPart { moments: ended.moments, ..PlanPart::default() })?;
    }
    let mut free: Vec<FreeParts> = Vec::new();
    free.try_reserve(parts.count())?;
    free.resize(parts.count(), FreeParts::default());
    for (span, part) in open_spans(ended.records.iter().chain(since), heap, &parts)? {
        free[part].add(heap, span)?;
    }
    for (number, record) in (0..).zip(&ended.records) {
        let Some(part) = parts.of_request(record.key.pool) else { continue };
        let upper = if record.upper == NEVER { ended.moments.max(record.lower + 1) } else { record.upper };
        let request = Lifetime {
            size: record.key.size,
            lower: record.lower,
            upper: upper.max(record.lower + 1),
            carried_to: carried.to[number as usize],
            fixed: None,
        };
        problem.parts[part].moments = problem.parts[part].moments.max(request.upper);
        problem.parts[part].requests.try_push(request)?;
        origin.parts[part].numbers.try_push(number)?;
    }
    for ((part, of), free) in problem.parts.iter_mut().zip(&mut origin.parts).zip(free) {
        (of.ranges, part.held) = free.stretches(heap, &mut live_at_peak(&part.requests)?)?;
        part.ranges = of.ranges.iter().map(Stretch::size).try_to_vec()?;
    }
    for (part, of) in problem.parts.iter_mut().zip(&origin.parts) {
        fix_carried(part, of, &ended.records, common)?;
        add_taken(part, &of.ranges, ended, carried)?;
    }
    Ok((problem, origin))
}

/// Returns the sizes of the requests that are live when most is, but for those that live on into the next step, and how many there
/// are of each.
fn live_at_peak(requests: &[Lifetime]) -> Grown<Vec<(u64, u64)>> {
    let mut changes: Vec<(u32, i64)> = with_room(2 * requests.len())?;
    for request in requests {
        let size = i64::try_from(request.size).unwrap_or(i64::MAX);
        changes.extend([(request.lower, size), (request.upper, -size)]);
    }
    // What ends at a moment is free for what begins there.
    changes.sort_unstable();
    let (mut live, mut most, mut peak) = (0_i64, 0, 0);
    for (moment, change) in changes {
        live = live.saturating_add(change);
        if live > most {
            (most, peak) = (live, moment);
        }
    }
    let mut sizes: Vec<(u64, u64)> = Vec::new();
    for request in requests.iter().filter(|of| of.carried_to == 0 && (of.lower..of.upper).contains(&peak)) {
        sizes.try_push((request.size, 1))?;
    }
    sizes.sort_unstable();
    sizes.dedup_by(|next, kept| {
        let is_same = next.0 == kept.0;
        kept.1 += if is_same { next.1 } else { 0 };
        is_same
    });
    Ok(sizes)
}

/// Gives requests that live on into the next step the places that such requests have in every plan.
fn fix_carried(part: &mut PlanPart, of: &OriginPart, records: &[Record], common: &mut CommonPlaces) -> Grown<()> {
    let carried = part.requests.iter().zip(&of.numbers).filter(|(request, _)| request.carried_to > 0);
    let keys = carried.filter_map(|(_, number)| records.get(*number as usize)).map(|record| record.key);
    let mut spans: Vec<Span> = Vec::new();
    let mut first_whole = 0;
    for (number, range) in of.ranges.iter().enumerate() {
        range.spans.iter().try_for_each(|span| spans.try_push(*span))?;
        if number < part.held {
            first_whole = spans.len();
        }
    }
    let mut addresses = common.places(keys, &spans, first_whole)?.into_iter();
    for request in part.requests.iter_mut().filter(|request| request.carried_to > 0) {
        let Some(address) = addresses.next().filter(|address| *address != NOWHERE) else { continue };
        let within = |span: &Span| span.start <= address && address + request.size <= span.end();
        let found = of.ranges.iter().enumerate().find_map(|(range, stretch)| {
            let (at, span) = stretch.with_offsets().find(|(_, span)| within(span))?;
            Some(Place { range, offset: at + address - span.start })
        });
        request.fixed = found;
    }
    Ok(())
}

/// Adds the memory that blocks of earlier steps have at first, unless a request of this one takes their part.
fn add_taken(part: &mut PlanPart, ranges: &[Stretch], ended: &Ended, carried: &Carried) -> Grown<()> {
    let mut sorted: Vec<(usize, u64, Span)> = Vec::new();
    for (range, stretch) in ranges.iter().enumerate() {
        stretch.with_offsets().try_for_each(|(at, span)| sorted.try_push((range, at, span)))?;
    }
    sorted.sort_unstable_by_key(|(_, _, span)| span.start);
    let matched = carried.is_matched.iter().copied();
    let mut fixed: Vec<(usize, u64, u64)> = Vec::new();
    for (place, size) in part.requests.iter().filter_map(|request| Some((request.fixed?, request.size))) {
        fixed.try_push((place.range, place.offset, place.offset + size))?;
    }
    fixed.sort_unstable();
    for (earlier, _) in ended.earlier.iter().zip(matched).filter(|(of, matched)| !matched && of.upper > 0) {
        for span in earlier.spans() {
            let first = sorted.partition_point(|(_, _, within)| within.end() <= span.start);
            for (range, at, within) in sorted[first..].iter().take_while(|(_, _, of)| of.start < span.end()) {
                if let Some(taken) = within.intersection(&span) {
                    let offset = at + taken.start - within.start;
                    // What lies in the place of a request that lives on does so only until plans are followed.
                    let before = fixed.partition_point(|(of, _, end)| (*of, *end) <= (*range, offset));
                    let is_fixed =
                        fixed.get(before).is_some_and(|(of, start, _)| of == range && *start < offset + taken.size);
                    if is_fixed {
                        continue;
                    }
                    part.taken.try_push(Taken { range: *range, offset, size: taken.size, upper: earlier.upper })?;
                }
            }
        }
    }
    Ok(())
}

/// Returns the spans of home that a plan may use, each with its part.
fn open_spans<'a>(records: impl Iterator<Item = &'a Record>, heap: &Heap, parts: &Parts) -> Result<Vec<(Span, usize)>> {
    let mut open: Vec<(Span, usize)> = Vec::new();
    for (span, pool) in heap.free_spans()? {
        if let Some(part) = parts.of_memory(pool, heap.idle()) {
            open.try_push((span, part))?;
        }
    }
    for record in records.filter(|record| record.upper == NEVER && is_live(heap, record)) {
        let Some(part) = parts.of_request(record.key.pool) else { continue };
        heap.home_spans(record.block).try_for_each(|span| open.try_push((span, part)))?;
    }
    open.sort_unstable_by_key(|(span, _)| span.start);
    let mut merged: Vec<(Span, usize)> = Vec::new();
    for (span, part) in open {
        match merged.last_mut() {
            Some((last, of)) if last.end() == span.start && *of == part => last.size += span.size,
            Some((last, _)) if last.end() > span.start => {}
            _ => merged.try_push((span, part))?,
        }
    }
    merged.retain(|(span, _)| span.size > LEAST_RANGE);
    Ok(merged)
}

/// Returns whether the block of a record is live still, and not another one in its slot.
fn is_live(heap: &Heap, record: &Record) -> bool {
    let block = heap.block(record.block);
    block.state == State::Allocated && Key { size: block.size, pool: block.pool.large() } == record.key
}

impl Origin {
    /// Returns each request's place, by record, of requests with these keys. What an answer says of no request, or of no range, is
    /// left out.
    pub(super) fn places(&self, keys: &[Key], answer: &Places) -> Grown<PlannedPlaces> {
        let mut found = PlannedPlaces::none(self.records)?;
        let mut stitched: Vec<Stitched> = Vec::new();
        for (part, (of, places)) in self.parts.iter().zip(answer).enumerate() {
            for (number, place) in of.numbers.iter().zip(places) {
                let Some(place) = place.filter(|place| place.offset.is_multiple_of(MIN_BLOCK)) else { continue };
                let number = *number as usize;
                let Some((stretch, key)) = of.ranges.get(place.range).zip(keys.get(number)) else { continue };
                match *stretch.pieces(place.offset, key.size)? {
                    [] => {}
                    [span] => found.put(number, span.start),
                    _ => stitched.try_push(Stitched {
                        stretch: (part, place.range),
                        offset: place.offset,
                        size: key.size,
                        number,
                    })?,
                }
            }
        }
        found.put_stitched(stitched, |(part, range), offset, size| {
            let stretch = self.parts.get(part).and_then(|of| of.ranges.get(range));
            stretch.map_or(Ok(Vec::new()), |stretch| stretch.pieces(offset, size))
        })?;
        Ok(found)
    }
}

/// Joins spans that touch or overlap. Returns them in the order of their addresses.
pub(super) fn joined(mut spans: Vec<Span>) -> Grown<Vec<Span>> {
    spans.sort_unstable_by_key(|span| span.start);
    let mut joined: Vec<Span> = with_room(spans.len())?;
    for span in spans {
        match joined.last_mut() {
            Some(last) if last.end() >= span.start => *last = Span::between(last.start, last.end().max(span.end())),
            _ => joined.push(span),
        }
    }
    Ok(joined)
}
