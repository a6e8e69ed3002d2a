//! `seamalloc pinned`: the memory that caches of page-locked memory hold for traces of it.

use crate::args::{Color, TraceArgs};
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::source;
use crate::table::Table;
use crate::values::Device;
use seamalloc::StrategyKind;
use seamalloc_trace::Trace;
use seamalloc_trace::pinned::{PinnedReport, host_pool, host_pool_on_pinned, pytorch};
use seamalloc_trace::replay::ReplayOptions;

pub(crate) fn run(args: &TraceArgs, color: Color) -> Result<(), Failure> {
    let run = &args.run;
    if matches!(run.device(), Device::Cuda(_) | Device::Host(_)) {
        let text = "page-locked memory is simulated, or real: --device sim:h200, or pinned:0";
        return Err(Failure::Usage(text.to_owned()));
    }
    if run.device().is_real() && run.lag > 0 {
        return Err(Failure::Usage("a real device keeps its own time: --lag is for simulated devices".to_owned()));
    }
    let (traces, mut inputs) = source::load_all(&args.traces, args.generate)?;
    let mut output = Output::new(color, run.svg.as_deref())?;
    let mut table = Table::new(PinnedReport::COLUMNS);
    let (mut failed, mut all) = (0, 0);
    inputs.each(&traces, |trace| {
        note_of_device_memory(trace);
        let mut reports = vec![pytorch(trace, run.passes)];
        for options in chosen(run.runs(), run.strategy.is_empty()) {
            reports.push(of_host_pool(trace, &run.device(), &options)?);
        }
        for (index, report) in reports.iter().enumerate() {
            failed += usize::from(report.out_of_memory);
            all += 1;
            if run.json {
                output::print(&report.to_json().to_string())?;
            } else {
                table.add(report, usize::from(index > 0));
            }
        }
        Ok(())
    })?;
    if !run.json {
        output.table(&table)?;
    }
    output.finish()?;
    inputs.finish(if failed > 0 { Err(Failure::OutOfMemory(failed, all)) } else { Ok(()) })
}

/// Notes that a trace is of a GPU's memory, not of page-locked memory.
fn note_of_device_memory(trace: &Trace) {
    if trace.meta.get("source").is_some_and(|source| source == "pytorch snapshot") {
        output::note(&format!(
            "{} is a PyTorch snapshot of a GPU's memory; the figures are those of page-locked memory with the same requests. \
             `python -m seamalloc run --record job-{{device}}.seam` records page-locked memory, in job-pinned.seam",
            trace.name
        ));
    }
}

/// Returns the default strategy alone if none was named: page-locked memory has no other allocators to compare with.
fn chosen(mut runs: Vec<ReplayOptions>, is_default: bool) -> Vec<ReplayOptions> {
    if is_default && runs.len() > 1 {
        runs.retain(|options| options.config.strategy == StrategyKind::Stitch);
    }
    runs
}

fn of_host_pool(trace: &Trace, device: &Device, options: &ReplayOptions) -> Result<PinnedReport, Failure> {
    Ok(match *device {
        Device::Pinned(ordinal, node) => host_pool_on_pinned(trace, ordinal, node, &options.config, options.passes)?,
        _ => host_pool(trace, options)?,
    })
}
