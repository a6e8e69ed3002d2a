//! Every method on small graphs, judged by all orders that there are.

use crate::length::rounds;
use proptest::prelude::*;
use seamalloc_order::{
    Graph, GraphSpec, Limits, Load, Method, OperatorSpec, Planner, Source, TensorSpec, layout, order,
};
use std::time::Duration;

const LIMITS: Limits = Limits { time: Duration::from_secs(20) };

/// An operator as it is drawn: the bytes of what it makes, which earlier tensors it reads, by places from the end, and what else it does.
type Drawn = (Vec<u64>, Vec<usize>, u8);

/// A graph of drawn operators. The first tensor is a weight.
fn graph(drawn: &[Drawn]) -> Graph {
    let mut spec = GraphSpec { name: "drawn".to_owned(), ..GraphSpec::default() };
    spec.tensors.push(TensorSpec { name: "weight".to_owned(), source: Source::Persistent(7) });
    for (at, (sizes, reads, kind)) in drawn.iter().enumerate() {
        let known: Vec<String> = spec.tensors.iter().map(|tensor| tensor.name.clone()).collect();
        let mut inputs: Vec<String> =
            reads.iter().map(|back| known[known.len() - 1 - back % known.len()].clone()).collect();
        inputs.sort();
        inputs.dedup();
        let mut operator = OperatorSpec { name: format!("f{at}"), ..OperatorSpec::default() };
        for (nth, bytes) in sizes.iter().enumerate() {
            // One in eight outputs is a view of an input, if there is one.
            let source = match inputs.first() {
                Some(first) if nth == 0 && kind % 8 == 1 => Source::ViewOf(first.clone()),
                _ => Source::Made(*bytes),
            };
            let name = format!("t{at}.{nth}");
            operator.outputs.push(name.clone());
            // One in eight operators makes a result.
            if kind % 8 == 2 {
                spec.outputs.push(name.clone());
            }
            spec.tensors.push(TensorSpec { name, source });
        }
        // One in eight writes an input.
        if kind % 8 == 3 {
            operator.overwrites.extend(inputs.last().cloned());
        }
        operator.inputs = inputs;
        spec.operators.push(operator);
    }
    Graph::new(&spec).unwrap()
}

fn drawn(operators: usize) -> impl Strategy<Value = Vec<Drawn>> {
    let sizes = prop::collection::vec(0_u64..40, 0..3);
    prop::collection::vec((sizes, prop::collection::vec(0_usize..6, 0..3), any::<u8>()), 1..=operators)
}

/// The least peak, by the best way to reach each set of operators: over all orders, without any inference.
fn least(graph: &Graph) -> u64 {
    let operators = graph.operators();
    let count = operators.len();
    let live = |set: usize, runs: usize| -> u64 {
        let has = |operator: usize| set >> operator & 1 == 1;
        let memory = |memory: &&seamalloc_order::Memory| match memory.maker {
            None => true,
            Some(maker) if maker == runs => true,
            Some(maker) => has(maker) && (memory.is_result || memory.users.iter().any(|user| !has(*user))),
        };
        graph.memories().iter().filter(memory).map(|memory| memory.bytes).sum()
    };
    let mut best = vec![u64::MAX; 1 << count];
    best[0] = 0;
    for set in 0..1_usize << count {
        for runs in (0..count).filter(|runs| set >> runs & 1 == 0) {
            let is_ready = operators[runs].after.iter().all(|before| set >> before & 1 == 1);
            if is_ready && best[set] < u64::MAX {
                let peak = best[set].max(live(set, runs));
                let next = set | 1 << runs;
                best[next] = best[next].min(peak);
            }
        }
    }
    best[(1 << count) - 1]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(feature = "highs") { 150 } else { rounds(500, 1500) }))]

    #[test]
    fn the_search_finds_the_least_peak_and_no_bound_is_above_it(drawn in drawn(10)) {
        let graph = graph(&drawn);
        let least = least(&graph);
        for method in Method::ALL.into_iter().filter(|method| method.is_there()) {
            let outcome = order(&graph, method, &LIMITS).unwrap();
            let peak = outcome.load.peak;
            prop_assert!(peak >= least, "{method}: {peak} < {least}");
            prop_assert!(outcome.bound <= least, "{method}: a bound of {} above {least}", outcome.bound);
            prop_assert_eq!(Load::of(&graph, &outcome.order).unwrap().peak, peak);
            if matches!(method, Method::Exact | Method::Model) {
                prop_assert_eq!((peak, outcome.bound), (least, least), "{}", method);
            }
        }
    }

    #[test]
    fn a_layout_holds_all_that_is_live(drawn in drawn(12)) {
        let graph = graph(&drawn);
        let outcome = order(&graph, Method::Greedy, &LIMITS).unwrap();
        let planned = layout(&graph, &outcome.load, Planner::Portfolio, LIMITS.time).unwrap();
        prop_assert!(planned.peak >= outcome.load.peak);
        let places = seamalloc_plan::Plan { peak: planned.peak - graph.persistent(), offsets: planned.offsets };
        prop_assert_eq!(places.check(&planned.problem), Ok(()));
        if cfg!(feature = "highs") {
            let other = layout(&graph, &outcome.load, Planner::Model, LIMITS.time).unwrap();
            prop_assert!(other.is_optimal && planned.is_optimal);
            prop_assert_eq!(other.peak, planned.peak);
        }
    }

}

proptest! {
    // Each method may take all of its time on each.
    #![proptest_config(ProptestConfig::with_cases(rounds(40, 100)))]

    #[test]
    fn larger_graphs_are_ordered_by_every_method(drawn in drawn(60)) {
        let graph = graph(&drawn);
        let limits = Limits { time: Duration::from_millis(50) };
        let methods = Method::ALL.into_iter().filter(|method| method.is_there() && *method != Method::Model);
        let found: Vec<_> = methods.map(|method| order(&graph, method, &limits).unwrap()).collect();
        let bound = found.iter().map(|one| one.bound).max().unwrap();
        let peak = found.iter().map(|one| one.load.peak).min().unwrap();
        prop_assert!(bound <= peak, "a bound of {bound} above a peak of {peak}");
        let by = |method| found.iter().find(|one| one.method == method).unwrap().load.peak;
        prop_assert!(by(Method::Exact) <= by(Method::Eager).min(by(Method::Greedy)));
    }
}

/// Parallel chains of a large tensor and a small result, between a source and a sum.
fn chains(count: usize, length: usize) -> Graph {
    let mut spec = GraphSpec { name: "chains".to_owned(), ..GraphSpec::default() };
    let mut add = |name: String, bytes: u64, inputs: &[String]| {
        spec.tensors.push(TensorSpec { name: name.clone(), source: Source::Made(bytes) });
        let (inputs, outputs) = (inputs.to_vec(), vec![name.clone()]);
        spec.operators.push(OperatorSpec { name: "f".to_owned(), inputs, outputs, overwrites: Vec::new() });
        name
    };
    let source = add("source".to_owned(), 1, &[]);
    let mut ends = vec![source; count];
    // The program advances all chains together.
    for step in 0..length {
        for (chain, end) in ends.iter_mut().enumerate() {
            let bytes = if step + 1 == length { 1 } else { 100 + chain as u64 };
            *end = add(format!("{chain}.{step}"), bytes, std::slice::from_ref(end));
        }
    }
    add("sum".to_owned(), 1, &ends);
    spec.outputs = vec!["sum".to_owned()];
    Graph::new(&spec).unwrap()
}

#[test]
fn parallel_chains_run_one_after_the_other() {
    let graph = chains(8, 4);
    let peak = |method| order(&graph, method, &LIMITS).unwrap().load.peak;
    // Seven of the large ones and two of the next step of one.
    assert!(peak(Method::Program) > 800);
    for method in [Method::Exact, Method::Roam] {
        let outcome = order(&graph, method, &LIMITS).unwrap();
        // Two large tensors of one chain, and the small ends of the others; the source is read by the last chain's first operator.
        assert!(outcome.load.peak <= 2 * 107 + 8, "{method}: {}", outcome.load.peak);
    }
    assert!(order(&graph, Method::Exact, &LIMITS).unwrap().is_optimal());
}
