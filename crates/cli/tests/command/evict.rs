//! `seamalloc evict`: a row for each budget, allocator and scheme, and what it says where it cannot run.

use super::{Folder, complaint, has, lines, run, stdout};
use serde_json::Value;

const KEYS: [&str; 18] = [
    "budget",
    "budget_bytes",
    "evicted_bytes",
    "evictions",
    "failed",
    "fragmented_refusals",
    "graph",
    "in_place",
    "overhead",
    "peak_live",
    "peak_reserved",
    "refusals",
    "rematerialisations",
    "scheme",
    "searched",
    "seconds",
    "strategy",
    "unusable_bytes",
];
const SCHEMES: [&str; 9] = ["dtr", "dtr-eq", "dtr-local", "lru", "size", "msps", "dte", "coop", "stitched"];
const MEMORIES: [&str; 5] = ["caching", "expandable", "stitch", "arena", "counted"];

/// Three tensors of 7 MiB in a row, of which the first is read again at the end: 21 MiB at most, and 16 will do where one is made
/// again.
pub(super) const LIST: &str = r#"{"operators": [
  {"name": "input", "outputs": [{"name": "x", "bytes": 512}]},
  {"name": "matmul", "cost": 10, "inputs": ["x"], "outputs": [{"name": "a", "bytes": 7340032}]},
  {"name": "matmul", "cost": 20, "inputs": ["x"], "outputs": [{"name": "b", "bytes": 7340032}]},
  {"name": "add", "cost": 30, "inputs": ["b"], "outputs": [{"name": "c", "bytes": 7340032}]},
  {"name": "add", "cost": 40, "inputs": ["a"], "outputs": [{"name": "d", "bytes": 512}]}],
 "results": ["d"]}"#;

#[test]
fn every_run_has_a_line_with_the_documented_keys() {
    let found = lines(&["evict", "linear", "--budget", "0.9,0.5", "--json"], 0);
    let which = found.iter().map(|line| {
        let text = |key: &str| line[key].as_str().unwrap().to_owned();
        (line["budget"].as_f64().unwrap(), text("strategy"), text("scheme"))
    });
    let expected = [0.9, 0.5].into_iter().flat_map(|part| {
        MEMORIES.into_iter().flat_map(move |memory| SCHEMES.map(|scheme| (part, memory.to_owned(), scheme.to_owned())))
    });
    assert!(which.eq(expected));
    for line in &found {
        assert_eq!(line.as_object().unwrap().keys().collect::<Vec<_>>(), KEYS);
        assert_eq!((line["graph"].as_str(), line["failed"].is_null()), (Some("linear"), true));
        // 256 activations and a gradient of 4 MiB.
        assert_eq!(line["peak_live"], 257 * (4u64 << 20));
        assert!(line["peak_reserved"].as_u64() <= line["budget_bytes"].as_u64(), "{line}");
        assert!(line["overhead"].as_f64() > Some(1.0) && line["evictions"].as_u64() > Some(0), "{line}");
    }
}

#[test]
fn what_is_printed_follows_from_arithmetic() {
    let folder = Folder::new();
    let file = folder.file("three.json", LIST.as_bytes());
    let args = ["evict", &file, "--scheme", "lru,dtr", "--strategy", "counted", "--budget", "0.8,1.1"];
    let found = lines(&[&args[..], &["--json"]].concat(), 0);
    let figures = |line: &Value| {
        (
            line["budget_bytes"].as_u64(),
            line["overhead"].as_f64(),
            line["evictions"].as_u64(),
            line["refusals"].as_u64(),
        )
    };
    // 0.8 of 21 MiB are 16, by granules of 2: room for two tensors. `a` goes for `c`, and is made again.
    for line in &found[..2] {
        assert_eq!(figures(line), (Some(16 << 20), Some(1.1), Some(1), Some(1)), "{line}");
        assert_eq!((line["rematerialisations"].as_u64(), line["evicted_bytes"].as_u64()), (Some(1), Some(7 << 20)));
    }
    assert!(found[2..].iter().all(|line| line["overhead"] == 1.0 && line["refusals"] == 0), "{found:?}");
    let out = stdout(&args, 0);
    has(&out, &["three", "0.8", "1.1000", "1.0000", "overhead", "evictions", "though"]);
    assert_eq!(out.matches("three").count(), 1, "{out}");
    run(&args, 0).stderr("");
}

#[test]
fn a_run_that_does_not_end_is_told_and_sets_the_exit_code() {
    let folder = Folder::new();
    let file = folder.file("three.json", LIST.as_bytes());
    let args = ["evict", &file, "--scheme", "stitched", "--strategy", "stitch", "--budget", "0.1"];
    let found = lines(&[&args[..], &["--json"]].concat(), 3);
    assert_eq!((found[0]["failed"].as_str(), found[0]["overhead"].is_null()), (Some("out of memory"), true));
    has(&stdout(&args, 3), &["no 7.00 MiB"]);
}

#[test]
fn allocators_are_named_as_elsewhere_and_run_once() {
    let args = ["evict", "linear", "--budget", "0.5", "--scheme", "size,size", "--json", "--strategy"];
    let ran = |names: &str| -> Vec<String> {
        let found = lines(&[&args[..], &[names]].concat(), 0);
        found.iter().map(|line| line["strategy"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ran("stitch,arena,stitch"), ["stitch", "arena"]);
    assert_eq!(ran("main"), ["caching", "expandable", "gmlake", "stitch"]);
}

#[test]
fn programs_are_listed() {
    let out = stdout(&["evict", "--list"], 0);
    has(&out, &["linear", "resnet", "dtr-chain", "dtr-tree", "treelstm"]);
}

#[test]
fn what_cannot_run_is_said_before_it_runs() {
    let folder = Folder::new();
    for (options, parts) in [
        ("--budget 0", &["--budget", "nothing runs without memory", "0.5"] as &[_]),
        ("--budget -0.5", &["--budget", "nothing runs without memory"]),
        ("--budget 0.5,nan", &["nothing runs without memory"]),
        ("--budget inf", &["at most 1000"]),
        ("--budget half", &["'half'", "expected a number"]),
        ("--scheme stiched", &["`stiched`", "did you mean `stitched`?", "dtr-eq"]),
        ("--strategy stich", &["`stich`", "did you mean `stitch`?"]),
        ("--strategy zzz", &["`zzz`", "arena", "counted"]),
        ("--conf zzz:1", &["`zzz`"]),
        ("--json --svg a.svg", &["--json", "--svg"]),
    ] {
        let args: Vec<_> = ["evict", "linear"].into_iter().chain(options.split(' ')).collect();
        has(&complaint(&args, 2), parts);
    }
    has(&complaint(&["evict"], 2), &["GRAPH|NAME"]);
    has(&complaint(&["evict", "resnt"], 1), &["resnt", "evict --list", "did you mean `resnet`?"]);
    let cycle = r#"{"operators": [
        {"name": "f", "cost": 1, "inputs": ["b"], "outputs": [{"name": "a", "bytes": 1}]},
        {"name": "g", "cost": 1, "inputs": ["a"], "outputs": [{"name": "b", "bytes": 1}]}]}"#;
    let file = folder.file("cycle.json", cycle.as_bytes());
    has(&complaint(&["evict", &file], 1), &["cycle.json", "the graph has a cycle", "`a`", "`b`"]);
    let file = folder.file("bad.log", b"{\"INSTRUCTION\":\"COPY\",\"SRC\":\"z\",\"DST\":\"y\"}\n");
    has(&complaint(&["evict", &file], 1), &["bad.log, line 1", "`z`"]);
    let file = folder.file("bad.bin", b"\xff\xfe");
    has(&complaint(&["evict", &file], 1), &["bad.bin", "expected a graph"]);
}
