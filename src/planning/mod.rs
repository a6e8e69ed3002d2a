//! Plans: what a program that repeats itself will request next, and where that is to lie.
//!
//! Owns: when a step is planned, followed, and planned anew. `allocator` asks for the place of each request, and tells what came
//! of it; a [`Planner`] finds the places.
//!
//! # Note: planning and stitching
//!
//! **Rationale.** An allocator that does not know what comes leaves holes, and a search for each request; a plan leaves none and
//! needs none, but fits only what was planned. Stitching makes the mixture safe: a request that is not planned, or whose place is
//! taken, is served from any free bytes, so that no plan has to be right.
//!
//! **Approach.** A step ends where live memory is lowest, between two low-water marks (`streams::LowWaterMark`), or with its
//! plan; steps that come again and again in the same order become one (`cycles`). The large requests of a step are recorded, and
//! when each is freed; small ones share slabs and are not planned. The step's signature is the sequence of its requests. From the
//! end of the step on a [`Planner`] looks for a place for each, in the memory that blocks of earlier steps leave free where they
//! lie: nothing moves. When requests come in the same order again, each takes its place by its number. Steps of several lengths
//! have a plan each. Once steps have followed their plans, free chunks that no plan uses go back.
//!
//! **Limitations.** A plan is of addresses at home, and so of the blocks that lived when it was made. Where the program's
//! other blocks move on, requests find their places taken, and the step is planned anew. Requests of private pools, captures and
//! guard mode are not planned.

mod carried;
mod cycles;
mod memory;
mod places;
mod plans;
mod problem;
mod recorder;
mod stretches;
mod surplus;
mod valleys;

pub(crate) use places::PlannedPlace;
pub use problem::{Lifetime, Place, Places, PlanPart, PlanProblem, Planner, Taken};

use crate::error::Result;
use crate::fallible::{TryCollect, TryPush};
use crate::heap::Heap;
use crate::ids::{BlockId, ChunkId, PoolIndex, ViewId};
use crate::report::stats::PlanStats;
use crate::span::Span;
use carried::{Carried, CommonPlaces};
use cycles::{Cycles, Joined};
use memory::Origin;
use plans::Plans;
use recorder::{Ended, Key, LEAST_REQUESTS, Position, Recorder};
use std::panic::{AssertUnwindSafe, catch_unwind};
use surplus::{Answered, Surplus};
use valleys::{Moment, Valleys};

/// How many plans may wait to be followed for the first time before a step is planned only when it comes again.
const MAX_UNTRIED: usize = 8;
/// How many signatures are remembered.
const MAX_SEEN: usize = 256;
/// How many problems a planner may have at once. Steps that end meanwhile are planned when they come again.
const MAX_SUBMITTED: usize = 4;
/// A step departs from its plan if more than this part (1/n) of its requests has no place.
const DEPARTED: usize = 64;
/// A plan is renewed after a step that departs from it; after it was renewed, once one more step in a row departs, up to so many
/// more.
const RENEW_LATER: u32 = 3;
/// A step is not planned if it leaves more than this part (1/n) of what is held.
const LEFT: u64 = 32;
/// How often one plan is renewed.
const MAX_RENEWALS: u32 = 8;
/// A problem that a planner has.
struct Submitted {
    number: u64,
    signature: u64,
    keys: Vec<Key>,
    origin: Origin,
    peak: u64,
    /// Bytes of the requests that live on into the next step. They come to their places only while it runs.
    living_on: u64,
}

/// Returns the chunks that a view over these spans would map, and where the spans begin in it; `None` if no view can map them.
pub(crate) fn chunks_of(heap: &Heap, spans: &[Span]) -> Result<Option<(Vec<ChunkId>, u64)>> {
    Ok(places::chunks_of(heap, spans)?)
}

/// The plans of an allocator, and its present step.
#[derive(Default)]
pub(crate) struct Planning {
    recorder: Recorder,
    plans: Plans,
    common: CommonPlaces,
    planner: Option<Box<dyn Planner>>,
    submitted: Vec<Submitted>,
    /// Signatures of steps, the latest last.
    seen: Vec<u64>,
    /// The signature of the step before.
    last: u64,
    /// The signature of the step that is expected.
    expected: u64,
    steps: u64,
    problems: u64,
    /// Where a step ends that follows no plan.
    valleys: Valleys,
    /// Which steps are made one.
    cycles: Cycles,
    /// The step that ended last.
    ended: Ended,
    /// Where the step ends, once that is known.
    end: Option<Position>,
    /// Requests of the present step that got their places.
    placed: usize,
    /// The most bytes that were live in it, and in the step that ended last.
    peak: u64,
    ended_peak: u64,
    surplus: Surplus,
    stats: PlanStats,
}

impl Planning {
    /// Sets who finds the places. What the one before has not answered is asked anew when it comes again. Returns that one, which is the
    /// program's and is dropped without the lock.
    pub(crate) fn set_planner(&mut self, planner: Box<dyn Planner>) -> Option<Box<dyn Planner>> {
        self.submitted.clear();
        // What came in vain did so without this one.
        self.cycles.begin_anew();
        self.planner.replace(planner)
    }

    pub(crate) fn stats(&self) -> PlanStats {
        self.stats
    }

    /// Returns the bytes of host memory that plans and records take.
    pub(crate) fn host_bytes(&self) -> usize {
        size_of::<Self>() + self.recorder.host_bytes() + self.plans.host_bytes() + self.common.host_bytes()
    }

    /// Returns whether the step ends before the next large request: its plan is complete, or it is as when the step began, or memory
    /// has risen again from where it was lowest. In bytes.
    #[inline]
    pub(crate) fn step_is_over(&mut self, size: u64, pool: PoolIndex, live: u64, held: u64) -> bool {
        if let Some(joined) = self.cycles.joined
            && let Some(is_over) = self.joined_is_over(joined, Key { size, pool }, (live, held))
        {
            return is_over;
        }
        let Self { recorder, plans, valleys, .. } = self;
        let at = recorder.position();
        if !plans.is_followed() {
            let is_first = recorder.records.first().is_some_and(|first| first.key == Key { size, pool });
            self.end = valleys.end(Moment { at, live, held }, is_first && at.records >= LEAST_REQUESTS);
        } else if plans.is_complete() {
            valleys.begin(live, held);
            self.end = Some(at);
        } else {
            valleys.note(live);
        }
        self.end.is_some()
    }

    /// Returns whether a step that is made of several ends; `None` if the program does something else.
    fn joined_is_over(&mut self, joined: Joined, next: Key, (live, held): (u64, u64)) -> Option<bool> {
        let Self { recorder, plans, valleys, cycles, .. } = self;
        let at = recorder.position();
        if !cycles.comes_as_known(&recorder.records) {
            cycles.joined = None;
            return None;
        }
        if at.records >= joined.requests {
            valleys.begin(live, held);
            self.end = Some(at);
            return Some(true);
        }
        if plans.is_complete() {
            if !cycles.ends_at(at.records) {
                cycles.joined = None;
                return None;
            }
            plans.go_on(next, &recorder.records);
        }
        valleys.note(live);
        Some(false)
    }

    /// Notes that live memory is low: a step may end soon.
    pub(crate) fn memory_is_low(&mut self) {
        // A plan knows its end.
        if !self.plans.is_followed() {
            self.valleys.memory_is_low(self.recorder.position());
        }
    }

    /// Returns where the next large request of a pool is to lie, if a plan says so.
    #[inline]
    pub(crate) fn next_place(&mut self, heap: &Heap, size: u64, pool: PoolIndex) -> Option<PlannedPlace<'_>> {
        let Self { recorder, plans, .. } = self;
        let is_open = |span| heap.blocks_over(span).all(|id| recorder.is_open(heap, id));
        plans.next(Key { size, pool }, &recorder.records, (self.expected, heap.reserved()), is_open)
    }

    /// Notes that a large request was served.
    #[inline]
    pub(crate) fn served(&mut self, heap: &Heap, id: BlockId, as_planned: bool) {
        let block = heap.block(id);
        self.recorder.served(heap, Key { size: block.size, pool: block.pool.large() }, id);
        self.placed += usize::from(as_planned);
        self.peak = self.peak.max(heap.counters().allocated_bytes.current());
    }

    /// Notes that the place of the next request is taken. `lost`: its view is gone.
    pub(crate) fn displaced(&mut self, lost: bool) {
        self.plans.displaced(lost);
    }

    /// Returns whether a plan lacks views.
    pub(crate) fn lacks_views(&mut self) -> bool {
        self.plans.unbuilt().next().is_some()
    }

    /// Builds the views of plans that lack them. `build` returns a view over the chunks of these spans, if there can be one: its
    /// serial number, and where the spans begin in it.
    ///
    /// # Errors
    /// The first of `build`'s; other plans go without views until the end of the next step.
    pub(crate) fn build_views(
        &mut self,
        mut build: impl FnMut(&[Span]) -> Result<Option<(ViewId, u64, u64)>>,
    ) -> Result<()> {
        self.plans.unbuilt().try_for_each(|plan| plan.places.build_views(&mut build))
    }

    /// Returns the memory that plans use, if the rest is to go back to the driver now.
    ///
    /// # Errors
    /// The host has no memory for the list.
    pub(crate) fn given_back_outside(&self) -> Result<Option<Vec<Span>>> {
        self.surplus.given_back_outside(&self.plans, self.steps)
    }

    /// Returns how much memory beside the plans is to be kept, in bytes.
    pub(crate) fn kept(&self) -> u64 {
        self.surplus.kept
    }

    /// Notes that memory went back, and how much was held before and is now, in bytes.
    pub(crate) fn gave_back(&mut self, before: u64, held: u64) {
        self.surplus.gave_back(before, held);
    }

    /// Returns how many bytes are to be added to the memory held before the step that ended last is planned again; 0: it has its plan.
    pub(crate) fn lacking(&self) -> u64 {
        self.surplus.lacking
    }

    /// Plans the step that ended last again, in more memory.
    ///
    /// # Errors
    /// The host has no memory for a plan.
    pub(crate) fn plan_again(&mut self, heap: &Heap, apart: bool) -> Result<()> {
        self.surplus.lacking = 0;
        let ended = std::mem::take(&mut self.ended);
        let submitted = self.submit(&ended, self.last, heap, apart);
        self.ended = ended;
        submitted.and(self.take_answers(heap.reserved()))
    }

    /// Returns the memory of the plan that was just put in place, if it is the only one: the next step is expected to follow it.
    pub(crate) fn expected_spans(&self) -> impl Iterator<Item = Span> + '_ {
        self.plans.in_use(self.steps).filter(|_| self.surplus.is_alone).flat_map(plans::Plan::home_spans)
    }

    /// Notes that the program frees a block that was noted. `in_use`: other streams may use it still.
    pub(crate) fn freed(&mut self, heap: &Heap, id: BlockId, in_use: bool) {
        self.recorder.freed(heap, id, in_use);
    }

    /// Ends the step. `apart`: streams do not wait for each other's memory. Returns the memory that plans use, if the rest is to
    /// go back to the driver.
    ///
    /// # Errors
    /// The host has no memory for a plan. The step is over all the same.
    pub(crate) fn end_step(&mut self, heap: &Heap, apart: bool) -> Result<Option<Vec<Span>>> {
        let end = self.end.take().unwrap_or_else(|| self.recorder.position());
        let placed = std::mem::take(&mut self.placed);
        self.ended_peak = std::mem::take(&mut self.peak);
        self.surplus.step_ends();
        self.plans.begin();
        let mut ended = std::mem::take(&mut self.ended);
        self.recorder.end_at(end, &mut ended)?;
        let count = ended.records.len();
        if std::mem::take(&mut self.valleys.is_anew) {
            // Then its weights lie elsewhere, and plans are renewed after the first step that departs from them.
            self.plans.begin_anew();
            self.surplus.begin_anew();
            self.cycles.begin_anew();
        }
        let signature = ended.signature();
        let joined = self.join(&ended, signature, placed, heap.reserved());
        let noted = if count < LEAST_REQUESTS {
            Ok(())
        } else {
            self.step_ended(&ended, signature, placed.min(count), heap, apart)
        };
        self.ended = ended;
        if count < LEAST_REQUESTS {
            return joined.map(|()| None);
        }
        let answered = self.take_answers(heap.reserved());
        joined.and(noted).and(answered)?;
        self.given_back_outside()
    }

    /// Decides whether steps like those that ended last are one step from now on.
    fn join(&mut self, ended: &Ended, signature: u64, placed: usize, held: u64) -> Result<()> {
        let was_joined = self.cycles.joined.is_some();
        let is_asked_for = self.submitted.iter().any(|of| of.signature == signature);
        let has_plan = self.plans.iter().any(|plan| plan.signature == signature);
        let in_vain = !is_asked_for && (2 * placed < ended.records.len() || !has_plan);
        match self.valleys.began() {
            Some(live) => self.cycles.step_ended(signature, ended.records.len(), (live, held), in_vain),
            None => self.cycles.begin_anew(),
        }
        let begins = self.cycles.joined.is_some() && !was_joined;
        if !begins && placed < ended.records.len() && Carried::outlives_its_step(ended)? {
            self.cycles.join_two();
        }
        Ok(())
    }

    fn step_ended(&mut self, ended: &Ended, signature: u64, placed: usize, heap: &Heap, apart: bool) -> Result<()> {
        self.steps += 1;
        let count = ended.records.len();
        let departures = count - placed;
        let departed = departures * DEPARTED > count;
        tracing::debug!(
            step = self.steps,
            requests = count,
            departures,
            signature,
            expected = self.expected,
            held = heap.reserved(),
            live = heap.counters().allocated_bytes.current(),
            "a step has ended"
        );
        self.stats.steps += 1;
        self.stats.placed += placed as u64;
        self.stats.departures += departures as u64;
        // A step that comes now and then, among others that nobody plans, says nothing of what these need.
        let was_expected = self.expected == signature;
        self.surplus.step_ended(was_expected && !departed, heap.reserved());
        let (steps, last) = (self.steps, std::mem::replace(&mut self.last, signature));
        if let Some(plan) = self.plans.with_signature(last) {
            plan.successor = signature;
        }
        // The planner may take longer than a step.
        let mut wanted = !ended.is_partial
            && self.submitted.len() < MAX_SUBMITTED
            && self.submitted.iter().all(|of| of.signature != signature);
        match self.plans.with_signature(signature) {
            Some(plan) => {
                self.expected = plan.successor;
                (plan.followed, plan.peak) = (steps, self.ended_peak);
                plan.departed = if departed { plan.departed + 1 } else { 0 };
                plan.suited |= !departed;
                wanted &= plan.departed > plan.renewals.min(RENEW_LATER) && plan.renewals < MAX_RENEWALS;
            }
            None => {
                self.expected = 0;
                let untried = self.plans.iter().filter(|plan| plan.followed == 0).count();
                wanted &= untried < MAX_UNTRIED || self.seen.contains(&signature);
            }
        }
        if self.seen.len() >= MAX_SEEN {
            self.seen.remove(0);
        }
        self.seen.try_push(signature)?;
        if wanted { self.submit(ended, signature, heap, apart) } else { Ok(()) }
    }

    /// Gives the step to the planner.
    fn submit(&mut self, ended: &Ended, signature: u64, heap: &Heap, apart: bool) -> Result<()> {
        let Some(planner) = &mut self.planner else { return Ok(()) };
        let carried = Carried::of(&ended.records, &ended.earlier)?;
        // A step that leaves so much does not repeat itself: it makes what later ones use.
        if carried.left(&ended.records) > heap.reserved() / LEFT {
            return Ok(());
        }
        let (problem, origin) =
            memory::problem(ended, &carried, &mut self.common, &self.recorder.records, heap, apart)?;
        let keys = ended.records.iter().map(|record| record.key).try_to_vec()?;
        self.problems += 1;
        let number = self.problems;
        let living_on = carried.to.iter().zip(&keys).filter(|(to, _)| **to > 0).map(|(_, key)| key.size).sum();
        self.submitted.try_push(Submitted { number, signature, keys, origin, peak: self.ended_peak, living_on })?;
        let submitted = catch_unwind(AssertUnwindSafe(|| planner.submit(number, problem)));
        if submitted.is_err() {
            self.lose_planner();
        }
        Ok(())
    }

    /// The planner is the program's code: a panic in it must not end what the allocator was doing.
    fn lose_planner(&mut self) {
        tracing::error!("the planner panicked; nothing more is planned");
        self.submitted.clear();
        let planner = self.planner.take();
        drop(catch_unwind(AssertUnwindSafe(|| drop(planner))));
    }

    fn take_answers(&mut self, held: u64) -> Result<()> {
        for _ in 0..=MAX_SUBMITTED {
            let Some(planner) = &mut self.planner else { return Ok(()) };
            let answer = match catch_unwind(AssertUnwindSafe(|| planner.answer())) {
                Ok(answer) => answer,
                Err(_) => {
                    self.lose_planner();
                    return Ok(());
                }
            };
            let Some((number, places)) = answer else { return Ok(()) };
            let Some(index) = self.submitted.iter().position(|of| of.number == number) else { continue };
            let Submitted { signature, keys, origin, peak, living_on, .. } = self.submitted.remove(index);
            let places = origin.places(&keys, &places)?;
            let unplaced = (0..keys.len()).filter(|number| !places.has(*number)).count();
            tracing::debug!(signature, requests = keys.len(), unplaced, "a step is planned");
            self.stats.plans += 1;
            let answered = Answered { signature, requests: keys.len(), unplaced, peak, living_on };
            self.plans.put(self.steps, peak, signature, keys, places)?;
            let may_grow = signature == self.last && !self.ended.is_partial;
            self.surplus.judge(&answered, (&self.plans, self.steps), held, may_grow);
            self.expected = signature;
        }
        Ok(())
    }
}
