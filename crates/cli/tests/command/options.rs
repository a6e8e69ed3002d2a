//! Command lines that are wrong: exit code 2, and what would be right. Places that cannot be written: exit code 1.

use super::{Folder, complaint, has, lines, stdout};

#[test]
fn wrong_options_say_what_is_expected() {
    for (options, parts) in [
        ("--device sim:h200,capacity=0", &["0 bytes", "2097152 (2MiB)"] as &[_]),
        ("--device sim:h200,capacity=1MiB", &["1048576 bytes", "2097152 (2MiB)"]),
        ("--device sim:h200,capacity=16000000TiB", &["17592186044416 (16TiB)"]),
        ("--device sim:h200,capacity=16777216TiB", &["64 bits"]),
        ("--device sim:h200,capacity=-1", &["`-1`", "negative", "80GiB"]),
        ("--device sim:h200,capacity=lots", &["`lots`", "no number", "80GiB"]),
        ("--device sim:h200,capacity=8GX", &["`8GX`", "unit", "80GiB"]),
        ("--device sim:h200,capacity", &["`capacity`", "Known: capacity"]),
        ("--device sim:h200,capcity=1GiB", &["`capcity`", "did you mean `capacity`?"]),
        ("--device sim:h201", &["`h201`", "did you mean `h200`?", "h100"]),
        ("--device gpu", &["`gpu`", "sim:h200"]),
        ("--device cuda:x", &["cuda:x", "write cuda:0"]),
        ("--device host:4", &["it has no unit", "80GiB"]),
        ("--device host:1MiB", &["1048576 bytes", "2MiB"]),
        ("--strategy cachng", &["`cachng`", "`expandable`", "did you mean `caching`?"]),
        ("--strategy caching,zzz", &["`zzz`", "`caching`", "`expandable`"]),
        ("--conf strategy:expandible", &["`expandible`", "did you mean `expandable`?"]),
        ("--conf max_split_sizemb:512", &["`max_split_sizemb`", "did you mean `max_split_size_mb`?"]),
        ("--conf max_split:512", &["`max_split`", "did you mean `max_split_size_mb`?"]),
        ("--conf zzz:512", &["`zzz`", "there are", "`expandable_segments`"]),
        ("--conf max_split_size_mb:x", &["`max_split_size_mb`", "`x`", "whole number of MiB"]),
        ("--conf max_split_size_mb", &["key:value"]),
        ("--conf expandable_segments:true", &["`true`", "`True` or `False`"]),
        ("--passes 0", &["'0'", "from 1 to 10000"]),
        ("--passes many", &["'many'", "from 1 to 10000"]),
        ("--lag soon", &["'soon'", "whole number, 0 or more"]),
        ("--lag -1", &["'-1'", "whole number, 0 or more"]),
        ("--steps 0", &["'0'", "from 1 to 100000"]),
        ("--steps -3", &["'-3'", "from 1 to 100000"]),
        ("--seed x", &["'x'", "whole number, 0 or more"]),
        ("--color sometimes", &["'sometimes'", "auto, always, never"]),
        ("--json --svg a.svg", &["--json", "--svg"]),
    ] {
        let (name, _) = options.split_once(' ').unwrap();
        for command in ["stress", "replay"] {
            let args: Vec<_> = [command, "comb"].into_iter().chain(options.split(' ')).collect();
            let error = complaint(&args, 2);
            has(&error, parts);
            has(&error, &[name]);
        }
    }
}

#[test]
fn subcommands_of_the_python_package_are_named_with_the_way_to_them() {
    for name in ["run", "fleet"] {
        let there = format!("python -m seamalloc {name}");
        for args in [&[name][..], &[name, "--help"], &[name, "a file"], &["help", name]] {
            let error = complaint(args, 2);
            has(&error, &[&format!("`{name}`"), &there, "pip install ./ffi/python"]);
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        has(&stdout(&["--help"], 0), &[&there]);
    }
    let error = complaint(&["cliff", "job.pickle", "--passes", "3"], 2);
    has(&error, &["`cliff` was removed", "seamalloc fit TRACE --times-live"]);
    // Any other mistake gets a suggestion.
    has(&complaint(&["fleets"], 2), &["unrecognized subcommand 'fleets'"]);
}

#[test]
fn unknown_workloads_get_a_suggestion_and_the_list() {
    has(&complaint(&["stress", "commb"], 2), &["`commb`", "stress --list", "did you mean `comb`?"]);
    has(&complaint(&["stress", "opt1.3b-r"], 2), &["did you mean `opt1.3b-R`?"]);
    has(&complaint(&["stress", "comb", "recordd"], 2), &["`recordd`", "did you mean `recorded`?"]);
    let error = complaint(&["stress", "zzzzzzzz"], 2);
    has(&error, &["`zzzzzzzz`", "stress --list"]);
    assert!(!error.contains("did you mean"), "{error}");
    has(&complaint(&["strss"], 2), &["strss", "stress"]);
    has(&complaint(&["completions", "fsh"], 2), &["fsh", "bash", "zsh"]);
}

#[test]
fn more_than_can_be_generated_is_refused_before_anything_is_printed() {
    has(&complaint(&["stress", "comb", "--steps", "100000"], 2), &["comb", "33554432 events", "fewer steps"]);
}

#[test]
fn fit_finds_the_capacity_and_takes_none() {
    let error = complaint(&["fit", "comb", "--device", "sim:h100,capacity=1GiB"], 2);
    has(&error, &["looks for the capacity itself", "sim:h100"]);
}

#[test]
fn a_real_device_is_for_replays_and_keeps_its_own_time() {
    has(&complaint(&["replay", "comb", "--device", "cuda:0", "--lag", "5"], 2), &["--lag", "simulated"]);
    has(&complaint(&["fit", "comb", "--device", "cuda:0"], 2), &["fit", "sim:h200"]);
    has(&complaint(&["replay", "comb", "--device", "host", "--lag", "5"], 2), &["--lag", "simulated"]);
    has(&complaint(&["fit", "comb", "--device", "host:4GiB"], 2), &["fit", "sim:h200"]);
    has(&complaint(&["whatif", "comb", "--device", "host:4GiB"], 2), &["simulated device"]);
    // No machine has it, whether there is a driver or not.
    let error = complaint(&["replay", "comb", "--device", "cuda:4294967295"], 1);
    assert!(error.contains("no NVIDIA driver found") || error.contains("cuda:4294967295"), "{error}");
}

#[test]
fn convert_writes_whole_files_or_none() {
    let folder = Folder::new();
    for to in ["out.foo", "out.pickle.gz", "out", ""] {
        let error = complaint(&["convert", "comb", &folder.name(to), "--steps", "1"], 2);
        has(&error, &["<TO>", ".seam, .csv, .csv.gz, .pickle"]);
    }
    let place = folder.name("no/such/folder/out.seam");
    has(&complaint(&["convert", "comb", &place, "--steps", "1"], 1), &["cannot write", &place]);
    assert!(folder.content().is_empty(), "{:?}", folder.content());

    std::fs::create_dir(folder.path("folder.seam")).unwrap();
    has(&complaint(&["convert", "comb", &folder.name("folder.seam"), "--steps", "1"], 1), &["cannot write"]);
    assert_eq!(folder.content(), ["folder.seam"]);

    let kept = folder.file("kept.seam", b"what was there");
    let bad = folder.file("bad.csv", b"a,1,512,0\nr,2\n");
    has(&complaint(&["convert", &bad, &kept], 1), &["bad.csv, line 2"]);
    assert_eq!(std::fs::read(&kept).unwrap(), b"what was there");
}

/// The picture comes last; that it cannot be written must not come last.
#[test]
fn an_unwritable_picture_is_found_before_the_run() {
    let folder = Folder::new();
    let place = folder.name("no/such/folder/out.svg");
    for command in ["stress", "replay", "fit"] {
        has(&complaint(&[command, "comb", "--svg", &place], 1), &["cannot write", &place]);
    }
    assert!(folder.content().is_empty());
    let picture = folder.file("old.svg", b"old");
    complaint(&["replay", &folder.name("missing"), "--svg", &picture], 1);
    assert_eq!(std::fs::read(&picture).unwrap(), b"old");
}

/// The picture would be SVG, whatever the name says.
#[test]
fn a_picture_that_is_no_svg_is_refused() {
    let folder = Folder::new();
    let place = folder.name("x.png");
    let buffers = folder.file("small.csv", b"id,lower,upper,size\na,0,2,2\n");
    for command in [
        vec!["stress", "comb"],
        vec!["fit", "comb"],
        vec!["fit", "comb", "--times-live"],
        vec!["plan", &buffers],
        vec!["evict", "linear"],
        vec!["study", "chunks", "comb"],
    ] {
        let error = complaint(&[&command[..], &["--svg", &place]].concat(), 2);
        has(&error, &["--svg", &place, "expected a name that ends in .svg"]);
    }
    assert_eq!(folder.content(), ["small.csv"]);
}

#[test]
fn help_names_the_simulated_devices() {
    for command in [vec!["stress", "--help"], vec!["fit", "-h"], vec!["study", "chunks", "--help"]] {
        let text = stdout(&command, 0).split_whitespace().collect::<Vec<_>>().join(" ");
        has(
            &text,
            &["h200 (139 GiB)", "h100 (79 GiB)", "a100-40gb (40 GiB)", "l40s", "rtx4090", "b200", "costs of an H200"],
        );
    }
    for device in ["sim:h100", "sim:a100-80gb", "sim:a100-40gb", "sim:l40s", "sim:rtx4090", "sim:b200"] {
        let found = lines(&["replay", "resnet-multi", "--json", "--strategy", "stitch", "--device", device], 0);
        assert_eq!(found[0]["device"], device);
    }
}

/// The machine's own memory, of which a replay touches nothing: the same bytes and the same growth as on a simulated device of
/// that size, whatever the machine has.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[test]
fn a_trace_runs_on_host_memory_as_on_a_simulated_device() {
    let run = |device: &str| {
        let lines = lines(&["replay", "comb", "--steps", "1", "--json", "--device", device], 0);
        assert!(lines.len() == 4 && lines.iter().all(|line| line["device"] == device), "{lines:?}");
        let keys = ["strategy", "peak_live", "peak_reserved", "views_built", "mappings"];
        lines.iter().map(|line| keys.map(|key| line[key].clone())).collect::<Vec<_>>()
    };
    assert_eq!(run("host:80GiB"), run("sim:h200,capacity=80GiB"));
}

/// A family stands for its strategies, wherever strategies are named; what is named twice runs once.
#[test]
fn families_of_strategies_are_run_by_name() {
    let classic = ["exact", "buddy", "slab", "tiny"];
    let paddle = ["paddle-auto-growth", "paddle-naive-best-fit", "paddle-thread-local", "paddle-vmm"];
    let all: Vec<&str> = super::STRATEGIES.into_iter().chain(classic).chain(paddle).chain(["malloc-async"]).collect();
    let snapshot =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../trace/tests/data/snapshots/resnet-multi-wrapped.snapshot.pickle.gz");
    for (named, found) in [
        ("classic", classic.to_vec()),
        ("paddle", paddle.to_vec()),
        ("driver", vec!["malloc-async"]),
        ("main", super::STRATEGIES.to_vec()),
        ("all", all),
        ("slab,classic", vec!["slab", "exact", "buddy", "tiny"]),
    ] {
        let comb = ["comb", "--steps", "1"];
        for command in [
            &[&["stress"], &comb[..]].concat()[..],
            &[&["replay"], &comb[..]].concat(),
            &["whatif", snapshot, "--quick"],
        ] {
            let args: Vec<&str> = command.iter().copied().chain(["--json", "--strategy", named]).collect();
            let lines = lines(&args, 0);
            let ran: Vec<_> = lines.iter().map(|line| line["strategy"].as_str().unwrap()).collect();
            assert_eq!(ran, found, "{args:?}");
        }
    }
    has(&complaint(&["replay", "comb", "--strategy", "classics"], 2), &["unknown strategy `classics`"]);
    has(&complaint(&["replay", "comb", "--strategy", "planned"], 2), &["strategy `planned` was removed", "`stitch`"]);
}
