//! Replays a trace through PyTorch's two allocators and `stitch` on a simulated H200, and says what each holds:
//! `cargo run --release --example replay -- gpt2xl-N`, or with the path of a trace or of PyTorch's memory snapshot.
#![allow(clippy::print_stdout, reason = "a program for the command line")]

use seamalloc::driver::sim::SimConfig;
use seamalloc::units::format_bytes;
use seamalloc::{Config, StrategyKind};
use seamalloc_trace::replay::{ReplayOptions, replay};
use seamalloc_trace::{read_path, recorded};
use std::{error::Error, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "gpt2xl-N".to_owned());
    let trace = match recorded::find(&name) {
        Some(job) => job.load()?,
        None => read_path(Path::new(&name))?.pop().ok_or("the file has no trace")?,
    };
    for kind in [StrategyKind::Caching, StrategyKind::Expandable, StrategyKind::Stitch] {
        let options = ReplayOptions::new(Config::with_strategy(kind), SimConfig::parse("sim:h200")?);
        for pass in replay(&trace, &options, &mut |_, _| {})? {
            let (held, used) = (format_bytes(pass.peak_reserved), 100.0 * pass.utilization());
            println!("{kind}, pass {}: {held} held at the peak, {used:.1}% of it in use", pass.pass);
        }
    }
    Ok(())
}
