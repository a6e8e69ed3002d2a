//! The figures of some jobs and workloads are equal to the stored ones. `.ci/figures` compares all, and stores them
//! anew.

use super::{Folder, lines, run};
use std::path::Path;

/// Quick ones: a model's recomputation, a recorded job, several streams.
const WORKLOADS: [&str; 3] = ["opt-1.3b-LO", "moe-R", "prefetch"];
const STORED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/figures.jsonl.gz");

#[test]
fn a_few_runs_come_to_what_is_stored() {
    // A package of the command alone may lack it.
    if !Path::new(STORED).exists() {
        return;
    }
    let folder = Folder::new();
    let mut all = String::new();
    for lag in ["0", "1500"] {
        let args = [&["stress"], &WORKLOADS[..], &["--json", "--passes", "5", "--lag", lag]].concat();
        for mut line in lines(&args, 0) {
            line["lag"] = lag.parse::<u64>().unwrap().into();
            all.push_str(&format!("{line}\n"));
        }
    }
    run(&["compare", STORED, &folder.file("new.jsonl", all.as_bytes()), "--subset"], 0);
}

/// A stored file that knew no run of them would agree with anything.
#[test]
fn what_is_stored_knows_them_all() {
    if !Path::new(STORED).exists() {
        return;
    }
    let folder = Folder::new();
    let none = folder.file("none.jsonl", br#"{"trace": "none"}"#);
    let missing = lines(&["compare", STORED, &none, "--json"], 1);
    for name in WORKLOADS {
        let rows = missing.iter().filter(|line| line["run"]["trace"] == name && line["missing"] == "new");
        let lags = |lag: u64| rows.clone().filter(|line| line["run"]["lag"] == lag).count();
        assert_eq!((lags(0), lags(1500)), (20, 20), "{name}: four strategies, five passes");
    }
}
