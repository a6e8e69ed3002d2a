//! `--json`: one line a result, with the documented keys, the same in every run.

use super::{STRATEGIES, lines, run};
use serde_json::Value;

const KEYS: [&str; 21] = [
    "allocations",
    "cpu_syncs",
    "device",
    "driver_calls",
    "driver_time_us",
    "mappings",
    "ns_per_op",
    "oom",
    "ops",
    "pass",
    "peak_active",
    "peak_live",
    "peak_reserved",
    "stalls",
    "strategy",
    "stream_waits",
    "trace",
    "utilization",
    "views_built",
    "views_reused",
    "worst_stall_us",
];
const WHOLE: [&str; 12] = [
    "allocations",
    "cpu_syncs",
    "mappings",
    "ops",
    "pass",
    "peak_active",
    "peak_live",
    "peak_reserved",
    "stalls",
    "stream_waits",
    "views_built",
    "views_reused",
];
const CALLS: [&str; 7] = ["create", "map", "set_access", "unmap", "release", "malloc", "free"];

fn keys(line: &Value) -> Vec<&str> {
    let mut keys: Vec<_> = line.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn every_line_has_the_documented_keys_and_types() {
    let all = lines(&["stress", "comb", "prefetch", "--steps", "1", "--json", "--passes", "3"], 0);
    for line in &all {
        assert_eq!(keys(line), KEYS);
        assert!(WHOLE.iter().all(|key| line[key].is_u64()), "{line}");
        assert!(CALLS.iter().all(|call| line["driver_calls"][call].is_u64()), "{line}");
        assert!(["driver_time_us", "ns_per_op", "utilization", "worst_stall_us"].iter().all(|key| line[key].is_f64()));
        assert_eq!(line["device"], "sim:h200");
        assert_eq!(line["oom"], false);
        let [live, active, reserved] =
            ["peak_live", "peak_active", "peak_reserved"].map(|key| line[key].as_u64().unwrap());
        assert!(0 < live && live <= active && active <= reserved, "{line}");
    }
    let told: Vec<_> = all.iter().map(|l| (l["trace"].as_str(), l["strategy"].as_str(), l["pass"].as_u64())).collect();
    let mut expected = Vec::new();
    for trace in ["comb", "prefetch"] {
        for strategy in STRATEGIES {
            expected.extend((1..=3).map(|pass| (Some(trace), Some(strategy), Some(pass))));
        }
    }
    assert_eq!(told, expected);
}

#[test]
fn two_runs_are_equal_but_for_the_time_that_they_took() {
    let timeless = |args: &[&str]| {
        let mut all = lines(args, 0);
        for line in &mut all {
            assert!(line.as_object_mut().unwrap().remove("ns_per_op").is_some());
        }
        all
    };
    for lag in ["0", "1000"] {
        let args = ["stress", "sawtooth", "ping-pong", "prefetch", "--steps", "1", "--json", "--lag", lag];
        assert_eq!(timeless(&args), timeless(&args));
    }
}

/// Nothing but JSON on standard output, and no progress bars where there is no terminal.
#[test]
fn standard_error_stays_empty() {
    run(&["stress", "comb", "--steps", "1", "--json"], 0).stderr("");
    run(&["stress", "comb", "--steps", "1"], 0).stderr("");
    run(&["fit", "comb", "--steps", "1"], 0).stderr("");
    run(&["stress", "--list"], 0).stderr("");
}

#[test]
fn the_strategies_asked_for_run_in_their_order() {
    let ran = |args: &[&str]| -> Vec<Value> {
        let all = [&["stress", "comb", "--steps", "1", "--json"], args].concat();
        lines(&all, 0).into_iter().map(|mut line| line["strategy"].take()).collect()
    };
    assert_eq!(ran(&["--strategy", "expandable,caching"]), ["expandable", "caching"]);
    assert_eq!(ran(&["--strategy", "caching"]), ["caching"]);
    assert_eq!(ran(&["--conf", "expandable_segments:True"]), ["expandable"]);
}
