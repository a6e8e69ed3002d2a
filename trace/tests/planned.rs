//! The strategy `planned`: steps that repeat themselves take their places from a plan, and whatever a plan or a planner gets wrong is
//! served all the same.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

use seamalloc::driver::sim::{Profile, SimConfig, SimGpu};
use seamalloc::driver::{Call, Driver, Status, StreamId};
use seamalloc::planning::{Place, Places, PlanProblem, Planner};
use seamalloc::{Allocator, Config, StrategyKind};
use seamalloc_plan::online::{Background, Inline};
use seamalloc_plan::stored::StoredPlan;
use seamalloc_plan::{Buffer, Gap, Limits, Method, Problem, plan, read_csv, write_csv};
use seamalloc_trace::recorded;
use seamalloc_trace::replay::{ReplayOptions, replay};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId::DEFAULT;
const LAYERS: u64 = 24;

/// A training job: weights, states of an optimizer made in the first step, gradients that live on into the next one.
struct Job {
    gpu: Arc<SimGpu>,
    allocator: Allocator,
    gradients: Vec<u64>,
    steps: u64,
    /// How often memory falls and rises in the forward pass, as where activations are computed again.
    again: u64,
    /// The most bytes that were live.
    peak: u64,
}

impl Job {
    fn new(planner: Option<Box<dyn Planner>>) -> Self {
        let gpu = Arc::new(SimGpu::new(SimConfig::new(Profile::H200)).unwrap());
        let allocator = Allocator::new(gpu.clone(), Config::with_strategy(StrategyKind::Planned)).unwrap();
        if let Some(planner) = planner {
            allocator.set_planner(planner);
        }
        let mut job = Self { gpu, allocator, gradients: Vec::new(), steps: 0, again: 0, peak: 0 };
        for layer in 0..LAYERS {
            job.allocate(Self::weight(layer));
        }
        job
    }

    fn weight(layer: u64) -> u64 {
        (3 + layer % 5) * MIB + 512 * layer
    }

    fn allocate(&mut self, size: u64) -> u64 {
        let address = self.allocator.allocate(size, MAIN).unwrap();
        self.peak = self.peak.max(self.allocator.stats().allocated_bytes.all.current);
        address
    }

    /// Forward, backward, and the optimizer. `length` scales the activations.
    fn step(&mut self, length: u64) {
        let activations: Vec<[u64; 2]> =
            (0..LAYERS).map(|layer| [7, 11].map(|size| self.allocate((size + layer % 3) * length * MIB / 8))).collect();
        for part in 0..self.again {
            let scratch: Vec<u64> = (0..20 + part).map(|_| self.allocate((21 + part) * length * MIB / 8)).collect();
            scratch.into_iter().for_each(|address| self.allocator.free(address).unwrap());
        }
        let logits = self.allocate(60 * length * MIB / 8);
        std::mem::take(&mut self.gradients).into_iter().for_each(|address| self.allocator.free(address).unwrap());
        for (layer, kept) in activations.into_iter().enumerate().rev() {
            let scratch = self.allocate(9 * length * MIB / 8);
            let gradient = self.allocate(Self::weight(layer as u64));
            self.gradients.push(gradient);
            kept.into_iter().chain([scratch]).for_each(|address| self.allocator.free(address).unwrap());
        }
        self.allocator.free(logits).unwrap();
        if self.steps == 0 {
            for layer in 0..2 * LAYERS {
                self.allocate(Self::weight(layer % LAYERS));
            }
        }
        self.steps += 1;
        self.allocator.check().unwrap();
    }

    /// How many driver calls were made, and views built.
    fn figures(&self) -> (u64, u64) {
        let stats = self.allocator.stats();
        let calls = self.gpu.call_stats();
        (calls.iter().map(|(_, calls)| calls.count).sum(), stats.views_built)
    }
}

#[test]
fn a_step_that_repeats_itself_takes_its_places_from_a_plan() {
    let mut job = Job::new(Some(Box::<Inline>::default()));
    (0..10).for_each(|_| job.step(8));
    let (before, plans) = (job.figures(), job.allocator.stats().plans);
    job.peak = 0;
    (0..4).for_each(|_| job.step(8));
    assert_eq!(job.figures(), before, "no driver call, and no view");
    let after = job.allocator.stats().plans;
    assert_eq!(after.steps - plans.steps, 4);
    let requests = after.placed + after.departures - plans.placed - plans.departures;
    assert_eq!(requests, 4 * (2 * LAYERS + 1 + 2 * LAYERS));
    assert!((after.placed - plans.placed) * 100 >= requests * 93, "{after:?}");
    let held = job.allocator.stats().reserved_bytes.all.current;
    assert!(job.peak as f64 / held as f64 > 0.95, "{} of {held}", job.peak);
}

/// A step of two parts: the backward pass makes again what each layer had, and so falls and rises as often as there are layers.
fn with_layers(job: &mut Job) {
    let kept: Vec<u64> = (0..6).map(|_| job.allocate(40 * MIB)).collect();
    for kept in kept.into_iter().rev() {
        let again: Vec<u64> = (0..20).map(|number| job.allocate((20 + number) * MIB)).collect();
        again.into_iter().chain([kept]).for_each(|address| job.allocator.free(address).unwrap());
    }
}

/// Two batches whose gradients are added up: the first one leaves them, and the optimizer drops them after the second.
fn accumulated(job: &mut Job) {
    let mut gradients = Vec::new();
    for batch in 0..2 {
        let activations: Vec<u64> = (0..LAYERS).map(|layer| job.allocate((30 + layer % 3) * MIB)).collect();
        for (layer, kept) in activations.into_iter().enumerate().rev() {
            let gradient = job.allocate(Job::weight(layer as u64));
            if batch == 0 {
                gradients.push(gradient)
            } else {
                job.allocator.free(gradient).unwrap()
            }
            job.allocator.free(kept).unwrap();
        }
    }
    gradients.into_iter().for_each(|address| job.allocator.free(address).unwrap());
}

/// What the last `count` of so many steps come to: requests with and without their places, driver calls and views.
fn last_of(count: usize, steps: usize, step: impl FnMut(&mut Job)) -> (u64, u64, (u64, u64)) {
    last_with(Box::<Inline>::default(), count, steps, step)
}

fn last_with(
    planner: Box<dyn Planner>,
    count: usize,
    steps: usize,
    mut step: impl FnMut(&mut Job),
) -> (u64, u64, (u64, u64)) {
    let mut job = Job::new(Some(planner));
    (0..steps - count).for_each(|_| step(&mut job));
    let (before, plans) = (job.figures(), job.allocator.stats().plans);
    (0..count).for_each(|_| step(&mut job));
    let (after, now) = (job.figures(), job.allocator.stats().plans);
    (now.placed - plans.placed, now.departures - plans.departures, (after.0 - before.0, after.1 - before.1))
}

/// As [`with_layers`], and what the forward pass puts out is kept until the next one is there.
fn keeping_output() -> impl FnMut(&mut Job) {
    let mut output = None;
    move |job| {
        with_layers(job);
        let next = job.allocate(11 * MIB);
        let scratch: Vec<u64> = (0..LAYERS).map(|_| job.allocate(20 * MIB)).collect();
        scratch.into_iter().for_each(|address| job.allocator.free(address).unwrap());
        if let Some(before) = output.replace(next) {
            job.allocator.free(before).unwrap();
        }
    }
}

/// How many requests the three kinds of steps have.
const OF_LAYERS: u64 = 126;
const OF_KEEPING: u64 = OF_LAYERS + 1 + LAYERS;
const OF_ACCUMULATED: u64 = 4 * LAYERS;

#[test]
fn layers_that_repeat_themselves_are_parts_of_a_step() {
    assert_eq!(last_of(4, 20, with_layers), (4 * OF_LAYERS, 0, (0, 0)));
}

#[test]
fn an_output_that_is_kept_until_there_is_the_next_one_has_two_places() {
    assert_eq!(last_of(4, 20, keeping_output()), (4 * OF_KEEPING, 0, (0, 0)));
}

#[test]
fn batches_whose_gradients_are_added_up_are_parts_of_a_step() {
    assert_eq!(last_of(4, 20, accumulated), (4 * OF_ACCUMULATED, 0, (0, 0)));
}

#[test]
fn steps_of_several_lengths_have_a_plan_each() {
    let mut job = Job::new(Some(Box::<Inline>::default()));
    (0..45).for_each(|step| job.step([5, 8, 13][step % 3]));
    let (before, plans) = (job.figures(), job.allocator.stats().plans);
    (0..6).for_each(|step| job.step([5, 8, 13][step % 3]));
    assert_eq!(job.figures(), before, "no driver call, and no view");
    let after = job.allocator.stats().plans;
    assert!(after.placed - plans.placed > after.departures - plans.departures, "{plans:?}, {after:?}");
}

/// Two steps of one length that come one after the other by chance are no series.
#[test]
fn lengths_that_come_in_any_order_take_their_places() {
    let mut job = Job::new(Some(Box::<Inline>::default()));
    let mut state = 7_u64;
    let mut any = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        [8, 7, 5][(state >> 33) as usize % 3]
    };
    (0..120).for_each(|_| job.step(any()));
    let plans = job.allocator.stats().plans;
    (0..60).for_each(|_| job.step(any()));
    let after = job.allocator.stats().plans;
    let (placed, departures) = (after.placed - plans.placed, after.departures - plans.departures);
    assert_eq!(after.steps - plans.steps, 60, "{plans:?} {after:?}");
    assert!(placed * 100 >= (placed + departures) * 90, "{placed}, {departures}");
}

/// What crosses from one step into the next lies in the same places in all plans: a length does not unsettle the plan of another.
#[test]
fn seven_lengths_by_turns_take_their_places() {
    let lengths = [5, 8, 13, 6, 11, 7, 9];
    let mut job = Job::new(Some(Box::<Inline>::default()));
    (0..8 * lengths.len()).for_each(|step| job.step(lengths[step % lengths.len()]));
    let (before, plans) = (job.figures(), job.allocator.stats().plans);
    (0..4 * lengths.len()).for_each(|step| job.step(lengths[step % lengths.len()]));
    assert_eq!(job.figures(), before, "no driver call, and no view");
    let after = job.allocator.stats().plans;
    let (placed, departed) = (after.placed - plans.placed, after.departures - plans.departures);
    assert!(placed > 9 * departed, "{plans:?}, {after:?}");
}

/// A step is the whole of what comes again, though memory falls and rises several times in it.
#[test]
fn a_step_ends_in_its_deepest_valley() {
    let mut job = Job::new(Some(Box::<Inline>::default()));
    job.again = 2;
    (0..20).for_each(|_| job.step(8));
    let plans = job.allocator.stats().plans;
    (0..5).for_each(|_| job.step(8));
    let after = job.allocator.stats().plans;
    assert_eq!(after.steps - plans.steps, 5);
    assert!(after.placed - plans.placed > 20 * (after.departures - plans.departures), "{plans:?}, {after:?}");
}

#[test]
fn what_departs_from_a_plan_is_served_and_the_step_planned_anew() {
    let mut job = Job::new(Some(Box::<Inline>::default()));
    (0..6).for_each(|_| job.step(8));
    // A length that no plan knows, memory that goes back under the plan, and blocks that stay where places were.
    job.step(9);
    job.allocator.empty_cache().unwrap();
    job.step(8);
    let stays: Vec<u64> = (0..10).map(|_| job.allocate(30 * MIB)).collect();
    (0..20).for_each(|_| job.step(8));
    let (before, plans) = (job.figures(), job.allocator.stats().plans);
    (0..2).for_each(|_| job.step(8));
    assert_eq!(job.figures(), before, "planned anew around them");
    let after = job.allocator.stats().plans;
    assert!(after.placed - plans.placed > 10 * (after.departures - plans.departures), "{plans:?}, {after:?}");
    stays.into_iter().for_each(|address| job.allocator.free(address).unwrap());
    job.step(8);
}

#[test]
fn without_a_planner_it_is_stitch() {
    let mut job = Job::new(None);
    (0..4).for_each(|_| job.step(8));
    let plans = job.allocator.stats().plans;
    assert_eq!((plans.plans, plans.placed), (0, 0));
    assert!(plans.steps > 0);
}

/// Gives answers of all kinds that are wrong.
struct Wrong {
    kind: u64,
    answers: Vec<(u64, Places)>,
}

impl Planner for Wrong {
    fn submit(&mut self, number: u64, problem: PlanProblem) {
        assert_ne!(self.kind, 0, "a planner may panic");
        let place = |request: usize, range: usize, ranges: &[u64]| match self.kind {
            // All on top of each other.
            1 => Place { range: 0, offset: 0 },
            // No such range, not at a multiple of 512, beyond the end.
            2 => Place { range: ranges.len() + request, offset: 0 },
            3 => Place { range, offset: 512 * request as u64 + 1 },
            4 => Place { range, offset: ranges[range] - 512 },
            _ => Place { range, offset: u64::MAX - 511 },
        };
        let parts = problem.parts.iter().map(|part| {
            let ranges = part.ranges.len().max(1);
            let places =
                (0..part.requests.len() + 5).map(|request| Some(place(request, request % ranges, &part.ranges)));
            if part.ranges.is_empty() { Vec::new() } else { places.collect() }
        });
        let places = parts.collect();
        // An answer to a problem that nobody posed, and one twice.
        self.answers.push((number + 7, Places::new()));
        self.answers.push((number, places));
        self.answers.push((number, Places::new()));
    }

    fn answer(&mut self) -> Option<(u64, Places)> {
        self.answers.pop()
    }
}

#[test]
fn a_planner_that_is_wrong_does_no_harm() {
    for kind in 0..6 {
        let mut job = Job::new(Some(Box::new(Wrong { kind, answers: Vec::new() })));
        (0..12).for_each(|step| job.step([8, 8, 8, 5][step % 4]));
        let live = job.allocator.stats().allocated_bytes.all.current;
        assert!(live > 0 && job.gpu.faults().is_empty(), "{kind}");
    }
}

#[test]
fn a_planner_on_a_thread_answers_between_steps() {
    let mut job = Job::new(Some(Box::new(Background::start().unwrap())));
    let start = Instant::now();
    // How many steps pass meanwhile is not said.
    while job.allocator.stats().plans.placed < 500 {
        job.step(8);
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", job.allocator.stats().plans);
    }
}

/// Answers some steps later, as a thread does whose work takes longer than a step.
struct Late {
    inner: Inline,
    steps: usize,
    answers: Vec<Option<(u64, Places)>>,
}

impl Planner for Late {
    fn submit(&mut self, number: u64, problem: PlanProblem) {
        self.inner.submit(number, problem);
        let answer = self.inner.answer();
        self.answers.insert(0, answer);
    }

    fn answer(&mut self) -> Option<(u64, Places)> {
        if self.answers.last()?.is_some() && self.answers.len() <= self.steps {
            self.answers.insert(0, None);
            return None;
        }
        self.answers.pop().flatten()
    }
}

#[test]
fn a_planner_that_answers_late_has_its_plan_followed_in_the_end() {
    for steps in [2, 4, 8] {
        let inner = Inline::default();
        let mut job = Job::new(Some(Box::new(Late { inner, steps, answers: Vec::new() })));
        (0..60).for_each(|_| job.step(8));
        let (before, plans) = (job.figures(), job.allocator.stats().plans);
        (0..4).for_each(|_| job.step(8));
        let after = job.allocator.stats().plans;
        assert_eq!(job.figures(), before, "{steps}: no driver call, and no view");
        assert!(
            after.placed - plans.placed > 10 * (after.departures - plans.departures),
            "{steps}: {plans:?}, {after:?}"
        );
    }
}

/// Answers after another number of steps each time.
struct Wavering {
    inner: Inline,
    delays: Vec<usize>,
    waiting: Vec<(usize, (u64, Places))>,
}

impl Planner for Wavering {
    fn submit(&mut self, number: u64, problem: PlanProblem) {
        self.inner.submit(number, problem);
        let delay = self.delays[number as usize % self.delays.len()];
        self.waiting.extend(self.inner.answer().map(|answer| (delay, answer)));
    }

    fn answer(&mut self) -> Option<(u64, Places)> {
        let ready = self.waiting.iter().position(|(delay, _)| *delay == 0);
        if ready.is_none() {
            self.waiting.iter_mut().for_each(|(delay, _)| *delay -= 1);
        }
        ready.map(|index| self.waiting.remove(index).1)
    }
}

#[test]
fn steps_that_are_parts_of_one_are_planned_by_a_thread_that_wavers() {
    for delays in [[0, 1, 3, 2], [3, 0, 5, 1], [1, 4, 0, 2], [2, 2, 7, 0]] {
        let planner = || Box::new(Wavering { inner: Inline::default(), delays: delays.to_vec(), waiting: Vec::new() });
        let said = [
            last_with(planner(), 8, 60, with_layers),
            last_with(planner(), 8, 60, keeping_output()),
            last_with(planner(), 8, 60, accumulated),
        ];
        let placed = [OF_LAYERS, OF_KEEPING, OF_ACCUMULATED].map(|requests| (8 * requests, 0, (0, 0)));
        assert_eq!(said, placed, "{delays:?}");
    }
}

/// Answers once it may.
struct Closed {
    inner: Inline,
    open: Arc<AtomicBool>,
}

impl Planner for Closed {
    fn submit(&mut self, number: u64, problem: PlanProblem) {
        self.inner.submit(number, problem);
    }

    fn answer(&mut self) -> Option<(u64, Places)> {
        if self.open.load(Ordering::Relaxed) { self.inner.answer() } else { None }
    }
}

/// A job in whose steps the driver is not called any more, with a plan that waits to be put in place.
fn before_its_plan() -> (Job, Arc<AtomicBool>) {
    let open = Arc::new(AtomicBool::new(false));
    let mut job = Job::new(Some(Box::new(Closed { inner: Inline::default(), open: Arc::clone(&open) })));
    (0..12).for_each(|_| job.step(8));
    let before = job.figures();
    job.step(8);
    assert_eq!(job.figures(), before);
    (job, open)
}

/// What lies free in chunks that weights hold serves requests in several pieces, through views that are built once.
#[test]
fn views_of_places_in_several_pieces_are_built_when_the_plan_is_put_in_place() {
    let (mut job, open) = before_its_plan();
    let before = job.figures();
    open.store(true, Ordering::Relaxed);
    job.step(8);
    assert!(job.figures().1 > before.1, "views for pieces");
    (0..8).for_each(|_| job.step(8));
    let (before, plans) = (job.figures(), job.allocator.stats());
    (0..2).for_each(|_| job.step(8));
    assert_eq!(job.figures(), before, "no driver call, and no view");
    let after = job.allocator.stats();
    assert!(after.views_reused > plans.views_reused, "views of the plan are used");
    assert!(after.plans.placed - plans.plans.placed > 10 * (after.plans.departures - plans.plans.departures));
}

#[test]
fn a_plan_whose_views_cannot_be_built_is_followed_without_them() {
    for call in [Call::Reserve, Call::Map, Call::SetAccess] {
        for nth in [1, 2, 5] {
            for status in [Status::UNKNOWN, Status::OUT_OF_MEMORY] {
                let (mut job, open) = before_its_plan();
                let (before, held) = (job.gpu.leaks(), job.allocator.stats().reserved_bytes.all.current);
                open.store(true, Ordering::Relaxed);
                job.gpu.fail_nth(call, nth, status);
                job.step(8);
                job.gpu.fail_no_more();
                assert_eq!(job.allocator.stats().reserved_bytes.all.current, held, "{call:?} {nth}");
                assert_eq!(job.gpu.leaks().handles, before.handles);
                (0..6).for_each(|_| job.step(8));
                assert!(job.gpu.faults().is_empty());
                assert!(job.allocator.stats().plans.placed > 0);
            }
        }
    }
}

/// Has one problem at a time, for some steps each, and takes them in their order.
struct Busy {
    inner: Inline,
    steps: usize,
    waiting: Vec<(u64, PlanProblem)>,
    /// Asked so often since the first of these was begun.
    asked: usize,
}

impl Planner for Busy {
    fn submit(&mut self, number: u64, problem: PlanProblem) {
        self.waiting.push((number, problem));
    }

    fn answer(&mut self) -> Option<(u64, Places)> {
        self.asked = if self.waiting.is_empty() { 0 } else { self.asked + 1 };
        if self.asked < self.steps {
            return None;
        }
        self.asked = 0;
        let (number, problem) = self.waiting.remove(0);
        self.inner.submit(number, problem);
        self.inner.answer()
    }
}

/// A step that falls into several by its memory comes as more problems than a planner solves meanwhile.
#[test]
fn more_problems_than_a_planner_has_time_for_are_solved_one_by_one() {
    let placed = |planner: Box<dyn Planner>| {
        let mut job = Job::new(Some(planner));
        let lengths = [5, 8, 13, 6, 11, 7, 9];
        let mut steps = lengths.into_iter().cycle();
        (0..60 * lengths.len()).for_each(|_| job.step(steps.next().unwrap()));
        let before = job.allocator.stats().plans.placed;
        (0..4 * lengths.len()).for_each(|_| job.step(steps.next().unwrap()));
        job.allocator.stats().plans.placed - before
    };
    let at_once = placed(Box::<Inline>::default());
    let inner = Inline::default();
    let busy = placed(Box::new(Busy { inner, steps: 4, waiting: Vec::new(), asked: 0 }));
    assert!(busy * 10 >= at_once * 9, "{busy} against {at_once}");
}

/// Keeps the last step as a plan's file has it.
struct Kept {
    inner: Inline,
    file: Arc<Mutex<Vec<u8>>>,
}

impl Planner for Kept {
    fn submit(&mut self, number: u64, problem: PlanProblem) {
        let requests = problem.parts[0].requests.iter().enumerate().map(|(number, request)| {
            let lives_on = request.carried_to > 0;
            let gap = Gap { lower: request.carried_to.into(), upper: request.lower.into(), window: None };
            let lower = if lives_on { 0 } else { request.lower.into() };
            let buffer = Buffer::new(number.to_string(), lower, request.upper.into(), request.size);
            Buffer { gaps: if lives_on { vec![gap] } else { Vec::new() }, ..buffer }
        });
        let step = Problem::new("step", requests.collect()).unwrap();
        let found = plan(&step, Method::Chainer, &Limits::default(), &mut |_| {}).unwrap();
        let mut file = self.file.lock().unwrap();
        file.clear();
        write_csv(&step, &found.plan, &mut *file).unwrap();
        self.inner.submit(number, problem);
    }

    fn answer(&mut self) -> Option<(u64, Places)> {
        self.inner.answer()
    }
}

#[test]
fn a_plan_of_an_earlier_run_serves_the_next_one() {
    let file = Arc::new(Mutex::new(Vec::new()));
    let mut first = Job::new(Some(Box::new(Kept { inner: Inline::default(), file: Arc::clone(&file) })));
    (0..12).for_each(|_| first.step(8));
    let read = read_csv("step", "step.csv", file.lock().unwrap().as_slice()).unwrap();
    let stored = StoredPlan::of(&read, "step.csv").unwrap();
    let mut job = Job::new(Some(Box::new(Inline::with(Some(stored)))));
    (0..10).for_each(|_| job.step(8));
    let (before, plans) = (job.figures(), job.allocator.stats().plans);
    (0..4).for_each(|_| job.step(8));
    assert_eq!(job.figures(), before, "no driver call, and no view");
    let after = job.allocator.stats().plans;
    assert!(after.placed - plans.placed > 10 * (after.departures - plans.departures), "{plans:?}, {after:?}");
}

#[test]
fn a_file_that_is_no_plan_is_refused_before_the_replay() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.csv");
    std::fs::write(&path, "id,lower,upper,size\na,0,9,4194304\n").unwrap();
    let trace = recorded::find("resnet-multi").unwrap().load().unwrap();
    let replayed = |path: &str| {
        let config = Config::parse(&format!("strategy:planned,plan:{path}")).unwrap();
        let options = ReplayOptions::new(config, SimConfig::new(Profile::H200));
        replay(&trace, &options, &mut |_, _| {}).unwrap_err().to_string()
    };
    let error = replayed(path.to_str().unwrap());
    assert!(error.contains("plan.csv: the buffer a has no offset"), "{error}");
    assert!(replayed("/nonexistent.csv").contains("/nonexistent.csv"));
}

/// Nothing repeats itself exactly in a job with varying lengths: what is planned must not take more memory than no plan.
#[test]
fn a_recorded_job_takes_no_more_memory_than_with_stitch() {
    for (name, passes) in [("gpt2xl-N", 1), ("opt1.3b-R", 3)] {
        let trace = recorded::find(name).unwrap().load().unwrap();
        let [stitch, planned] = [StrategyKind::Stitch, StrategyKind::Planned].map(|kind| {
            let options = ReplayOptions::new(Config::with_strategy(kind), SimConfig::new(Profile::H200));
            let reports = replay(&trace, &ReplayOptions { passes, ..options }, &mut |_, _| {}).unwrap();
            reports.into_iter().map(|report| report.peak_reserved).collect::<Vec<_>>()
        });
        assert!(
            planned.iter().zip(&stitch).all(|(planned, stitch)| planned <= stitch),
            "{name}: {planned:?}, {stitch:?}"
        );
    }
}
