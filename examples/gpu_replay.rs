//! Replays the recorded jobs through every strategy on a device, real or simulated, and prints a line for each pass.
//!
//! ```text
//! cargo run --release --example gpu_replay -- cuda:0 gpt2xl-N opt13b-LR
//! cargo run --release --example gpu_replay -- sim:h200
//! ```
//!
//! Every request goes to the default stream, since the handles of a recorded job's other streams are no streams here:
//! jobs with several streams differ from `seamalloc replay` in that. Exit code 2: no such device.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the command line")]

use seamalloc::driver::cuda::CudaDriver;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::driver::{CallStats, Driver, StreamId};
use seamalloc::{Allocator, Config, StrategyKind};
use seamalloc_trace::recorded::{self, JOBS};
use seamalloc_trace::{Trace, TraceEvent};
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

const PASSES: u32 = 3;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let device = arguments.next().unwrap_or_else(|| "cuda:0".to_owned());
    let names: Vec<String> = arguments.collect();
    let run = || -> Result<(), Box<dyn Error>> {
        for job in JOBS.iter().filter(|job| names.is_empty() || names.iter().any(|name| name == job.name)) {
            let trace = recorded::find(job.name).map(recorded::Job::load).transpose()?.unwrap_or_default();
            for kind in StrategyKind::MAIN {
                replay(open(&device)?, kind, &trace)?;
            }
        }
        Ok(())
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// The device of that name. A fresh one for each run, so that no run finds another's memory.
fn open(name: &str) -> Result<Arc<dyn Driver>, Box<dyn Error>> {
    if name.starts_with("sim") {
        return Ok(Arc::new(SimGpu::new(SimConfig::parse(name)?)?));
    }
    Ok(Arc::new(CudaDriver::open(CudaDriver::parse_ordinal(name)?)?))
}

fn replay(driver: Arc<dyn Driver>, kind: StrategyKind, trace: &Trace) -> Result<(), Box<dyn Error>> {
    let held_before = driver.memory_info()?;
    let allocator = Allocator::new(Arc::clone(&driver), Config::with_strategy(kind))?;
    for pass in 1..=PASSES {
        allocator.reports().reset_peaks();
        let before = driver.call_stats();
        let mut addresses: Vec<u64> = Vec::new();
        let mut ops = 0u64;
        let start = Instant::now();
        for event in &trace.events {
            match *event {
                TraceEvent::Alloc { size, .. } => addresses.push(allocator.allocate(size, StreamId::DEFAULT)?),
                TraceEvent::FreeCompleted { block } => {
                    allocator.free(addresses.get_mut(block as usize).map_or(0, std::mem::take))?;
                }
                TraceEvent::FreeRequested { .. } => continue,
            }
            ops += 1;
        }
        let elapsed = start.elapsed();
        let made = driver.call_stats().since(&before);
        let held = held_before.free.saturating_sub(driver.memory_info()?.free);
        println!("{}", line(&driver, trace, &allocator, pass, (&made, held, elapsed.as_nanos() as f64 / ops as f64)));
        for address in addresses {
            allocator.free(address)?;
        }
    }
    Ok(())
}

fn line(
    driver: &Arc<dyn Driver>,
    trace: &Trace,
    allocator: &Allocator,
    pass: u32,
    (made, held, ns_per_op): (&CallStats, u64, f64),
) -> serde_json::Value {
    let stats = allocator.stats();
    let calls = made.iter().filter(|(_, stat)| stat.count > 0);
    let calls: serde_json::Map<_, _> = calls.map(|(call, stat)| (call.name().to_owned(), stat.count.into())).collect();
    let spent = made.iter().filter(|(_, stat)| stat.count > 0);
    let spent: serde_json::Map<_, _> =
        spent.map(|(call, stat)| (call.name().to_owned(), (stat.total_ns as f64 / 1e3).into())).collect();
    serde_json::json!({
        "trace": trace.name,
        "strategy": allocator.config().strategy.name(),
        "device": driver.properties().name,
        "pass": pass,
        "peak_reserved": stats.reserved_bytes.all.peak,
        "device_held": held,
        "utilization": stats.requested_bytes.all.peak as f64 / stats.reserved_bytes.all.peak as f64,
        "driver_calls": calls,
        "driver_us_by_call": spent,
        "driver_time_us": made.total_ns() as f64 / 1e3,
        "worst_stall_us": stats.stalls.worst_ns as f64 / 1e3,
        "ns_per_op": ns_per_op,
    })
}
