//! `seamalloc whatif`: what a recorded job would have held with each strategy, and how much larger its steps could be.

use crate::args::{Color, TraceArgs};
use crate::failure::Failure;
use crate::output::{self, Output, bytes};
use crate::progress::Progress;
use crate::source;
use crate::table::Table;
use crate::values::Device;
use seamalloc::StrategyKind;
use seamalloc_trace::whatif::{WhatIf, times, whatif};

pub(crate) fn run(args: &TraceArgs, color: Color) -> Result<(), Failure> {
    if matches!(args.run.device, Device::Cuda(_)) {
        let text = "whatif replays on a simulated device: --device sim:h200,capacity=SIZE";
        return Err(Failure::Usage(text.to_owned()));
    }
    let traces = source::load_all(&args.traces, args.generate)?;
    let mut output = Output::new(color, args.run.svg.as_deref())?;
    let mut table = Table::new(WhatIf::COLUMNS);
    let mut sentences = Vec::new();
    let (mut runs, mut failed) = (0, 0);
    for trace in &traces {
        let mut found = Vec::new();
        for options in args.run.runs() {
            let progress = Progress::new(format!("{} / {}", trace.name, options.config.strategy));
            let report = whatif(trace, &options, &mut |done, total| progress.set(done.into(), total.into()))?;
            drop(progress);
            runs += 1;
            failed += usize::from(report.peak_reserved.is_none());
            if args.run.json {
                output::print(&report.to_json().to_string())?;
            } else {
                table.add(&report, usize::from(!found.is_empty()));
            }
            found.push(report);
        }
        sentences.extend(sentence(&found));
    }
    if !args.run.json {
        output.table(&table)?;
        output.text("")?;
        sentences.iter().try_for_each(|text| output.text(text))?;
    }
    output.finish()?;
    if failed > 0 { Err(Failure::OutOfMemory(failed, runs)) } else { Ok(()) }
}

/// What a job would have gained: by `stitch`, or by the strategy that needs least of those that were asked for.
fn sentence(found: &[WhatIf]) -> Option<String> {
    let runs = || found.iter().filter(|report| report.peak_reserved.is_some());
    let ours = runs().find(|report| report.strategy == StrategyKind::Stitch.name());
    let best = ours.or_else(|| runs().min_by_key(|report| report.peak_reserved))?;
    let held = best.peak_reserved?;
    let ours = format!("{} would hold {}", best.strategy, bytes(held));
    let compared = match best.recorded_reserved {
        None => format!("{ours}."),
        Some(recorded) if best.reserved_before > 0 => format!(
            "{ours} for what was recorded. PyTorch held {}, but {} of it from before the recording, which do not compare: \
             record from the beginning.",
            bytes(recorded),
            bytes(best.reserved_before)
        ),
        Some(recorded) if recorded > held => {
            format!("PyTorch held {}; {ours}, {} less.", bytes(recorded), bytes(recorded - held))
        }
        Some(recorded) => format!("PyTorch held {}; {ours}.", bytes(recorded)),
    };
    let factor = times(best.largest_step?);
    Some(format!("{}: {compared} On {} its steps could be {factor} times as large.", best.trace, best.device))
}
