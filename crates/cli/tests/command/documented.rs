//! The command lines of the README and of the documentation: each is understood, and what is quick is run.
//!
//! Looked at are lines of `sh` blocks, and code spans in prose, that begin with `seamalloc` or `cargo run --release --`. Pages of measurements name the
//! commands of their commit, and decisions those of their day; only the page of simulated figures is of today.

#[path = "../../../../tests/common/documents.rs"]
mod documents;

use super::length::is_long;
use super::{Folder, run, seamalloc, snapshot, stdout};
use documents::{command_lines, pages};
use seamalloc_trace::verdict::{
    APART_PART, CONTEXT_BYTES, Choice, EXPANDABLE_SETTING, FEW_BYTES, FEW_PERCENT, FEWER_PART, NEAR_PERCENT,
    SEAMALLOC_COMMAND, Verdict,
};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The beginnings of a command line that stand for `seamalloc`.
const BEGINNINGS: [&str; 3] =
    ["seamalloc ", "cargo run --release -- ", "cargo run --release -p seamalloc-cli --features highs -- "];
/// The words that a page leaves to its reader to fill in, and the values that the test takes.
const PLACEHOLDERS: [(&str, &str); 5] = [
    ("SHELL", "bash"),
    ("POLICY", "wait"),
    ("OPTIONS", "sharing:wait"),
    ("capacity=…", "capacity=80GiB"),
    ("PID", "1"),
];
/// Too slow for a test, or of no use in one: they search for long, or show other programs. `.ci/tables` runs some of them.
const NOT_RUN: [&str; 11] = [
    "evict",
    "order",
    "top",
    "man",
    "whatif",
    "study lag",
    "llama1b-ppo",
    "fit recorded",
    "plan resnet-multi",
    "--passes 40",
    "--passes 20",
];
/// Subcommands that only the Python package has.
const OF_PYTHON: [&str; 2] = ["run", "fleet"];
/// Options that name a file to be written.
const OUTPUTS: [&str; 4] = ["-o", "--output", "--svg", "--dump"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// How a snapshot is recorded: the same in every document and help text.
const RECIPE: &str = "_record_memory_history(max_entries=1_000_000, stacks=\"python\")";

#[test]
fn one_recipe_records_a_snapshot() {
    let mut texts: Vec<_> =
        pages(&root()).iter().map(|page| (page.clone(), fs::read_to_string(page).unwrap())).collect();
    let help = ["whatif", "report"].map(|command| (PathBuf::from(command), stdout(&[command, "--help"], 0)));
    texts.extend(help);
    let mut told = 0;
    for (page, text) in texts {
        // With arguments; a page may speak of the function.
        let calls = text.split("_record_memory_history(").skip(1).filter(|rest| !rest.starts_with(')'));
        for call in calls {
            assert!(format!("_record_memory_history({call}").starts_with(RECIPE), "{}: {call:.60}", page.display());
            told += 1;
        }
    }
    assert!(told >= 7, "{told} times");
}

/// The arguments of a command line of ours, without comments and redirections; with values in the place of names for them.
fn arguments(line: &str) -> Option<Vec<String>> {
    let rest = BEGINNINGS.iter().find_map(|beginning| line.trim().strip_prefix(beginning))?;
    let ends = |word: &&str| word.starts_with('#') || ["|", ">", "&&", ";"].contains(word);
    let mut words = Vec::new();
    for word in rest.split_whitespace().take_while(|word| !ends(word)) {
        let mut word = word.trim_start_matches('[').trim_end_matches([']', ';']).to_owned();
        for (name, value) in PLACEHOLDERS {
            word = word.replace(name, value);
        }
        if word == "N" {
            "1".clone_into(&mut word);
        } else if word == "TO" || word == "OUT" {
            "trace.seam".clone_into(&mut word);
        }
        let word = word.trim_matches('…');
        if !word.is_empty() {
            words.push(word.to_owned());
        }
    }
    // The Python package's own.
    (words.first().is_some_and(|word| !OF_PYTHON.contains(&word.as_str()))).then_some(words)
}

/// Every command line of every page, with the page.
fn documented() -> BTreeSet<(Vec<String>, String)> {
    let mut found = BTreeSet::new();
    for page in pages(&root()) {
        let text = fs::read_to_string(&page).unwrap();
        let name = page.strip_prefix(root()).unwrap().display().to_string();
        found.extend(command_lines(&text).iter().filter_map(|line| arguments(line)).map(|words| (words, name.clone())));
    }
    assert!(found.len() > 80, "only {} command lines were found", found.len());
    found
}

/// Options are read from left to right: with `--help` behind them what is wrong is still an error, and nothing is run.
#[test]
fn command_lines_of_the_documentation_are_understood() {
    let mut wrong = Vec::new();
    for (words, page) in documented() {
        let args: Vec<&str> = words.iter().map(String::as_str).chain(["--help"]).collect();
        let ended = seamalloc(&args).output().unwrap();
        if ended.status.code() != Some(0) {
            let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
            wrong.push(format!("{page}: seamalloc {}: {}", words.join(" "), errors.lines().next().unwrap_or_default()));
        }
    }
    assert!(wrong.is_empty(), "command lines that are not understood:\n{}", wrong.join("\n"));
    for mistake in [&["replay", "x", "--pases", "3"][..], &["replay", "x", "--conf", "shring:wait"], &["reply", "x"]] {
        run(&[mistake, &["--help"]].concat(), 2);
    }
}

/// Names of workloads, and of their groups.
fn workloads() -> BTreeSet<String> {
    let list = stdout(&["stress", "--list"], 0);
    list.lines().flat_map(|line| line.split_whitespace().take(2).map(str::to_owned)).collect()
}

/// The input that a word stands for, if it is one that is here.
fn input(word: &str, workloads: &BTreeSet<String>) -> Option<String> {
    match word {
        "job.pickle" => Some(snapshot("prefetch-2s.snapshot.pickle.gz")),
        "buffers.csv" => Some("docs/buffers.csv".to_owned()),
        "chunks" => Some(word.to_owned()),
        _ => (workloads.contains(word) || root().join(word).is_file()).then(|| word.to_owned()),
    }
}

/// Returns the line with inputs that exist and outputs in a folder; None where it is not run.
fn runnable(words: &[String], workloads: &BTreeSet<String>, folder: &Folder) -> Option<Vec<String>> {
    let line = words.join(" ");
    let has_input = words.len() > 1 && !words[1].starts_with('-') && line != "study chunks";
    if !has_input || NOT_RUN.iter().any(|part| line.contains(part)) {
        return None;
    }
    let mut args = vec![words[0].clone()];
    let mut before = "";
    for word in &words[1..] {
        let is_value = before.starts_with('-') && before != "--json" && before != "--quick";
        args.push(if OUTPUTS.contains(&before) {
            folder.name(Path::new(word).file_name()?.to_str()?)
        } else if is_value || word.starts_with('-') {
            word.clone()
        } else {
            input(word, workloads)?
        });
        before = word;
    }
    // The short form: those that take seconds are run with less.
    if !is_long() {
        let has = |option| words.iter().any(|word| word == option);
        if line.starts_with("study chunks") && !has("--sizes") {
            args.extend(["--sizes", "2,20"].map(str::to_owned));
        }
        if words[0] == "stress" && has("--passes") && !has("--steps") {
            args.extend(["--steps", "1"].map(str::to_owned));
        }
    }
    // Without what takes many replays.
    args.extend((words[0] == "report" && !line.contains("--quick")).then(|| "--quick".to_owned()));
    Some(args)
}

#[test]
fn quick_command_lines_of_the_documentation_run() {
    let folder = Folder::new();
    let workloads = workloads();
    let lines: BTreeSet<_> =
        documented().into_iter().filter_map(|(words, _)| runnable(&words, &workloads, &folder)).collect();
    assert!(lines.len() > 20, "only {} command lines are run: {lines:?}", lines.len());
    let left = std::sync::Mutex::new(lines.into_iter().collect::<Vec<_>>());
    let next = || left.lock().unwrap().pop();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(args) = next() {
                    let args: Vec<&str> = args.iter().map(String::as_str).collect();
                    let ended = seamalloc(&args).current_dir(root()).output().unwrap();
                    let errors = String::from_utf8_lossy(&ended.stderr);
                    // 3: a run did not have enough memory, which some pages show.
                    assert!(matches!(ended.status.code(), Some(0 | 3)), "seamalloc {}: {errors}", args.join(" "));
                }
            });
        }
    });
}

/// The cells of the rows of `docs/why.md`'s tables whose first cell is one of these.
fn verdict_rows(firsts: &[&str]) -> Vec<Vec<String>> {
    let page = fs::read_to_string(root().join("docs/why.md")).unwrap();
    let section = page.split("### The verdict").nth(1).unwrap().split("\n## ").next().unwrap().to_owned();
    let rows = section.lines().filter(|line| line.starts_with('|'));
    let cells = rows.map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect());
    cells.filter(|cells: &Vec<String>| firsts.contains(&cells[0].as_str())).collect()
}

#[test]
fn the_rules_of_a_verdict_are_those_of_the_page() {
    let thresholds = [
        ("FEW_PERCENT", FEW_PERCENT.to_string()),
        ("FEW_BYTES", format!("{} MiB", FEW_BYTES >> 20)),
        ("NEAR_PERCENT", NEAR_PERCENT.to_string()),
        ("APART_PART", APART_PART.to_string()),
        ("FEWER_PART", FEWER_PART.to_string()),
        ("CONTEXT_BYTES", format!("{} MiB", CONTEXT_BYTES >> 20)),
    ];
    let rows = verdict_rows(&thresholds.each_ref().map(|(name, _)| *name));
    let found: Vec<_> = rows.iter().map(|cells| (cells[0].as_str(), cells[1].clone())).collect();
    assert_eq!(found, thresholds);

    let verdicts = [
        Verdict::TooMuchLive { by: 1 },
        Verdict::Others { missing: 1 },
        Verdict::Limit { to: 1 },
        Verdict::PyTorchIsEnough { allocator: Choice::Native, has_room: true },
        Verdict::Streams { apart: 1, is_saved: true },
        Verdict::SeamallocHelps { saves: None, waits: 0 },
    ];
    let rows = verdict_rows(&["1", "2", "3", "4", "5"]);
    let kinds: Vec<_> = rows.iter().map(|cells| cells[1].as_str()).collect();
    assert_eq!(kinds, verdicts.map(Verdict::kind));
    // The same figures stand in the rules.
    let rule = |kind: &str| rows.iter().find(|cells| cells[1] == kind).unwrap()[2].as_str();
    assert!(
        rule("pytorch_is_enough").contains(&format!("{NEAR_PERCENT}% of the device")),
        "{}",
        rule("pytorch_is_enough")
    );
    assert!(rule("streams").contains(&format!("1 byte in {APART_PART} ")), "{}", rule("streams"));
    let page = fs::read_to_string(root().join("docs/why.md")).unwrap();
    assert!(page.contains(&format!("*Notably less* is {FEW_PERCENT}% and {} MiB.", FEW_BYTES >> 20)));
    assert!(page.contains(SEAMALLOC_COMMAND) && page.contains(EXPANDABLE_SETTING));
}
