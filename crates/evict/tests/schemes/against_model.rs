//! Runs of random programs: what is computed is computed from the right inputs, blocks never overlap, and the choice of each scheme
//! is that of a slow model which knows the definitions alone.

use proptest::prelude::*;
use seamalloc_evict::graph::{Graph, GraphBuilder, OperatorId, Output, StorageId};
use seamalloc_evict::memory::{Arena, Counted, End, Live, Memory, Piece};
use seamalloc_evict::{Ask, Outcome, Scheme, SchemeKind, State, peak, run};
use std::collections::{BTreeMap, BTreeSet};

/// A memory that checks what it hands on: blocks are large enough and do not overlap, and none is freed twice.
struct Checked<M> {
    memory: M,
    live: BTreeMap<u64, u64>,
}

impl<M: Memory> Memory for Checked<M> {
    fn allocate(&mut self, bytes: u64, end: End) -> Result<Option<u64>, seamalloc::Error> {
        let found = self.memory.allocate(bytes, end)?;
        if let Some(address) = found {
            let before = self.live.range(..=address).next_back();
            assert!(before.is_none_or(|(at, bytes)| at + bytes <= address), "a block lies in another");
            assert!(self.live.range(address..).next().is_none_or(|(at, _)| address + bytes <= *at));
            self.live.insert(address, bytes);
        }
        Ok(found)
    }

    fn free(&mut self, address: u64) -> Result<(), seamalloc::Error> {
        assert!(self.live.remove(&address).is_some(), "freed twice");
        self.memory.free(address)
    }

    fn budget(&self) -> u64 {
        self.memory.budget()
    }

    fn used(&self) -> u64 {
        self.memory.used()
    }

    fn rounded(&self, bytes: u64) -> u64 {
        self.memory.rounded(bytes)
    }

    fn peak_reserved(&self) -> u64 {
        self.memory.peak_reserved()
    }

    fn pieces(&self) -> Vec<Piece> {
        self.memory.pieces()
    }

    fn granule(&self) -> Option<u64> {
        self.memory.granule()
    }

    fn is_one_range(&self) -> bool {
        self.memory.is_one_range()
    }
}

/// The next action of a random program.
#[derive(Clone, Debug)]
enum Act {
    Constant(u64),
    /// Cost, inputs as draws, sizes of outputs.
    Compute(u64, Vec<usize>, Vec<u64>),
    View(usize),
    Overwrite(u64, usize),
    Keep(usize),
    Release(usize),
}

fn act() -> impl Strategy<Value = Act> {
    let draws = || prop::collection::vec(any::<usize>(), 1..4);
    prop_oneof![
        1 => (1u64..6).prop_map(Act::Constant),
        8 => (1u64..9, draws(), prop::collection::vec(1u64..6, 1..3)).prop_map(|(cost, inputs, sizes)| Act::Compute(cost, inputs, sizes)),
        1 => any::<usize>().prop_map(Act::View),
        2 => (1u64..9, any::<usize>()).prop_map(|(cost, input)| Act::Overwrite(cost, input)),
        1 => any::<usize>().prop_map(Act::Keep),
        4 => any::<usize>().prop_map(Act::Release),
    ]
}

/// The program of these acts, its sizes multiplied by `unit`.
fn program(acts: &[Act], unit: u64) -> Graph {
    let mut builder = GraphBuilder::new("drawn");
    let mut held = vec![builder.constant("c", unit).unwrap()];
    for (at, act) in acts.iter().enumerate() {
        let pick = |held: &[_], draw: usize| held[draw % held.len()];
        match act {
            Act::Constant(size) => held.push(builder.constant("c", size * unit).unwrap()),
            Act::Compute(cost, inputs, sizes) => {
                let inputs: Vec<_> = inputs.iter().map(|draw| pick(&held, *draw)).collect();
                let outputs: Vec<_> = sizes.iter().map(|size| Output::New(format!("t{at}"), size * unit)).collect();
                held.extend(
                    builder.operator(if at % 2 == 0 { "conv" } else { "add" }, *cost, &inputs, &outputs).unwrap(),
                );
            }
            Act::View(draw) => {
                let input = pick(&held, *draw);
                held.extend(builder.operator("view", 1, &[input], &[Output::View(format!("v{at}"), 0)]).unwrap());
            }
            Act::Overwrite(cost, draw) => {
                let place = draw % held.len();
                let made = builder.operator("relu_", *cost, &[held[place]], &[Output::Overwritten(0)]).unwrap();
                builder.release(std::mem::replace(&mut held[place], made[0])).unwrap();
            }
            Act::Keep(draw) => {
                let tensor = pick(&held, *draw);
                builder.keep(tensor).unwrap();
                held.push(tensor);
            }
            Act::Release(draw) if held.len() > 1 => builder.release(held.swap_remove(draw % held.len())).unwrap(),
            Act::Release(_) => {}
        }
    }
    if let Some(last) = held.last() {
        builder.pin(*last).unwrap();
    }
    builder.finish().unwrap()
}

/// The evicted ancestors or descendants of a storage, by their definition.
fn evicted(state: &State<'_>, from: StorageId, up: bool) -> BTreeSet<StorageId> {
    let mut found = BTreeSet::new();
    let mut next = vec![from];
    while let Some(at) = next.pop() {
        let around: Vec<_> = if up { state.parents(at).collect() } else { state.children(at).collect() };
        next.extend(
            around.into_iter().filter(|other| state.is_evicted(*other) && *other != from && found.insert(*other)),
        );
    }
    found
}

/// Asks a scheme, and compares what it chooses with the least by a definition.
struct Judged {
    scheme: Box<dyn Scheme>,
    kind: SchemeKind,
    asked: u32,
}

impl Judged {
    fn cost(&self, state: &State<'_>, storage: StorageId) -> Option<f64> {
        let own = state.cost(storage) as f64;
        let (bytes, stale) = (state.bytes(storage) as f64, state.staleness(storage) as f64);
        let sum = |found: BTreeSet<StorageId>| found.into_iter().map(|other| state.cost(other)).sum::<u64>() as f64;
        let (up, down) = (|| sum(evicted(state, storage, true)), || sum(evicted(state, storage, false)));
        Some(match self.kind {
            SchemeKind::Dtr => (own + up() + down()) / (bytes * stale),
            SchemeKind::DtrLocal => own / (bytes * stale),
            SchemeKind::Lru => state.last_access(storage) as f64,
            SchemeKind::Size => 1.0 / bytes,
            SchemeKind::Msps => (own + up()) / bytes,
            _ => return None,
        })
    }
}

impl Scheme for Judged {
    fn choose(&mut self, ask: &Ask<'_>) -> Vec<StorageId> {
        let chosen = self.scheme.choose(ask);
        self.asked += 1;
        let costs: Vec<_> =
            ask.state.evictable().iter().filter_map(|s| Some((self.cost(ask.state, *s)?, *s))).collect();
        if let Some((least, _)) = costs.iter().min_by(|a, b| a.0.total_cmp(&b.0)) {
            assert_eq!(chosen.len(), 1);
            let cost = self.cost(ask.state, chosen[0]).unwrap();
            assert!(cost <= least * (1.0 + 1e-12), "{}: {cost} where {least} is possible", self.kind);
        }
        chosen
    }

    fn evicted(&mut self, state: &State<'_>, storage: StorageId) {
        self.scheme.evicted(state, storage);
    }

    fn made(&mut self, state: &State<'_>, storage: StorageId) {
        self.scheme.made(state, storage);
    }

    fn linked(&mut self, state: &State<'_>, storage: StorageId) {
        self.scheme.linked(state, storage);
    }

    fn works_in_place(&self) -> bool {
        self.scheme.works_in_place()
    }
}

fn judged(graph: &Graph, memory: &mut dyn Memory, kind: SchemeKind) -> Outcome {
    // An operator that ran on other contents than the first time is an error of `run`.
    run(graph, memory, &mut Judged { scheme: kind.scheme(), kind, asked: 0 }).unwrap()
}

fn bounds(graph: &Graph, outcome: &Outcome, budget: u64) {
    let first = graph.operators().len() as u64;
    assert!(outcome.peak_live <= budget);
    assert_eq!(outcome.refusals > 0, outcome.evictions > 0 || outcome.failure.is_some());
    if outcome.failure.is_none() {
        assert_eq!(outcome.operators_run, first + outcome.rematerialisations);
        assert!(outcome.time >= graph.cost());
        assert_eq!(outcome.time == graph.cost(), outcome.rematerialisations == 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn every_scheme_computes_the_right_contents_and_chooses_what_it_says(
        acts in prop::collection::vec(act(), 1..60),
        percent in 25u64..101,
    ) {
        let graph = program(&acts, 1);
        let most = peak(&graph).unwrap();
        let budget = (most * percent / 100).max(1);
        for kind in SchemeKind::ALL {
            let outcome = judged(&graph, &mut Checked { memory: Counted::new(budget), live: BTreeMap::new() }.without_ranges(), kind);
            bounds(&graph, &outcome, budget);
            if percent == 100 && !kind.scheme().works_in_place() {
                prop_assert_eq!(outcome.operators_run, graph.operators().len() as u64);
            }
            let mut arena = Checked { memory: Arena::new(budget * 512), live: BTreeMap::new() };
            let graph = program(&acts, 512);
            bounds(&graph, &judged(&graph, &mut arena, kind), budget * 512);
        }
    }

    #[test]
    fn live_allocators_serve_them_too(acts in prop::collection::vec(act(), 1..40), percent in 40u64..101) {
        // Sizes of 1.5 MiB: of no granule, so that holes are.
        let graph = program(&acts, 3 << 19);
        let budget = (peak(&graph).unwrap() * percent / 100).next_multiple_of(2 << 20);
        for strategy in [seamalloc::StrategyKind::Caching, seamalloc::StrategyKind::Stitch] {
            for kind in [SchemeKind::Dtr, SchemeKind::Dte, SchemeKind::Coop, SchemeKind::Stitched] {
                let memory = Live::new(seamalloc::Config::with_strategy(strategy), budget).unwrap();
                let mut memory = Checked { memory, live: BTreeMap::new() };
                bounds(&graph, &judged(&graph, &mut memory, kind), budget);
                memory.memory.allocator().reports().check().unwrap();
                prop_assert!(memory.memory.peak_reserved() <= budget);
            }
        }
    }
}

impl Checked<Counted> {
    /// Counted memory names its blocks 1, 2, 3: they have no ranges that could overlap.
    fn without_ranges(self) -> Counted {
        self.memory
    }
}

/// A program worked by hand: `a` costs 10 and `b` 1, both of 2 bytes; `c` needs 2 of 5 while the constant has 1.
#[test]
fn the_cheaper_of_two_goes_and_is_made_again() {
    let mut builder = GraphBuilder::new("by hand");
    let start = builder.constant("start", 1).unwrap();
    let new = |name: &str, bytes| [Output::New(name.to_owned(), bytes)];
    let a = builder.operator("conv", 10, &[start], &new("a", 2)).unwrap()[0];
    let b = builder.operator("add", 1, &[start], &new("b", 2)).unwrap()[0];
    let c = builder.operator("add", 1, &[start], &new("c", 2)).unwrap()[0];
    builder.release(c).unwrap();
    let last = builder.operator("add", 1, &[a], &new("last", 1)).unwrap()[0];
    builder.release(a).unwrap();
    builder.pin(b).unwrap();
    builder.pin(last).unwrap();
    let graph = builder.finish().unwrap();
    assert_eq!(graph.operators()[OperatorId(1).index()].name, "conv");
    // The least recently used is `a`. It is made again beside `b`, which must go then and is made again too.
    for (kind, expected) in [
        (SchemeKind::Msps, (1, 1, 1)),
        (SchemeKind::Dte, (1, 1, 1)),
        (SchemeKind::Stitched, (1, 1, 1)),
        (SchemeKind::Lru, (11, 2, 2)),
    ] {
        let outcome = run(&graph, &mut Counted::new(5), kind.scheme().as_mut()).unwrap();
        let found = (outcome.time - graph.cost(), outcome.evictions, outcome.rematerialisations);
        assert_eq!(found, expected, "{kind}");
    }
}

/// An operator that overwrites its input needs no second place, where the scheme allows it.
#[test]
fn in_place_takes_the_memory_of_what_it_overwrites() {
    let mut builder = GraphBuilder::new("in place");
    let start = builder.constant("start", 512).unwrap();
    let made = builder.operator("conv", 5, &[start], &[Output::New("x".to_owned(), 1024)]).unwrap()[0];
    let over = builder.operator("relu_", 1, &[made], &[Output::Overwritten(0)]).unwrap()[0];
    builder.release(made).unwrap();
    builder.pin(over).unwrap();
    let graph = builder.finish().unwrap();
    assert_eq!(peak(&graph).unwrap(), 2560);
    for (kind, in_place) in [(SchemeKind::Coop, 1), (SchemeKind::Stitched, 1), (SchemeKind::Dtr, 0)] {
        let outcome = run(&graph, &mut Arena::new(2560), kind.scheme().as_mut()).unwrap();
        assert_eq!((outcome.in_place, outcome.peak_live), (in_place, 2560 - 1024 * in_place), "{kind}");
        let tight = run(&graph, &mut Arena::new(1536), kind.scheme().as_mut()).unwrap();
        assert_eq!(tight.failure.is_none(), in_place == 1, "{kind}");
    }
}
