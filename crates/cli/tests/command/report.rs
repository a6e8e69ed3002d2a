//! `seamalloc report`: a page, and what is said where there is none.

use super::{Folder, complaint, has, run, stdout};

const CSV: &[u8] = b"a,1,104857600,0\na,2,52428800,0\nr,2\nf,2\na,3,73400320,7\n";

#[test]
fn the_page_needs_nothing_beside_itself() {
    let folder = Folder::new();
    let (file, page) = (folder.file("job.csv", CSV), folder.name("page.html"));
    let out = stdout(&["report", &file, "-o", &page], 0);
    has(&out, &[&page, "KiB. Open it in a browser: file:///"]);
    let html = std::fs::read_to_string(folder.path("page.html")).unwrap();
    assert!(html.starts_with("<!DOCTYPE html>"));
    has(
        &html,
        &[
            "<title>job · seamalloc report</title>",
            "default-src 'none'",
            "uPlot",
            "Permission is hereby granted, free of charge",
            "id=\"course-0-3\"",
            "id=\"map-0-3\"",
        ],
    );
    for fetched in ["<link rel=\"stylesheet", " src=", "@import", "url(", "fetch(", "XMLHttpRequest"] {
        assert!(!html.contains(fetched), "{fetched}");
    }
    for left in ["<!--data-->", "/*script*/", "/*style*/", "/*library*/"] {
        assert!(!html.contains(left), "{left}");
    }
}

#[test]
fn the_way_it_was_made_is_told_without_folders() {
    let folder = Folder::new();
    let (file, page) = (folder.file("job.csv", CSV), folder.name("page.html"));
    run(&["report", &file, "--quick", "--strategy", "stitch", "--output", &page], 0);
    let html = std::fs::read_to_string(folder.path("page.html")).unwrap();
    has(&html, &["seamalloc report job.csv --quick --strategy stitch --output page.html"]);
    assert!(!html.contains(folder.path("").to_str().unwrap()));
}

/// The address of a page is understood by browsers whatever its folder is called.
#[test]
fn a_page_is_told_by_its_address() {
    let folder = Folder::new();
    let (file, page) = (folder.file("job.csv", CSV), folder.name("größe 100%.html"));
    let out = stdout(&["report", &file, "--quick", "--strategy", "stitch", "-o", &page], 0);
    has(&out, &[&page, "Open it in a browser: file:///", "/gr%C3%B6%C3%9Fe%20100%25.html"]);
}

/// A snapshot of a training step, with C++ frames before those of Python.
const SNAPSHOT: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../trace/tests/data/snapshots/train-all.snapshot.pickle.gz");

#[test]
fn owners_are_told_in_json_with_a_page_or_without() {
    let owners = |more: &[&str]| {
        let line = stdout(&[&["report", SNAPSHOT, "--json"], more].concat(), 0);
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line["peak_live"], line["owners"]["live"]);
        line["owners"].clone()
    };
    let found = owners(&[]);
    let first = &found["rows"][0];
    assert_eq!((&first["name"], &first["line"]), (&"own_model.py:12 forward".into(), &12.into()));
    assert!(first["stacks"][0]["frames"].as_array().unwrap().len() > 20, "{first}");
    let shares = |of: &serde_json::Value| of["share"].as_f64().unwrap();
    let rows: f64 = found["rows"].as_array().unwrap().iter().map(shares).sum();
    assert!((rows + shares(&found["other"]) + shares(&found["not_recorded"]) - 1.0).abs() < 1e-9, "{found}");

    let found = owners(&["--library", "own_model.py"]);
    assert_eq!(found["rows"][0]["name"], "snapshots.py:15 train_step");

    let folder = Folder::new();
    let (file, page) = (folder.file("job.csv", CSV), folder.name("page.html"));
    let line = stdout(&["report", &file, "--json", "--quick", "-o", &page], 0);
    let mut line: serde_json::Value = serde_json::from_str(&line).unwrap();
    let verdict = line.as_object_mut().unwrap().remove("verdict").unwrap();
    assert_eq!(line.to_string(), "{\"owners\":null,\"peak_live\":178257920,\"trace\":\"job\"}");
    assert_eq!((&verdict["kind"], &verdict["figures"]["live"]), (&"pytorch_is_enough".into(), &178_257_920.into()));
    assert!(folder.path("page.html").exists());
}

#[test]
fn maps_are_of_the_strategies_that_are_named() {
    let folder = Folder::new();
    let (file, page) = (folder.file("job.csv", CSV), folder.name("page.html"));
    run(&["report", &file, "--quick", "--map", "expandable", "-o", &page], 0);
    let html = std::fs::read_to_string(folder.path("page.html")).unwrap();
    let maps: Vec<_> = (0..4).filter(|index| html.contains(&format!("id=\"map-0-{index}\""))).collect();
    assert_eq!(maps, [1], "of caching, expandable, gmlake, stitch");
    let said = complaint(&["report", &file, "--strategy", "stitch", "--map", "caching", "-o", &page], 2);
    has(&said, &["--map caching", "only strategies that run have a map: stitch"]);
}

#[test]
fn a_run_without_enough_memory_has_its_page_too() {
    let folder = Folder::new();
    let (file, page) = (folder.file("job.csv", CSV), folder.name("page.html"));
    let device = "sim:h200,capacity=120MiB";
    let ended = run(&["report", &file, "--device", device, "--strategy", "caching,stitch", "-o", &page], 3);
    let errors = String::from_utf8(ended.get_output().stderr.clone()).unwrap();
    has(&errors, &["the job needs more memory than it has, with every allocator that was tried"]);
    assert!(folder.content().contains(&"page.html".to_owned()));
}

#[test]
fn a_layout_without_history_has_words_and_a_page() {
    let folder = Folder::new();
    let snapshot = super::whatif::layout(&serde_json::json!([])).to_string();
    let (file, page) = (folder.file("oom.json", snapshot.as_bytes()), folder.name("page.html"));
    let out = stdout(&["report", &file, "-o", &page], 0);
    has(&out, &["oom, device 0: Fragmentation: 90.00 MiB free in 3 holes", "page.html: ", "file://"]);
    let html = std::fs::read_to_string(folder.path("page.html")).unwrap();
    has(
        &html,
        &[
            "<title>oom, device 0 · seamalloc report</title>",
            "<h2>Fragmentation: 90.00 MiB free",
            "<strong>Next: </strong>",
        ],
    );
    has(&html, &["<th scope=\"col\">stream</th>", "<td>0.12</td>"]);
    for left in ["<script", "<!--", "/*style*/", " src=", "url("] {
        assert!(!html.contains(left), "{left}");
    }
    // Beside a job, whose page is made.
    let job = folder.file("job.csv", CSV);
    let ended = run(&["report", &file, &job, "--quick", "-o", &page], 0);
    let out = String::from_utf8(ended.get_output().stdout.clone()).unwrap();
    has(&out, &["page.html: ", "Fragmentation: "]);
    has(&String::from_utf8_lossy(&ended.get_output().stderr), &["a snapshot without a history has one by itself"]);
}

/// The part of `seamalloc fleet --json` that the command reads.
const FLEET: &str = r#"{"job": {"strategies": {}, "sentences": ["<b>"]}, "ranks": [{"strategies": {}}], "broken": []}"#;

#[test]
fn a_whole_job_has_a_page_too() {
    let folder = Folder::new();
    let (file, page) = (folder.file("fleet.json", FLEET.as_bytes()), folder.name("job.html"));
    has(&stdout(&["report", "--fleet", &file, "-o", &page], 0), &[&page, "KiB"]);
    let html = std::fs::read_to_string(folder.path("job.html")).unwrap();
    has(&html, &["<title>job · seamalloc fleet</title>", "default-src 'none'", "uPlot", "id=\"fleet\""]);
    for fetched in ["<link rel=\"stylesheet", " src=", "@import", "url(", "fetch(", "XMLHttpRequest"] {
        assert!(!html.contains(fetched), "{fetched}");
    }
    for left in ["<!--data-->", "/*script*/", "/*style*/", "/*library*/"] {
        assert!(!html.contains(left), "{left}");
    }
}

#[test]
fn what_is_no_job_has_none() {
    let folder = Folder::new();
    let page = folder.name("job.html");
    for (name, content) in [("list.json", "[]"), ("job.csv", "a,1,512,0"), ("old.json", "{\"job\": {}}")] {
        let file = folder.file(name, content.as_bytes());
        has(&complaint(&["report", "--fleet", &file, "-o", &page], 1), &["seamalloc fleet --json", name]);
    }
    has(&complaint(&["report", "--fleet", &folder.name("none.json"), "-o", &page], 1), &["none.json"]);
    for more in [&["moe-R"][..], &["--quick"], &["--strategy", "stitch"]] {
        has(&complaint(&[&["report", "--fleet", "x", "-o", &page], more].concat(), 2), &["cannot be used with"]);
    }
    assert!(!folder.path("job.html").exists());
}

#[test]
fn what_cannot_be_shown_is_said_before_anything_runs() {
    let folder = Folder::new();
    let file = folder.file("job.csv", CSV);
    let page = folder.name("page.html");
    has(&complaint(&["report", &file], 2), &["--output <FILE>"]);
    has(&complaint(&["report", "-o", &page], 2), &["no trace is given"]);
    has(&complaint(&["report", &file, "-o", &page, "--device", "cuda:0"], 2), &["simulated device"]);
    has(&complaint(&["report", &file, "-o", &page, "--svg", "x.svg"], 2), &["report writes a page", "no --svg"]);
    has(&complaint(&["report", &folder.name("none.csv"), "-o", &page], 1), &["no such file"]);
    let nowhere = folder.name("no/such/folder/page.html");
    has(&complaint(&["report", &file, "-o", &nowhere], 1), &["cannot write", "no/such/folder"]);
    assert_eq!(folder.content(), ["job.csv"]);
}

#[test]
fn the_verdict_stands_on_the_page_and_before_its_name() {
    let folder = Folder::new();
    let (file, page) = (folder.file("job.csv", CSV), folder.name("page.html"));
    let args = ["report", &file, "--quick", "--device", "sim:h200,capacity=1GiB", "-o", &page];
    let out = stdout(&args, 0);
    has(
        &out,
        &["job: Nothing to do: with native, ", " of 1.00 GiB stay free.", "Next: Keep PyTorch's allocator as it is."],
    );
    assert!(out.find("Next: ").unwrap() < out.find("page.html").unwrap(), "{out}");
}
