//! `seamalloc compare`: every change of a byte is found, but for times.

use super::{Folder, STRATEGIES, complaint, has, lines, run, seamalloc, stdout};
use serde_json::{Value, json};
use std::io::Write;

/// Returns the lines that `stress` prints of a small workload.
fn rows() -> Vec<Value> {
    lines(&["stress", "comb", "--steps", "1", "--json", "--passes", "2"], 0)
}

fn write(folder: &Folder, name: &str, rows: &[Value]) -> String {
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    folder.file(name, text.as_bytes())
}

/// Compares the rows with others, of which it expects some differences.
#[track_caller]
fn differences(base: &[Value], new: &[Value]) -> Vec<Value> {
    let folder = Folder::new();
    let (base, new) = (write(&folder, "base.jsonl", base), write(&folder, "new.jsonl", new));
    lines(&["compare", &base, &new, "--json"], 1)
}

#[test]
fn two_runs_agree() {
    let folder = Folder::new();
    let (base, new) = (write(&folder, "base.jsonl", &rows()), write(&folder, "new.jsonl", &rows()));
    assert_eq!(stdout(&["compare", &base, &new], 0), "8 rows agree; times were left out.\n");
    run(&["compare", &base, &new, "--json"], 0).stdout("").stderr("");
}

#[test]
fn the_order_of_rows_does_not_matter() {
    let folder = Folder::new();
    let base = write(&folder, "base.jsonl", &rows());
    let backwards: Vec<_> = rows().into_iter().rev().collect();
    run(&["compare", &base, &write(&folder, "new.jsonl", &backwards)], 0).stderr("");
}

#[test]
fn each_time_is_left_out_and_nothing_else() {
    let base = rows();
    let times = [
        "driver_time_us",
        "driver_us_by_call",
        "ns_per_op",
        "spill_us",
        "stall_histogram",
        "stall_p50_us",
        "stall_p99_us",
        "worst_stall_us",
    ];
    let which = ["trace", "strategy", "device", "pass"];
    let mut new = base.clone();
    let keys: Vec<_> = base[0].as_object().unwrap().keys().filter(|key| !which.contains(&key.as_str())).collect();
    for key in &keys {
        new[0][key.as_str()] = json!("changed");
    }
    let found = differences(&base, &new);
    let found: Vec<_> = found.iter().map(|line| line["key"].as_str().unwrap()).collect();
    let compared: Vec<_> = keys.into_iter().filter(|key| !times.contains(&key.as_str())).collect();
    assert_eq!(found, compared);
    assert_eq!(compared.len() + times.len() + which.len(), base[0].as_object().unwrap().len());
    // With --times, all but what this machine took.
    let folder = Folder::new();
    let (base, new) = (write(&folder, "base.jsonl", &base), write(&folder, "new.jsonl", &new));
    let with_times = lines(&["compare", &base, &new, "--json", "--times"], 1);
    let found: std::collections::BTreeSet<_> = with_times.iter().map(|line| line["key"].as_str().unwrap()).collect();
    let expected = compared.iter().map(|key| key.as_str()).chain(times).filter(|key| *key != "ns_per_op");
    assert_eq!(found, expected.collect());
}

/// The driver's times are those of a model: two runs agree in them too.
#[test]
fn times_of_a_simulated_device_agree() {
    let folder = Folder::new();
    let (base, new) = (write(&folder, "base.jsonl", &rows()), write(&folder, "new.jsonl", &rows()));
    let out = stdout(&["compare", &base, &new, "--times"], 0);
    assert_eq!(out, "8 rows agree; what this machine's clock says was left out.\n");
}

#[test]
fn a_changed_byte_is_found_however_deep_it_lies() {
    let base = rows();
    let mut new = base.clone();
    let pass = json!({"trace": "comb", "strategy": "caching", "device": "sim:h200", "pass": 2});
    new[1]["driver_calls"]["malloc"] = json!(7);
    new[1]["fragmentation"]["pools"][0]["free"] = json!(1);
    let found = differences(&base, &new);
    let expected =
        |key: &str, base: &Value, new: u64| json!({"run": pass, "key": key, "missing": null, "base": base, "new": new});
    let (calls, free) = (&base[1]["driver_calls"]["malloc"], &base[1]["fragmentation"]["pools"][0]["free"]);
    assert_eq!(found, [expected("driver_calls.malloc", calls, 7), expected("fragmentation.pools[0].free", free, 1)]);
}

#[test]
fn a_number_of_another_form_differs() {
    let row = |value: Value| vec![json!({"trace": "a", "peak_live": value})];
    for (base, new) in
        [(json!(1), json!(1.0)), (json!(0), json!(null)), (json!("1"), json!(1)), (json!(false), json!(0))]
    {
        assert_eq!(differences(&row(base.clone()), &row(new.clone())).len(), 1, "{base} {new}");
    }
}

#[test]
fn keys_that_one_side_lacks_are_found() {
    let base = rows();
    let mut new = base.clone();
    let lost = new[2].as_object_mut().unwrap().remove("host_bytes");
    new[2]["of_tomorrow"] = json!(null);
    new[3].as_object_mut().unwrap().remove("ns_per_op");
    let found = differences(&base, &new);
    let told: Vec<_> = found.iter().map(|line| (line["key"].as_str(), &line["missing"], &line["base"])).collect();
    assert_eq!(
        told,
        [(Some("host_bytes"), &json!("new"), &lost.unwrap()), (Some("of_tomorrow"), &json!("base"), &json!(null))]
    );
}

#[test]
fn rows_that_one_side_lacks_are_found() {
    let base = rows();
    let other = lines(&["stress", "sawtooth", "--steps", "1", "--json", "--strategy", "stitch"], 0);
    let new = [&base[..3], &base[4..], &other[..]].concat();
    let found = differences(&base, &new);
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|line| line["key"].is_null()));
    assert_eq!((&found[0]["missing"], &found[0]["run"]["strategy"]), (&json!("new"), &json!(STRATEGIES[1])));
    assert_eq!((&found[0]["base"], &found[0]["new"]), (&base[3], &json!(null)));
    assert_eq!((&found[1]["missing"], &found[1]["run"]["trace"]), (&json!("base"), &json!("sawtooth")));
}

#[test]
fn some_rows_may_be_compared_with_all() {
    let folder = Folder::new();
    let mut some = rows()[5..].to_vec();
    let (base, new) = (write(&folder, "base.jsonl", &rows()), write(&folder, "new.jsonl", &some));
    run(&["compare", &base, &new], 1);
    assert_eq!(stdout(&["compare", &base, &new, "--subset"], 0), "3 rows agree; times were left out.\n");
    some[1]["oom"] = json!(true);
    run(&["compare", &base, &write(&folder, "new.jsonl", &some), "--subset"], 1);
    some[1] = json!({"trace": "nobody knows it"});
    run(&["compare", &base, &write(&folder, "new.jsonl", &some), "--subset"], 1);
}

/// Runs that nothing tells apart are matched in their order.
#[test]
fn equal_runs_are_matched_in_their_order() {
    let row = |live: u64| json!({"trace": "a", "peak_live": live});
    let found = differences(&[row(1), row(2), row(3)], &[row(1), row(3)]);
    assert_eq!(found.len(), 2);
    assert_eq!((&found[0]["base"], &found[0]["new"]), (&json!(2), &json!(3)));
    assert_eq!((&found[1]["missing"], &found[1]["base"]["peak_live"]), (&json!("new"), &json!(3)));
    let lagging = |lag: u64, live: u64| json!({"trace": "a", "lag": lag, "peak_live": live});
    let found = differences(&[lagging(0, 1), lagging(9, 2)], &[lagging(9, 2), lagging(0, 3)]);
    assert_eq!(
        found,
        [json!({"run": {"trace": "a", "lag": 0}, "key": "peak_live", "missing": null, "base": 1, "new": 3})]
    );
}

#[test]
fn what_fit_whatif_and_studies_print_is_compared_too() {
    let commands: [&[&str]; 3] = [
        &["fit", "comb", "--steps", "1", "--json"],
        &["whatif", "comb", "--steps", "1", "--json", "--strategy", "stitch"],
        &["study", "chunks", "comb", "--steps", "1", "--sizes", "4", "--json"],
    ];
    for args in commands {
        let base = lines(args, 0);
        let mut new = base.clone();
        new[0]["tries"] = json!(0);
        new[0]["worst_stall_us"] = json!(0);
        assert_eq!(differences(&base, &new).len(), 1, "{args:?}");
    }
}

#[test]
fn the_table_names_the_run_once_and_both_values() {
    let folder = Folder::new();
    let base = rows();
    let mut new = base.clone();
    new[7]["mappings"] = json!(1);
    new[7]["ops"] = json!(2);
    new.remove(0);
    let (base, new) = (write(&folder, "base.jsonl", &base), write(&folder, "new.jsonl", &new));
    let ended = run(&["compare", &base, &new], 1);
    let out = String::from_utf8_lossy(&ended.get_output().stdout).into_owned();
    has(&out, &["run", "base", "new", "mappings", "ops", "comb, caching, sim:h200, pass 1", "(the row)", "missing"]);
    assert_eq!(out.matches("comb, stitch, sim:h200, pass 2").count(), 1, "{out}");
    assert_eq!(String::from_utf8_lossy(&ended.get_output().stderr), "seamalloc: 2 of 8 rows differ\n");
}

#[test]
fn files_may_be_gzipped_or_standard_input() {
    let folder = Folder::new();
    let base = write(&folder, "base.jsonl", &rows());
    let text = std::fs::read(&base).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&text).unwrap();
    let zipped = folder.file("base.jsonl.gz", &gzip.finish().unwrap());
    run(&["compare", &base, &zipped], 0);
    for args in [&["compare", &zipped] as &[_], &["compare", &zipped, "-"], &["compare", "-", &zipped]] {
        seamalloc(args).write_stdin(text.clone()).assert().code(0).stderr("");
    }
    let cut = folder.file("cut.jsonl.gz", &std::fs::read(&zipped).unwrap()[..100]);
    has(&complaint(&["compare", &cut, &base], 1), &["cannot read", "cut.jsonl.gz"]);
}

#[test]
fn what_are_no_rows_is_named() {
    let folder = Folder::new();
    let base = write(&folder, "base.jsonl", &rows());
    for (name, content, parts) in [
        ("empty", b"" as &[u8], &["empty: no rows", "seamalloc stress --json"] as &[_]),
        ("table", b"trace  strategy\ncomb\n", &["table, line 1", "not a JSON object"]),
        ("list", b"{\"trace\": \"a\"}\n[1]\n", &["list, line 2", "not a JSON object"]),
        ("bytes", b"\xff\xfe", &["cannot read", "bytes", "utf-8"]),
    ] {
        let file = folder.file(name, content);
        has(&complaint(&["compare", &base, &file], 1), parts);
        has(&complaint(&["compare", &file, &base], 1), parts);
    }
    let missing = folder.name("missing");
    has(&complaint(&["compare", &missing, &base], 1), &["cannot read", &missing]);
    has(&complaint(&["compare", "-", "-"], 2), &["standard input"]);
    has(&complaint(&["compare"], 2), &["<BASE>"]);
}
