//! Planners for a running allocator: the strategy `planned` asks them at the end of each step.
//!
//! Owns: how address ranges become one line of offsets, and which methods are tried.
//!
//! ```text
//! ranges     [0    ][1        ][2                  ]
//! line        ......|..........|....................     | a border of 512 bytes that is always taken
//! ```
//! The line has no more ranges than are needed, and is used from its beginning, so that as much as possible stays free at its end.

use crate::check::Plan;
use crate::method::{Limits, Method, plan, plan_in_order};
use crate::problem::{Buffer, Gap, Problem};
use crate::stored::StoredPlan;
use seamalloc::planning::{Lifetime, Place, Places, PlanPart, PlanProblem, Planner};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// Bytes of a border between two ranges: the unit of all places.
const BORDER: u64 = 512;
/// The methods of one pass, of which the best plan is taken.
const QUICK: [Method; 3] = [Method::Chainer, Method::DecreasingSize, Method::FirstFit];
/// How long a thread searches for a better plan than these find.
const SEARCH: Duration = Duration::from_millis(200);
/// A file is of another job if so many steps were looked for in it, and none was found.
const OF_ANOTHER_JOB: u32 = 4;
/// How many sizes are tried as the first of a range.
const MAX_FIRST: usize = 32;
/// Longer than methods of one pass take.
const UNLIMITED: Duration = Duration::from_secs(3600);

/// Plans at the end of a step, before the program goes on: for replays, whose figures must not depend on the clock.
#[derive(Debug, Default)]
pub struct Inline {
    hints: Hints,
    answers: Vec<(u64, Places)>,
}

impl Inline {
    /// Takes the order of places from a file where a step is the file's.
    #[must_use]
    pub fn with(stored: Option<StoredPlan>) -> Self {
        Self { hints: Hints::new(stored), answers: Vec::new() }
    }
}

impl Planner for Inline {
    fn submit(&mut self, number: u64, problem: PlanProblem) {
        self.answers.insert(0, (number, solve_with(&problem, None, &mut self.hints)));
    }

    fn answer(&mut self) -> Option<(u64, Places)> {
        self.answers.pop()
    }
}

/// Plans on a thread of its own while the program goes on. The thread ends with it.
#[derive(Debug)]
pub struct Background {
    problems: Sender<(u64, PlanProblem)>,
    answers: Receiver<(u64, Places)>,
}

impl Background {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start() -> std::io::Result<Self> {
        Self::start_with(None)
    }

    /// Starts the thread, which takes the order of places from a file where a step is the file's.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start_with(stored: Option<StoredPlan>) -> std::io::Result<Self> {
        let (problems, taken) = channel::<(u64, PlanProblem)>();
        let (given, answers) = channel();
        thread::Builder::new().name("seamalloc-plan".to_owned()).spawn(move || {
            let mut hints = Hints::new(stored);
            let mut waiting = VecDeque::new();
            loop {
                if waiting.is_empty() {
                    waiting.extend(taken.recv().ok());
                }
                waiting.extend(taken.try_iter());
                let Some((number, problem)) = waiting.pop_front() else { return };
                // A plan that comes late is of memory that has moved on, and steps that wait are served without one.
                let search = waiting.is_empty().then_some(SEARCH);
                if given.send((number, solve_with(&problem, search, &mut hints))).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { problems, answers })
    }
}

impl Planner for Background {
    fn submit(&mut self, number: u64, problem: PlanProblem) {
        // Without its thread, which a panic may have ended, there are no answers.
        let _ = self.problems.send((number, problem));
    }

    fn answer(&mut self) -> Option<(u64, Places)> {
        self.answers.try_recv().ok()
    }
}

/// Finds places for all parts. `search`: how long to look for better plans than methods of one pass find.
#[must_use]
pub fn solve(problem: &PlanProblem, search: Option<Duration>) -> Places {
    solve_with(problem, search, &mut Hints::default())
}

fn solve_with(problem: &PlanProblem, search: Option<Duration>, hints: &mut Hints) -> Places {
    let offsets: Vec<_> = problem.parts.iter().map(|part| hints.offsets(part)).collect();
    hints.step_ends(offsets.iter().any(Option::is_some));
    let solved = problem.parts.iter().zip(offsets).map(|(part, stored)| solve_part(part, &Means { search, stored }));
    solved.collect()
}

/// A plan that was found earlier, and whether it is the program's.
#[derive(Debug, Default)]
struct Hints {
    stored: Option<StoredPlan>,
    /// Steps that were looked for in it in vain, before any was found.
    unknown: u32,
}

impl Hints {
    fn new(stored: Option<StoredPlan>) -> Self {
        Self { stored, unknown: 0 }
    }

    /// Where the file has each request, if the step is the file's.
    fn offsets(&self, part: &PlanPart) -> Option<Vec<Option<u64>>> {
        let sizes: Vec<u64> = part.requests.iter().map(|request| request.size).collect();
        self.stored.as_ref()?.offsets(&sizes)
    }

    /// Says so if the program's steps are not the file's.
    fn step_ends(&mut self, known: bool) {
        if self.stored.is_none() || self.unknown > OF_ANOTHER_JOB {
            return;
        }
        if known {
            tracing::info!("a step is that of the plan's file");
            self.unknown = OF_ANOTHER_JOB;
        } else if self.unknown + 1 == OF_ANOTHER_JOB {
            tracing::warn!("the plan's file is of another job: no step is like its own; steps are planned without it");
        }
        self.unknown += 1;
    }
}

/// How places of a part are looked for.
struct Means {
    search: Option<Duration>,
    /// Where a file has each request.
    stored: Option<Vec<Option<u64>>>,
}

fn solve_part(part: &PlanPart, means: &Means) -> Vec<Option<Place>> {
    let load = peak_load(part);
    let mut room = 0_u64;
    let fewest = part.ranges.iter().take_while(|size| {
        let before = room;
        room += **size;
        before < load
    });
    let decided = part.requests.iter().filter_map(|request| Some(request.fixed?.range + 1)).max();
    let fewest = fewest.count().max(decided.unwrap_or(0));
    let mut best = Solution::none(part);
    let (mut count, mut more) = (fewest.max(1), 1);
    // Ranges behind those that suffice are left out: a border at their ends would hide how much of the line is used.
    while !part.ranges.is_empty() {
        count = count.min(part.ranges.len());
        best = best.or(solve_line(part, count, means));
        if best.unplaced == 0 || count == part.ranges.len() {
            break;
        }
        count += more;
        more *= 2;
    }
    best.places
}

/// The most bytes that are live at once.
fn peak_load(part: &PlanPart) -> u64 {
    load(part).map(|(_, live)| live).max().unwrap_or(0)
}

/// The first moment at which most is live.
fn moment_of_peak(part: &PlanPart) -> u32 {
    let mut peak = (0, 0);
    for (moment, live) in load(part) {
        if live > peak.1 {
            peak = (moment, live);
        }
    }
    peak.0
}

/// How many bytes are live from which moment on.
fn load(part: &PlanPart) -> impl Iterator<Item = (u32, u64)> {
    let mut changes: Vec<(u32, i128)> = Vec::new();
    for request in &part.requests {
        let size = i128::from(request.size);
        changes.extend([(request.lower, size), (request.upper, -size), (0, size), (request.carried_to, -size)]);
    }
    for taken in &part.taken {
        changes.extend([(0, i128::from(taken.size)), (taken.upper, -i128::from(taken.size))]);
    }
    // What ends at a moment is free for what begins there.
    changes.sort_unstable();
    let mut live = 0_i128;
    changes.into_iter().map(move |(moment, change)| {
        live += change;
        (moment, u64::try_from(live).unwrap_or(0))
    })
}

/// Chooses requests that fill so many bytes: first one of any size, then the largest that fits each time. Of these choices, the one
/// that leaves least. `live` has the requests in the order of their sizes.
fn fullest(part: &PlanPart, live: &[usize], bytes: u64) -> Vec<usize> {
    let size = |index: &usize| part.requests[*index].size;
    let mut best = (bytes, Vec::new());
    let mut end = live.partition_point(|index| size(index) <= bytes);
    for _ in 0..MAX_FIRST {
        let Some(first) = end.checked_sub(1) else { break };
        let mut chosen = vec![live[first]];
        let mut left = bytes - size(&live[first]);
        let mut before = first;
        while let Some(last) = live[..before].partition_point(|index| size(index) <= left).checked_sub(1) {
            chosen.push(live[last]);
            left -= size(&live[last]);
            before = last;
        }
        if left < best.0 {
            best = (left, chosen);
        }
        let first_size = size(&live[first]);
        end = live.partition_point(|index| size(index) < first_size);
    }
    best.1
}

/// Places for a part's requests.
struct Solution {
    /// Bytes of the requests that have none.
    unplaced: u64,
    /// How much of the line is used.
    peak: u64,
    places: Vec<Option<Place>>,
}

impl Solution {
    /// No place for any request: worse than whatever a method finds.
    fn none(part: &PlanPart) -> Self {
        Self { unplaced: u64::MAX, peak: u64::MAX, places: vec![None; part.requests.len()] }
    }

    /// The better of the two.
    fn or(self, other: Self) -> Self {
        if (other.unplaced, other.peak) < (self.unplaced, self.peak) { other } else { self }
    }
}

/// Finds places in the first `count` ranges.
fn solve_line(part: &PlanPart, count: usize, means: &Means) -> Solution {
    let mut best = Solution::none(part);
    let line = Line::of(&part.ranges[..count]);
    for offsets in [line.at_peak(part), vec![None; part.requests.len()]] {
        let Ok(problem) = Problem::new("step", line.buffers(part, &offsets)) else { continue };
        best = best.or(solve_problem(part, &line, &problem, means));
    }
    best
}

fn solve_problem(part: &PlanPart, line: &Line, problem: &Problem, means: &Means) -> Solution {
    let mut best = Solution::none(part);
    let run = |best: Solution, method, time| {
        let limits = Limits { time, ..Limits::default() };
        let Ok(outcome) = plan(problem, method, &limits, &mut |_| {}) else { return (best, true) };
        (best.or(line.solution(part, &outcome.plan)), outcome.is_optimal)
    };
    if let Some(offsets) = &means.stored {
        // What the file does not have comes last, and what stands fixed has its place in any case.
        let mut order: Vec<u32> = (0..problem.buffers().len() as u32).collect();
        order.sort_by_key(|number| match offsets.get(*number as usize) {
            Some(offset) => (1, offset.unwrap_or(u64::MAX)),
            None => (0, 0),
        });
        if let Some(plan) = plan_in_order(problem, order) {
            best = best.or(line.solution(part, &plan));
        }
    }
    for method in QUICK {
        let is_least;
        (best, is_least) = run(best, method, UNLIMITED);
        if is_least && best.unplaced == 0 {
            return best;
        }
    }
    match means.search {
        Some(time) => run(best, Method::Portfolio, time).0,
        None => best,
    }
}

/// The ranges of a part, one behind the other.
struct Line {
    /// The first offset of each range, and the bytes of it.
    ranges: Vec<(u64, u64)>,
}

impl Line {
    fn of(ranges: &[u64]) -> Self {
        let mut at = 0;
        let place = |size: &u64| {
            let range = (at, *size);
            at += size + BORDER;
            range
        };
        Self { ranges: ranges.iter().map(place).collect() }
    }

    /// Fills the memory that is held anyhow with requests that are live when most is: what lies there then needs no other memory.
    /// Each range takes those that leave least of it. Returns the offset of each request that has one.
    fn at_peak(&self, part: &PlanPart) -> Vec<Option<u64>> {
        let mut offsets = vec![None; part.requests.len()];
        let peak = moment_of_peak(part);
        let is_live = |request: &Lifetime| (request.lower..request.upper).contains(&peak) || peak < request.carried_to;
        let is_free = |index: &usize| part.requests[*index].fixed.is_none() && is_live(&part.requests[*index]);
        let mut live: Vec<usize> = (0..part.requests.len()).filter(is_free).collect();
        live.sort_by_key(|index| (part.requests[*index].size, *index));
        let taken = |range: usize| {
            let fixed = part.requests.iter().any(|request| request.fixed.is_some_and(|place| place.range == range));
            fixed || part.taken.iter().any(|taken| taken.range == range)
        };
        for (range, (start, size)) in self.ranges.iter().enumerate().take(part.held).rev() {
            let left = if taken(range) { 0 } else { *size };
            let mut at = *start;
            for index in fullest(part, &live, left) {
                offsets[index] = Some(at);
                at += part.requests[index].size;
            }
            live.retain(|index| offsets[*index].is_none());
        }
        offsets
    }

    /// The requests, of which some have places already, then what stands fixed: borders and blocks of an earlier step.
    fn buffers(&self, part: &PlanPart, offsets: &[Option<u64>]) -> Vec<Buffer> {
        let moments = i64::from(part.moments.max(1));
        let requests = part.requests.iter().enumerate().map(|(number, request)| {
            let (lower, upper, carried) = (request.lower.into(), request.upper.into(), i64::from(request.carried_to));
            let id = number.to_string();
            let decided = request.fixed.and_then(|place| Some(self.ranges.get(place.range)?.0 + place.offset));
            let fixed = decided.or(offsets[number]);
            if carried == 0 {
                return Buffer { fixed, ..Buffer::new(id, lower, upper, request.size) };
            }
            let gap = Gap { lower: carried, upper: lower, window: None };
            let gaps = if carried < lower { vec![gap] } else { Vec::new() };
            Buffer { gaps, fixed, ..Buffer::new(id, 0, upper, request.size) }
        });
        let inner = self.ranges.len().saturating_sub(1);
        let borders = self.ranges.iter().take(inner).enumerate().map(|(number, (start, size))| Buffer {
            fixed: Some(start + size),
            ..Buffer::new(format!("border {number}"), 0, moments, BORDER)
        });
        let taken = part.taken.iter().enumerate().filter_map(|(number, taken)| {
            let (start, _) = self.ranges.get(taken.range)?;
            let buffer = Buffer::new(format!("taken {number}"), 0, taken.upper.into(), taken.size);
            Some(Buffer { fixed: Some(start + taken.offset), ..buffer })
        });
        requests.chain(borders).chain(taken).collect()
    }

    fn solution(&self, part: &PlanPart, plan: &Plan) -> Solution {
        let places = self.places(part, &plan.offsets);
        let unplaced = part.requests.iter().zip(&places).filter(|(_, place)| place.is_none());
        Solution { unplaced: unplaced.map(|(request, _)| request.size).sum(), peak: plan.peak, places }
    }

    /// The place of each request that lies within a range.
    fn places(&self, part: &PlanPart, offsets: &[u64]) -> Vec<Option<Place>> {
        let place = |(request, offset): (&Lifetime, &u64)| {
            let range = self.ranges.partition_point(|(start, _)| start <= offset).checked_sub(1)?;
            let (start, size) = self.ranges[range];
            (offset + request.size <= start + size).then_some(Place { range, offset: offset - start })
        };
        part.requests.iter().zip(offsets).map(place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A step whose requests live for a while, and the least memory that it needs.
    fn step(seed: u64) -> (PlanPart, u64) {
        let mut state = seed;
        let mut next = |below: u64| {
            // Numerical Recipes' generator: any will do.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let request = |lower: u32| {
            let upper = lower + 1 + next(8) as u32;
            Lifetime { size: (2 + next(9)) * MIB, lower, upper, carried_to: 0, fixed: None }
        };
        let requests: Vec<_> = (0..14).map(request).collect();
        let mut part = PlanPart { moments: 24, requests, ..PlanPart::default() };
        part.ranges = vec![peak_load(&part)];
        let least = part.ranges[0];
        (part, least)
    }

    fn problem_of(part: &PlanPart) -> Problem {
        let buffers = part.requests.iter().enumerate().map(|(number, request)| {
            Buffer::new(number.to_string(), request.lower.into(), request.upper.into(), request.size)
        });
        Problem::new("step", buffers.collect()).unwrap()
    }

    #[test]
    fn a_plan_from_a_file_places_what_methods_of_one_pass_do_not() {
        let mut helped = 0;
        for seed in 0..300 {
            let (part, least) = step(seed);
            let unplaced = |places: &Places| places[0].iter().filter(|place| place.is_none()).count();
            let problem = PlanProblem { parts: vec![part.clone()] };
            if unplaced(&solve(&problem, None)) == 0 {
                continue;
            }
            let limits = Limits { time: Duration::from_secs(5), ..Limits::default() };
            let exact = plan(&problem_of(&part), Method::Exact, &limits, &mut |_| {}).unwrap();
            if exact.plan.peak > least {
                continue;
            }
            let mut file = Vec::new();
            crate::csv::write_csv(&problem_of(&part), &exact.plan, &mut file).unwrap();
            let read = crate::csv::read_csv("step", "step.csv", file.as_slice()).unwrap();
            let stored = StoredPlan::of(&read, "step.csv").unwrap();
            let places = solve_with(&problem, None, &mut Hints::new(Some(stored)));
            assert_eq!(unplaced(&places), 0, "seed {seed}");
            helped += 1;
        }
        assert!(helped > 3, "{helped}: too few steps that a quick method does not place");
    }

    #[test]
    fn a_file_of_another_job_is_told_once_and_changes_nothing() {
        let (part, _) = step(1);
        let other = Buffer { fixed: Some(0), ..Buffer::new("other", 0, 9, 77 * MIB) };
        let stored = StoredPlan::of(&Problem::new("other", vec![other]).unwrap(), "other.csv").unwrap();
        let mut hints = Hints::new(Some(stored));
        let problem = PlanProblem { parts: vec![part] };
        for _ in 0..2 * OF_ANOTHER_JOB {
            assert_eq!(solve_with(&problem, None, &mut hints), solve(&problem, None));
        }
        assert_eq!(hints.unknown, OF_ANOTHER_JOB + 1, "told when the number was reached, and never again");
    }
}
