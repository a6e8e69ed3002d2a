//! `seamalloc study lag`: sharing between streams, by how far the CPU runs ahead of the GPU.

use super::axis::Axis;
use super::chart::{self, Bar, Line, Mark, Panel, Point};
use super::options::StudyArgs;
use super::outcome::{Outcome, finish, outcomes};
use crate::args::Color;
use crate::explain::{KEYS, legend};
use crate::failure::Failure;
use crate::values::whole;
use clap::{Args, ValueHint};
use plotters::style::{Color as _, RGBColor};
use seamalloc::{Config, StreamSharing};
use seamalloc_trace::columns::{Column, round_to};
use seamalloc_trace::replay::ReplayOptions;
use std::path::PathBuf;

/// The recorded job with several streams.
const JOB: &str = "llama8b-fsdp2";

/// The policy of sharing, and the number of operations that the CPU runs ahead.
type Setting = (StreamSharing, u64);
type Lagging = Outcome<Setting>;
type Figure = Column<Lagging>;

pub(super) const COLUMNS: &[Figure] = &[
    Figure::run("study", |_| "lag".into()),
    Lagging::TRACE,
    Lagging::DEVICE,
    Figure::run("sharing", |lagging| lagging.setting.0.name().into())
        .text("sharing", |lagging| lagging.setting.0.name().into())
        .legend(
            "sharing",
            "when memory freed on one stream may serve another: never; once the GPU has passed the \
                 free; at once, behind a GPU-side wait",
        ),
    Lagging::LAG
        .figure("lag", |lagging| lagging.lag.into())
        .legend("lag", "how many operations the CPU is ahead of the GPU"),
    Lagging::PASSES,
    Lagging::OOM,
    Lagging::LIVE,
    Lagging::RESERVED_FIRST,
    Lagging::RESERVED_THIRD,
    Lagging::UTILIZATION_FIRST,
    Lagging::UTILIZATION_THIRD,
    Figure::result("stream_waits_first", |lagging| lagging.first(|pass| pass.stream_waits.into()))
        .figure("waits\n1st", |lagging| lagging.cell(|first, _| first.stream_waits.into()))
        .legend("waits", "GPU-side waits of a stream for another, in the first and the third pass"),
    Figure::result("stream_waits_third", |lagging| lagging.third(|pass| pass.stream_waits.into()))
        .figure("waits\n3rd", |lagging| lagging.cell(|_, third| third.stream_waits.into()))
        .spare(2),
    Figure::result("stream_waits_all", |lagging| {
        lagging.passes.iter().map(|pass| pass.stream_waits).sum::<u64>().into()
    }),
    Figure::result("idle_waits_first", |lagging| lagging.first(|pass| pass.idle_waits.into())),
    Figure::result("idle_waits_third", |lagging| lagging.third(|pass| pass.idle_waits.into())),
    Figure::result("wait_age_ops_min_first", |lagging| lagging.first(|pass| pass.least_wait_age().into())),
    Figure::result("wait_age_ops_min_third", |lagging| lagging.third(|pass| pass.least_wait_age().into())),
    Figure::result("wait_age_ops_mean_first", |lagging| {
        lagging.first(|pass| pass.mean_wait_age().map(|age| round_to(age, 1)).into())
    }),
    Figure::result("wait_age_ops_mean_third", |lagging| {
        lagging.third(|pass| pass.mean_wait_age().map(|age| round_to(age, 1)).into())
    })
    .figure("age\n3rd", |lagging| {
        lagging.cell(|_, third| third.mean_wait_age().map(|age| format!("{age:.0}")).unwrap_or_default().into())
    })
    .spare(4)
    .legend(
        "age",
        "how many operations ago the event was recorded that a stream waited for, in the mean \
                 of the third pass: the older, the less it is held up; from the lag on not at all",
    ),
    Lagging::DRIVER_TIME_FIRST,
    Lagging::DRIVER_TIME_THIRD,
    Lagging::DRIVER_TIME_ALL,
    Lagging::WORST_STALL,
];

pub(super) fn help() -> String {
    format!("{}\n\n{KEYS}", legend(COLUMNS))
}

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

/// The compared policies.
const POLICIES: [StreamSharing; 3] = StreamSharing::ALL;
/// The colours of the policies.
const COLOURS: [RGBColor; 3] = [chart::colour(5), chart::colour(4), chart::colour(2)];
/// The width of a bar; 1 is the distance to the next lag.
const BAR: f64 = 0.36;

pub(super) fn run(args: &LagArgs, color: Color) -> Result<(), Failure> {
    let study = &args.study;
    let is_set = |config: &Config| config.sharing != StreamSharing::default();
    let (base, mut output) = study.begin(("sharing", is_set), color)?;
    let (traces, inputs) = study.traces(&args.traces, |name| name == JOB)?;
    let mut lags = args.lags.clone();
    lags.sort_unstable();
    lags.dedup();
    let settings: Vec<Setting> =
        POLICIES.into_iter().flat_map(|sharing| lags.iter().map(move |lag| (sharing, *lag))).collect();
    let options = |(sharing, lag): Setting| {
        let config = Config { sharing, ..base.config.clone() };
        (format!("{}, {lag}", sharing.name()), ReplayOptions { config, lag, ..base.clone() })
    };
    let repeated = |outcome: &Lagging, first: bool| match first {
        true => 0,
        false if Some(&outcome.lag) == lags.first() => 1,
        false => 2,
    };
    let shown = (!study.json).then_some(&mut output);
    let all = outcomes(&traces, &settings, options, COLUMNS, repeated, shown)?;
    let plot = || draw(&all, &lags, &base.device.to_string());
    inputs.finish(finish(&all, study.svg.as_deref().map(|path| (path, plot()))))
}

/// Draws three panels for each trace, with the lag on the horizontal axis: utilization, with a line for each policy and
/// pass; the number of waits; and the mean age of the events that streams waited for.
fn draw(all: &[Lagging], lags: &[u64], device: &str) -> Result<String, chart::DrawError> {
    let ahead = || Axis::categories("how many operations the CPU is ahead of the GPU", lags);
    let mut panels = Vec::new();
    for outcomes in all.chunks(POLICIES.len() * lags.len()) {
        let trace = outcomes.first().map(|outcome| outcome.trace.as_str()).unwrap_or_default();
        let ran = || outcomes.iter().filter_map(Outcome::first_and_third);
        let used = ran().flat_map(|(first, third)| [first.utilization(), third.utilization()]);
        let up = Axis::used("reserved memory that the job uses", used);
        let by_policy = || outcomes.chunks(lags.len()).zip(COLOURS);
        let curves = by_policy().flat_map(|(outcomes, colour)| curves(outcomes, colour)).collect();
        panels.push(Panel {
            title: format!("{trace}: memory"),
            x: ahead(),
            y: up,
            lines: curves,
            bars: Vec::new(),
            tiles: Vec::new(),
        });

        let most = ran().map(|(first, third)| first.stream_waits.max(third.stream_waits)).max();
        let up = Axis::counts("GPU-side waits in one pass", most.unwrap_or_default());
        let bars = by_policy().flat_map(|(outcomes, colour)| bars(outcomes, colour)).collect();
        let title = format!("{trace}: waits of one stream for another, with sharing:wait");
        panels.push(Panel { title, x: ahead(), y: up, lines: Vec::new(), bars, tiles: Vec::new() });

        let (title, ages) =
            (format!("{trace}: how old the event was that a stream waited for"), by_policy().flat_map(ages));
        let lines: Vec<Line> = ages.collect();
        let up = Axis::log("operations, in the mean", lines.iter().flat_map(|line| &line.points).map(|point| point.y));
        panels.push(Panel { title, x: ahead(), y: up, lines, bars: Vec::new(), tiles: Vec::new() });
    }
    let heading = format!("Sharing between streams, by how far the program runs ahead ({device})");
    chart::draw(
        &heading,
        "first pass: dashed lines, bars to the left  ·  third pass: solid lines, bars to the right",
        &panels,
    )
}

/// Returns one policy's utilization in the first and in the third pass.
fn curves(outcomes: &[Lagging], colour: RGBColor) -> [Line; 2] {
    let curve = |third: bool| {
        let point = |(index, outcome): (usize, &Lagging)| {
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

/// Returns the mean age of the events that streams waited for, by lag, in the first and in the third pass; no lines for
/// policies that never wait.
fn ages((outcomes, colour): (&[Lagging], RGBColor)) -> Vec<Line> {
    let curve = |third: bool| {
        let point = |(index, outcome): (usize, &Lagging)| {
            let passes = outcome.first_and_third()?;
            // The axis is logarithmic, so it has no place for an age below one operation.
            let age = if third { passes.1 } else { passes.0 }.mean_wait_age()?.max(1.0);
            Some(Point { x: index as f64, y: age, label: Some(format!("{age:.0}")), mark: Mark::Dot })
        };
        let name = if third { "3rd pass" } else { "1st pass" };
        let points = outcomes.iter().enumerate().filter_map(point).collect();
        Line { name: name.to_owned(), colour, dashed: !third, points, apart: Vec::new() }
    };
    if outcomes.iter().all(|outcome| outcome.setting.0 != StreamSharing::Wait) {
        return Vec::new();
    }
    vec![curve(false), curve(true)]
}

/// Returns the number of waits in the first and in the third pass; no bars for policies that never wait.
fn bars(outcomes: &[Lagging], colour: RGBColor) -> Vec<Bar> {
    let waits = |(index, outcome): (usize, &Lagging)| {
        let (first, third) = outcome.first_and_third()?;
        let bar = |from: f64, count: u64, strength: f64| {
            let x = index as f64 + from..index as f64 + from + BAR;
            Bar { x, height: count as f64, label: count.to_string(), colour: colour.mix(strength) }
        };
        Some([bar(-BAR, first.stream_waits, 0.5), bar(0.0, third.stream_waits, 1.0)])
    };
    let policy = outcomes.first().filter(|outcome| outcome.setting.0 == StreamSharing::Wait);
    policy.into_iter().flat_map(|_| outcomes.iter().enumerate().filter_map(waits).flatten()).collect()
}
