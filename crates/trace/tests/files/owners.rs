//! Who holds the memory of real programs' snapshots, beside a count of its own by `data/snapshots/count.py`.

use seamalloc_trace::owners::owners;
use seamalloc_trace::pytorch::{Frame, read_origins, read_with_origins};
use seamalloc_trace::{TraceError, read_path};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// The counts of a snapshot, by device, in the order of the devices.
fn counted(path: &Path) -> Vec<Value> {
    let name = path.file_name().unwrap().to_str().unwrap();
    let count = path.with_file_name(name.replace(".snapshot.pickle.gz", ".count.json"));
    let counts: BTreeMap<u32, Value> = serde_json::from_slice(&std::fs::read(count).unwrap()).unwrap();
    counts.into_values().collect()
}

#[test]
fn owners_are_those_of_an_independent_count() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/snapshots");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut compared = 0;
    for path in files.filter(|path| path.to_str().unwrap().ends_with(".pickle.gz")) {
        let counts = counted(&path);
        let traces = match read_path(&path) {
            Err(TraceError::NoHistory { .. }) => Vec::new(),
            traces => traces.unwrap(),
        };
        let origins = read_origins(&path).unwrap();
        assert_eq!((traces.len(), origins.len()), (counts.len(), counts.len()), "{}", path.display());
        if !traces.is_empty() {
            let both = traces.iter().cloned().zip(origins.iter().cloned().map(Some));
            assert_eq!(read_with_origins(&path).unwrap(), both.collect::<Vec<_>>(), "{}", path.display());
        }
        for ((trace, origins), count) in traces.iter().zip(&origins).zip(&counts) {
            let found = owners(trace, origins, &[], usize::MAX);
            let row = |of: &seamalloc_trace::owners::Owner| {
                let Frame { function, file, line } = of.frame.clone().unwrap_or_default();
                let named = of.frame.is_some().then_some((file, line, function));
                let (file, line, function) = named.map_or((None, None, None), |(a, b, c)| (Some(a), b, Some(c)));
                json!([file, line, function, of.held.bytes, of.held.blocks])
            };
            let mut rows: Vec<_> = found.rows.iter().map(row).collect();
            let mut expected = count["rows"].as_array().unwrap().clone();
            // Rows of the same size have no order.
            rows.sort_by_key(ToString::to_string);
            expected.sort_by_key(ToString::to_string);
            assert_eq!(rows, expected, "{}", trace.name);
            let unknown = json!([found.not_recorded.bytes, found.not_recorded.blocks]);
            assert_eq!((&json!(found.live), &unknown), (&count["live"], &count["not_recorded"]), "{}", trace.name);
            assert_eq!(found.live, trace.summary().peak_live, "{}", trace.name);
            compared += 1;
        }
    }
    assert!(compared >= 14, "{compared} snapshots");
}

/// C++ frames come first, and a line of the user's own lies up to a hundred frames deep.
#[test]
fn the_largest_owners_of_a_snapshot_with_frames_of_cpp() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/snapshots/train-all.snapshot.pickle.gz");
    let (traces, origins) = (read_path(&path).unwrap(), read_origins(&path).unwrap());
    let found = owners(&traces[0], &origins[0], &[], 5);
    let names: Vec<_> = found.rows.iter().map(|row| row.name.as_str()).collect();
    let own =
        ["own_model.py:12 forward", "own_model.py:7 softmax", "own_model.py:8 softmax", "own_model.py:28 forward"];
    assert_eq!(names, [&own[..], &["NllLossBackward0::apply"]].concat());
    // Layers have stacks of their own, and one row.
    assert!(found.rows[0].all_stacks > 1 && found.rows[0].held.share > 0.17, "{:?}", found.rows[0]);
}
