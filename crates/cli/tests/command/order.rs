//! `seamalloc order`: a row for each graph and method, and what it says where it cannot run.

use super::{Folder, complaint, has, lines, run, stdout};
use serde_json::Value;

/// Two large tensors, each with a small result: 210 bytes in the program's order, 120 if each is read at once; 16 are a weight.
pub(super) const TWO: &str = r#"{"about": "two of a kind",
  "tensors": [{"name": "w", "bytes": 16, "persistent": true}, {"name": "a", "bytes": 100}, {"name": "b", "bytes": 100},
              {"name": "x", "bytes": 10}, {"name": "y", "bytes": 10}],
  "operators": [{"name": "make", "inputs": ["w"], "outputs": ["a"]}, {"name": "make", "inputs": ["w"], "outputs": ["b"]},
                {"name": "read", "inputs": ["a"], "outputs": ["x"]}, {"name": "read", "inputs": ["b"], "outputs": ["y"]}],
  "outputs": ["x", "y"]}"#;

#[test]
fn every_method_has_a_line_with_the_documented_keys() {
    let folder = Folder::new();
    let file = folder.file("two.json", TWO.as_bytes());
    let methods = "program,eager,greedy,depth-first,exact,roam";
    let found = lines(&["order", &file, "--method", methods, "--json"], 0);
    assert_eq!(found.iter().map(|line| line["method"].as_str().unwrap()).collect::<Vec<_>>().join(","), methods);
    for line in &found {
        let keys = [
            "bound",
            "gap",
            "graph",
            "layout",
            "layout_seconds",
            "method",
            "operators",
            "optimal",
            "peak",
            "persistent",
            "program",
            "saved",
            "seconds",
        ];
        assert_eq!(line.as_object().unwrap().keys().collect::<Vec<_>>(), keys);
        assert_eq!((line["graph"].as_str(), line["operators"].as_u64()), (Some("two"), Some(4)));
        assert_eq!((line["persistent"].as_u64(), line["program"].as_u64()), (Some(16), Some(226)));
        assert!(line["layout"].as_u64() >= line["peak"].as_u64(), "{line}");
        assert!(line["bound"].as_u64() <= Some(136), "{line}");
    }
    let exact = &found[4];
    assert_eq!((exact["peak"].as_u64(), exact["bound"].as_u64()), (Some(136), Some(136)));
    assert_eq!(
        (exact["optimal"].as_bool(), exact["gap"].as_f64(), exact["saved"].as_f64()),
        (Some(true), Some(0.0), Some(0.3982))
    );
}

#[test]
fn a_table_says_what_a_graph_is_and_the_best_order_is_written() {
    let folder = Folder::new();
    let file = folder.file("two.json", TWO.as_bytes());
    let place = folder.name("order.json");
    let out = stdout(&["order", &file, "--method", "program,exact", "-o", &place, "--layout", "none"], 0);
    has(&out, &["two", "program", "exact", "226 B", "136 B", "39.82%", "bound", "yes", "two: two of a kind."]);
    let written: Value = serde_json::from_str(&std::fs::read_to_string(&place).unwrap()).unwrap();
    let order: Vec<u64> = written["order"].as_array().unwrap().iter().map(|place| place.as_u64().unwrap()).collect();
    assert!(order == [0, 2, 1, 3] || order == [1, 3, 0, 2], "{order:?}");
    run(&["order", &file, "--method", "eager"], 0).stderr("");
}

#[test]
fn what_cannot_run_is_said() {
    let folder = Folder::new();
    let file = folder.file("two.json", TWO.as_bytes());
    has(&complaint(&["order", &file, "--time-limit", "0"], 1), &["two", "a time limit of 0 s", "more"]);
    has(&complaint(&["order", &file, "--time-limit", "-1"], 2), &["--time-limit", "expected seconds"]);
    has(&complaint(&["order", &file, "--method", "rome"], 2), &["`rome`", "program, eager"]);
    has(&complaint(&["order", &file, "--layout", "rome"], 2), &["`rome`", "portfolio, model, none"]);
    has(&complaint(&["order", &file, &file, "-o", &folder.name("o")], 2), &["--output", "2 graphs"]);
    has(&complaint(&["order"], 2), &["GRAPH"]);
    has(&complaint(&["order", &folder.name("missing.json")], 1), &["missing.json", "expected a graph of operators"]);
    let cycle = r#"{"tensors": [{"name": "a", "bytes": 1}, {"name": "b", "bytes": 1}],
        "operators": [{"name": "f", "inputs": ["b"], "outputs": ["a"]}, {"name": "g", "inputs": ["a"], "outputs": ["b"]}]}"#;
    let bad = folder.file("cycle.json", cycle.as_bytes());
    has(&complaint(&["order", &bad], 1), &["cycle.json", "the graph has a cycle", "`a`", "`b`"]);
    let bad = folder.file("negative.json", TWO.replace("\"bytes\": 16", "\"bytes\": -16").as_bytes());
    has(&complaint(&["order", &bad], 1), &["negative.json", "tensor 1 `w`", "-16"]);
    let bad = folder.file("bad.bin", b"\xff\xfe");
    has(&complaint(&["order", &bad], 1), &["bad.bin", "expected a graph of operators"]);
}

#[cfg(not(feature = "highs"))]
#[test]
fn a_build_without_the_solver_says_how_to_get_one() {
    let folder = Folder::new();
    let file = folder.file("two.json", TWO.as_bytes());
    has(&complaint(&["order", &file, "--method", "model"], 1), &["model", "no solver", "--features highs", "roam"]);
    has(&complaint(&["order", &file, "--layout", "model"], 1), &["layout model", "no solver", "portfolio"]);
}

#[cfg(feature = "highs")]
#[test]
fn the_solver_finds_and_proves_the_same() {
    let folder = Folder::new();
    let file = folder.file("two.json", TWO.as_bytes());
    let found = lines(&["order", &file, "--method", "model,roam", "--layout", "model", "--json"], 0);
    assert!(found.iter().all(|line| line["peak"] == 136 && line["layout"] == 136), "{found:?}");
    assert_eq!(found[0]["optimal"].as_bool(), Some(true));
}
