//! Which options have an effect, as the library says it in its warnings: with which strategies, beside which others, on which devices.
//!
//! Owns: the asking, and the tests of what is said: over each option with each strategy, and over all pairs of options.

use super::rows::Row;
use super::{rows, typed, what_happens};
use crate::{log, simulated};
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::{Allocator, Config, StrategyKind};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

const DEVICE: &str = "sim:h200,capacity=400MiB";
/// A device that has no more than the example of `memory_limit` allows.
const SMALL: &str = "sim:h200,capacity=200MiB";
/// The options that exclude others, and are no example of one option.
const MORE: [&str; 3] = [
    "max_view_mappings:0",
    "max_view_address_space:0B",
    "FLAGS_initial_gpu_memory_in_mb:64,FLAGS_reallocate_gpu_memory_in_mb:64",
];

/// An option that has no effect, and why.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Told {
    pub(super) option: String,
    pub(super) reason: String,
}

/// Returns what the library says of options; nothing where they are refused.
fn told(device: &str, kind: StrategyKind, options: &str) -> Vec<Told> {
    let Ok(mut config) = Config::with_strategy(kind).overlaid(options) else { return Vec::new() };
    // For the sake of time.
    config.flight_recorder = 0;
    let gpu = Arc::new(SimGpu::new(SimConfig::parse(device).unwrap()).unwrap());
    let lines = log::warnings(|| drop(Allocator::new(gpu, config)));
    let told = |line: &String| {
        let text = line.strip_prefix("WARN message=the option `")?;
        let (option, reason) = text.split_once("` has no effect: ")?;
        Some(Told { option: option.to_owned(), reason: reason.to_owned() })
    };
    lines.iter().map(|line| told(line).unwrap_or_else(|| panic!("{line}"))).collect()
}

fn is_of_strategy(told: &Told) -> bool {
    told.reason.starts_with("the strategy ")
}

fn of<'a>(told: &'a [Told], row: &Row) -> Vec<&'a Told> {
    told.iter().filter(|told| told.option == row.name).collect()
}

fn example(row: &Row) -> String {
    format!("{}:{}", row.name, row.example)
}

/// Rows that choose the strategy: what excludes others by them stands in the column of strategies.
fn chooses_strategy(row: &Row) -> bool {
    ["strategy", "expandable_segments", "backend"].contains(&row.name)
}

/// Returns the strategies that heed an option.
pub(super) fn heeding(row: &Row) -> Vec<StrategyKind> {
    let heeds = |kind: &StrategyKind| {
        chooses_strategy(row) || !of(&told(DEVICE, *kind, &typed(row)), row).iter().any(|told| is_of_strategy(told))
    };
    StrategyKind::ALL.into_iter().filter(heeds).collect()
}

/// Returns the reasons for which an option may have no effect with a strategy that heeds it, each with the options.
pub(super) fn reasons() -> Vec<(String, Vec<&'static str>)> {
    let mut found: Vec<(String, Vec<&'static str>)> = Vec::new();
    for row in rows().filter(|row| !chooses_strategy(row)) {
        let kind = heeding(row)[0];
        let beside = rows().filter(|row| !chooses_strategy(row)).map(example).chain(MORE.map(str::to_owned));
        let texts = beside.map(|other| format!("{},{}", typed(row), other));
        let tried = [(SMALL, example(row)), (DEVICE, example(row))];
        for (device, text) in tried.into_iter().chain(texts.map(|text| (DEVICE, text))) {
            for Told { reason, .. } in of(&told(device, kind, &text), row) {
                match found.iter_mut().find(|(known, _)| known == reason) {
                    Some((_, options)) if options.contains(&row.name) => {}
                    Some((_, options)) => options.push(row.name),
                    None => found.push((reason.clone(), vec![row.name])),
                }
            }
        }
    }
    found
}

/// Returns the part of the page.
pub(super) fn section() -> String {
    let mut out = String::from("\n## Options that exclude each other\n");
    out += "An option that is given, has another value than its default, and has no effect is a warning when the allocator is made, with\n\
            the reason: the strategy does not heed it (the column *strategies* above), or one of these.\n\n\
            | option | has no effect where |\n|---|---|\n";
    for (reason, options) in reasons() {
        let names: Vec<_> = options.iter().map(|name| format!("`{name}`")).collect();
        writeln!(out, "| {} | {reason} |", names.join(", ")).unwrap();
    }
    out
}

/// Each option with each strategy: one warning at most, of that option, and exactly where the page names other strategies.
#[test]
fn every_option_with_every_strategy_has_its_warning() {
    for row in rows().filter(|row| !chooses_strategy(row)) {
        let heeding = heeding(row);
        assert!(!heeding.is_empty(), "{}", row.name);
        for kind in StrategyKind::ALL {
            let told = told(DEVICE, kind, &example(row));
            assert!(told.len() <= 1 && told.iter().all(|told| told.option == row.name), "{kind}: {told:?}");
            assert_eq!(told.iter().any(is_of_strategy), !heeding.contains(&kind), "{kind}: {told:?}");
            if let Some(told) = told.iter().find(|told| is_of_strategy(told)) {
                let names = |kind: &StrategyKind| told.reason.contains(&format!("`{kind}`"));
                assert!(names(&kind) && heeding.iter().all(names), "{told:?}");
            }
        }
        // Its default is never told of.
        assert_eq!(told_with_any(&format!("{}:{}", row.name, row.default)), BTreeSet::new(), "{}", row.name);
    }
}

fn told_with_any(options: &str) -> BTreeSet<Told> {
    StrategyKind::ALL.into_iter().flat_map(|kind| told(DEVICE, kind, options)).collect()
}

/// All pairs of options, with a strategy that heeds the first one: each warning names one of both, with a reason of the page, and is
/// true: the allocator does the same without the option.
#[test]
fn every_pair_of_options_has_its_warnings() {
    let known = reasons();
    let mut seen = 0;
    for row in rows().filter(|row| !chooses_strategy(row)) {
        let kind = heeding(row)[0];
        for other in rows().filter(|other| !chooses_strategy(other) && other.name != row.name) {
            let pair = format!("{},{}", example(row), example(other));
            let told = told(DEVICE, kind, &pair);
            for told in &told {
                assert!([row.name, other.name].contains(&told.option.as_str()), "{kind}, {pair}: {told:?}");
                let is_known = known
                    .iter()
                    .any(|(reason, options)| *reason == told.reason && options.contains(&told.option.as_str()));
                assert!(is_of_strategy(told) || is_known, "{kind}, {pair}: {told:?}");
            }
            let names: BTreeSet<_> = told.iter().map(|told| &told.option).collect();
            assert_eq!(names.len(), told.len(), "{kind}, {pair}: an option is told of twice: {told:?}");
            // What an option needs is absent beside nearly all others: that is looked at once, below.
            let alone = of(&self::told(DEVICE, kind, &example(row)), row).len();
            if alone == 0 && !of(&told, row).is_empty() {
                seen += 1;
                assert!(what_happens(kind, &example(other)) == what_happens(kind, &pair), "{kind}, {pair} matters");
            }
        }
        if !of(&told(DEVICE, kind, &example(row)), row).is_empty() {
            seen += 1;
            assert!(what_happens(kind, "") == what_happens(kind, &example(row)), "{kind}, {} matters", example(row));
            assert!(of(&told(DEVICE, kind, &typed(row)), row).is_empty(), "{}{}", row.beside, row.name);
        }
    }
    assert!(seen > 12, "{seen}");
}

/// PyTorch 106660: a threshold refers to a fraction, and a limit in bytes is none.
#[test]
fn a_threshold_without_a_fraction_is_told_of() {
    for (beside, is_told) in [
        ("", true),
        (",memory_limit:100MiB", true),
        (",per_process_memory_fraction:1", true),
        (",per_process_memory_fraction:0.99", false),
    ] {
        let told = told(DEVICE, StrategyKind::Caching, &format!("garbage_collection_threshold:0.5{beside}"));
        assert_eq!(!told.is_empty(), is_told, "{beside}");
        assert!(told.iter().all(|told| told.reason.contains("`per_process_memory_fraction`")), "{told:?}");
    }
}

/// A device without virtual memory has another strategy, which does not heed all that the default heeds. Options of PyTorch that have
/// no effect at all are told of in the same words, and so is a value that has become another.
#[test]
fn the_device_and_pytorch_can_be_the_reason() {
    let without = log::warnings(|| drop(Allocator::open("sim:h200,vmm=no", "split:ungated,spill:host=1GiB").unwrap()));
    for option in ["split", "spill"] {
        let text =
            format!("the option `{option}` has no effect: the strategy `caching` does not heed it, but `stitch`");
        assert_eq!(without.iter().filter(|line| line.contains(&text)).count(), 1, "{without:?}");
    }
    let of_pytorch = log::warnings(|| drop(Config::parse("release_lock_on_cudamalloc:True").unwrap()));
    assert!(of_pytorch[0].contains("the option `release_lock_on_cudamalloc` has no effect: "), "{of_pytorch:?}");
    let of_before = log::warnings(|| drop(Config::parse("sharing:auto").unwrap()));
    assert!(of_before[0].contains("`sharing:auto` means `sharing:wait`"), "{of_before:?}");
    let usual = log::warnings(|| drop(simulated::on("sim:h200", Config::default())));
    assert_eq!(usual, Vec::<String>::new());
}
