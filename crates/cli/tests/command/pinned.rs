//! `seamalloc pinned`: PyTorch's cache of page-locked memory, counted, beside a host pool.

use super::{complaint, has, lines, stdout};
use std::fs;

/// Two steps of sizes just above powers of two; the last block is still in use when the next is asked for.
const STEPS: &str =
    "a,1,5242880,0\na,2,3145728,0\nr,1\nf,1\nr,2\na,3,9437184,0\nf,2\na,4,3000000,7\nr,3\nf,3\nr,4\nf,4\n";

#[test]
fn pytorchs_powers_of_two_stand_beside_what_is_stitched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("steps.csv");
    fs::write(&path, STEPS).unwrap();
    let found = lines(&["pinned", path.to_str().unwrap(), "--json"], 0);
    let of = |index: usize, key: &str| found[index][key].as_u64().unwrap();
    assert_eq!(
        (found.len(), found[0]["cache"].as_str(), found[1]["cache"].as_str()),
        (2, Some("pytorch"), Some("stitch"))
    );
    // 8 and 4 MiB, then 16; the 4 serve again, on another stream too.
    assert_eq!((of(0, "peak_reserved"), of(0, "taken"), found[0]["driver_time_us"].is_null()), (28 << 20, 3, true));
    let live = of(0, "peak_live");
    assert_eq!((live, of(1, "peak_live")), (9_437_184 + 3_000_000, live));
    assert!(of(1, "peak_reserved") <= 18 << 20 && of(1, "peak_reserved") >= live, "{}", found[1]);
    let again =
        lines(&["pinned", path.to_str().unwrap(), "--json", "--passes", "3", "--strategy", "caching,stitch"], 0);
    assert_eq!(again.len(), 3);
    assert_eq!(again[0]["peak_reserved"], found[0]["peak_reserved"], "a cache holds what it has");
    has(&stdout(&["pinned", path.to_str().unwrap()], 0), &["pytorch", "stitch", "2.361", "1.012"]);
}

/// A snapshot of a GPU is refused, with a history or without, as it was written or converted; other inputs are processed.
#[test]
fn a_snapshot_of_a_gpu_is_refused() {
    let folder = super::Folder::new();
    let [with, without] =
        ["resnet-multi-wrapped", "layout-only"].map(|name| super::snapshot(&format!("{name}.snapshot.pickle.gz")));
    let converted = folder.name("converted.seam");
    stdout(&["convert", &with, &converted], 0);
    for file in [&with, &without, &converted] {
        for form in ["--json", "--color=never"] {
            let said = complaint(&["pinned", file, form], 1);
            let record = "SEAMALLOC_PINNED=1 python -m seamalloc run --record job-{device}.seam train.py";
            has(&said, &["is a snapshot of a GPU's memory", "seamalloc replay", record, "job-pinned.seam"]);
            assert!(said.contains(file.as_str()), "{said}");
        }
    }
    let steps = folder.file("steps.csv", STEPS.as_bytes());
    has(&stdout(&["pinned", &with, &steps], 4), &["steps", "2.361"]);
}

/// Dumps of seamalloc's flight recorder have the form of PyTorch's snapshots, and may be of a host pool.
#[test]
fn a_dump_of_a_host_pool_is_taken() {
    let entry = |action: &str, addr: u64| serde_json::json!({"action": action, "addr": addr, "size": 5_242_880, "stream": 0, "time_us": 1, "frames": []});
    let history = [entry("alloc", 4096), entry("free_requested", 4096), entry("free_completed", 4096)];
    let mut dump = serde_json::json!({"segments": [], "device_traces": [history], "allocator_settings": {}});
    let folder = super::Folder::new();
    let file = |dump: &serde_json::Value| folder.file("dump.json", dump.to_string().as_bytes());
    complaint(&["pinned", &file(&dump)], 1);
    dump["allocator_settings"]["flight_recorder"] =
        serde_json::json!({"operations": 3, "overwritten": 0, "capacity": 8});
    assert_eq!(lines(&["pinned", &file(&dump), "--json"], 0)[0]["peak_reserved"], 8 << 20);
}

#[test]
fn a_recorded_job_of_a_gpu_is_said_to_be_one() {
    let ended = super::run(&["pinned", "resnet-multi", "--json"], 0);
    has(&String::from_utf8_lossy(&ended.get_output().stderr), &["resnet-multi was recorded of GPU memory"]);
}

#[test]
fn what_is_no_page_locked_memory_is_refused() {
    for device in ["host", "cuda:0"] {
        has(&complaint(&["pinned", "comb", "--device", device], 2), &["--device sim:h200, or pinned:0"]);
    }
    has(&complaint(&["pinned", "comb", "--device", "pinned:0", "--lag", "3"], 2), &["keeps its own time"]);
    has(&complaint(&["pinned", "comb", "--steps", "1", "--conf", "split:ungated"], 1), &["split", "the CPU uses"]);
    has(&complaint(&["replay", "comb", "--device", "pinned:x"], 2), &["pinned:x"]);
    has(&complaint(&["fit", "comb", "--device", "pinned:0"], 2), &["simulated"]);
    let table = stdout(&["pinned", "comb", "--steps", "1", "--device", "sim:h200,capacity=4MiB"], 3);
    has(&table, &["pytorch", "out of memory"]);
}
