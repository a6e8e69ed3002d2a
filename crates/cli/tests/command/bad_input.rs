//! Files that are no traces, or wrong ones: exit code 1, and an error that names the file, the place and what was
//! expected.

use super::{Folder, complaint, has, run, seamalloc, stdout};

#[test]
fn wrong_lines_are_named() {
    let folder = Folder::new();
    for (text, parts) in [
        ("a,1,x,0\n", &["line 1", "\"x\"", "a size in bytes"] as &[_]),
        ("a,1,512,0\na,2,512\n", &["line 2", "too few fields", "a stream in hex"]),
        ("a,1,512,0,7\n", &["line 1", "fewer fields"]),
        ("a,1,512,0\nz,1\n", &["line 2", "\"z,1\"", "a, r or f"]),
        ("a,1,512,0\nr,2\n", &["line 2", "block 2", "an earlier allocation was expected"]),
        ("a,1,512,0\nr,1\nr,1\n", &["line 3", "block 1", "freed a second time"]),
        ("a,1,512,0\nr,1\nf,1\nr,1\n", &["line 4", "block 1", "no such block is live"]),
        ("a,1,512,0\nf,1\n", &["line 2", "block 1", "its free_requested was expected"]),
        ("a,1,512,0\na,1,512,0\n", &["line 2", "block 1", "must be freed first"]),
        ("a,1,-5,0\n", &["line 1", "\"-5\"", "a decimal number from 0"]),
        ("a,1,99999999999999999999,0\n", &["line 1", "\"99999999999999999999\"", "18446744073709551615"]),
        ("a,1,9999999999999999999,0\n", &["line 1", "block 1", "at most 140737488355328 bytes"]),
        ("a,1,0,0\n", &["line 1", "size 0", "at least 1 byte"]),
        ("# {\"job\": \na,1,512,0\n", &["line 1", "a JSON object"]),
    ] {
        let file = folder.file("trace.csv", text.as_bytes());
        for command in ["replay", "fit"] {
            let error = complaint(&[command, &file], 1);
            has(&error, &[&file]);
            has(&error, parts);
        }
    }
}

#[test]
fn damaged_and_strange_files_are_named() {
    let folder = Folder::new();
    run(&["convert", "comb", &folder.name("whole.csv.gz"), "--steps", "1"], 0);
    run(&["convert", "comb", &folder.name("whole.seam"), "--steps", "1"], 0);
    let (gzip, compact) =
        (std::fs::read(folder.path("whole.csv.gz")).unwrap(), std::fs::read(folder.path("whole.seam")).unwrap());
    let mut flipped = compact.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let noise: Vec<u8> = (0..1000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 | 0x81).collect();
    for (name, content, parts) in [
        ("cut.csv.gz", &gzip[..gzip.len() / 2], &["line ", "damaged or ends early"] as &[_]),
        ("cut.seam", &compact[..compact.len() / 2], &["byte 24", "damaged or ends early"]),
        ("head.seam", &compact[..9], &["byte 9", "a header of 24 bytes"]),
        ("flipped.seam", &flipped, &["damaged"]),
        ("empty.csv", b"", &["the file is empty (0 bytes)", "write the snapshot again"]),
        ("buffers.csv", b"id,lower,upper,size\na,0,2,2\n", &["a csv of buffers", "`seamalloc plan` reads"]),
        ("heads.csv", b"id,size\n1,2\n", &["no known format", "expected a csv trace"]),
        ("letters.csv", b"a,b,c\n", &["line 1", "\"a,b,c\"", "no other form of csv is known"]),
        ("none.csv", b"# {}\n", &["holds no allocation", "at least one"]),
        ("picture.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", &["\\x89PNG", "no known format", "PyTorch memory snapshot"]),
        ("noise", &noise, &["no known format", "expected a csv trace"]),
        ("text", b"hello world", &["\"hello wo\"", "expected a csv trace"]),
        ("list.pickle", b"\x80\x02]q\x00K\x01a.", &["found a list", "segments and device_traces"]),
        ("other.pickle", b"\x80\x02}q\x00X\x01\0\0\0aK\x01s.", &["a dict without", "segments and device_traces"]),
        (
            "cut.pickle",
            b"\x80\x02}q\x00X\x08\0\0\0segm",
            &["byte 5", "a file that is cut off", "expected a whole pickle"],
        ),
        ("other.json", b"{\"a\": 1}", &["line 1, column 8", "segments and device_traces"]),
        (
            "cut.json",
            b"{\"segments\": [",
            &["line 1, column 14", "a file that is cut off", "segments and device_traces"],
        ),
        ("none.json", b"{\"segments\":[],\"device_traces\":[[]]}", &["no history", "_record_memory_history"]),
        (
            "none.pickle",
            b"\x80\x02}q\x00(X\x08\0\0\0segmentsq\x01]q\x02X\x0d\0\0\0device_tracesq\x03]q\x04u.",
            &["no history", "_record_memory_history"],
        ),
    ] {
        let file = folder.file(name, content);
        let error = complaint(&["replay", &file], 1);
        has(&error, &[&file]);
        has(&error, parts);
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn a_pickle_that_calls_functions_is_not_executed() {
    let folder = Folder::new();
    let marker = folder.name("marker");
    let call = format!("touch {marker}");
    let mut pickle =
        b"\x80\x02}q\x00(X\x08\0\0\0segmentsq\x01]q\x02X\x0d\0\0\0device_tracesq\x03]q\x04cposix\nsystem\nX".to_vec();
    pickle.extend((call.len() as u32).to_le_bytes());
    pickle.extend(call.as_bytes());
    pickle.extend(b"\x85Rau.");
    let file = folder.file("evil.pickle", &pickle);
    let error = complaint(&["replay", &file], 1);
    has(&error, &[&file, "byte 47", "GLOBAL", "not executed"]);
    assert!(!folder.path("marker").exists());
}

#[test]
fn what_is_no_file_is_said_to_be_none() {
    let folder = Folder::new();
    let missing = folder.name("missing.csv");
    has(&complaint(&["replay", &missing], 1), &[&missing, "no such file", "stress --list"]);
    has(&complaint(&["convert", &missing, &folder.name("out.seam")], 1), &[&missing, "no such file"]);
    has(&complaint(&["replay", "op1.3b-R"], 1), &["op1.3b-R", "did you mean `opt1.3b-R`?"]);
    has(&complaint(&["fit", "commb"], 1), &["commb", "did you mean `comb`?"]);
    let place = folder.name("");
    has(&complaint(&["replay", &place], 1), &[&place, "directory", "expected a trace file"]);
    assert!(folder.content().is_empty());
}

/// Every command that takes several inputs names those that are broken, processes the others, and ends with 4.
#[test]
fn of_several_inputs_the_broken_ones_are_named_and_the_others_processed() {
    let folder = Folder::new();
    let good = folder.file("good.csv", b"a,1,4194304,0\nr,1\nf,1\n");
    let bad = folder.file("bad.csv", b"a,1,x,0\n");
    let none = folder.file("none.json", b"{\"segments\":[],\"device_traces\":[[]]}");
    let missing = folder.name("missing.csv");
    let page = folder.name("page.html");
    let buffers = folder.file("buffers.csv", b"id,lower,upper,size\n1,0,9,64\n");
    let graph = folder.file("graph.json", super::order::TWO.as_bytes());
    let program = folder.file("program.json", super::evict::LIST.as_bytes());
    let commands: [(&[&str], &str); 11] = [
        (&["replay"], &good),
        (&["whatif", "--quick"], &good),
        (&["report", "--quick", "-o", &page], &good),
        (&["fit", "--strategy", "stitch"], &good),
        (&["fit", "--strategy", "stitch", "--times-live", "2"], &good),
        (&["pinned"], &good),
        (&["study", "chunks", "--sizes", "2"], &good),
        (&["study", "lag", "--lags", "0"], &good),
        (&["plan"], &buffers),
        (&["order", "--method", "program"], &graph),
        (&["evict", "--scheme", "lru", "--budget", "0.9", "--strategy", "counted"], &program),
    ];
    for (command, good) in commands {
        let several = [command, &[bad.as_str(), good, &none, &missing]].concat();
        let ended = run(&several, 4);
        let errors = String::from_utf8_lossy(&ended.get_output().stderr).into_owned();
        has(&errors, &["bad.csv", "none.json", "missing.csv", "3 of 4 inputs could not be processed; the others were"]);
        let shown = String::from_utf8_lossy(&ended.get_output().stdout).into_owned();
        has(
            &shown,
            &[if command[0] == "report" {
                "page.html: "
            } else {
                std::path::Path::new(good).file_stem().unwrap().to_str().unwrap()
            }],
        );
        let errors = complaint(&[command, &[bad.as_str(), &missing]].concat(), 1);
        has(&errors, &["bad.csv", "missing.csv", "2 of 2 inputs could not be processed\n"]);
    }
    // What is broken comes before what ran out of memory, which is said too.
    let ended = run(&["replay", "--strategy", "stitch", "--device", "sim:h200,capacity=2MiB", &bad, &good], 4);
    has(&String::from_utf8_lossy(&ended.get_output().stderr), &["the run did not have enough memory", "1 of 2 inputs"]);
    // What is broken is known before anything runs; a mistake of the command line ends it.
    has(&complaint(&["replay", "--device", "sim:nothing", &bad, &good], 2), &["sim:nothing"]);
}

/// A name may hold anything: a terminal obeys none of it, and a line stays a line.
#[cfg(unix)]
#[test]
fn names_with_control_characters_reach_no_terminal() {
    let folder = Folder::new();
    let name = "x\u{1b}]0;title\u{7}\u{9b}31m\u{202e}\ny";
    let good = folder.file(&format!("{name}.csv"), b"a,1,4194304,0\nr,1\nf,1\n");
    let bad = folder.file(&format!("{name}-bad.csv"), b"a,1,x,0\n");
    let missing = folder.name(&format!("{name}-missing.csv"));
    let page = folder.name(&format!("{name}.html"));
    let commands: [&[&str]; 8] = [
        &["replay", &good, &bad, &missing],
        &["replay", "--device", "sim:h200,capacity=2MiB", &good],
        &["whatif", "--quick", &good],
        &["whatif", "--quick", "--json", &good],
        &["report", "--quick", &good, "-o", &page],
        &["pinned", &good],
        &["replay", "--device", name, &good],
        &["plan", &good],
    ];
    for command in commands {
        let ended = seamalloc(command).env("SEAMALLOC_LOG", "debug").assert();
        let output = ended.get_output();
        for (text, which) in [(&output.stdout, "stdout"), (&output.stderr, "stderr")] {
            let text = String::from_utf8(text.clone()).unwrap();
            let obeyed = |ch: char| (ch.is_control() && ch != '\n') || ch == '\u{202e}';
            assert!(!text.contains(obeyed), "{command:?}, {which}: {text:?}");
        }
        let all = [output.stdout.clone(), output.stderr.clone()].concat();
        let all = String::from_utf8(all).unwrap();
        assert!(all.contains("\\u009b31m\\u202e"), "{command:?}: {all}");
    }
    // The lines of JSON say the name as it is.
    let line = &super::lines(&["whatif", "--json", "--quick", &good], 0)[0];
    assert_eq!(line["trace"], name);
    // A name that is no UTF-8 is shown as far as it is.
    let other = folder.path("").join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"rank-1\xff.csv"));
    std::fs::copy(&good, &other).unwrap();
    let ended = seamalloc(&["replay", "--strategy", "stitch"]).arg(other).assert().success();
    has(&String::from_utf8_lossy(&ended.get_output().stdout), &["rank-1\u{fffd}"]);
    let picture = folder.name("picture.svg");
    run(&["replay", &good, "--svg", &picture], 0);
    has(&std::fs::read_to_string(&picture).unwrap(), &["\\u001b]0;title"]);
}

#[test]
fn no_trace_at_all_says_what_to_give() {
    for command in ["replay", "fit"] {
        let error = complaint(&[command], 2);
        has(&error, &["no trace is given", ".pickle", ".csv", ".seam", "opt1.3b-R"]);
    }
    let error = complaint(&[], 2);
    has(&error, &["Usage: seamalloc", "stress", "replay", "Exit codes"]);
    seamalloc(&["--help"]).assert().code(0).stderr("");
    has(&stdout(&["--help"], 0), &["Exit codes: 0", "1 bad input", "2 wrong command line", "3 a run"]);
}
