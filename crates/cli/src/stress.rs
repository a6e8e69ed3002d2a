//! `seamalloc stress`: compares strategies on the recorded jobs and the generated patterns.

use crate::args::{Color, StressArgs};
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::side_by_side::SideBySide;
use crate::source::{self, Entry};
use crate::table::Table;
use seamalloc_trace::columns::{Column, line};
use serde_json::Value;

/// The group of patterns that come from no job, which are averaged separately.
const ADVERSARIAL: &str = "adversarial";

type Listed = Column<Entry>;

const LIST: &[Listed] = &[
    Listed::run("name", |entry| entry.name().into()).text("name", |entry| entry.name().into()),
    Listed::result("group", |entry| entry.group().into()).text("group", |entry| entry.group().into()),
    Listed::result("default", |entry| entry.in_default_set().into())
        .text("default", |entry| if entry.in_default_set() { "yes" } else { "" }.into()),
    Listed::result("summary", |entry| entry.summary().into()).text("what it does", |entry| entry.described().into()),
];

pub(crate) fn run(args: &StressArgs, color: Color) -> Result<(), Failure> {
    if args.list {
        return list(args, color);
    }
    let entries = source::select(&args.workloads)?;
    let mut runs = SideBySide::new(&args.run, color)?;
    let (recorded, others): (Vec<_>, Vec<_>) = entries.into_iter().partition(|e| matches!(e, Entry::Recorded(_)));
    // Lines of JSON keep the given order.
    let is_apart = |entry: &Entry| entry.group() == ADVERSARIAL && !args.run.json;
    let (hostile, generated): (Vec<_>, Vec<_>) = others.into_iter().partition(is_apart);
    let sets = [
        (recorded, "recorded jobs", "Real PyTorch jobs, recorded on an H200:"),
        (generated, "generated patterns", "Generated patterns, sizes from real model shapes:"),
        (hostile, "adversarial patterns", "Adversarial patterns, made to divide memory up:"),
    ];
    let ran = sets.into_iter().try_for_each(|(entries, kind, heading)| {
        runs.begin(kind, heading);
        entries.into_iter().try_for_each(|entry| runs.run(&entry.trace(args.generate)?))?;
        runs.print_table()
    });
    runs.finish(ran)
}

fn list(args: &StressArgs, color: Color) -> Result<(), Failure> {
    let mut table = Table::new(LIST);
    for entry in source::entries() {
        if args.run.json {
            output::print(&Value::from(line(LIST, &entry)).to_string())?;
        } else {
            table.add(&entry, 0);
        }
    }
    let mut output = Output::new(color, args.run.svg.as_deref())?;
    if !args.run.json {
        output.list(&table)?;
    }
    output.finish()
}
