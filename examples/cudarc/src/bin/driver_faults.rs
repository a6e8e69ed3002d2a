//! Makes things go wrong with a device, and checks that the allocator answers with typed errors, breaks no rule of its own,
//! and ends cleanly. One JSON line a case on standard output.
//!
//! ```text
//! cargo run --release -p seamalloc-cudarc --bin driver_faults -- cuda:0
//! cargo run --release -p seamalloc-cudarc --bin driver_faults -- sim:h200
//! ```
//!
//! | case | how |
//! |---|---|
//! | `no_such_device` | an ordinal that no machine has |
//! | `no_device` | a process whose `CUDA_VISIBLE_DEVICES` is empty |
//! | `foreign_stream` | a stream that nobody vouches for |
//! | `full_device` | another process fills the card, then gives it back |
//! | `lost_context` | a process of its own, whose kernel writes where there is no memory |
//!
//! A simulated device has the last two. Exit code 1: a case failed. 2: there is no such device.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the command line")]

use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use seamalloc::driver::cuda::{CudaDriver, CudaOpenError};
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::driver::{Driver, PlainMemory, Status, StreamId};
use seamalloc::{Allocator, Config, StrategyKind};
use serde_json::json;

type Failure = Box<dyn Error>;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// The bytes that are left of a full device.
const LEFT: u64 = 256 * MIB;
/// Page 0 is never mapped.
const NOWHERE: u64 = 16;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["--no-device"] => Ok(report("no_device", None, no_device)),
        ["--fill", device] => fill(device).map(|()| true),
        ["--lose", device, strategy] => strategy
            .parse()
            .map_err(Failure::from)
            .map(|kind: StrategyKind| report("lost_context", Some(kind), || lose_on_cuda(device, kind))),
        [] => run("cuda:0"),
        [device] => run(device),
        _ => Err("usage: driver_faults [cuda:N | sim:...]".into()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Every case on a device: whether all went well.
fn run(device: &str) -> Result<bool, Failure> {
    if device.starts_with("sim") {
        return simulated(device);
    }
    let ordinal = CudaDriver::parse_ordinal(device)?;
    drop(CudaDriver::open(ordinal)?);
    let mut ok = report("no_such_device", None, no_such_device);
    ok &= delegate(Command::new(std::env::current_exe()?).arg("--no-device").env("CUDA_VISIBLE_DEVICES", ""))?;
    ok &= report("foreign_stream", None, || foreign_stream(ordinal));
    // Opened before the device is full: a context takes memory too.
    let driver = Arc::new(CudaDriver::open(ordinal)?);
    let stream = driver.create_stream()?;
    for kind in StrategyKind::MAIN {
        ok &= report("full_device", Some(kind), || {
            let mut filler = Filler::start(device)?;
            full(&(Arc::clone(&driver) as Arc<dyn Driver>), kind, stream, || filler.give_back())
        });
    }
    driver.destroy_stream(stream)?;
    drop(driver);
    for kind in StrategyKind::MAIN {
        ok &= delegate(Command::new(std::env::current_exe()?).args(["--lose", device, kind.name()]))?;
    }
    Ok(ok)
}

/// Causes the same faults on a simulated device: another allocation of the device fills it, and a call loses the
/// context.
fn simulated(device: &str) -> Result<bool, Failure> {
    let mut ok = true;
    for kind in StrategyKind::MAIN {
        ok &= report("full_device", Some(kind), || {
            let gpu = Arc::new(SimGpu::new(SimConfig::parse(device)?)?);
            let other = gpu.malloc(gpu.memory_info()?.free - LEFT)?;
            let driver = Arc::clone(&gpu) as Arc<dyn Driver>;
            let found = full(&driver, kind, StreamId(7), || Ok(gpu.free(other)?))?;
            drop(driver);
            if gpu.leaks().is_empty() { Ok(found) } else { Err(gpu.leaks().to_string().into()) }
        });
        ok &= report("lost_context", Some(kind), || {
            let gpu = Arc::new(SimGpu::new(SimConfig::parse(device)?)?);
            let streams = [StreamId(7), StreamId(8)];
            lost(Arc::clone(&gpu) as Arc<dyn Driver>, kind, streams, || {
                gpu.lose_context(Status::ILLEGAL_ADDRESS);
                Ok(())
            })
        });
    }
    Ok(ok)
}

/// Runs one case and prints its line: whether it went well. Its result says what was seen.
fn report(case: &str, strategy: Option<StrategyKind>, run: impl FnOnce() -> Result<String, Failure>) -> bool {
    let start = Instant::now();
    let result = run();
    let (ok, seen) = match &result {
        Ok(seen) => (true, seen.clone()),
        Err(error) => (false, error.to_string()),
    };
    let strategy = strategy.map(StrategyKind::name);
    let seconds = start.elapsed().as_secs_f64();
    println!("{}", json!({ "case": case, "strategy": strategy, "ok": ok, "seen": seen, "seconds": seconds }));
    ok
}

/// A case in a process of its own, which prints the line: whether it went well, to the end of the process.
fn delegate(command: &mut Command) -> Result<bool, Failure> {
    let status = command.status()?;
    if status.code().is_none() {
        println!("{}", json!({ "case": "process", "ok": false, "seen": format!("{command:?}: {status}") }));
    }
    Ok(status.success())
}

fn no_such_device() -> Result<String, Failure> {
    match CudaDriver::open(u32::MAX) {
        Err(error @ CudaOpenError::NoSuchDevice { .. }) => Ok(error.to_string()),
        other => Err(format!("{other:?}").into()),
    }
}

fn no_device() -> Result<String, Failure> {
    match CudaDriver::open(0) {
        Err(error @ CudaOpenError::NoSuchDevice { devices: 0, .. }) => Ok(error.to_string()),
        other => Err(format!("{other:?}").into()),
    }
}

/// No call follows the handle: it is refused before libcuda sees it.
fn foreign_stream(ordinal: u32) -> Result<String, Failure> {
    let allocator = Allocator::new(Arc::new(CudaDriver::open(ordinal)?), Config::default())?;
    match allocator.allocate(MIB, StreamId(0xdead_beef)) {
        Err(seamalloc::Error::Driver(error)) if error.status == Status::INVALID_HANDLE => Ok(error.to_string()),
        other => Err(format!("{other:?}").into()),
    }
}

/// On a device with `LEFT` bytes free: requests are refused as too large for it, and served once `give_back` was called.
fn full(
    driver: &Arc<dyn Driver>,
    kind: StrategyKind,
    stream: StreamId,
    give_back: impl FnOnce() -> Result<(), Failure>,
) -> Result<String, Failure> {
    let allocator = Allocator::new(Arc::clone(driver), Config::with_strategy(kind))?;
    let free = driver.memory_info()?.free;
    let mut served = Vec::new();
    let refusal = loop {
        match allocator.allocate(GIB / 16, stream) {
            Ok(address) if served.len() < 64 => served.push(address),
            Ok(_) => return Err("the device was not full".into()),
            Err(error) => break error,
        }
    };
    let seamalloc::Error::OutOfMemory(said) = &refusal else { return Err(refusal.into()) };
    allocator.reports().check()?;
    // What is held can be freed and had again; no more than that.
    for address in served.drain(..) {
        allocator.free(address)?;
    }
    let again = allocator.allocate(GIB / 16, stream);
    if free > GIB / 8 {
        served.push(again?);
    }
    give_back()?;
    served.push(allocator.allocate(4 * GIB, stream)?);
    for address in served {
        allocator.free(address)?;
    }
    allocator.empty_cache()?;
    allocator.reports().check()?;
    match allocator.reports().reserved() {
        0 => Ok(said.to_string().lines().next().unwrap_or_default().to_owned()),
        left => Err(format!("{left} bytes were not given back").into()),
    }
}

/// After `lose`: every operation that needs the driver fails with a typed error, those that do not go on, nothing panics,
/// and the allocator ends.
fn lost(
    driver: Arc<dyn Driver>,
    kind: StrategyKind,
    streams: [StreamId; 2],
    lose: impl FnOnce() -> Result<(), Failure>,
) -> Result<String, Failure> {
    let allocator = Allocator::new(driver, Config::with_strategy(kind))?;
    let [own, other] = streams;
    let [kept, shared, waiting] = [64, 32, 96].map(|size| allocator.allocate(size * MIB, own));
    let (kept, shared, waiting) = (kept?, shared?, waiting?);
    allocator.record_stream(shared, other)?;
    allocator.record_stream(waiting, other)?;
    allocator.free(waiting)?;
    lose()?;
    let answers = [
        ("allocate", allocator.allocate(2 * GIB, own).map(drop)),
        ("allocate, other stream", allocator.allocate(GIB, other).map(drop)),
        ("free, used elsewhere", allocator.free(shared)),
        ("free", allocator.free(kept)),
        ("trim", allocator.trim(u64::MAX).map(drop)),
        ("empty_cache", allocator.empty_cache().map(drop)),
        ("forget_stream", allocator.streams().forget(other)),
    ];
    let mut seen = Vec::new();
    for (name, answer) in &answers {
        match answer {
            Ok(()) => seen.push(format!("{name}: done")),
            Err(seamalloc::Error::Driver(error)) => seen.push(format!("{name}: {} {}", error.call, error.status)),
            Err(error) => return Err(format!("{name}: {error}").into()),
        }
    }
    let typed = answers.iter().filter_map(|(_, answer)| answer.as_ref().err());
    if !typed.clone().any(seamalloc::Error::is_context_lost) {
        return Err(format!("no answer says that the context is lost: {}", seen.join("; ")).into());
    }
    allocator.reports().check()?;
    drop(allocator);
    Ok(seen.join("; "))
}

/// In a process of its own, since nothing else gets the device back.
fn lose_on_cuda(device: &str, kind: StrategyKind) -> Result<String, Failure> {
    let ordinal = CudaDriver::parse_ordinal(device)?;
    let driver = Arc::new(CudaDriver::open(ordinal)?);
    let streams = [driver.create_stream()?, driver.create_stream()?];
    let context = CudaContext::new(ordinal as usize)?;
    let module = context.load_module(Ptx::from_src(include_str!("../kernels.ptx")))?;
    let wild = module.load_function("wild")?;
    let stream = context.default_stream();
    let shape = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
    lost(driver, kind, streams, || {
        let mut launch = stream.launch_builder(&wild);
        // SAFETY: the kernel takes one address. That nothing is there is what is asked for: the GPU refuses it.
        unsafe { launch.arg(&NOWHERE).launch(shape) }?;
        match stream.synchronize() {
            Ok(()) => Err("the kernel went well".into()),
            Err(_) => Ok(()),
        }
    })
}

/// A process that holds most of a device.
struct Filler(Child);

impl Filler {
    fn start(device: &str) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--fill", device]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        if line.trim() == "full" { Ok(Self(child)) } else { Err(format!("the device was not filled: {line}").into()) }
    }

    /// The process ends, and with it what it holds.
    fn give_back(&mut self) -> Result<(), Failure> {
        drop(self.0.stdin.take());
        let status = self.0.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the process that filled the device: {status}").into()) }
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        // It ends with its input, however this one goes on.
        drop(self.0.stdin.take());
        if let Err(error) = self.0.wait() {
            eprintln!("{error}");
        }
    }
}

/// Takes nearly all of the device, says so, and holds it until standard input ends.
fn fill(device: &str) -> Result<(), Failure> {
    let driver = CudaDriver::open(CudaDriver::parse_ordinal(device)?)?;
    let mut piece = 8 * GIB;
    let mut held = Vec::new();
    while piece >= 64 * MIB {
        match driver.memory_info()?.free {
            free if free < LEFT => break,
            free if free < LEFT + piece => piece /= 2,
            _ => match driver.malloc(piece) {
                Ok(address) => held.push(address),
                Err(error) if error.is_out_of_memory() => piece /= 2,
                Err(error) => return Err(error.into()),
            },
        }
    }
    println!("full");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    held.into_iter().try_for_each(|address| driver.free(address))?;
    Ok(())
}
