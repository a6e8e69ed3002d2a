//! The graphs of models that stand beside this crate: that each is read, what the orders of each come to, and that no bound is broken.

use crate::length::rounds;
use seamalloc_order::{Limits, Method, Planner, layout, order, read_path};
use std::path::{Path, PathBuf};
use std::time::Duration;

fn graphs() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("graphs");
    let mut found: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.to_string_lossy().ends_with(".json.gz"));
    found.sort();
    found
}

#[test]
fn each_model_is_there_with_its_optimizer() {
    let names: Vec<_> = graphs().iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect();
    for model in ["bert", "gpt2", "mobilenet", "resnet50", "unet", "vit"] {
        for optimizer in ["none", "sgd", "adam"] {
            let of = |name: &&String| name.starts_with(&format!("{model}-{optimizer}-"));
            assert!(names.iter().any(|name| of(&name)), "no {model} with {optimizer}");
        }
    }
}

#[test]
fn no_peak_is_below_a_bound_and_searches_are_no_worse_than_the_program() {
    let limits = Limits { time: Duration::from_millis(rounds(100, 300)) };
    for path in graphs() {
        let graph = read_path(&path).unwrap();
        assert!(!graph.about().is_empty());
        let run = |method| order(&graph, method, &limits).unwrap();
        let [program, eager, exact, roam] = [Method::Program, Method::Eager, Method::Exact, Method::Roam].map(run);
        let all = [&program, &eager, &exact, &roam];
        let bound = all.iter().map(|one| one.bound).max().unwrap();
        assert!(all.iter().all(|one| one.load.peak >= bound), "{graph}");
        assert!(exact.load.peak <= program.load.peak && roam.load.peak <= program.load.peak, "{graph}");
        assert!(graph.persistent() < exact.load.peak);
    }
}

#[test]
fn an_update_behind_its_gradient_lowers_the_peak_where_gradients_are_much_of_it() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("graphs");
    let run = |name: &str, method| {
        let graph = read_path(&folder.join(name)).unwrap();
        let outcome = order(&graph, method, &Limits::default()).unwrap();
        let planned = layout(&graph, &outcome.load, Planner::Portfolio, Duration::from_secs(5)).unwrap();
        assert!(planned.peak >= outcome.load.peak);
        outcome.load.peak
    };
    let saved = |name: &str| 1.0 - run(name, Method::Exact) as f64 / run(name, Method::Program) as f64;
    // One image: the gradients of all weights are as large as the activations. Gradients that are asked for stay.
    assert!(saved("resnet50-sgd-1.json.gz") > 0.15, "{}", saved("resnet50-sgd-1.json.gz"));
    assert!(saved("resnet50-none-1.json.gz") < 0.05, "{}", saved("resnet50-none-1.json.gz"));
}
