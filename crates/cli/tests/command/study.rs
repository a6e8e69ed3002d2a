//! `seamalloc study`: every setting on every trace, in lines, in a table, in a plot.

use super::{Folder, complaint, has, lines, run, seamalloc, stdout};
use serde_json::Value;

const CHUNKS: [&str; 7] = ["study", "chunks", "comb", "--steps", "1", "--sizes", "32,4"];
const LAG: [&str; 7] = ["study", "lag", "prefetch", "--steps", "1", "--lags", "50,0"];

const COMMON: [&str; 15] = [
    "device",
    "driver_time_us_all",
    "driver_time_us_first",
    "driver_time_us_third",
    "lag",
    "oom",
    "passes",
    "peak_live",
    "peak_reserved_first",
    "peak_reserved_third",
    "study",
    "trace",
    "utilization_first",
    "utilization_third",
    "worst_stall_us",
];

/// The keys of `study lag` beside these.
const WAITS: [&str; 10] = [
    "idle_waits_first",
    "idle_waits_third",
    "sharing",
    "stream_waits_all",
    "stream_waits_first",
    "stream_waits_third",
    "wait_age_ops_mean_first",
    "wait_age_ops_mean_third",
    "wait_age_ops_min_first",
    "wait_age_ops_min_third",
];

fn with<'a>(args: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [args, more].concat()
}

#[track_caller]
fn has_keys(line: &Value, own: &[&str]) {
    let mut expected: Vec<_> = COMMON.iter().chain(own).copied().collect();
    expected.sort_unstable();
    let mut keys: Vec<_> = line.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, expected);
}

/// Returns the lines that a replay of three passes with these options prints.
fn replayed(trace: &str, conf: &str, lag: &str) -> Vec<Value> {
    let args = ["replay", trace, "--steps", "1", "--json", "--passes", "3", "--strategy", "stitch"];
    lines(&with(&args, &["--conf", conf, "--lag", lag]), 0)
}

fn agrees(line: &Value, passes: &[Value]) {
    let [first, _, third] = passes else { panic!("{passes:?}") };
    for key in ["utilization", "driver_time_us", "peak_reserved"] {
        assert_eq!(line[format!("{key}_first")], first[key], "{key}: {line}");
        assert_eq!(line[format!("{key}_third")], third[key], "{key}: {line}");
    }
    let stall = passes.iter().map(|pass| pass["worst_stall_us"].as_f64().unwrap()).fold(0.0, f64::max);
    assert_eq!(line["worst_stall_us"], stall);
    let time: f64 = passes.iter().map(|pass| pass["driver_time_us"].as_f64().unwrap()).sum();
    assert!((line["driver_time_us_all"].as_f64().unwrap() - time).abs() < 0.2, "{line}");
    assert_eq!((&line["peak_live"], &line["device"]), (&first["peak_live"], &first["device"]));
}

#[test]
fn chunks_are_what_replays_with_each_size_come_to() {
    let all = lines(&with(&CHUNKS, &["--json", "--lag", "7"]), 0);
    let sizes: Vec<_> = all.iter().map(|line| line["chunk_size_mb"].as_u64()).collect();
    assert_eq!(sizes, [Some(4), Some(32), None]);
    for line in &all {
        has_keys(line, &["chunk_size_mb", "driver_us_per_gib", "mappings"]);
        assert_eq!((line["study"].as_str(), line["trace"].as_str()), (Some("chunks"), Some("comb")));
        let conf = line["chunk_size_mb"].as_u64().map(|size| format!("chunk_size_mb:{size}")).unwrap_or_default();
        let passes = replayed("comb", &conf, "7");
        agrees(line, &passes);
        assert_eq!(line["mappings"], passes[2]["mappings"]);
        let gib = line["peak_live"].as_f64().unwrap() / f64::from(1 << 30);
        let each = line["driver_time_us_first"].as_f64().unwrap() / gib;
        assert!((line["driver_us_per_gib"].as_f64().unwrap() - each).abs() < 0.2, "{line}");
    }
    assert!(all[0]["driver_time_us_first"].as_f64() > all[1]["driver_time_us_first"].as_f64(), "{all:?}");
}

#[test]
fn lag_is_what_replays_with_each_policy_and_lag_come_to() {
    let all = lines(&with(&LAG, &["--json"]), 0);
    assert!(all.iter().any(|line| line["stream_waits_third"].as_u64() > Some(0)), "{all:?}");
    let settings: Vec<_> = all.iter().map(|line| (line["sharing"].as_str().unwrap(), line["lag"].as_u64())).collect();
    let policies = ["never", "completed", "wait"];
    assert_eq!(settings, policies.map(|policy| [(policy, Some(0)), (policy, Some(50))]).concat());
    for line in &all {
        has_keys(line, &WAITS);
        let conf = format!("sharing:{}", line["sharing"].as_str().unwrap());
        let passes = replayed("prefetch", &conf, &line["lag"].to_string());
        agrees(line, &passes);
        let waits: u64 = passes.iter().map(|pass| pass["stream_waits"].as_u64().unwrap()).sum();
        assert_eq!(line["stream_waits_all"], waits);
        for key in ["stream_waits", "idle_waits", "wait_age_ops_min", "wait_age_ops_mean"] {
            assert_eq!(line[format!("{key}_first")], passes[0][key], "{key}: {line}");
            assert_eq!(line[format!("{key}_third")], passes[2][key], "{key}: {line}");
        }
    }
}

#[test]
fn tables_show_every_setting_once() {
    let out = stdout(&CHUNKS, 0);
    has(&out, &["chunk", "utilization", "3rd pass", "ms per", "worst", "default"]);
    assert_eq!(out.lines().filter(|line| line.contains('%')).count(), 3, "{out}");
    assert_eq!(out.matches("comb").count(), 1, "{out}");
    let out = stdout(&LAG, 0);
    has(&out, &["sharing", "lag", "waits", "utilization"]);
    assert_eq!(out.lines().filter(|line| line.contains('%')).count(), 6, "{out}");
    for policy in ["never", "completed", "wait "] {
        assert_eq!(out.lines().filter(|line| line.contains(policy) && line.contains('%')).count(), 1, "{out}");
    }
    run(&LAG, 0).stderr("");
}

#[test]
fn plots_show_every_trace_and_setting() {
    let folder = Folder::new();
    let place = folder.name("plot.svg");
    let args = ["study", "chunks", "comb", "sawtooth", "--steps", "1", "--sizes", "4,32", "--json", "--svg", &place];
    assert_eq!(lines(&args, 0).len(), 6);
    let svg = std::fs::read_to_string(&place).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    has(&svg, &["\ncomb\n", "\nsawtooth\n", "\n4\n", "\n32\n", "ms per GiB", "worst single stall", "sim:h200", "%"]);
    // Two traces in two panels, a diamond each, on a ground of its own.
    assert_eq!(svg.matches("<polygon").count(), 2 * 2 * 2, "{svg}");

    run(&with(&LAG, &["--svg", &place]), 0);
    let svg = std::fs::read_to_string(&place).unwrap();
    has(
        &svg,
        &[
            "prefetch: memory",
            "prefetch: waits",
            "prefetch: how old",
            "\nnever\n",
            "\ncompleted\n",
            "\nwait\n",
            "\n50\n",
        ],
    );
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    assert_eq!(folder.content(), ["plot.svg"]);
}

#[test]
fn without_traces_the_recorded_jobs_are_studied() {
    // Too little memory ends each run soon.
    let small = ["--json", "--device", "sim:h200,capacity=64MiB"];
    let all = lines(&with(&["study", "chunks", "--sizes", "64"], &small), 3);
    assert_eq!(all.len(), 2 * 7);
    let all = lines(&with(&["study", "lag", "--lags", "0"], &small), 3);
    assert!(all.len() == 3 && all.iter().all(|line| line["trace"] == "llama8b-fsdp2"));
}

#[test]
fn a_shortage_is_shown_and_plots_do_without_it() {
    let folder = Folder::new();
    let place = folder.name("plot.svg");
    for args in [CHUNKS, LAG] {
        let small = with(&args, &["--device", "sim:h200,capacity=64MiB", "--svg", &place]);
        let out = stdout(&small, 3);
        has(&out, &["OOM"]);
        let all = lines(&with(&small, &["--json"]), 3);
        assert!(all.iter().all(|line| line["oom"] == true && line["utilization_first"].is_null()), "{all:?}");
        assert!(std::fs::read_to_string(&place).unwrap().trim_end().ends_with("</svg>"));
    }
}

#[test]
fn what_a_study_cannot_do_is_said_before_it_runs() {
    for (args, parts) in [
        (&["chunks", "--sizes", "3"] as &[_], &["--sizes", "`3`", "even number of MiB"] as &[_]),
        (&["chunks", "--sizes", "many"], &["`many`", "whole number of MiB"]),
        (&["chunks", "--conf", "chunk_size_mb:8"], &["`chunk_size_mb` itself", "--conf"]),
        (&["chunks", "--conf", "strategy:expandable"], &["`stitch`", "`expandable`"]),
        (&["chunks", "--lag", "-1"], &["--lag", "'-1'", "0 or more"]),
        (&["lag", "--lags", "soon"], &["--lags", "'soon'", "0 or more"]),
        (&["lag", "--conf", "sharing:never"], &["`sharing` itself", "--conf"]),
        (&["lag", "--device", "cuda:0"], &["`cuda:0`", "simulated"]),
        (&["chunk"], &["'chunk'", "'chunks'"]),
        (&[], &["Usage: seamalloc study", "chunks", "lag"]),
    ] {
        has(&complaint(&with(&["study"], args), 2), parts);
    }
    let folder = Folder::new();
    let place = folder.name("no/such/folder/out.svg");
    for args in [CHUNKS, LAG] {
        has(&complaint(&with(&args, &["--svg", &place]), 1), &["cannot write", &place]);
    }
    has(&complaint(&["study", "chunks", "commb"], 1), &["commb", "did you mean `comb`?"]);
    has(&complaint(&["study", "lag", &folder.file("bad.csv", b"a,1,x,0\n")], 1), &["bad.csv, line 1"]);
    seamalloc(&["study", "chunks", "--help"]).assert().code(0).stderr("");
    has(&stdout(&["study", "lag", "--help"], 0), &["What the columns say", "GPU-side"]);
}
