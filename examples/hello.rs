//! Allocates on a simulated GPU, frees, and prints what the allocator holds: `cargo run --example hello`.
#![allow(clippy::print_stdout, reason = "a program for the command line")]

use seamalloc::driver::{StreamId, sim::SimConfig, sim::SimGpu};
use seamalloc::{Allocator, Config};
use std::{error::Error, sync::Arc};

fn main() -> Result<(), Box<dyn Error>> {
    let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=80GiB")?)?);
    let allocator = Allocator::new(gpu, Config::parse("strategy:stitch")?)?;

    let address = allocator.allocate(1 << 30, StreamId::DEFAULT)?;
    println!("1 GiB at {address:#x}");
    allocator.free(address)?;

    let stats = allocator.stats();
    println!("requested, at the peak: {} bytes", stats.requested_bytes.all.peak);
    println!("reserved, and kept for later requests: {} bytes", stats.reserved_bytes.all.current);
    Ok(())
}
