//! Fills and checks every word of every block, through a GPU's own kernels, while memory is split, merged, stitched, taken
//! across streams, captured into graphs and replayed. Prints one JSON object a line.
//!
//! ```text
//! cargo run --release --example gpu_content -- cuda:0 --conf strategy:stitch,chunk_size_mb:2 --seed 7 --seconds 20
//! cargo run --release --example gpu_content -- sim:h200 --threads 1 --operations 20000
//! cargo run --release --example gpu_content -- host:2GiB --faults               # the machine's own memory, no GPU
//! cargo run --release --example gpu_content -- cuda:0 --sabotage untold       # must find wrong words
//! cargo run --release --example gpu_content -- cuda:0 --speed                 # kernels on stitched memory, and on other
//! ```
//!
//! | option | meaning |
//! |---|---|
//! | `--conf OPTIONS` | the allocator's, as `seamalloc --conf` takes them |
//! | `--seed N` | of the random program; 1 |
//! | `--seconds S`, `--operations N` | how long, by the clock or for each thread; 10 seconds |
//! | `--threads N`, `--streams N` | threads, and streams of each, beside the default stream; 2 and 3 |
//! | `--live SIZE` | most bytes that the program holds; `12GiB`, of `host` half of what it has |
//! | `--faults` | driver calls of the allocator fail at random |
//! | `--sabotage NAME` | a mistake made on purpose: `untold`, `unwaited`, `freed-outputs` |
//!
//! Exit code 1: a word was wrong, or the run failed. 2: wrong command line, or no such device.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the command line")]

mod calls;
mod cuda;
mod faults;
mod gpu;
mod graphs;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod host;
mod program;
#[path = "../../tests/common/random.rs"]
mod random;
mod run;
mod sabotage;
mod sim;
mod speed;

use gpu::{Gpu, Outcome};
use run::{Plan, Report, Until, run};
use seamalloc::Config;
use seamalloc::units::parse_bytes;
use serde_json::json;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

const DEFAULT_LIVE: u64 = 12 << 30;

/// The task that the command line asks for.
enum Task {
    Content(Box<Plan>, String),
    Speed,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let device = arguments.next().unwrap_or_else(|| "cuda:0".to_owned());
    let (task, gpu) = match task(arguments).and_then(|task| Ok((task, open(&device)?))) {
        Ok(ready) => ready,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let done = match (task, gpu) {
        (Task::Content(plan, options), device) => content(&device.gpu(), &plan, &options),
        (Task::Speed, Device::Cuda(cuda)) => speed::measure(&cuda, |line| println!("{line}")),
        (Task::Speed, Device::Other(_)) => Err("only a GPU has a speed to measure".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

enum Device {
    Cuda(Arc<cuda::Cuda>),
    Other(Arc<dyn Gpu>),
}

impl Device {
    fn gpu(&self) -> Arc<dyn Gpu> {
        match self {
            Self::Cuda(cuda) => Arc::<cuda::Cuda>::clone(cuda),
            Self::Other(device) => Arc::clone(device),
        }
    }
}

fn open(name: &str) -> Outcome<Device> {
    if name.starts_with("sim") {
        return Ok(Device::Other(Arc::new(sim::SimWords::open(name)?)));
    }
    if name.starts_with("host") {
        return host(name).map(Device::Other);
    }
    Ok(Device::Cuda(Arc::new(cuda::Cuda::open(name)?)))
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
fn host(name: &str) -> Outcome<Arc<dyn Gpu>> {
    Ok(Arc::new(host::HostWords::open(name)?))
}

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
fn host(name: &str) -> Outcome<Arc<dyn Gpu>> {
    Err(format!("{name}: only on 64-bit Linux").into())
}

fn task(mut arguments: impl Iterator<Item = String>) -> Outcome<Task> {
    let mut options = String::new();
    let mut plan = Plan {
        config: Config::default(),
        seed: 1,
        threads: 2,
        streams: 3,
        live: 0,
        until: Until::Passed(Duration::from_secs(10)),
        sabotage: None,
        faults: false,
    };
    let (mut speed, mut live) = (false, None);
    while let Some(option) = arguments.next() {
        if option == "--speed" {
            speed = true;
            continue;
        }
        if option == "--faults" {
            plan.faults = true;
            continue;
        }
        let value = arguments.next().ok_or_else(|| format!("{option} needs a value"))?;
        match option.as_str() {
            "--conf" => options = value,
            "--seed" => plan.seed = value.parse()?,
            "--seconds" => plan.until = Until::Passed(Duration::try_from_secs_f64(value.parse()?)?),
            "--operations" => plan.until = Until::Operations(value.parse()?),
            "--threads" => plan.threads = value.parse::<u64>()?.max(1),
            // A capture takes one, and the default stream rests meanwhile.
            "--streams" => plan.streams = value.parse::<u64>()?.max(2),
            "--live" => live = Some(parse_bytes(&value)?),
            "--sabotage" => plan.sabotage = Some(value.parse()?),
            _ => return Err(format!("there is no option {option}").into()),
        }
    }
    plan.config = Config::parse(&options)?;
    plan.live = live.unwrap_or(0);
    Ok(if speed { Task::Speed } else { Task::Content(Box::new(plan), options) })
}

fn content(gpu: &Arc<dyn Gpu>, plan: &Plan, options: &str) -> Outcome<()> {
    let device = gpu.driver();
    let is_host = device.properties().name.starts_with("host");
    let default = if is_host { device.properties().total_memory / 2 } else { DEFAULT_LIVE };
    let plan = &Plan { live: if plan.live == 0 { default } else { plan.live }, ..plan.clone() };
    let start = Instant::now();
    let report = run(gpu, plan)?;
    println!("{}", line(gpu, plan, options, &report, start.elapsed()));
    Ok(report.verdict()?)
}

fn line(gpu: &Arc<dyn Gpu>, plan: &Plan, options: &str, report: &Report, elapsed: Duration) -> serde_json::Value {
    let Report { tally, findings, stats, left } = report;
    let calls = gpu.driver().call_stats();
    let calls = calls.iter().filter(|(_, stat)| stat.count > 0);
    let calls: serde_json::Map<_, _> = calls.map(|(call, stat)| (call.name().to_owned(), stat.count.into())).collect();
    json!({
        "device": gpu.driver().properties().name,
        "strategy": plan.config.strategy.name(),
        "options": options,
        "seed": plan.seed,
        "threads": plan.threads,
        "streams": plan.streams,
        "sabotage": plan.sabotage.map(|sabotage| format!("{sabotage:?}")),
        "seconds": elapsed.as_secs_f64(),
        "operations": tally.operations,
        "allocations": tally.allocations,
        "used_elsewhere": tally.used_elsewhere,
        "freed_in_use": tally.freed_in_use,
        "rewrites": tally.rewrites,
        "captures": tally.captures,
        "replays": tally.replays,
        "faults": plan.faults,
        "failures": tally.failures,
        "shortages": tally.shortages,
        "words_checked": findings.checked,
        "bytes_checked": findings.checked * gpu::WORD,
        "words_wrong": findings.wrong,
        "first_wrong": findings.first.map(|first| first.to_string()),
        "verdict": report.verdict().err().unwrap_or_else(|| "right".to_owned()),
        "views_built": stats.views_built,
        "views_reused": stats.views_reused,
        "views_dropped": stats.views_dropped,
        "stream_waits": stats.stream_waits,
        "bytes_taken_across": stats.waits.bytes,
        "wait_age_mean": stats.waits.age_total as f64 / stats.stream_waits.max(1) as f64,
        "cpu_syncs": stats.num_sync_all_streams,
        "peak_reserved": stats.reserved_bytes.all.peak,
        "bytes_left": left,
        "driver_calls": calls,
    })
}
