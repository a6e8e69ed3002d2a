//! `seamalloc plan`: what is planned, by which method, and what it says where it cannot.

use super::{Folder, complaint, has, lines, run, snapshot, stdout};
use serde_json::Value;

const KEYS: [&str; 6] = ["bound", "input", "method", "optimal", "peak", "seconds"];
const METHODS: [&str; 6] = ["first-fit", "decreasing-size", "chainer", "annealing", "exact", "portfolio"];

/// First fit needs 10 for these, since `a` keeps `b` from the ground. The least is 8.
const BUFFERS: &str = "id,lower,upper,size\na,0,2,2\nb,1,4,2\nc,2,6,3\nd,3,6,3\n";

/// The bytes of a column of a csv, by the first column.
fn column(text: &str, name: &str) -> Vec<u64> {
    let mut rows = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let at = rows.next().unwrap().iter().position(|column| *column == name).unwrap();
    rows.map(|row| row[at].parse().unwrap()).collect()
}

#[test]
fn every_method_has_a_line_with_the_documented_keys() {
    let folder = Folder::new();
    let file = folder.file("small.csv", BUFFERS.as_bytes());
    let args = ["plan", &file, "--json", "--time-limit", "1", "--method", &METHODS.join(",")];
    let found = lines(&args, 0);
    assert_eq!(found.iter().map(|line| line["method"].as_str().unwrap()).collect::<Vec<_>>(), METHODS);
    for line in &found {
        assert_eq!(line.as_object().unwrap().keys().collect::<Vec<_>>(), KEYS);
        assert_eq!((line["input"].as_str(), line["bound"].as_u64()), (Some("small"), Some(8)));
        assert!(line["peak"].as_u64() >= Some(8) && line["optimal"].is_boolean() && line["seconds"].is_f64(), "{line}");
        assert_eq!(line["optimal"] == true, line["peak"] == 8, "{line}");
    }
    assert_eq!((found[0]["peak"].as_u64(), found[0]["optimal"].as_bool()), (Some(10), Some(false)));
    assert!(found[4..].iter().all(|line| line["optimal"] == true), "{found:?}");
    let default = lines(&["plan", &file, "--json"], 0);
    assert_eq!(default.len(), 1);
    assert_eq!((default[0]["method"].as_str(), default[0]["peak"].as_u64()), (Some("portfolio"), Some(8)));
}

#[test]
fn the_table_says_the_same() {
    let folder = Folder::new();
    let file = folder.file("small.csv", BUFFERS.as_bytes());
    let out = stdout(&["plan", &file, "--method", "first-fit,exact"], 0);
    has(&out, &["method", "optimal", "small", "first-fit", "10 B", "+25.00%", "8 B", "yes"]);
    assert_eq!(out.matches("small").count(), 1, "{out}");
    run(&["plan", &file], 0).stderr("");
}

#[test]
fn a_plan_is_written_and_drawn() {
    let folder = Folder::new();
    let file = folder.file("small.csv", BUFFERS.as_bytes());
    let (place, picture) = (folder.name("out.csv"), folder.name("out.svg"));
    run(&["plan", &file, "-o", &place, "--svg", &picture], 0);
    let written = std::fs::read_to_string(&place).unwrap();
    assert!(written.starts_with("id,lower,upper,size,offset\na,0,2,2,"), "{written}");
    let (sizes, offsets) = (column(&written, "size"), column(&written, "offset"));
    assert_eq!(offsets.iter().zip(&sizes).map(|(offset, size)| offset + size).max(), Some(8));
    let svg = std::fs::read_to_string(&picture).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    has(&svg, &["small: a plan of 8 B (portfolio)", "4 buffers", "address in bytes", "time"]);
    // What is written is an input too: its offsets are kept.
    let again = lines(&["plan", &place, "--json", "--method", "first-fit"], 0);
    assert_eq!((again[0]["peak"].as_u64(), again[0]["optimal"].as_bool()), (Some(8), Some(true)));
    assert_eq!(lines(&["compare", &jsonl(&folder, &again), &jsonl(&folder, &again), "--json"], 0).len(), 0);
}

fn jsonl(folder: &Folder, rows: &[Value]) -> String {
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    folder.file("rows.jsonl", text.as_bytes())
}

#[test]
fn an_iteration_of_a_trace_is_planned() {
    let folder = Folder::new();
    let place = folder.name("out.csv");
    let found = lines(&["plan", "opt1.3b-R", "--json", "--method", "first-fit,chainer", "-o", &place], 0);
    let [first_fit, chainer] = &found[..] else { panic!("{found:?}") };
    assert!(first_fit["peak"].as_u64() > first_fit["bound"].as_u64() && chainer["optimal"] == true, "{found:?}");
    let written = std::fs::read_to_string(&place).unwrap();
    let (sizes, offsets) = (column(&written, "size"), column(&written, "offset"));
    assert!(offsets.iter().chain(&sizes).all(|bytes| bytes.is_multiple_of(512)));
    assert_eq!(offsets.iter().zip(&sizes).map(|(offset, size)| offset + size).max(), chainer["peak"].as_u64());
    let out = stdout(&["plan", "opt1.3b-R", "--method", "chainer"], 0).replace("\n  ", " ");
    has(
        &out,
        &[
            "opt1.3b-R: 8 iterations that are alike in part",
            "2,757 requests",
            "What lives longer (weights, optimizer state, inputs that are prepared ahead) is not planned",
            "With it 27.58 GiB are live at most",
            "they are not told apart",
        ],
    );
    let loops = snapshot("optimizer-loop.snapshot.pickle.gz");
    let out = stdout(&["plan", &loops, "--method", "first-fit"], 0).replace("\n  ", " ");
    has(
        &out,
        &[
            "Planned are two in a row",
            "Two, because 200 requests of 1.03 GiB replace",
            "With it 2.30 GiB are live at most",
        ],
    );
    // The bound is what is live beside 590.47 MiB of weights.
    has(&out, &["1.72 GiB"]);
    let waits = stdout(&["plan", &snapshot("prefetch-2s.snapshot.pickle.gz"), "--method", "first-fit"], 0);
    has(&waits.replace("\n  ", " "), &["of the 3.84 GiB, 3.08 GiB are freed and still in use"]);
    // 5.96 GiB are live as the program sees it, and 48 MiB wait for streams; the inputs of two steps are prepared ahead.
    let ahead = stdout(&["plan", &snapshot("streams.snapshot.pickle.gz"), "--method", "first-fit"], 0);
    has(&ahead.replace("\n  ", " "), &["of the 6.00 GiB, 48.19 MiB are freed and still in use"]);
    let trace = folder.file("trace.csv", b"a,1,512,0\na,2,100,0\nr,1\nf,1\n");
    let out = stdout(&["plan", &trace], 0);
    has(&out, &["trace: nothing repeats, so the whole trace is planned: 2 requests", "1.00 KiB"]);
}

#[test]
fn a_capacity_ends_the_search_or_is_not_reached() {
    let folder = Folder::new();
    let file = folder.file("small.csv", BUFFERS.as_bytes());
    let with =
        |capacity, method| ["plan", &file, "--json", "--capacity", capacity, "--method", method].map(str::to_owned);
    let found = |args: [String; 7], code| lines(&args.each_ref().map(String::as_str), code).remove(0);
    assert!(found(with("1KiB", "portfolio"), 0)["peak"].as_u64() <= Some(1024));
    assert_eq!(found(with("8", "exact"), 0)["peak"], 8);
    // What needs more is printed, and the exit code says that it is too much.
    assert_eq!(found(with("8", "first-fit"), 3)["peak"], 10);
    let error = complaint(&["plan", &file, "--capacity", "7"], 3);
    has(&error, &["small", "capacity of 7 bytes", "peak load, 8 bytes"]);
}

#[test]
fn no_time_is_an_error_and_little_time_is_none() {
    let folder = Folder::new();
    let file = folder.file("small.csv", BUFFERS.as_bytes());
    for method in METHODS {
        let error = complaint(&["plan", &file, "--time-limit", "0", "--method", method], 1);
        has(&error, &["small", method, "no plan within 0 s"]);
    }
    // 300 buffers whose least peak nobody finds in this time.
    let mut rows = "id,lower,upper,size\n".to_owned();
    for id in 0..300_u64 {
        let (lower, length) = (id * 7919 % 1000, 1 + id * 104_729 % 400);
        rows.push_str(&format!("{id},{lower},{},{}\n", lower + length, 1000 + id * 15_485_863 % 9973));
    }
    let hard = folder.file("hard.csv", rows.as_bytes());
    for method in ["annealing", "exact", "portfolio"] {
        let line = lines(&["plan", &hard, "--json", "--time-limit", "0.3", "--method", method], 0).remove(0);
        assert!(line["seconds"].as_f64() < Some(5.0) && line["peak"].as_u64() >= line["bound"].as_u64(), "{line}");
        assert_eq!(line["optimal"] == true, line["peak"] == line["bound"], "{line}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    let folder = Folder::new();
    let file = folder.file("small.csv", BUFFERS.as_bytes());
    for (text, parts) in [
        ("id,lower,upper,size\na,0,2\n", &["line 2", "3 fields", "expected 4"][..]),
        ("id,lower,upper,size\na,0,2,x\n", &["line 2", "\"x\"", "a size in bytes"]),
        ("id,lower,upper,size\na,2,2,1\n", &["line 2", "buffer a", "an end behind the beginning"]),
        ("id,lower,upper,size\na,0,2,1\na,0,2,1\n", &["line 3", "buffer a", "twice"]),
        ("id,lower,upper\na,0,2\n", &["line 1", "no column size"]),
        ("id,lower,upper,size\n", &["holds no buffer"]),
        ("a,1,x,0\n", &["line 1", "\"x\"", "a size in bytes"]),
        ("id,lower,upper,size,offset\na,0,2,4,0\nb,1,3,4,2\n", &["offsets that the input gives", "a and b"]),
    ] {
        let file = folder.file("bad.csv", text.as_bytes());
        let error = complaint(&["plan", &file], 1);
        has(&error, parts);
        assert!(error.contains("bad") && error.lines().count() == 1, "{error}");
    }
    has(&complaint(&["plan", &folder.name("missing.csv")], 1), &["missing.csv", "no such file"]);
    has(&complaint(&["plan", "op1.3b-R"], 1), &["did you mean `opt1.3b-R`?"]);
    has(&complaint(&["plan", &file, "--svg", &folder.name("no/out.svg")], 1), &["cannot write"]);
    for (args, parts) in [
        (&["--method", "best"][..], &["no method is called `best`", "portfolio"][..]),
        (&["--time-limit", "-1"], &["expected seconds"]),
        (&["--time-limit", "soon"], &["expected seconds"]),
        (&["--capacity", "much"], &["`much` is not a size"]),
        (&["comb", "-o", "out.csv"], &["for one plan", "2 inputs"]),
    ] {
        has(&complaint(&[&["plan", &file], args].concat(), 2), parts);
    }
    has(&complaint(&["plan"], 2), &["Usage: seamalloc plan"]);
    has(&stdout(&["plan", "--help"], 0), &["What the columns say", "bound", "optimal", "docs/json.md"]);
}
