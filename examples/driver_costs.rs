//! Measures the cost of the driver's virtual-memory calls when memory grows piece by piece, as an allocator makes it
//! grow: the figures behind the cost model of the simulated GPU (`crates/sim/src/cost.rs`).
//!
//! ```text
//! cargo run --release --example driver_costs -- cuda:0
//! ```
//!
//! For each size of a handle one line of JSON, times in microseconds, medians: `create`, `map` and `set_access` of a new
//! handle behind the last one; `view_map` (each) and `view_access` (all in one call, by handle) of the same handles mapped
//! once more, one behind the other; `unmap` of that view (by handle); `unmap` and `release` of each; `reserve` and
//! `address_free` of ranges that each had one handle mapped; `malloc` and `free` of as many pieces as there were handles.
//! The first time that a process touches so much memory (`fresh`) and the second are told apart. Exit code 2: no such
//! device.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the command line")]

use seamalloc::driver::cuda::CudaDriver;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::driver::{Call, Driver, DriverResult};
use std::collections::BTreeMap;
use std::process::ExitCode;

const MIB: u64 = 1 << 20;
const SIZES_MIB: [u64; 16] = [2, 4, 8, 12, 14, 16, 18, 20, 22, 24, 28, 32, 48, 64, 128, 512];
/// How much memory is made of handles of each size.
const TOTAL: u64 = 4 << 30;
/// How many ranges of addresses are reserved and freed again.
const RANGES: usize = 32;

fn main() -> ExitCode {
    let device = std::env::args().nth(1).unwrap_or_else(|| "cuda:0".to_owned());
    let opened: Result<Box<dyn Driver>, String> = match device.strip_prefix("cuda:").map(str::parse) {
        Some(Ok(ordinal)) => CudaDriver::open(ordinal).map(|gpu| Box::new(gpu) as _).map_err(|error| error.to_string()),
        Some(Err(error)) => Err(format!("{device}: {error}")),
        None => SimConfig::parse(&device)
            .and_then(SimGpu::new)
            .map(|gpu| Box::new(gpu) as _)
            .map_err(|error| error.to_string()),
    };
    let run = |driver: &dyn Driver| -> DriverResult<()> {
        for round in ["fresh", "again"] {
            for size in SIZES_MIB {
                measure(driver, round, size * MIB)?;
            }
        }
        Ok(())
    };
    match opened.and_then(|driver| run(&*driver).map_err(|error| error.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn measure(driver: &dyn Driver, round: &str, size: u64) -> DriverResult<()> {
    let count = (TOTAL / size).clamp(8, 512);
    let [home, view] = [driver.reserve(count * size, 0)?, driver.reserve(count * size, 0)?];
    let spent = |call: Call| driver.call_stats().get(call).total_ns;
    let mut times: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    let mut note = |call: Call, before: u64| times.entry(call.name()).or_default().push(spent(call) - before);
    let mut handles = Vec::new();
    for index in 0..count {
        let before = [Call::Create, Call::Map, Call::SetAccess].map(|call| (call, spent(call)));
        let handle = driver.create(size)?;
        driver.map(home + index * size, size, 0, handle)?;
        driver.set_access(home + index * size, size)?;
        before.into_iter().for_each(|(call, before)| note(call, before));
        handles.push(handle);
    }
    let before = [Call::Map, Call::SetAccess, Call::Unmap].map(&spent);
    for (index, handle) in (0..).zip(&handles) {
        driver.map(view + index * size, size, 0, *handle)?;
    }
    driver.set_access(view, count * size)?;
    driver.unmap(view, count * size)?;
    let in_view: Vec<f64> = [Call::Map, Call::SetAccess, Call::Unmap]
        .into_iter()
        .zip(before)
        .map(|(call, before)| micros(spent(call) - before) / count as f64)
        .collect();
    for handle in handles.iter().take(RANGES) {
        let before = [Call::Reserve, Call::AddressFree].map(|call| (call, spent(call)));
        let range = driver.reserve(size, 0)?;
        driver.map(range, size, 0, *handle)?;
        driver.set_access(range, size)?;
        driver.unmap(range, size)?;
        driver.address_free(range, size)?;
        before.into_iter().for_each(|(call, before)| note(call, before));
    }
    for (index, handle) in (0..).zip(&handles) {
        let before = [Call::Unmap, Call::Release].map(|call| (call, spent(call)));
        driver.unmap(home + index * size, size)?;
        driver.release(*handle)?;
        before.into_iter().for_each(|(call, before)| note(call, before));
    }
    driver.address_free(view, count * size)?;
    driver.address_free(home, count * size)?;
    let mut blocks = Vec::new();
    for _ in 0..count {
        let before = spent(Call::Malloc);
        blocks.push(driver.malloc(size)?);
        note(Call::Malloc, before);
    }
    for block in blocks {
        let before = spent(Call::Free);
        driver.free(block)?;
        note(Call::Free, before);
    }
    let medians: serde_json::Map<_, _> =
        times.iter_mut().map(|(call, all)| ((*call).to_owned(), median(all).into())).collect();
    println!(
        "{}",
        serde_json::json!({
            "device": driver.properties().name, "round": round, "size_mib": size / MIB, "handles": count, "us": medians,
            "view_us_by_handle": {"map": in_view[0], "set_access": in_view[1], "unmap": in_view[2]},
        })
    );
    Ok(())
}

fn median(all: &mut [u64]) -> f64 {
    all.sort_unstable();
    all.get(all.len() / 2).map_or(0.0, |ns| micros(*ns))
}

fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}
