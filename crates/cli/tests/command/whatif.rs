//! `seamalloc whatif`: a snapshot of a job, and what each strategy would have made of it.

use super::{Folder, STRATEGIES, complaint, has, lines, snapshot, stdout};

const KEYS: [&str; 25] = [
    "capacity",
    "device",
    "device_from",
    "expandable_reserved",
    "expandable_step",
    "grows",
    "largest_step",
    "native_reserved",
    "native_step",
    "peak_live",
    "peak_reserved",
    "peak_spilled",
    "persistent",
    "recorded_reserved",
    "refused",
    "reserved_before",
    "sought",
    "spill_moved_bytes",
    "spill_pieces",
    "spill_us",
    "strategy",
    "trace",
    "tries",
    "utilization",
    "verdict",
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
        assert_eq!(line["device_from"], "asked");
        // PyTorch's own, on the same device.
        for (at, name) in [(0, "native"), (1, "expandable")] {
            assert_eq!(line[format!("{name}_step")], found[at]["largest_step"], "{line}");
            assert_eq!(line[format!("{name}_reserved")], found[at]["peak_reserved"], "{line}");
        }
    }
    let out = words(&["whatif", &file, "--device", device, "--strategy", "stitch"]);
    has(
        &out,
        &[
            "PyTorch held 21.57 GiB when it was recorded. That does not compare with the table: it held as much before the recording \
             began. Record from the beginning of the job.",
            "In the table stitch is seamalloc's default (seamalloc).",
        ],
    );
}

/// Returns the printed text in one line.
fn words(args: &[&str]) -> String {
    words_of(&stdout(args, 0))
}

fn words_of(out: &str) -> String {
    out.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// By arithmetic: 100 MiB stay and 50 grow, in blocks that each strategy takes whole but expandable, by 20 MiB.
#[test]
fn what_is_gained_is_said_over_pytorch_on_the_same_device() {
    let folder = Folder::new();
    let job = training(&folder);
    for (device, sentence) in [
        (
            "sim:h200,capacity=200MiB",
            "job on sim:h200,capacity=200MiB: native x2.00, expandable x2.00, stitch x2.00: the same largest step as expandable's, within 1%; holds as much as \
             native, 10.00 MiB less than expandable. Taken to grow with the step are activations and temporary buffers, and, \
             to be careful, gradients and the optimizer's temporary buffers; 100.00 MiB of weights and optimizer state stay. For four real jobs this was at most 16% too small",
        ),
        (
            "sim:h200,capacity=130MiB",
            "native x0.60, expandable x0.40, stitch x0.60: the same largest step as native's, within 1%; stitch runs out of memory with the job as it was recorded.",
        ),
    ] {
        let args = ["whatif", &job, "--device", device];
        let code = if device.contains("130") { 3 } else { 0 };
        has(&words_of(&stdout(&args, code)), &[sentence]);
    }
}

#[test]
fn a_quick_look_leaves_out_the_largest_step() {
    let folder = Folder::new();
    let args = ["whatif", &training(&folder), "--device", "sim:h200,capacity=200MiB", "--quick"];
    let (found, sought) = (lines(&[&args[..], &["--json"]].concat(), 0), lines(&[&args[..4], &["--json"]].concat(), 0));
    for (line, sought) in found.iter().zip(&sought) {
        assert_eq!((line["tries"].as_u64(), line["sought"].as_bool()), (Some(1), Some(false)), "{line}");
        assert!(line["largest_step"].is_null() && line["native_step"].is_null(), "{line}");
        assert_eq!(line["peak_reserved"], sought["peak_reserved"]);
        assert_eq!(line["capacity"], 200 << 20);
    }
    has(&words(&args), &["not sought", "the largest step was not sought; holds as much as native"]);
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

/// Blocks of 9 MiB, of which every other one is freed before the step: native's segments keep two each, expandable's segment
/// keeps the holes, and only stitching joins them.
#[test]
fn a_job_of_holes_gains_and_is_told_how_much() {
    let folder = Folder::new();
    let allocated = (1..=20).map(|id| format!("a,{id},9437184,0\n"));
    let freed = (1..=20).step_by(2).map(|id| format!("r,{id}\nf,{id}\n"));
    let step = ["a,21,62914560,0\nr,21\nf,21\n".to_owned()];
    let job = folder.file("holes.csv", allocated.chain(freed).chain(step).collect::<String>().as_bytes());
    let args = ["whatif", &job, "--device", "sim:h200,capacity=400MiB", "--conf", "chunk_size_mb:2"];
    let found = lines(&[&args[..], &["--json"]].concat(), 0);
    let of = |strategy: &str, key: &str| {
        let line = found.iter().find(|line| line["strategy"] == strategy).unwrap();
        line[key].as_f64().unwrap()
    };
    assert!(of("stitch", "largest_step") > of("expandable", "largest_step"), "{found:?}");
    let held = of("caching", "peak_reserved") - of("stitch", "peak_reserved");
    assert!(held > 0.0, "{found:?}");
    let best = of("expandable", "largest_step").max(of("caching", "largest_step"));
    let gain = (of("stitch", "largest_step") / best - 1.0) * 100.0;
    let less = format!("holds {:.2} MiB less than native", held / f64::from(1 << 20));
    has(&words(&args), &[&format!("a step {gain:.1}% larger than"), &less]);
}

#[test]
fn the_device_is_the_recorded_one_where_the_recording_says_so() {
    let folder = Folder::new();
    let device = |name: &str, content: &str, sentence: &str| {
        let file = folder.file(name, content.as_bytes());
        let args = ["whatif", &file, "--strategy", "stitch"];
        // A job that ran out of memory does so on the same memory.
        let code = if name == "short.json" { 3 } else { 0 };
        let line = lines(&[&args[..], &["--json"]].concat(), code).remove(0);
        has(&words_of(&stdout(&args, code)), &[sentence]);
        (line["device"].as_str().unwrap().to_owned(), line["device_from"].as_str().unwrap().to_owned())
    };
    let events = "a,1,104857600,0\na,2,52428800,0\nr,2\nf,2\n";
    let noted =
        device("noted.csv", &format!("# {{\"total_memory\":209715200}}\n{events}"), "(the recorded device's memory)");
    assert_eq!(noted, ("sim:h200,capacity=200MiB".to_owned(), "noted".to_owned()));
    // A snapshot of a job that ran out of memory: what was held and what was free then.
    let entry =
        |action: &str, at: u64, size: u64| format!(r#"{{"action":"{action}","addr":{at},"size":{size},"stream":0}}"#);
    let history = [
        entry("segment_alloc", 1 << 30, 60 << 20),
        entry("alloc", 1 << 30, 60 << 20),
        r#"{"action":"oom","device_free":41943040,"size":52428800,"stream":0}"#.to_owned(),
        entry("free_requested", 1 << 30, 60 << 20),
        entry("free_completed", 1 << 30, 60 << 20),
    ];
    let segment = r#"{"device":0,"address":1073741824,"total_size":62914560,"blocks":[]}"#;
    let snapshot = format!(r#"{{"segments":[{segment}],"device_traces":[[{}]]}}"#, history.join(","));
    let derived = device("short.json", &snapshot, "ran out of memory)");
    assert_eq!(derived, ("sim:h200,capacity=100MiB".to_owned(), "refusal".to_owned()));
    let unknown =
        device("unknown.csv", events, "unknown: the largest step depends on the device, which --device names.");
    assert_eq!(unknown, ("sim:h200".to_owned(), "unknown".to_owned()));
    let line = lines(&["whatif", &folder.name("unknown.csv"), "--json"], 0).remove(0);
    assert!(line["capacity"].is_null(), "{line}");
}

/// A small step has room thousands of times: the search stops at 8. What frees nothing has none.
#[test]
fn a_largest_step_is_the_largest_or_said_not_to_be() {
    let folder = Folder::new();
    let args = |file: &str| ["whatif", file, "--strategy", "stitch", "--device", "sim:h200"].map(str::to_owned);
    let small = folder.file("small.csv", b"a,1,1048576,0\na,2,20971520,0\nr,2\nf,2\n");
    let out = words(&args(&small).each_ref().map(String::as_str));
    has(&out, &["native x8 or more, expandable x8 or more, stitch x8 or more: far larger steps fit"]);
    let line = lines(&[&args(&small).each_ref().map(String::as_str)[..], &["--json"]].concat(), 0).remove(0);
    assert_eq!((&line["largest_step"], &line["tries"]), (&8.0.into(), &2.into()), "{line}");
    let rigid = folder.file("rigid.csv", b"a,1,1048576,0\n");
    let rigid = args(&rigid);
    let rigid = rigid.each_ref().map(String::as_str);
    has(&words(&rigid), &["nothing grows", "it frees nothing, so nothing grows with its steps"]);
    let line = lines(&[&rigid[..], &["--json"]].concat(), 0).remove(0);
    assert_eq!((&line["grows"], &line["largest_step"]), (&false.into(), &serde_json::Value::Null));
}

/// A snapshot without a history: three segments with holes, of 40 MiB each; `more` stands in its blocks.
pub(super) fn layout(frames: &serde_json::Value) -> serde_json::Value {
    let segment = |index: u64| {
        let at = (index + 1) << 30;
        let block = |from: u64, mib: u64, state: &str| {
            serde_json::json!({"address": at + (from << 20), "size": mib << 20,
            "requested_size": mib << 20, "state": state, "frames": frames})
        };
        let blocks = [block(0, 30, "inactive"), block(30, 10, "active_allocated")];
        serde_json::json!({"address": at, "total_size": 40 << 20, "blocks": blocks, "segment_type": "large"})
    };
    serde_json::json!({"segments": [segment(0), segment(1), segment(2)], "device_traces": [[{"action": "snapshot"}]]})
}

/// A value as a pickle of protocol 2.
fn pickled(value: &serde_json::Value) -> Vec<u8> {
    fn put(value: &serde_json::Value, out: &mut Vec<u8>) {
        match value {
            serde_json::Value::Object(map) => {
                out.extend(b"}(");
                for (key, value) in map {
                    put(&key.as_str().into(), out);
                    put(value, out);
                }
                out.push(b'u');
            }
            serde_json::Value::Array(list) => {
                out.extend(b"](");
                list.iter().for_each(|value| put(value, out));
                out.push(b'e');
            }
            serde_json::Value::String(text) => {
                out.push(b'X');
                out.extend((text.len() as u32).to_le_bytes());
                out.extend(text.as_bytes());
            }
            number => {
                out.extend([0x8a, 8]);
                out.extend(number.as_i64().unwrap().to_le_bytes());
            }
        }
    }
    let mut out = vec![0x80, 2];
    put(value, &mut out);
    out.push(b'.');
    out
}

#[test]
fn a_layout_without_history_is_answered_too() {
    let folder = Folder::new();
    let file = folder.file("oom.pickle", &pickled(&layout(&serde_json::json!([]))));
    let out = words(&["whatif", &file]);
    has(
        &out,
        &[
            "oom, device 0: Fragmentation: 90.00 MiB free in 3 holes, the largest 30.00 MiB.",
            "Next: Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
            "no history of allocations: this is the memory at one moment",
            "120.00 MiB are held in 3 segments: 30.00 MiB allocated, 0 B pending, 90.00 MiB free in 3 holes",
            "30.00 MiB with native, 60.00 MiB with expandable segments, 90.00 MiB with stitch, 70.00 MiB with stitch and split:off",
            "without new memory of the device",
            "no stacks",
        ],
    );
    // On a device with 40 MiB more.
    let device = ["--device", "sim:h200,capacity=160MiB"];
    has(
        &words(&[&["whatif", &file], &device[..]].concat()),
        &["on a device of 160.00 MiB: 40.00 MiB with native, 100.00 MiB"],
    );
    let line = lines(&[&["whatif", &file, "--json"], &device[..]].concat(), 0).remove(0);
    assert_eq!((line["layout"].as_bool(), line["trace"].as_str()), (Some(true), Some("oom")));
    assert_eq!((line["reserved"].as_u64(), line["free"].as_u64()), (Some(120 << 20), Some(90 << 20)));
    assert_eq!((line["holes"].as_u64(), line["largest_hole"].as_u64()), (Some(3), Some(30 << 20)));
    let largest = |key: &str| line["largest_request"][key].as_u64().unwrap() >> 20;
    assert_eq!(["caching", "expandable", "stitch", "stitch,split:off"].map(largest), [40, 100, 130, 110]);
    assert_eq!(
        (line["verdict"]["kind"].as_str(), line["pools"][0]["segments"].as_u64()),
        (Some("fragmentation"), Some(3))
    );
    assert!(line["owners"].is_null());
    // Beside jobs, in the order of their kinds; one without segments has nothing to say.
    let (job, none) = (training(&folder), folder.file("none.json", b"{\"segments\":[],\"device_traces\":[[]]}"));
    let both = words(&["whatif", &file, &job, "--quick", "--device", "sim:h200,capacity=200MiB"]);
    assert!(both.find("holds as much as native") < both.find("Fragmentation: "), "{both}");
    // A smaller device than the snapshot's: blocks of 30 MiB leave 70 of it.
    let small = lines(&["whatif", &file, "--json", "--device", "sim:h200,capacity=100MiB"], 0).remove(0);
    let largest = small["largest_request"].as_object().unwrap();
    assert!(largest.values().all(|bytes| bytes.as_u64() <= Some(70 << 20)), "{small}");
    assert_eq!(largest["stitch"], 70 << 20);
    has(small["verdict"]["reasons"].as_str().unwrap(), &["120.00 MiB are held here, more than the device has"]);
    let full = lines(&["whatif", &file, "--json", "--device", "sim:h200,capacity=20MiB"], 0).remove(0);
    assert_eq!((&full["verdict"]["kind"], &full["largest_request"]["stitch"]), (&"too_much_live".into(), &0.into()));
    has(&complaint(&["whatif", &none], 1), &["no segments either", "_record_memory_history"]);
    // Other commands say where to go.
    has(&complaint(&["replay", &file], 1), &["only the layout at one moment", "`seamalloc whatif` says more"]);
}

#[test]
fn a_layout_with_stacks_says_who_holds_it() {
    let folder = Folder::new();
    let frame = |name: &str, file: &str, line: u32| serde_json::json!({"name": name, "filename": file, "line": line});
    let frames = serde_json::json!([
        frame("linear", "/usr/lib/python3.12/site-packages/torch/nn/functional.py", 9),
        frame("forward", "/home/me/job/model.py", 12)
    ]);
    let file = folder.file("state.pickle", &pickled(&layout(&frames)));
    has(&words(&["whatif", &file]), &["Who holds the 30.00 MiB", "30.00 MiB 100.0% model.py:12 forward"]);
    let line = lines(&["whatif", &file, "--json"], 0).remove(0);
    assert_eq!(line["owners"]["rows"][0]["line"], 12);
    assert_eq!((line["owners"]["live"].as_u64(), line["allocated"].as_u64()), (Some(30 << 20), Some(30 << 20)));
}

#[test]
fn what_does_not_fit_is_told_as_such() {
    let folder = Folder::new();
    let args = ["whatif", &training(&folder), "--device", "sim:h200,capacity=50MiB", "--strategy", "stitch"];
    has(
        &words_of(&stdout(&args, 3)),
        &[
            "too much",
            "none",
            "stitch none: none runs it, even with the smallest steps; stitch runs out of memory with the job as it was recorded.",
        ],
    );
    has(&complaint(&["whatif", &training(&folder), "--device", "cuda:0"], 2), &["simulated device"]);
    has(&complaint(&["whatif"], 2), &["no trace is given"]);
}

/// Question 1 of docs/why.md: 150 MiB live, and a device of 130.
#[test]
fn the_verdict_comes_first_with_one_next_step() {
    let folder = Folder::new();
    let args = ["whatif", &training(&folder), "--device", "sim:h200,capacity=130MiB", "--strategy", "stitch"];
    let out = stdout(&args, 3);
    let mut lines_of_text = out.lines();
    assert_eq!(lines_of_text.next(), Some("job: Too much is live: 150.00 MiB of 130.00 MiB. No allocator helps."));
    has(&words_of(&out), &["150.00 MiB are live", "20.00 MiB more than the device has", "Next: Reduce the batch size"]);
    assert!(out.find("Next: ").unwrap() < out.find("reserved").unwrap(), "{out}");
    for line in lines(&[&args[..], &["--json"]].concat(), 3) {
        let verdict = &line["verdict"];
        assert_eq!(verdict["kind"], "too_much_live");
        assert_eq!(verdict["text"], "Too much is live: 150.00 MiB of 130.00 MiB. No allocator helps.");
        assert_eq!(
            (&verdict["figures"]["live"], &verdict["figures"]["capacity"]),
            (&(150 << 20).into(), &(130 << 20).into())
        );
        assert!(verdict["next"].is_string() && verdict["reasons"].is_string(), "{verdict}");
    }
}

/// A refusal is a part of the snapshot that a trace is written as.
#[test]
fn a_converted_job_gets_the_same_verdict() {
    let folder = Folder::new();
    for name in ["oom-live", "oom-others"] {
        let (file, written) = (snapshot(&format!("{name}.snapshot.pickle.gz")), folder.name(&format!("{name}.pickle")));
        stdout(&["convert", &file, &written], 0);
        let verdict = |file: &str| {
            let line = lines(&["whatif", file, "--json", "--quick", "--strategy", "stitch"], 3).remove(0);
            ["kind", "text"].map(|key| line["verdict"][key].clone())
        };
        assert_eq!(verdict(&written), verdict(&file), "{name}");
    }
}

/// Where the device is unknown, nothing is compared with an H200, and the question is asked.
#[test]
fn a_job_of_an_unknown_device_is_told_its_needs_and_asked_for_the_device() {
    let file = snapshot("train-eval.snapshot.pickle.gz");
    let args = ["whatif", &file, "--strategy", "stitch", "--quick"];
    let out = words(&args);
    has(&out, &["train-eval: PyTorch's expandable segments are enough: they hold 3.36 GiB less than native."]);
    has(&out, &["holds 11.40 GiB with native, 8.04 GiB with expandable segments, 8.00 GiB with seamalloc"]);
    has(&out, &["--device sim:rtx4090 (24 GiB)", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"]);
    assert!(lines(&[&args[..], &["--json"]].concat(), 0)[0]["verdict"]["figures"]["capacity"].is_null());
}

/// The request that was refused when the job was recorded is a part of the verdict, of the table and of the owners' shares.
#[test]
fn where_too_much_is_live_the_owners_are_named() {
    let file = snapshot("oom-others.snapshot.pickle.gz");
    let args = ["whatif", &file, "--strategy", "stitch", "--quick"];
    let out = words_of(&stdout(&args, 3));
    has(&out, &["oom-others: Too much is live: 5.34 GiB of the 5.27 GiB that PyTorch could have. No allocator helps."]);
    has(&out, &["The largest owners: own_model.py:7 softmax 1.50 GiB (28%), own_model.py:12 forward 1.41 GiB (26%)"]);
    has(
        &out,
        // Seamalloc takes less, and native, which takes no change, 5%: it is named where it is 2% more at most.
        &[
            "Next: Reduce the batch size by at least 3%, and set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; or recompute",
        ],
    );
    has(&out, &["oom-others stitch 5.34 too much"]);
    let line = lines(&[&args[..], &["--json"]].concat(), 3).remove(0);
    assert_eq!((&line["peak_live"], &line["refused"]), (&line["verdict"]["figures"]["live"], &(256 << 20).into()));
    let owners = lines(&["report", &file, "--json"], 3).remove(0);
    assert_eq!((&owners["peak_live"], &owners["owners"]["live"]), (&line["peak_live"], &line["peak_live"]));
    // On a device with room the table has what the verdict says, and the exit code too.
    let line =
        lines(&["whatif", &file, "--strategy", "stitch", "--quick", "--json", "--device", "sim:h100"], 0).remove(0);
    for strategy in ["native", "expandable"] {
        assert_eq!(line[format!("{strategy}_reserved")], line["verdict"]["figures"][strategy]["reserved"]);
    }
    assert_eq!(line["peak_reserved"], line["verdict"]["figures"]["stitch"]["reserved"]);
    assert_eq!((&line["verdict"]["kind"], &line["verdict"]["runs"]), (&"others".into(), &true.into()));
}

/// With chunks that are split it runs on 2,400 MiB, and not with `split:off`: the exit code is that of the verdict, not of a row.
#[test]
fn the_exit_code_agrees_with_the_verdict() {
    let file = snapshot("optimizer-loop.snapshot.pickle.gz");
    let args = ["whatif", &file, "--quick", "--device", "sim:h200,capacity=2400MiB", "--strategy", "stitch"];
    has(&words(&args), &["seamalloc helps: it runs the job on 2.34 GiB", "stitch 2.30 2.34 98.10%"]);
    let out = words(&[&args[..], &["--conf", "split:off"]].concat());
    has(&out, &["with split:last_resort it runs the job on 2.34 GiB", "stitch 2.30 too much"]);
    has(&out, &["SEAMALLOC_CONF=split:last_resort python -m seamalloc run train.py."]);
    let less = ["whatif", &file, "--quick", "--device", "sim:h200,capacity=2GiB", "--strategy", "stitch"];
    has(&words_of(&stdout(&less, 3)), &["Too much is live: 2.30 GiB of 2.00 GiB", "Reduce the batch size by at least"]);
    assert_eq!(lines(&[&less[..], &["--json"]].concat(), 3)[0]["verdict"]["runs"], false);
}
