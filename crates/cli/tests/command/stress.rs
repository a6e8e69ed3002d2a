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
    let out = stdout(&["stress", "comb", "dtr-tree", "moe-R", "--steps", "1"], 0);
    let at = |text: &str| out.find(text).unwrap_or_else(|| panic!("{text} is missing in {out}"));
    let order = ["Real PyTorch jobs", "moe-R", "Generated patterns", "dtr-tree", "Adversarial patterns", "comb"];
    assert!(order.windows(2).all(|pair| at(pair[0]) < at(pair[1])), "{out}");
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

/// The verdict is that of the rows: `stitch` beside `expandable`, and what `gmlake` takes in the driver.
#[test]
fn the_verdict_is_that_of_the_rows() {
    let args = ["stress", "moe-R", "prefetch", "sawtooth", "comb", "--steps", "1"];
    let words = |out: &str| out.split_whitespace().collect::<Vec<_>>().join(" ");
    let out = words(&stdout(&args, 0));
    let all = lines(&[&args[..], &["--json"]].concat(), 0);
    let of = |strategy: &str, key: &str| -> Vec<f64> {
        all.iter().filter(|line| line["strategy"] == strategy).map(|line| line[key].as_f64().unwrap()).collect()
    };
    let (ours, theirs) = (of("stitch", "peak_reserved"), of("expandable", "peak_reserved"));
    let less = |range: std::ops::Range<usize>| range.filter(|index| ours[*index] < theirs[*index]).count();
    let (ours, gmlake): (f64, f64) =
        (of("stitch", "driver_time_us").iter().sum(), of("gmlake", "driver_time_us").iter().sum());
    has(
        &out,
        &[
            &format!(
                "`stitch` holds less than `expandable` on {} of 1 recorded job, {} of 1 generated pattern and {} of 2 \
                 adversarial patterns",
                less(0..1),
                less(1..2),
                less(2..4)
            ),
            &format!("spends {:.1} times as long in the driver ({:.2} s against", gmlake / ours, gmlake / 1e6),
        ],
    );
    assert!(out.ends_with("s)."), "the verdict stands last: {out}");
    let alone = words(&stdout(&[&args[..], &["--strategy", "stitch"]].concat(), 0));
    assert!(!alone.contains("Beside") && !alone.contains("holds less"), "{alone}");
}

/// Recorded jobs, generated patterns and adversarial ones have a table and averages each, and the columns are explained once.
#[test]
fn kinds_of_workloads_are_averaged_apart() {
    let args = ["stress", "moe-R", "opt1.3b-R", "dtr-chain", "dtr-tree", "comb", "sawtooth", "--steps", "1"];
    let out = stdout(&args, 0);
    let headings = ["Real PyTorch jobs", "Generated patterns", "Adversarial patterns", "  live     "];
    let at = headings.map(|heading| out.find(heading).unwrap_or_else(|| panic!("{heading} is missing in {out}")));
    for (index, (traces, others)) in
        [("(moe-R|opt1.3b-R)", "dtr"), ("(dtr-chain|dtr-tree)", "comb"), ("(comb|sawtooth)", "moe-R")]
            .into_iter()
            .enumerate()
    {
        let part = &out[at[index]..at[index + 1]];
        let worst: Vec<_> = part.lines().filter(|line| line.contains("of what it reserves")).collect();
        assert_eq!(worst.len(), 4, "{part}");
        let names: Vec<_> = traces.trim_matches(['(', ')']).split('|').collect();
        assert!(worst.iter().all(|line| names.iter().any(|name| line.ends_with(&format!("({name})")))), "{part}");
        assert!(!part.contains(others), "{part}");
    }
    for name in ["live", "reserved", "utilization", "driver ms", "worst ms", "caching", "stitch"] {
        assert_eq!(
            out[at[3]..].matches(&format!("\n  {name:14}")).count() + usize::from(name == "live"),
            1,
            "{name}: {out}"
        );
    }
    assert!(!out.contains("ns/op"), "{out}");
}

#[test]
fn help_and_errors_name_letters_and_groups() {
    let help = stdout(&["stress", "--help"], 0).split_whitespace().collect::<Vec<_>>().join(" ");
    has(&help, &["R recompute, L LoRA, O offload", "adversarial", "recorded jobs are the same with every seed"]);
    has(
        &super::complaint(&["stress", "recompute"], 2),
        &["`recompute`", "groups are recorded, transformer, moe", "adversarial"],
    );
}
