//! From the records of a step to a problem, and from its answer to addresses.
//!
//! Owns: which memory a plan may use, in which order, and which requests live on in the next step.
//!
//! ```text
//! home      |WW..|aaa.|....|.W..|....|....|    W lives on for good; a is of this step and live at its end; dots free
//! ranges       [1] [    3       ] [2        ]  parts of chunks that are held anyhow; then whole chunks, the largest range first
//! ```
//! What is live at a step's end and was requested in it counts as free: the next step makes the same request again, and the plan
//! says where.

use super::carried::{Carried, CommonPlaces};
use super::problem::{Lifetime, Place, Places, PlanPart, PlanProblem, Taken};
use super::recorder::{Ended, Key, NEVER, NOWHERE, Record};
use crate::config::rounding::MIN_BLOCK;
use crate::error::Result;
use crate::fallible::{Grown, TryCollect, TryPush, filled, with_room};
use crate::heap::{Heap, State};
use crate::ids::PoolIndex;
use crate::span::Span;
use std::cmp::Reverse;

/// In bytes: a smaller range can serve no large request.
const LEAST_RANGE: u64 = 1 << 20;
/// The most ranges of either kind. More make a planner slow, and the smallest gain least.
const MAX_RANGES: usize = 1024;

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
    ranges: Vec<Span>,
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
    let mut whole: Vec<Vec<Span>> = Vec::new();
    whole.try_reserve(parts.count())?;
    whole.resize(parts.count(), Vec::new());
    for (span, part) in open_spans(ended.records.iter().chain(since), heap, &parts)? {
        divide(heap, span, &mut origin.parts[part].ranges, &mut whole[part])?;
    }
    for ((part, of), mut whole) in problem.parts.iter_mut().zip(&mut origin.parts).zip(whole) {
        of.ranges.sort_unstable_by_key(|span| (span.size, span.start));
        of.ranges.drain(..of.ranges.len().saturating_sub(MAX_RANGES));
        part.held = of.ranges.len();
        whole.sort_unstable_by_key(|span| (Reverse(span.size), span.start));
        whole.truncate(MAX_RANGES);
        of.ranges.try_reserve(whole.len())?;
        of.ranges.append(&mut whole);
        part.ranges = of.ranges.iter().map(|span| span.size).try_to_vec()?;
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
    for (part, of) in problem.parts.iter_mut().zip(&origin.parts) {
        fix_carried(part, of, &ended.records, common)?;
        add_taken(part, &of.ranges, ended, carried)?;
    }
    Ok((problem, origin))
}

/// Gives requests that live on into the next step the places that such requests have in every plan.
fn fix_carried(part: &mut PlanPart, of: &OriginPart, records: &[Record], common: &mut CommonPlaces) -> Grown<()> {
    let carried = part.requests.iter().zip(&of.numbers).filter(|(request, _)| request.carried_to > 0);
    let keys = carried.filter_map(|(_, number)| records.get(*number as usize)).map(|record| record.key);
    let mut addresses = common.places(keys, &of.ranges, part.held)?.into_iter();
    for request in part.requests.iter_mut().filter(|request| request.carried_to > 0) {
        let Some(address) = addresses.next().filter(|address| *address != NOWHERE) else { continue };
        let within = |span: &Span| span.start <= address && address + request.size <= span.end();
        let range = of.ranges.iter().position(within);
        request.fixed = range.map(|range| Place { range, offset: address - of.ranges[range].start });
    }
    Ok(())
}

/// Adds the memory that blocks of earlier steps have at first, unless a request of this one takes their part.
fn add_taken(part: &mut PlanPart, ranges: &[Span], ended: &Ended, carried: &Carried) -> Grown<()> {
    let mut sorted = ranges.iter().copied().enumerate().try_to_vec()?;
    sorted.sort_unstable_by_key(|(_, range)| range.start);
    let matched = carried.is_matched.iter().copied();
    let mut fixed: Vec<(usize, u64, u64)> = Vec::new();
    for (place, size) in part.requests.iter().filter_map(|request| Some((request.fixed?, request.size))) {
        fixed.try_push((place.range, place.offset, place.offset + size))?;
    }
    fixed.sort_unstable();
    for (earlier, _) in ended.earlier.iter().zip(matched).filter(|(of, matched)| !matched && of.upper > 0) {
        for span in earlier.spans() {
            let first = sorted.partition_point(|(_, range)| range.end() <= span.start);
            for (range, within) in sorted[first..].iter().take_while(|(_, range)| range.start < span.end()) {
                if let Some(taken) = within.intersection(&span) {
                    let offset = taken.start - within.start;
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

/// Divides a span into whole chunks, and parts of chunks that something else holds.
fn divide(heap: &Heap, span: Span, parts: &mut Vec<Span>, whole: &mut Vec<Span>) -> Grown<()> {
    let Some(home) = heap.home() else { return Ok(()) };
    let chunks = home.chunk_at(span.start).zip(home.chunk_at(span.end() - 1));
    let Some(((_, first), (_, last))) = chunks else { return Ok(()) };
    let from = if first.address == span.start { span.start } else { first.end().min(span.end()) };
    let to = if last.end() == span.end() { span.end() } else { last.address.max(from) };
    for part in [Span::between(span.start, from), Span::between(to, span.end())] {
        if part.size > LEAST_RANGE {
            parts.try_push(part)?;
        }
    }
    if from < to { whole.try_push(Span::between(from, to)) } else { Ok(()) }
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
    /// Returns the address of each request's place, by record. What an answer says of no request, or of no range, is left out.
    pub(super) fn addresses(&self, places: &Places) -> Grown<Vec<u64>> {
        let mut addresses = filled(NOWHERE, self.records)?;
        for (of, places) in self.parts.iter().zip(places) {
            for (number, place) in of.numbers.iter().zip(places) {
                let Some(place) = place else { continue };
                let lies = |range: &&Span| place.offset < range.size && place.offset.is_multiple_of(MIN_BLOCK);
                let Some(range) = of.ranges.get(place.range).filter(lies) else { continue };
                if let Some(address) = addresses.get_mut(*number as usize) {
                    *address = range.start + place.offset;
                }
            }
        }
        Ok(addresses)
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
