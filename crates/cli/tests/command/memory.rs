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
            "opt1.3b-R, caching: out of memory at operation",
            "opt1.3b-R, expandable: out of memory at operation",
            "opt1.3b-R, gmlake: out of memory at operation",
            "opt1.3b-R, stitch: out of memory at operation",
            "Asked for ",
            "of the device's 20.00 GiB",
            "in one piece",
            "this allocator can hold no more than 20.00 GiB. No allocator helps. The trace's live bytes alone reach 27.58 GiB, more than \
             20.00 GiB: no strategy could run it there.",
            "1 of 2 ran out of memory",
        ],
    );
    // What helps one request would not help this job: nothing is advised.
    assert!(!words.contains("would have helped"), "{words}");
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

/// Blocks of 9 MiB, of which every other one is freed, and a request that the holes could serve: more was never live than
/// there is, so advice is given, and whoever follows it runs the job.
#[test]
fn advice_for_a_job_that_could_run_makes_it_run() {
    let folder = Folder::new();
    let allocated = (1..=20).map(|id| format!("a,{id},9437184,0\n"));
    let freed = (1..=20).step_by(2).map(|id| format!("r,{id}\nf,{id}\n"));
    let trace: String = allocated.chain(freed).chain(["a,21,62914560,0\n".to_owned()]).collect();
    let file = folder.file("holes.csv", trace.as_bytes());
    let device = "sim:h200,capacity=240MiB";
    let words = |args: &[&str]| stdout(args, 3).split_whitespace().collect::<Vec<_>>().join(" ");
    let refused = words(&["replay", &file, "--strategy", "caching", "--device", device]);
    has(&refused, &["holes, caching: out of memory at operation", "strategy:stitch", "with chunk_size_mb:4"]);
    run(&["replay", &file, "--strategy", "stitch", "--conf", "chunk_size_mb:4", "--device", device], 0);
    // Below what is live, a limit that would serve the refused request would not serve the job.
    let refused = words(&["replay", &file, "--strategy", "stitch", "--conf", "memory_limit:100MiB"]);
    has(&refused, &["live bytes alone reach 180.00 MiB, more than 100.00 MiB"]);
    assert!(!refused.contains("a higher limit"), "{refused}");
}

#[test]
fn a_limit_is_a_shortage_too() {
    let out = stdout(&["stress", "comb", "--steps", "1", "--conf", "per_process_memory_fraction:0.1"], 3);
    has(&out, &["OOM", "comb, caching: out of memory"]);
}
