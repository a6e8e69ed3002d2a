//! `seamalloc fit`: what it finds is enough, and a chunk less is not.

use super::{Folder, STRATEGIES, has, lines, run, stdout};

const KEYS: [&str; 12] = [
    "capacity",
    "cpu_syncs_last",
    "device",
    "driver_time_us_first",
    "driver_time_us_last",
    "overhead",
    "peak_live",
    "peak_reserved",
    "strategy",
    "trace",
    "tries",
    "worst_stall_us_last",
];
const CHUNK: u64 = 2 << 20;

#[test]
fn what_is_found_is_enough_and_a_chunk_less_is_not() {
    let found = lines(&["fit", "comb", "--steps", "1", "--json"], 0);
    assert_eq!(found.len(), STRATEGIES.len());
    for (line, strategy) in found.iter().zip(STRATEGIES) {
        assert_eq!(line.as_object().unwrap().keys().collect::<Vec<_>>(), KEYS);
        assert_eq!((line["trace"].as_str(), line["strategy"].as_str()), (Some("comb"), Some(strategy)));
        assert_eq!(line["device"], "sim:h200");
        let [capacity, live, reserved] =
            ["capacity", "peak_live", "peak_reserved"].map(|key| line[key].as_u64().unwrap());
        assert!(live <= capacity && capacity <= reserved && capacity.is_multiple_of(CHUNK), "{line}");
        for (capacity, code) in [(capacity, 0), (capacity - CHUNK, 3)] {
            let device = format!("sim:h200,capacity={capacity}");
            run(&["replay", "comb", "--steps", "1", "--strategy", strategy, "--device", &device], code);
        }
    }
}

/// Expandable segments reserve the addresses of the whole device on every stream; a device of many TiB has none left.
#[test]
fn several_streams_fit_too() {
    let found = lines(&["fit", "prefetch", "llama8b-fsdp2", "--steps", "1", "--json", "--strategy", "expandable"], 0);
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|line| line["capacity"].as_u64() <= line["peak_reserved"].as_u64()), "{found:?}");
}

#[test]
fn the_table_shows_the_same() {
    let out = stdout(&["fit", "comb", "--steps", "1"], 0);
    has(&out, &["smallest", "above", "comb", "caching", "expandable"]);
}

#[test]
fn what_fits_no_device_is_shown_as_such() {
    let folder = Folder::new();
    let huge = folder.file("huge.csv", b"a,1,18000000000000,0\n");
    // Expandable segments take seconds to map 16 TiB: once is enough.
    has(&stdout(&["fit", &huge, "--strategy", "caching,gmlake,stitch"], 3), &["huge", "more than 16TiB"]);
    let found = lines(&["fit", &huge, "--json"], 3);
    assert_eq!(found.len(), STRATEGIES.len());
    for line in found {
        assert_eq!(line.as_object().unwrap().keys().collect::<Vec<_>>(), KEYS);
        assert!(line["capacity"].is_null() && line["peak_live"] == 18_000_000_000_000u64, "{line}");
    }
}
