//! `seamalloc pinned`: the memory that caches of page-locked memory hold for traces of page-locked memory.

use crate::args::{Color, TraceArgs};
use crate::failure::Failure;
use crate::inputs::Inputs;
use crate::output::{self, Output};
use crate::source;
use crate::table::Table;
use crate::values::Device;
use seamalloc::StrategyKind;
use seamalloc_trace::pinned::{PinnedReport, host_pool, host_pool_on_pinned, pytorch};
use seamalloc_trace::replay::ReplayOptions;
use seamalloc_trace::{Trace, TraceError};
use std::path::Path;

pub(crate) fn run(args: &TraceArgs, color: Color) -> Result<(), Failure> {
    let run = &args.run;
    if matches!(run.device(), Device::Cuda(_) | Device::Host(_)) {
        let text = "page-locked memory is simulated, or real: --device sim:h200, or pinned:0";
        return Err(Failure::Usage(text.to_owned()));
    }
    if run.device().is_real() && run.lag > 0 {
        return Err(Failure::Usage("a real device keeps its own time: --lag is for simulated devices".to_owned()));
    }
    source::must_be_given(&args.traces)?;
    let load = |path: &Path| without_snapshots(path, source::load(path, args.generate));
    let (traces, mut inputs) = Inputs::read(&args.traces, load)?;
    let mut output = Output::new(color, run.svg.as_deref())?;
    let mut table = Table::new(PinnedReport::COLUMNS);
    let (mut failed, mut all) = (0, 0);
    inputs.each(&traces, |trace| {
        note_of_gpu_memory(trace);
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

/// Returns an error if a file is a snapshot of PyTorch, which records memory of a GPU. Otherwise returns `loaded`.
fn without_snapshots(path: &Path, loaded: Result<Vec<Trace>, Failure>) -> Result<Vec<Trace>, Failure> {
    let is_snapshot = match &loaded {
        Ok(traces) => traces.iter().any(is_pytorchs_snapshot),
        Err(failure) => matches!(failure, Failure::Trace(TraceError::NoHistory { .. })),
    };
    if is_snapshot { Err(Failure::GpuSnapshot { path: path.to_owned() }) } else { loaded }
}

/// Returns whether PyTorch wrote the snapshot from which the trace was read. Dumps of seamalloc's flight recorder have
/// the same form, and may record page-locked memory.
fn is_pytorchs_snapshot(trace: &Trace) -> bool {
    let is_dump =
        trace.meta.get("allocator_settings").is_some_and(|settings| settings.get("flight_recorder").is_some());
    !is_dump && trace.meta.get("source").is_some_and(|source| source == "pytorch snapshot")
}

/// Prints a note if a trace was recorded on a GPU: its header has the memory of the device.
fn note_of_gpu_memory(trace: &Trace) {
    if trace.meta.contains_key("total_memory") {
        output::note(&format!(
            "{} was recorded of GPU memory; the figures are those of page-locked memory with the same requests",
            trace.name
        ));
    }
}

/// Returns the default strategy alone if none was named, since page-locked memory has no other allocators for a
/// comparison.
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
