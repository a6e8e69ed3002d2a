//! `seamalloc replay --timeline`: compares the times of a job's steps with each allocator.

use crate::args::{Color, RunArgs};
use crate::failure::Failure;
use crate::output::{self, Output, bytes};
use crate::progress::Progress;
use crate::table::Table;
use crate::values::Device;
use seamalloc_trace::TraceError;
use seamalloc_trace::timeline::{Policy, Timeline, TimelineReport, read_timeline_path, replay_timeline};
use std::io::ErrorKind;
use std::path::Path;

pub(crate) fn run(file: &Path, args: &RunArgs, also: &[Policy], color: Color) -> Result<(), Failure> {
    let Device::Sim(device) = args.device() else {
        let text = "a timeline is replayed on a simulated device: --device sim:h200";
        return Err(Failure::Usage(text.to_owned()));
    };
    let timeline = read_timeline_path(file).map_err(|error| match error {
        TraceError::Io { source, .. } if source.kind() == ErrorKind::NotFound => {
            Failure::Read { path: file.to_owned(), error: source }
        }
        error => error.into(),
    })?;
    let mut output = Output::new(color, args.svg.as_deref())?;
    let mut table = Table::new(TimelineReport::COLUMNS);
    let named = |run: seamalloc_trace::replay::ReplayOptions| Policy {
        name: run.config.strategy.name().to_owned(),
        config: Some(run.config),
    };
    let policies: Vec<_> = args.runs().into_iter().map(named).chain(also.iter().cloned()).collect();
    let (mut failed, mut last) = (0, None);
    for (index, policy) in policies.iter().enumerate() {
        let progress = Progress::new(format!("{} / {}", timeline.name, policy.name));
        let show = &mut |done, total| progress.set(done, total);
        let reports = replay_timeline(&timeline, policy, &device, args.passes, show)?;
        drop(progress);
        failed += usize::from(reports.iter().any(|report| report.oom.is_some()));
        if args.json {
            reports.iter().try_for_each(|report| output::print(&report.to_json().to_string()))?;
        } else if let Some(report) = reports.last() {
            table.add(report, usize::from(index > 0));
        }
        last = reports.into_iter().next_back().or(last);
    }
    if !args.json {
        if args.passes == 1 {
            table.hide("pass");
        }
        output.table(&table)?;
        output.text("")?;
        output.lines(&table.legend())?;
        if let Some(report) = last {
            output.text("")?;
            output.text(&in_words(&timeline, &report))?;
        }
    }
    output.finish()?;
    if failed > 0 { Err(Failure::OutOfMemory(failed, policies.len())) } else { Ok(()) }
}

/// Returns in words how long a step takes without any allocator, and how long it took when recorded.
fn in_words(timeline: &Timeline, report: &TimelineReport) -> String {
    let steps = timeline.recorded_ns.len();
    let ms = |ns: u64| format!("{:.2} ms", ns as f64 / 1e6);
    let mut text = format!("Without any allocator a step takes {}", ms(report.bare_ns));
    if let Some(recorded) = report.recorded_step_ns() {
        match steps {
            1 => text.push_str(&format!("; recorded was one of {}", ms(recorded))),
            steps => text.push_str(&format!("; recorded were {} on average, in {steps} steps", ms(recorded))),
        }
    }
    text.push_str(&format!(". At most {} are live.", bytes(report.peak_live)));
    text
}
