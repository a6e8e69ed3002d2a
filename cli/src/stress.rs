//! `memquilt stress`: the recorded jobs and the generated patterns, every strategy side by side.

use crate::args::{Color, StressArgs};
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::replay::Comparison;
use crate::source::{self, Entry};

pub(crate) fn run(args: &StressArgs, color: Color) -> Result<(), Failure> {
    if args.list {
        return list(args, color);
    }
    let entries = source::select(&args.workloads)?;
    let mut comparison = Comparison::new(&args.run, color);
    let (recorded, generated): (Vec<_>, Vec<_>) = entries.into_iter().partition(|e| matches!(e, Entry::Recorded(_)));
    let sets = [
        (recorded, "Real PyTorch jobs, recorded on an H200:"),
        (generated, "Generated patterns, sizes from real model shapes:"),
    ];
    for (entries, heading) in sets {
        if entries.is_empty() {
            continue;
        }
        comparison.heading(heading)?;
        for entry in entries {
            comparison.run(&entry.trace(args.seed, args.steps)?)?;
        }
        comparison.print_table()?;
    }
    let names = args.workloads.iter().map(|name| format!(" {name}")).collect::<String>();
    comparison.finish(&format!("memquilt stress{names}"))
}

fn list(args: &StressArgs, color: Color) -> Result<(), Failure> {
    let mut table = output::table(&["name", "group", "default", "what it does"]);
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
    let mut output = Output::new(color);
    if !args.run.json {
        output.table(&table)?;
    }
    output.finish("memquilt stress --list", &args.run)
}
