//! `seamalloc fit --times-live`: the same as replays on devices of those sizes.

use super::{STRATEGIES, complaint, has, lines, stdout};

#[test]
fn each_size_is_a_replay_on_such_a_device() {
    let sizes = ["1", "1.05", "1.5", "2"];
    let found = lines(&["fit", "comb", "--steps", "1", "--passes", "2", "--times-live", &sizes.join(","), "--json"], 0);
    assert_eq!(found.len(), sizes.len() * STRATEGIES.len());
    for (index, line) in found.iter().enumerate() {
        assert_eq!(line["strategy"], STRATEGIES[index % STRATEGIES.len()]);
        assert_eq!(line["times_live"].as_f64().unwrap(), sizes[index / STRATEGIES.len()].parse::<f64>().unwrap());
        let device = format!("sim:h200,capacity={}", line["capacity"]);
        let strategy = line["strategy"].as_str().unwrap();
        let replay =
            ["replay", "comb", "--steps", "1", "--passes", "2", "--strategy", strategy, "--device", &device, "--json"];
        let runs = line["runs"].as_bool().unwrap();
        let passes = lines(&replay, if runs { 0 } else { 3 });
        assert_eq!(
            passes.iter().filter(|pass| pass["oom"] == false).count() as u64,
            line["passes_run"].as_u64().unwrap()
        );
        if runs {
            assert_eq!(passes[0]["driver_time_us"], line["driver_time_us_first"]);
            assert_eq!(passes[1]["driver_time_us"], line["driver_time_us_last"]);
            assert_eq!(passes[1]["cpu_syncs"], line["cpu_syncs_last"]);
            assert_eq!(passes[1]["worst_stall_us"], line["worst_stall_us_last"]);
        } else {
            assert!(line["driver_time_us_last"].is_null(), "{line}");
        }
    }
    let runs = |line: &serde_json::Value| line["runs"] == true;
    assert!(found.iter().any(runs) && !found.iter().all(runs), "a cliff has two sides");
}

#[test]
fn the_table_shows_who_does_not_run() {
    has(
        &stdout(&["fit", "comb", "--steps", "1", "--times-live"], 0),
        &["comb", "1.005", "out of memory in pass 1", "last pass"],
    );
}

#[test]
fn what_is_no_size_is_refused() {
    for bad in ["0.9", "1001", "many", "-1", "nan"] {
        has(&complaint(&["fit", "comb", &format!("--times-live={bad}")], 2), &[bad, "from 1 to 1000"]);
    }
    has(
        &complaint(&["fit", "comb", "--times-live", "--device", "sim:h200,capacity=1GiB"], 2),
        &["chooses the memory itself"],
    );
    has(&complaint(&["fit", "comb", "--times-live", "--device", "host"], 2), &["simulated"]);
}
