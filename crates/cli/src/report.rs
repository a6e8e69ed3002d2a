//! `seamalloc report`: a page with pictures of each strategy's memory on traces.

use crate::args::{Color, ReportArgs, RunArgs};
use crate::failure::Failure;
use crate::layout::Layouts;
use crate::output::Output;
use crate::progress::Progress;
use crate::svg::check_writable;
use crate::values::Device;
use crate::{output, source, verdict};
use seamalloc::StrategyKind;
use seamalloc::driver::sim::SimConfig;
use seamalloc::units::format_bytes;
use seamalloc_page::{Job, course, fleet_html, html, layout_html};
use seamalloc_trace::Trace;
use seamalloc_trace::cliff::cliff;
use seamalloc_trace::owners::owners;
use seamalloc_trace::pytorch::Origins;
use seamalloc_trace::replay::ReplayOptions;
use seamalloc_trace::verdict::Judgement;
use seamalloc_trace::whatif::{DeviceFrom, Replays, device_of};
use serde_json::{Value, json};
use std::path::Path;

/// The most events of a trace for which every strategy gets a map. The limit keeps the page at some megabytes.
const EVENTS_WITH_ALL_MAPS: usize = 150_000;
/// The number of owners of memory (lines of the program) that are listed.
const OWNERS: usize = 20;

pub(crate) fn run(args: &ReportArgs, color: Color) -> Result<(), Failure> {
    if let (Some(path), Some(output)) = (&args.fleet, &args.output) {
        return fleet(path, output);
    }
    let run = &args.traces.run;
    if run.device().is_real() {
        let text = "report replays on a simulated device: --device sim:h200,capacity=SIZE";
        return Err(Failure::Usage(text.to_owned()));
    }
    if run.svg.is_some() {
        return Err(Failure::Usage("report writes a page: it has no --svg".to_owned()));
    }
    let asked: Vec<_> = run.runs().iter().map(|options| options.config.strategy).collect();
    if let Some(kind) = args.map.iter().flat_map(|named| &named.0).find(|kind| !asked.contains(kind)) {
        let names: Vec<_> = asked.iter().map(|kind| kind.name()).collect();
        let text = format!("--map {kind}: only strategies that run have a map: {}", names.join(", "));
        return Err(Failure::Usage(text));
    }
    let mut layouts = Layouts::default();
    let (loaded, mut inputs) = source::load_with_origins(&args.traces.traces, args.traces.generate, &mut layouts)?;
    args.output.as_deref().map_or(Ok(()), check_writable)?;
    let mut output = Output::new(color, None)?;
    let mut jobs = Vec::new();
    let (mut judged, mut failed) = (0, 0);
    inputs.each(&loaded, |(trace, origins)| {
        let (device, from) = device_for(run, trace);
        let any = ReplayOptions::new(run.conf.clone(), device.clone());
        let options = run.runs_on(&device).into_iter().next().unwrap_or(any);
        let mut replays = Replays::new(trace, &options, from);
        let verdict = replays.judged(origins.as_ref(), &args.library)?;
        judged += 1;
        failed += usize::from(!verdict.runs());
        if run.json {
            output::print(&in_json(trace, origins.as_ref(), &verdict, &args.library).to_string())?;
        } else {
            verdict::show(&mut output, &trace.name, &verdict)?;
        }
        if args.output.is_none() {
            return Ok(());
        }
        let mut job = job(args, trace, device, &mut replays)?;
        (job.origins, job.verdict) = (origins.clone(), Some(verdict));
        jobs.push(job);
        Ok(())
    })?;
    if let Some(output) = args.output.as_deref().filter(|_| !jobs.is_empty()) {
        write(output, &html(&command(), &jobs), run.json)?;
    }
    let words = layouts.print(&mut output, run.device.as_ref(), run.json, &args.library)?;
    match args.output.as_deref().filter(|_| !words.is_empty()) {
        Some(path) if jobs.is_empty() => write(path, &layout_html(&command(), &words), run.json)?,
        Some(path) => output::note(&format!(
            "{}: the page of the jobs; a snapshot without a history has one by itself",
            path.display()
        )),
        None => {}
    }
    inputs.finish(if failed > 0 { Err(Failure::DoesNotRun(failed, judged)) } else { Ok(()) })
}

/// Writes the page. With `quiet`, prints no text on standard output, which is for other programs.
fn write(path: &Path, page: &str, quiet: bool) -> Result<(), Failure> {
    std::fs::write(path, page).map_err(|error| Failure::Write { path: path.to_owned(), error })?;
    let written =
        format!("{}: {}. Open it in a browser: {}", path.display(), format_bytes(page.len() as u64), address(path));
    if quiet {
        output::note(&written);
        return Ok(());
    }
    output::print(&written)
}

/// Returns the address of a file, for a browser or a terminal.
fn address(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut address = "file://".to_owned();
    for byte in path.to_string_lossy().bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            address.push(byte.into());
        } else {
            address.push_str(&format!("%{byte:02X}"));
        }
    }
    address
}

/// Returns the line of `--json`: the verdict, and the owners of memory at the peak, or null if the recording has no
/// stacks.
fn in_json(trace: &Trace, origins: Option<&Origins>, verdict: &Judgement, libraries: &[String]) -> Value {
    let origins = origins.filter(|origins| !origins.frames.is_empty());
    let owners = origins.map(|origins| owners(trace, origins, libraries, OWNERS).to_json(origins));
    json!({
        "trace": trace.name,
        "verdict": verdict.to_json(),
        "peak_live": trace.summary().peak_live,
        "owners": owners,
    })
}

/// Writes the page of a whole job, from the output of `python -m seamalloc fleet --json`.
fn fleet(path: &Path, output: &Path) -> Result<(), Failure> {
    let wrong = |found: String| Failure::NoFleet { path: path.to_owned(), found };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let job = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    check_writable(output)?;
    // A page is named after its own file, since its source may be a temporary file.
    let name = output.file_stem().unwrap_or_default().to_string_lossy();
    write(output, &fleet_html(&name, "seamalloc fleet", &job).map_err(wrong)?, false)
}

/// Returns the given device, or the recorded one.
fn device_for(run: &RunArgs, trace: &Trace) -> (SimConfig, DeviceFrom) {
    match run.device() {
        Device::Sim(device) if run.device.is_some() => (device, DeviceFrom::Asked),
        _ => device_of(trace),
    }
}

/// Returns the results of all strategies on a trace, on one device.
fn job<'t>(
    args: &ReportArgs,
    trace: &'t Trace,
    device: SimConfig,
    replays: &mut Replays<'_>,
) -> Result<Job<'t>, Failure> {
    let run = &args.traces.run;
    let each = run.runs_on(&device);
    let mapped = mapped(args, trace, &each);
    let mut courses = Vec::new();
    for options in &each {
        let kind = options.config.strategy;
        let progress = Progress::new(format!("{} / {kind}", trace.name));
        let show = &mut |done, total| progress.set(done, total);
        courses.push(course(trace, options, mapped.contains(&kind), show)?);
    }
    let (mut compared, mut sizes) = (Vec::new(), Vec::new());
    if !args.quick {
        let kinds: Vec<_> = each.iter().map(|run| run.config.strategy).collect();
        let progress = Progress::new(format!("{} / whatif", trace.name));
        let mut show = |kind: StrategyKind, done: u32, total: u32| {
            progress.say(format!("{} / whatif {kind}", trace.name));
            progress.set(done.into(), total.into());
        };
        compared = replays.whatif(&kinds, true, &mut show)?;
        // The sizes are multiples of the trace's live bytes, so the device's own capacity is not used.
        let whole = SimConfig { capacity: device.profile.memory(), ..device };
        for options in run.runs_on(&whole) {
            let progress = Progress::new(format!("{} / cliff {}", trace.name, options.config.strategy));
            let show = &mut |done: usize, total: usize| progress.set(done as u64, total as u64);
            sizes.extend(cliff(trace, &options, &args.times_live, show)?);
        }
    }
    let mut job = each.first().map_or_else(
        || Job::new(trace, &ReplayOptions::new(run.conf.clone(), SimConfig::default()), Vec::new()),
        |options| Job::new(trace, options, courses),
    );
    (job.whatif, job.cliff) = (compared, sizes);
    job.libraries.clone_from(&args.library);
    Ok(job)
}

/// Returns the strategies whose maps the page has.
fn mapped(args: &ReportArgs, trace: &Trace, each: &[ReplayOptions]) -> Vec<StrategyKind> {
    let all = || each.iter().map(|options| options.config.strategy);
    let named: Vec<_> = args.map.iter().flat_map(|named| named.0.iter().copied()).collect();
    if !named.is_empty() {
        return named;
    }
    if trace.events.len() <= EVENTS_WITH_ALL_MAPS {
        return all().collect();
    }
    all().find(|kind| *kind == StrategyKind::default()).or_else(|| all().next()).into_iter().collect()
}

/// Returns the command line.
fn command() -> String {
    let words = std::env::args_os().skip(1).map(|word| {
        let word = word.to_string_lossy().into_owned();
        // Folders of this machine are left out, for privacy.
        match Path::new(&word).file_name() {
            Some(name) if Path::new(&word).is_absolute() => name.to_string_lossy().into_owned(),
            _ => word,
        }
    });
    std::iter::once("seamalloc".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}
