//! `--json`: one line a result, with the documented keys, the same in every run.

use super::{Folder, STRATEGIES, has, lines, run, stdout};
use serde_json::Value;

const KEYS: [&str; 47] = [
    "allocations",
    "cpu_syncs",
    "device",
    "driver_calls",
    "driver_time_us",
    "driver_us_by_call",
    "fragmentation",
    "held_after",
    "host_bytes",
    "idle_waits",
    "mappings",
    "ns_per_op",
    "oom",
    "oom_report",
    "ops",
    "pass",
    "peak_active",
    "peak_live",
    "peak_reserved",
    "peak_spilled",
    "pending_wait_clock",
    "pending_wait_device",
    "pending_wait_events",
    "pending_waits",
    "spill_moved_bytes",
    "spill_pieces",
    "spill_us",
    "split_bytes",
    "split_parts",
    "splits",
    "stall_histogram",
    "stall_p50_us",
    "stall_p99_us",
    "stalls",
    "strategy",
    "stream_waits",
    "trace",
    "utilization",
    "view_mappings",
    "views_built",
    "views_dropped",
    "views_reused",
    "wait_age_ops_max",
    "wait_age_ops_mean",
    "wait_age_ops_min",
    "wait_bytes",
    "worst_stall_us",
];
const WHOLE: [&str; 28] = [
    "allocations",
    "cpu_syncs",
    "held_after",
    "host_bytes",
    "idle_waits",
    "mappings",
    "ops",
    "pass",
    "peak_active",
    "peak_live",
    "peak_reserved",
    "peak_spilled",
    "pending_wait_clock",
    "pending_wait_device",
    "pending_wait_events",
    "pending_waits",
    "spill_moved_bytes",
    "spill_pieces",
    "split_bytes",
    "split_parts",
    "splits",
    "stalls",
    "stream_waits",
    "view_mappings",
    "views_built",
    "views_dropped",
    "views_reused",
    "wait_bytes",
];
const DIVIDED: [&str; 25] = [
    "allocated",
    "asleep",
    "chunks",
    "event",
    "external",
    "external_after_stitching",
    "free",
    "home_mappings",
    "landlocked_bytes",
    "largest_free",
    "largest_reachable",
    "partly_free_bytes",
    "partly_free_chunks",
    "pending",
    "pools",
    "requested",
    "reserved",
    "rounding_loss",
    "spilled",
    "stranded",
    "streams",
    "unsettled",
    "utilization",
    "view_mappings",
    "views",
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
        let times = ["driver_time_us", "ns_per_op", "stall_p50_us", "stall_p99_us", "utilization", "worst_stall_us"];
        assert!(times.iter().all(|key| line[key].is_f64()), "{line}");
        assert!(CALLS.iter().all(|call| line["driver_us_by_call"][call].is_f64()), "{line}");
        let histogram = line["stall_histogram"].as_array().unwrap();
        assert_eq!(histogram.iter().filter_map(Value::as_u64).sum::<u64>(), line["stalls"].as_u64().unwrap(), "{line}");
        assert!(line["oom_report"].is_null());
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
fn the_memory_at_the_peak_is_divided_up_to_the_byte() {
    for line in lines(&["stress", "comb", "prefetch", "--steps", "2", "--json", "--passes", "2"], 0) {
        let memory = &line["fragmentation"];
        assert_eq!(keys(memory), DIVIDED);
        let of = |key: &str| memory[key].as_u64().unwrap();
        assert_eq!(of("reserved"), line["peak_reserved"].as_u64().unwrap(), "{line}");
        assert_eq!(of("reserved"), ["allocated", "pending", "free", "unsettled"].map(of).iter().sum::<u64>());
        let pools = memory["pools"].as_array().unwrap();
        assert_eq!(of("free"), pools.iter().map(|pool| pool["free"].as_u64().unwrap()).sum::<u64>());
        assert!(of("requested") <= line["peak_active"].as_u64().unwrap());
        let [before, after] = ["external", "external_after_stitching"].map(|key| memory[key].as_f64().unwrap());
        assert!((0.0..=1.0).contains(&after) && after <= before && before <= 1.0, "{line}");
        let joins = ["stitch", "gmlake"].iter().any(|strategy| line["strategy"] == *strategy);
        assert_eq!(joins, of("chunks") > 0, "{line}");
        assert!(line["view_mappings"].as_u64() <= line["mappings"].as_u64(), "{line}");
    }
}

#[test]
fn waits_are_counted_with_their_ages() {
    let waits = |lag: &str| {
        let job = ["stress", "prefetch", "--steps", "2", "--json", "--strategy", "stitch"];
        let line = lines(&[&job[..], &["--conf", "sharing:wait", "--lag", lag]].concat(), 0).remove(0);
        assert_eq!(line["stream_waits"] == 0, line["wait_age_ops_mean"].is_null(), "{line}");
        line
    };
    let line = waits("100000");
    assert!(line["stream_waits"].as_u64().unwrap() > 0 && line["wait_bytes"].as_u64().unwrap() > 0, "{line}");
    assert_eq!(line["idle_waits"], 0, "nothing completes so early: {line}");
    let [least, most] = ["wait_age_ops_min", "wait_age_ops_max"].map(|key| line[key].as_u64().unwrap());
    let mean = line["wait_age_ops_mean"].as_f64().unwrap();
    assert!(least as f64 <= mean && mean <= most as f64 && most <= line["ops"].as_u64().unwrap(), "{line}");
}

/// A job that does not fit: its passes say what was spilled, and a table has a column for it.
#[test]
fn what_is_spilled_is_told() {
    let job = ["stress", "prefetch", "--steps", "2", "--strategy", "stitch"];
    let fits = lines(&[&job[..], &["--json"]].concat(), 0).remove(0);
    let keys = ["peak_spilled", "spill_moved_bytes", "spill_pieces", "spill_us"];
    assert!(keys.iter().all(|key| fits[key].as_f64() == Some(0.0)), "{fits}");
    let capacity = fits["peak_live"].as_u64().unwrap() / 10 * 9;
    let device = format!("sim:h200,capacity={capacity}B");
    let short = [&job[..], &["--device", &device]].concat();
    run(&short, 3);
    let short = [&short[..], &["--conf", "spill:host=64GiB"]].concat();
    let line = lines(&[&short[..], &["--json"]].concat(), 0).remove(0);
    let [peak, moved, pieces] = [0, 1, 2].map(|key: usize| line[keys[key]].as_u64().unwrap());
    assert!(peak > 0 && moved >= peak && pieces > 0 && line["spill_us"].as_f64().unwrap() > 0.0, "{line}");
    assert!(line["fragmentation"]["spilled"].as_u64().unwrap() <= peak, "{line}");
    has(&stdout(&short, 0), &["spilled", &format!("{:.2}", peak as f64 / (1u64 << 30) as f64)]);
    assert!(!stdout(&job, 0).contains("spilled"), "nothing was");
    // The same job, asked what it would have held.
    let folder = Folder::new();
    let trace = folder.name("job.csv");
    run(&["convert", "prefetch", &trace, "--steps", "2"], 0);
    let asked =
        ["whatif", &trace, "--quick", "--strategy", "stitch", "--device", &device, "--conf", "spill:host=64GiB"];
    let line = lines(&[&asked[..], &["--json"]].concat(), 0).remove(0);
    assert_eq!(line["peak_spilled"].as_u64(), Some(peak), "{line}");
    assert!(keys.iter().all(|key| line[key].as_f64() > Some(0.0)), "{line}");
    has(&stdout(&asked, 0), &["spilled"]);
}

/// The page is named by the help; its tables are compared with all columns by a test beside them.
#[test]
fn every_key_is_explained() {
    let page = include_str!("../../../../docs/json.md");
    for key in KEYS.iter().chain(&DIVIDED) {
        assert!(page.contains(&format!("`{key}`")), "{key}");
    }
    for command in ["stress", "replay", "whatif", "fit", "pinned", "plan", "order", "evict", "compare"] {
        has(&stdout(&[command, "--help"], 0), &["docs/json.md"]);
    }
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

/// Standard output has only JSON, and there are no progress bars where there is no terminal.
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
