//! Devices that are too small: exit code 3, the table and the JSON say so, and what else runs is shown.

use super::{Folder, STRATEGIES, has, lines, run, stdout};

const SMALL: &str = "sim:h200,capacity=20GiB";

#[test]
fn a_shortage_is_shown_in_the_table_and_in_words() {
    let folder = Folder::new();
    let little = folder.file("little.csv", b"a,1,1048576,0\nr,1\nf,1\n");
    let out = stdout(&["replay", "opt1.3b-R", &little, "--device", SMALL], 3);
    assert_eq!(out.matches("  OOM  ").count(), STRATEGIES.len(), "{out}");
    let little = out.lines().find(|line| line.starts_with("little")).unwrap();
    assert!(little.contains('%'), "{out}");
    let words = out.split_whitespace().collect::<Vec<_>>().join(" ");
    has(
        &words,
        &[
            "opt1.3b-R, caching: out of memory at event",
            "opt1.3b-R, expandable: out of memory at event",
            "opt1.3b-R, gmlake: out of memory at event",
            "opt1.3b-R, stitch: out of memory at event",
            "Asked for ",
            "of the device's 20.00 GiB",
            "in one piece",
            "What would have helped: ",
            "less that is live at this point",
            "live bytes alone reach 27.58 GiB",
            "1 of 2 ran out of memory",
        ],
    );
    let ended = run(&["replay", "opt1.3b-R", "--device", SMALL], 3);
    let error = String::from_utf8_lossy(&ended.get_output().stderr).into_owned();
    assert_eq!(error, format!("seamalloc: {0} of {0} runs did not have enough memory\n", STRATEGIES.len()));
}

#[test]
fn a_shortage_is_in_the_json_with_figures_up_to_it() {
    let folder = Folder::new();
    let little = folder.file("little.csv", b"a,1,1048576,0\nr,1\nf,1\n");
    let all = lines(&["replay", "opt1.3b-R", &little, "--json", "--passes", "2", "--device", SMALL], 3);
    let (out, rest): (Vec<_>, Vec<_>) = all.iter().partition(|line| line["oom"] == true);
    assert_eq!(out.len(), STRATEGIES.len(), "a pass that runs out of memory is the last one");
    assert_eq!(rest.len(), 2 * STRATEGIES.len());
    assert!(rest.iter().all(|line| line["trace"] == "little" && line["oom"] == false));
    for line in out {
        assert_eq!(line["pass"], 1);
        assert_eq!(line["device"], SMALL);
        let [live, reserved] = ["peak_live", "peak_reserved"].map(|key| line[key].as_u64().unwrap());
        assert!(live <= reserved && reserved <= 20 << 30, "{line}");
        assert!(line["utilization"].as_f64().unwrap() <= 1.0, "{line}");
        has(
            line["oom_report"].as_str().unwrap(),
            &["out of memory: tried to allocate", "on stream 0x0", "would have helped"],
        );
    }
}

#[test]
fn a_limit_is_a_shortage_too() {
    let out = stdout(&["stress", "comb", "--steps", "1", "--conf", "per_process_memory_fraction:0.1"], 3);
    has(&out, &["OOM", "comb, caching: out of memory"]);
}
