//! `seamalloc whatif`: a snapshot of a job, and what each strategy would have made of it.

use super::{Folder, STRATEGIES, complaint, has, lines, snapshot, stdout};

const KEYS: [&str; 10] = [
    "device",
    "largest_step",
    "peak_live",
    "peak_reserved",
    "recorded_reserved",
    "reserved_before",
    "strategy",
    "trace",
    "tries",
    "utilization",
];

/// Weights of 100 MiB that stay, and a step of 50 MiB.
fn training(folder: &Folder) -> String {
    folder.file("job.csv", b"a,1,104857600,0\na,2,52428800,0\nr,2\nf,2\n")
}

#[test]
fn a_snapshot_tells_what_every_strategy_would_have_held() {
    let file = snapshot("resnet-multi-wrapped.snapshot.pickle.gz");
    let device = "sim:h200,capacity=4GiB";
    let found = lines(&["whatif", &file, "--device", device, "--json"], 0);
    assert_eq!(found.len(), STRATEGIES.len());
    for (line, strategy) in found.iter().zip(STRATEGIES) {
        assert_eq!(line.as_object().unwrap().keys().collect::<Vec<_>>(), KEYS);
        assert_eq!((line["strategy"].as_str(), line["device"].as_str()), (Some(strategy), Some(device)));
        let [live, held, recorded] =
            ["peak_live", "peak_reserved", "recorded_reserved"].map(|key| line[key].as_u64().unwrap());
        assert!(live <= held && held <= recorded, "{line}");
        assert!((1.0..1.5).contains(&line["largest_step"].as_f64().unwrap()), "{line}");
    }
    let out = stdout(&["whatif", &file, "--device", device, "--strategy", "stitch"], 0);
    has(&out, &["largest", "stitch", "21.57 GiB", "from the beginning", "times as large"]);
}

#[test]
fn a_step_grows_beside_weights_that_stay() {
    let folder = Folder::new();
    let found = lines(&["whatif", &training(&folder), "--device", "sim:h200,capacity=200MiB", "--json"], 0);
    for line in found {
        assert!((1.9..=2.0).contains(&line["largest_step"].as_f64().unwrap()), "{line}");
        assert!(line["recorded_reserved"].is_null());
    }
}

#[test]
fn what_does_not_fit_is_told_as_such() {
    let folder = Folder::new();
    let args = ["whatif", &training(&folder), "--device", "sim:h200,capacity=50MiB", "--strategy", "stitch"];
    has(&stdout(&args, 3), &["too much", "none"]);
    has(&complaint(&["whatif", &training(&folder), "--device", "cuda:0"], 2), &["simulated device"]);
    has(&complaint(&["whatif"], 2), &["no trace is given"]);
}
