//! `seamalloc stress`: names, groups, seeds and steps.

use super::{has, lines, run, stdout};
use serde_json::Value;
use std::collections::BTreeSet;

fn names(args: &[&str]) -> Vec<String> {
    let all = [&["stress", "--json", "--strategy", "caching"], args].concat();
    lines(&all, 0).iter().map(|line| line["trace"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_list_names_everything_once() {
    let text = stdout(&["stress", "--list"], 0);
    let listed = lines(&["stress", "--list", "--json"], 0);
    // Long summaries go on in further lines.
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let mut seen = BTreeSet::new();
    for entry in &listed {
        let [name, group, summary] = ["name", "group", "summary"].map(|key| entry[key].as_str().unwrap());
        assert!(seen.insert(name), "{name} is there twice");
        assert!(entry["default"].is_boolean() && !summary.is_empty());
        let row = text.lines().find(|line| line.split_whitespace().next() == Some(name)).unwrap();
        has(row, &[group]);
        has(&joined, &[summary]);
    }
    let recorded = listed.iter().filter(|entry| entry["group"] == "recorded");
    assert_eq!(recorded.count(), 7);
    assert!(listed.iter().any(|entry| entry["default"] == false));
}

/// `gpt2xl-N` and `gpt2-xl-N` are told apart: in the list, and where the generated one is named.
#[test]
fn names_that_differ_in_dashes_are_told_apart() {
    let text = stdout(&["stress", "--list"], 0).split_whitespace().collect::<Vec<_>>().join(" ");
    has(&text, &["(generated: gpt2-xl-N)", "(recorded: gpt2xl-N)", "(recorded: opt1.3b-R)"]);
    let said = "seamalloc: `opt-1.3b-R` is generated; the recorded job is `opt1.3b-R`\n";
    run(&["stress", "opt-1.3b-R", "--steps", "1", "--strategy", "caching"], 0).stderr(said);
    run(&["replay", "opt-1.3b-R", "--steps", "1", "--strategy", "caching"], 0).stderr(said);
    run(&["stress", "opt1.3b-R", "comb", "--steps", "1", "--strategy", "caching"], 0).stderr("");
}

/// The last sentence is there where it is true, and says no more than that.
#[test]
fn the_closing_line_is_true() {
    let run = |more: &[&str]| stdout(&[&["stress", "comb", "--steps", "1", "--strategy", "caching"], more].concat(), 0);
    let line = "Reserved above live is of no use to the job";
    assert!(run(&[]).ends_with(&format!("{line}.\n")));
    assert!(run(&["--lag", "3"]).ends_with(&format!("{line}, or still read by another stream.\n")));
    let starved = ["stress", "comb", "--steps", "1", "--strategy", "caching", "--device", "sim:h200,capacity=64MiB"];
    assert!(!stdout(&starved, 3).contains(line), "nothing ran to the end");
}

#[test]
fn groups_and_names_select() {
    assert_eq!(names(&["adversarial", "--steps", "1"]), ["comb", "sawtooth", "creeping", "ping-pong"]);
    assert_eq!(names(&["creeping", "moe-R", "comb", "--steps", "1"]), ["moe-R", "creeping", "comb"]);
    let out = stdout(&["stress", "moe-R", "comb", "--steps", "1"], 0);
    let at = |text: &str| out.find(text).unwrap_or_else(|| panic!("{text} is missing in {out}"));
    assert!(at("Real PyTorch jobs") < at("moe-R") && at("moe-R") < at("Generated patterns"), "{out}");
}

#[test]
fn seeds_change_what_is_generated_and_nothing_else() {
    let of_seed = |seed: &str| -> Vec<Value> {
        let args = ["stress", "moe-R", "dtr-tree", "--steps", "1", "--seed", seed, "--json", "--strategy", "caching"];
        lines(&args, 0)
    };
    let [first, other, again] = ["0", "18446744073709551615", "0"].map(of_seed);
    for key in ["ops", "peak_live", "peak_reserved"] {
        assert_eq!(first[0][key], other[0][key], "{key} of a recorded job");
        assert_eq!(first[1][key], again[1][key], "{key} of one seed");
    }
    assert_ne!(first[1]["peak_live"], other[1]["peak_live"]);
}

#[test]
fn steps_lengthen_what_is_generated() {
    let ops = |steps: &str| {
        let all = lines(&["stress", "moe-R", "comb", "--steps", steps, "--json", "--strategy", "caching"], 0);
        [0, 1].map(|index| all[index]["ops"].as_u64().unwrap())
    };
    let ([recorded, short], [same, long]) = (ops("1"), ops("3"));
    assert_eq!(recorded, same);
    assert!(long > 2 * short, "{short} {long}");
}
