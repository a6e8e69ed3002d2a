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

#[test]
fn a_snapshot_of_device_memory_is_said_to_be_one() {
    let file = super::snapshot("resnet-multi-wrapped.snapshot.pickle.gz");
    let ended = super::run(&["pinned", &file, "--json"], 0);
    let said = String::from_utf8_lossy(&ended.get_output().stderr).into_owned();
    has(&said, &["resnet-multi-wrapped is a PyTorch snapshot of a GPU's memory", "run --record", "job-pinned.seam"]);
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
