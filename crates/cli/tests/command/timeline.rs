//! `seamalloc replay --timeline`: how long a job's steps take.

use super::{Folder, complaint, has, lines, run, stdout};

/// A stream frees 512 MiB while it works for 100 ms more; another takes as much after 40 ms of its own work.
const HANDED_ON: &str = "\
# {\"timeline\": 1, \"job\": \"handed-on\", \"steps_ns\": [100000000]}
p,1,0,0
a,1,0,1,536870912,a
k,1,0,0,a,100000000
r,1,0,1
k,1,0,0,b,40000000
a,1,0,2,536870912,b
k,1,0,0,b,10000000
r,1,0,2
s,1,0,0,d
q,1,0,0
";

#[test]
fn a_step_is_as_long_as_its_waits_make_it() {
    let folder = Folder::new();
    let file = folder.file("job.gz", HANDED_ON.as_bytes());
    let args = ["replay", "--timeline", &file, "--strategy", "caching", "--also", "sharing:wait", "--passes", "3"];
    let found = lines(&[&args[..], &["--json"]].concat(), 0);
    let passes: Vec<_> =
        found.iter().map(|line| (line["policy"].as_str().unwrap(), line["pass"].as_u64().unwrap())).collect();
    let expected = ["caching", "sharing:wait"].map(|policy| [1, 2, 3].map(|pass| (policy, pass))).concat();
    assert_eq!(passes, expected);
    let [caching, waits] = [&found[2], &found[5]];
    assert_eq!((caching["timeline"].as_str(), caching["step_ns"].as_u64()), (Some("handed-on"), Some(100_000_000)));
    assert_eq!(
        (caching["recorded_step_ns"].as_u64(), caching["bare_step_ns"].as_u64()),
        (Some(100_000_000), Some(100_000_000))
    );
    assert_eq!(waits["step_ns"].as_u64().unwrap() / 1_000_000, 110);
    assert_eq!((waits["stream_waits"].as_u64(), waits["effective_waits"].as_u64()), (Some(1), Some(1)));
    assert!((waits["held_share"].as_f64().unwrap() - 60.0 / 110.0).abs() < 0.01, "{waits}");
    let shares: f64 = ["work_share", "program_share", "launch_share", "driver_share"]
        .iter()
        .map(|key| waits[key].as_f64().unwrap())
        .sum();
    assert!((shares - 1.0).abs() < 1e-5, "{waits}");
    assert_eq!(caching["peak_reserved"].as_u64(), waits["peak_reserved"].as_u64().map(|bytes| bytes * 2));
    let table = stdout(&args, 0);
    has(&table, &["handed-on", "caching", "sharing:wait", "100.00", "110.", "1.10", "recorded was one of 100.00 ms"]);
    assert_eq!(stdout(&args, 0), table, "the same each time");
}

#[test]
fn without_enough_memory_it_says_so() {
    let folder = Folder::new();
    let file = folder.file("job.txt", HANDED_ON.as_bytes());
    let args = ["replay", "--timeline", &file, "--strategy", "caching", "--device", "sim:h200,capacity=300MiB"];
    has(&stdout(&args, 3), &["no memory"]);
    assert_eq!(lines(&[&args[..], &["--json"]].concat(), 3)[0]["oom_line"].as_u64(), Some(1));
}

#[test]
fn what_is_wrong_is_named() {
    let folder = Folder::new();
    let file = folder.file("job.txt", HANDED_ON.replace("a,1,0,2", "a,1,0,1,").as_bytes());
    has(&complaint(&["replay", "--timeline", &file], 1), &["job.txt, line 7: "]);
    has(&complaint(&["replay", "--timeline", &folder.name("none")], 1), &["cannot read", "none"]);
    let trace = folder.file("t.csv", b"a,1,5,0\n");
    has(&complaint(&["replay", "--timeline", &trace], 1), &["line 1", "\"timeline\": 1"]);
    let snapshot = super::snapshot("resnet-multi-wrapped.snapshot.pickle.gz");
    let json = folder.file("s.json", b"{\"segments\": []}");
    for file in [snapshot, json] {
        has(
            &complaint(&["replay", "--timeline", &file], 1),
            &["a PyTorch memory snapshot", "replayed without --timeline"],
        );
    }
    let timeline = folder.file("right.txt", HANDED_ON.as_bytes());
    for wrong in
        [&["--lag", "5"][..], &["--seed", "5"], &["comb"], &["--device", "host:1GiB"], &["--also", "shoring:wait"]]
    {
        run(&[&["replay", "--timeline", &timeline], wrong].concat(), 2);
    }
    run(&["replay", "comb", "--also", "sharing:wait"], 2);
}
