//! `seamalloc whatif`: the memory of a recorded job with each strategy, and how much larger its steps could be, beside
//! PyTorch's own allocators on the same device.

use crate::args::{Color, WhatifArgs};
use crate::failure::Failure;
use crate::layout::Layouts;
use crate::output::{self, Output, without_breaks};
use crate::progress::Progress;
use crate::source;
use crate::table::Table;
use crate::values::Device;
use crate::verdict;
use seamalloc::StrategyKind;
use seamalloc_trace::columns::bytes_beside;
use seamalloc_trace::whatif::{DeviceFrom, MOST_GROWTH, Replays, WhatIf, device_of, times};
use std::cmp::Ordering;

pub(crate) fn run(asked: &WhatifArgs, color: Color) -> Result<(), Failure> {
    let args = &asked.traces;
    if args.run.device().is_real() {
        let text = "whatif replays on a simulated device: --device sim:h200,capacity=SIZE";
        return Err(Failure::Usage(text.to_owned()));
    }
    let mut layouts = Layouts::default();
    let (loaded, mut inputs) = source::load_with_origins(&args.traces, args.generate, &mut layouts)?;
    let mut output = Output::new(color, args.run.svg.as_deref())?;
    let mut table = Table::new(WhatIf::COLUMNS);
    let (mut verdicts, mut sentences) = (Vec::new(), Vec::new());
    let mut failed = 0;
    inputs.each(&loaded, |(trace, origins)| {
        let (device, from) = match args.run.device() {
            Device::Sim(device) if args.run.device.is_some() => (device, DeviceFrom::Asked),
            _ => device_of(trace),
        };
        let each = args.run.runs_on(&device);
        let Some(options) = each.first() else { return Ok(()) };
        let kinds: Vec<_> = each.iter().map(|run| run.config.strategy).collect();
        let mut bar: Option<(StrategyKind, Progress)> = None;
        let mut show = |kind: StrategyKind, done: u32, total: u32| {
            if bar.as_ref().is_none_or(|(of, _)| *of != kind) {
                // The previous bar is cleared before the next bar is drawn.
                drop(bar.take());
                bar = Some((kind, Progress::new(format!("{} / {kind}", trace.name))));
            }
            if let Some((_, bar)) = &bar {
                bar.set(done.into(), total.into());
            }
        };
        let mut replays = Replays::new(trace, options, from);
        let mut found = replays.whatif(&kinds, !asked.quick, &mut show)?;
        drop(bar);
        let verdict = replays.judged(origins.as_ref(), &[])?;
        for (index, report) in found.iter_mut().enumerate() {
            report.verdict = Some(verdict.clone());
            if args.run.json {
                output::print(&report.to_json().to_string())?;
            } else {
                table.add(report, usize::from(index > 0));
            }
        }
        failed += usize::from(!verdict.runs());
        verdicts.push((&trace.name, verdict));
        sentences.extend(sentences_of(&found));
        Ok(())
    })?;
    if !args.run.json && !loaded.is_empty() {
        for (job, verdict) in &verdicts {
            verdict::show(&mut output, job, verdict)?;
            output.text("")?;
        }
        output.table(&table)?;
        for text in &sentences {
            output.text("")?;
            output.text(text)?;
        }
    }
    if !args.run.json && !loaded.is_empty() && !layouts.is_empty() {
        output.text("")?;
    }
    layouts.print(&mut output, args.run.device.as_ref(), args.run.json, &[])?;
    output.finish()?;
    inputs.finish(if failed > 0 { Err(Failure::DoesNotRun(failed, verdicts.len())) } else { Ok(()) })
}

/// Returns the sentences on the gain over PyTorch's allocators: of `stitch`, or else of the first strategy that is not
/// PyTorch's.
fn sentences_of(found: &[WhatIf]) -> Option<String> {
    let pytorchs = [StrategyKind::Caching, StrategyKind::Expandable];
    let others = || found.iter().filter(|report| !pytorchs.contains(&report.strategy));
    let ours = others().find(|report| report.strategy == StrategyKind::Stitch).or_else(|| others().next());
    let any = ours.or_else(|| found.first())?;
    let mut text = if any.device_from == DeviceFrom::Unknown {
        format!("{}: the largest step depends on the device, which --device names.", any.trace)
    } else {
        let mut text = format!("{} on {}{}: {}", any.trace, any.device, known_by(any.device_from), steps(any, ours));
        text.extend(ours.map(|ours| format!("; {}", held(ours))));
        text.push('.');
        if any.grows && any.sought {
            text.push_str(&assumption(any));
        }
        text
    };
    let size = |bytes: u64| beside(bytes, any.peak_live);
    match any.recorded_reserved {
        None => {}
        Some(recorded) if any.reserved_before > 0 => text.push_str(&format!(
            " PyTorch held {} when it was recorded. That does not compare with the table: it held {} before the recording \
             began. Record from the beginning of the job.",
            size(recorded),
            if any.reserved_before == recorded { "as much".to_owned() } else { size(any.reserved_before) }
        )),
        Some(recorded) => text.push_str(&format!(" PyTorch held {} when it was recorded.", size(recorded))),
    }
    text.push_str(&names(found));
    Some(text)
}

/// Returns a size in the unit of the largest size in a sentence.
fn beside(bytes: u64, largest: u64) -> String {
    without_breaks(&bytes_beside(bytes, largest))
}

/// Returns the words that name the strategies of the table.
fn names(found: &[WhatIf]) -> String {
    let named = [
        (StrategyKind::Caching, "PyTorch's native allocator (native)"),
        (StrategyKind::Stitch, "seamalloc's default (seamalloc)"),
    ];
    let named = named.iter().filter(|(kind, _)| found.iter().any(|report| report.strategy == *kind));
    let named: Vec<_> = named.map(|(kind, name)| format!("{kind} is {name}")).collect();
    if named.is_empty() { String::new() } else { format!(" In the table {}.", named.join(", ")) }
}

/// Returns the largest steps of PyTorch's allocators and of a strategy, in words.
fn steps(any: &WhatIf, ours: Option<&WhatIf>) -> String {
    if !any.grows {
        return "it frees nothing, so nothing grows with its steps".to_owned();
    }
    if !any.sought {
        return "the largest step was not sought".to_owned();
    }
    let step = |name: &str, step: Option<f64>| format!("{name} {}", step.map_or_else(|| "none".to_owned(), times));
    let mut steps = vec![step("native", any.native.largest_step), step("expandable", any.expandable.largest_step)];
    steps.extend(ours.map(|ours| step(ours.strategy.name(), ours.largest_step)));
    let larger = ours.map(|ours| format!(": {}", larger(ours))).unwrap_or_default();
    format!("{}{larger}", steps.join(", "))
}

/// Returns the sentence on the memory that is assumed to grow with a step, and on the memory that keeps its size.
fn assumption(any: &WhatIf) -> String {
    let stays = match any.persistent {
        0 => "no memory is seen to stay from step to step".to_owned(),
        persistent => format!("{} of weights and optimizer state stay", beside(persistent, any.peak_live)),
    };
    format!(
        " Taken to grow with the step are activations and temporary buffers, and, to be careful, gradients and the \
         optimizer's temporary buffers; {stays}. For four real jobs this was at most 16% too small, and with native once 14% too large."
    )
}

fn known_by(from: DeviceFrom) -> &'static str {
    match from {
        DeviceFrom::Asked => "",
        DeviceFrom::Noted => " (the recorded device's memory)",
        DeviceFrom::Refusal => " (what PyTorch could have when the recorded job ran out of memory)",
        DeviceFrom::Unknown => " (of unknown memory)",
    }
}

/// The precision of the search for the largest step, in percent.
const EXACT_PERCENT: f64 = 1.0;

/// Returns a sentence that compares a strategy's largest step with those of PyTorch's allocators.
fn larger(ours: &WhatIf) -> String {
    let step = |step: Option<f64>| step.unwrap_or(0.0);
    let (own, native, expandable) =
        (step(ours.largest_step), step(ours.native.largest_step), step(ours.expandable.largest_step));
    let best = native.max(expandable);
    let name = if expandable >= native { "expandable" } else { "native" };
    if best == 0.0 {
        let text = match own {
            0.0 => "none runs it, even with the smallest steps",
            own if own < 1.0 => "the only one that runs it, with smaller steps",
            _ => "the only one that runs it",
        };
        return text.to_owned();
    }
    if own.min(best) >= MOST_GROWTH {
        return "far larger steps fit".to_owned();
    }
    let percent = (own / best - 1.0) * 100.0;
    match percent.abs() {
        same if same < EXACT_PERCENT => format!("the same largest step as {name}'s, within {EXACT_PERCENT}%"),
        less if own < best => format!("a step {less:.1}% smaller than {name}'s"),
        more => format!("a step {more:.1}% larger than {name}'s"),
    }
}

/// Returns a sentence that says how much less, or more, a strategy holds than PyTorch's allocators.
fn held(ours: &WhatIf) -> String {
    let Some(own) = ours.peak_reserved else {
        return format!("{} runs out of memory with the job as it was recorded", ours.strategy);
    };
    let size = |bytes: u64| beside(bytes, ours.peak_live);
    let (mut held, mut alone) = (Vec::new(), String::new());
    for (name, baseline) in [("native", ours.native), ("expandable", ours.expandable)] {
        match baseline.reserved.map(|reserved| (reserved, own.cmp(&reserved))) {
            None => alone.push_str(&format!("; {name} does not run the job")),
            Some((reserved, Ordering::Less)) => held.push(format!("{} less than {name}", size(reserved - own))),
            Some((_, Ordering::Equal)) => held.push(format!("as much as {name}")),
            Some((reserved, Ordering::Greater)) => held.push(format!("{} more than {name}", size(own - reserved))),
        }
    }
    let held = if held.is_empty() { size(own) } else { held.join(", ") };
    format!("holds {held}{alone}")
}
