//! `seamalloc stress`: the recorded jobs and the generated patterns, every strategy side by side.

use crate::args::{Color, StressArgs};
use crate::failure::Failure;
use crate::output::{self, Column, Output};
use crate::replay::Comparison;
use crate::source::{self, Entry};

pub(crate) fn run(args: &StressArgs, color: Color) -> Result<(), Failure> {
    if args.list {
        return list(args, color);
    }
    let entries = source::select(&args.workloads)?;
    let mut comparison = Comparison::new(&args.run, color)?;
    let (recorded, generated): (Vec<_>, Vec<_>) = entries.into_iter().partition(|e| matches!(e, Entry::Recorded(_)));
    let sets = [
        (recorded, "Real PyTorch jobs, recorded on an H200:"),
        (generated, "Generated patterns, sizes from real model shapes:"),
    ];
    let ran = sets.into_iter().try_for_each(|(entries, heading)| {
        comparison.heading(heading);
        entries.into_iter().try_for_each(|entry| comparison.run(&entry.trace(args.generate)?))?;
        comparison.print_table()
    });
    comparison.finish(ran)
}

fn list(args: &StressArgs, color: Color) -> Result<(), Failure> {
    const COLUMNS: [Column; 4] =
        [Column::text("name"), Column::text("group"), Column::text("default"), Column::text("what it does")];
    let mut table = output::table(&COLUMNS);
    for entry in source::entries() {
        if args.run.json {
            let line = serde_json::json!({
                "name": entry.name(),
                "group": entry.group(),
                "default": entry.in_default_set(),
                "summary": entry.summary(),
            });
            output::print(&line.to_string())?;
        } else {
            let default = if entry.in_default_set() { "yes" } else { "" };
            table.add_row([entry.name(), entry.group(), default, entry.summary()]);
        }
    }
    let mut output = Output::new(color, args.run.svg.as_deref())?;
    if !args.run.json {
        output.table(&table, &COLUMNS)?;
    }
    output.finish()
}
