//! `seamalloc study lag`: sharing between streams, by how far the CPU runs ahead of the GPU.

use super::axis::Axis;
use super::chart::{self, Bar, Line, Mark, Panel, Point};
use super::{Outcome, PASSES, StudyArgs, digits, failed, finish, outcomes, with_keys};
use crate::args::{Color, whole};
use crate::failure::Failure;
use crate::output::{self, Column, ms};
use clap::{Args, ValueHint};
use comfy_table::Cell;
use plotters::style::{Color as _, RGBColor};
use seamalloc::{Config, Sharing};
use seamalloc_trace::replay::{PassReport, ReplayOptions};
use serde_json::{Value, json};
use std::path::PathBuf;

/// The recorded job of several streams.
const JOB: &str = "llama8b-fsdp2";

pub(super) const HELP: &str = "\
What the columns say:
  sharing       when memory freed on one stream may serve another: never; once the GPU has passed the
                free; at once, behind a GPU-side wait
  lag           how many operations the CPU is ahead of the GPU
  utilization   live / reserved, in the first and the third pass over the trace
  waits         GPU-side waits of a stream for another, in the first and the third pass
  age           how many operations ago the event was recorded that a stream waited for, in the mean
                of the third pass: the older, the less it is held up; from the lag on not at all
  driver ms     time in the driver, in the first and the third pass
  worst ms      the longest stall of all three passes

The keys of --json are those of `seamalloc replay`, with _first, _third and _all for the first,
the third and all three passes.";

const COLUMNS: [Column; 11] = [
    Column::text("trace"),
    Column::text("sharing"),
    Column::figure("lag"),
    Column::figure("utilization\n1st pass"),
    Column::figure("utilization\n3rd pass"),
    Column::figure("waits\n1st"),
    Column::figure("waits\n3rd").spare(2),
    Column::figure("age\n3rd").spare(4),
    Column::figure("driver ms\n1st pass").spare(1),
    Column::figure("driver ms\n3rd pass").spare(3),
    Column::figure("worst\nms"),
];

/// The options of the study.
#[derive(Debug, Args)]
pub(crate) struct LagArgs {
    /// Trace files, or names of recorded jobs and generated workloads [default: llama8b-fsdp2].
    #[arg(value_name = "TRACE", value_hint = ValueHint::FilePath)]
    traces: Vec<PathBuf>,
    /// How far the CPU runs ahead of the GPU, in operations: numbers separated by commas.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "0,100,300,1000,1500,3000,6000,12000",
          value_parser = |text: &str| whole(text, 0..=u64::MAX), allow_negative_numbers = true)]
    lags: Vec<u64>,
    #[command(flatten)]
    study: StudyArgs,
}

/// The colours of the policies, in the order of [`Sharing::ALL`].
const COLOURS: [RGBColor; 3] = [chart::colour(5), chart::colour(4), chart::colour(2)];
/// The width of a bar, where the next lag stands at 1.
const BAR: f64 = 0.36;

type Setting = (Sharing, u64);

pub(super) fn run(args: &LagArgs, color: Color) -> Result<(), Failure> {
    let study = &args.study;
    let is_set = |config: &Config| config.sharing != Sharing::default();
    let (base, mut output) = study.begin(("sharing", is_set), color)?;
    let traces = study.traces(&args.traces, |name| name == JOB)?;
    let mut lags = args.lags.clone();
    lags.sort_unstable();
    lags.dedup();
    let settings: Vec<Setting> =
        Sharing::ALL.into_iter().flat_map(|sharing| lags.iter().map(move |lag| (sharing, *lag))).collect();
    let options = |(sharing, lag): Setting| {
        let config = Config { sharing, ..base.config.clone() };
        (format!("{}, {lag}", sharing.name()), ReplayOptions { config, lag, ..base.clone() })
    };
    let mut table = output::table(&COLUMNS);
    let all = outcomes(&traces, &settings, options, |outcome, first| {
        if study.json {
            return output::print(&line(outcome).to_string());
        }
        table.add_row(row(outcome, first, outcome.setting.1 == lags[0]));
        Ok(())
    })?;
    if !study.json {
        output.table(&table, &COLUMNS)?;
    }
    let plot = || draw(&all, &lags, &base.device.to_string());
    finish(&all, study.svg.as_deref().map(|path| (path, plot())))
}

fn line(outcome: &Outcome<Setting>) -> Value {
    let (sharing, lag) = outcome.setting;
    let head = json!({
        "study": "lag",
        "trace": outcome.trace,
        "device": outcome.passes.first().map(|pass| pass.device.as_str()),
        "sharing": sharing.name(),
        "lag": lag,
        "passes": PASSES,
    });
    let waits = || outcome.passes.iter().map(|pass| pass.stream_waits);
    let own = outcome.figures(|first, third| {
        json!({
            "stream_waits_first": first.stream_waits,
            "stream_waits_third": third.stream_waits,
            "stream_waits_all": waits().sum::<u64>(),
            "idle_waits_first": first.idle_waits,
            "idle_waits_third": third.idle_waits,
            "wait_age_ops_min_first": least_age(first),
            "wait_age_ops_min_third": least_age(third),
            "wait_age_ops_mean_first": mean_age(first).map(|age| digits(age, 1)),
            "wait_age_ops_mean_third": mean_age(third).map(|age| digits(age, 1)),
        })
    });
    with_keys(head, own)
}

/// How many operations ago the events were recorded for which streams waited in a pass, in the mean.
fn mean_age(pass: &PassReport) -> Option<f64> {
    (pass.stream_waits > 0).then(|| pass.waits.age_total as f64 / pass.stream_waits as f64)
}

/// The least of these ages.
fn least_age(pass: &PassReport) -> Option<u64> {
    pass.waits.age_least.filter(|_| pass.stream_waits > 0)
}

fn row(outcome: &Outcome<Setting>, first_of_trace: bool, first_of_policy: bool) -> Vec<Cell> {
    let (sharing, lag) = outcome.setting;
    let head = [
        Cell::new(if first_of_trace { outcome.trace.as_str() } else { "" }),
        Cell::new(if first_of_policy { sharing.name() } else { "" }),
        Cell::new(lag),
    ];
    let Some((first, third)) = outcome.first_and_third() else { return failed::<{ COLUMNS.len() }>(head) };
    let figures = [
        output::utilization(first.utilization()),
        output::utilization(third.utilization()),
        Cell::new(first.stream_waits),
        Cell::new(third.stream_waits),
        Cell::new(mean_age(third).map(|age| format!("{age:.0}")).unwrap_or_default()),
        Cell::new(ms(first.driver.total_ns())),
        Cell::new(ms(third.driver.total_ns())),
        Cell::new(ms(outcome.worst_stall_ns())),
    ];
    head.into_iter().chain(figures).collect()
}

/// Three panels a trace: what is used by lag, a line a policy and pass; how often streams waited; and for how old events.
fn draw(all: &[Outcome<Setting>], lags: &[u64], device: &str) -> Result<String, chart::DrawError> {
    let ahead = || Axis::categories("how many operations the CPU is ahead of the GPU", lags);
    let mut panels = Vec::new();
    for outcomes in all.chunks(Sharing::ALL.len() * lags.len()) {
        let trace = outcomes.first().map(|outcome| outcome.trace.as_str()).unwrap_or_default();
        let ran = || outcomes.iter().filter_map(Outcome::first_and_third);
        let used = ran().flat_map(|(first, third)| [first.utilization(), third.utilization()]);
        let up = Axis::used("reserved memory that the job uses", used);
        let by_policy = || outcomes.chunks(lags.len()).zip(COLOURS);
        let curves = by_policy().flat_map(|(outcomes, colour)| curves(outcomes, colour)).collect();
        panels.push(Panel { title: format!("{trace}: memory"), x: ahead(), y: up, lines: curves, bars: Vec::new() });

        let most = ran().map(|(first, third)| first.stream_waits.max(third.stream_waits)).max();
        let up = Axis::counts("GPU-side waits in one pass", most.unwrap_or_default());
        let bars = by_policy().flat_map(|(outcomes, colour)| bars(outcomes, colour)).collect();
        let title = format!("{trace}: waits of one stream for another, with sharing:wait");
        panels.push(Panel { title, x: ahead(), y: up, lines: Vec::new(), bars });

        let (title, ages) =
            (format!("{trace}: how old the event was that a stream waited for"), by_policy().flat_map(ages));
        let lines: Vec<Line> = ages.collect();
        let up = Axis::log("operations, in the mean", lines.iter().flat_map(|line| &line.points).map(|point| point.y));
        panels.push(Panel { title, x: ahead(), y: up, lines, bars: Vec::new() });
    }
    let heading = format!("Sharing between streams, by how far the program runs ahead ({device})");
    chart::draw(
        &heading,
        "first pass: dashed lines, bars to the left  ·  third pass: solid lines, bars to the right",
        &panels,
    )
}

/// What one policy uses in the first and in the third pass.
fn curves(outcomes: &[Outcome<Setting>], colour: RGBColor) -> [Line; 2] {
    let curve = |third: bool| {
        let point = |(index, outcome): (usize, &Outcome<Setting>)| {
            let passes = outcome.first_and_third()?;
            let used = if third { passes.1.utilization() } else { passes.0.utilization() };
            let label = third.then(|| format!("{:.1}", used * 100.0));
            Some(Point { x: index as f64, y: used, label, mark: if third { Mark::Dot } else { Mark::None } })
        };
        let name = outcomes.first().filter(|_| third).map(|outcome| outcome.setting.0.name().to_owned());
        let points = outcomes.iter().enumerate().filter_map(point).collect();
        Line { name: name.unwrap_or_default(), colour, dashed: !third, points, apart: Vec::new() }
    };
    [curve(false), curve(true)]
}

/// How old the events were, by lag, in the first and in the third pass; nothing for policies that never wait.
fn ages((outcomes, colour): (&[Outcome<Setting>], RGBColor)) -> Vec<Line> {
    let curve = |third: bool| {
        let point = |(index, outcome): (usize, &Outcome<Setting>)| {
            let passes = outcome.first_and_third()?;
            // Less than one operation has no place on the axis.
            let age = mean_age(if third { passes.1 } else { passes.0 })?.max(1.0);
            Some(Point { x: index as f64, y: age, label: Some(format!("{age:.0}")), mark: Mark::Dot })
        };
        let name = if third { "3rd pass" } else { "1st pass" };
        let points = outcomes.iter().enumerate().filter_map(point).collect();
        Line { name: name.to_owned(), colour, dashed: !third, points, apart: Vec::new() }
    };
    if outcomes.iter().all(|outcome| outcome.setting.0 != Sharing::Wait) {
        return Vec::new();
    }
    vec![curve(false), curve(true)]
}

/// How often streams waited in the first and in the third pass; nothing for policies that never wait.
fn bars(outcomes: &[Outcome<Setting>], colour: RGBColor) -> Vec<Bar> {
    let waits = |(index, outcome): (usize, &Outcome<Setting>)| {
        let (first, third) = outcome.first_and_third()?;
        let bar = |from: f64, count: u64, strength: f64| {
            let x = index as f64 + from..index as f64 + from + BAR;
            Bar { x, height: count as f64, label: count.to_string(), colour: colour.mix(strength) }
        };
        Some([bar(-BAR, first.stream_waits, 0.5), bar(0.0, third.stream_waits, 1.0)])
    };
    let policy = outcomes.first().filter(|outcome| outcome.setting.0 == Sharing::Wait);
    policy.into_iter().flat_map(|_| outcomes.iter().enumerate().filter_map(waits).flatten()).collect()
}
