//! Ten million operations of a program that is hard on an allocator, on the simulated GPU: what the allocator's own tables
//! take must not grow.
//!
//! `cargo run --release --example endurance [OPERATIONS [OPTIONS]]`, with options as `seamalloc --conf` takes them.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "an example prints, and one that cannot run should stop")]

mod heap;
#[path = "../../tests/instrumented/mod.rs"]
mod instrumented;
mod program;
#[path = "../../tests/random/mod.rs"]
mod random;

use program::{Program, Scale};
use std::time::Instant;

#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

const GIB: u64 = 1 << 30;
/// Lines that are printed.
const LINES: u64 = 20;

fn main() {
    let mut args = std::env::args().skip(1);
    let ops = args.next().map_or(10_000_000, |ops| ops.parse().expect("a number of operations"));
    let options = args.next().unwrap_or_default();
    let scale = Scale { live: 24 * GIB, blocks: 40_000, phase: 25_000, stream: 500, ahead: 1500 };
    let mut program = Program::new("sim:h200,capacity=32GiB", &options, scale);
    println!(
        "{:>10}{:>8}{:>9}{:>10}{:>12}{:>12}{:>8}{:>9}{:>8}{:>9}{:>10}{:>9}{:>10}",
        "operations",
        "ns/op",
        "live GiB",
        "reserved",
        "tables KiB",
        "held KiB",
        "views",
        "mappings",
        "events",
        "misses",
        "driver ms",
        "streams",
        "shortages"
    );
    for _ in 0..LINES {
        let start = Instant::now();
        program.run(ops / LINES);
        let ns = start.elapsed().as_nanos() as u64 / (ops / LINES).max(1);
        let state = program.state();
        let gib = |bytes: u64| bytes as f64 / GIB as f64;
        println!(
            "{:>10}{ns:>8}{:>9.2}{:>10.2}{:>12}{:>12}{:>8}{:>9}{:>8}{:>9}{:>10}{:>9}{:>10}",
            state.ops,
            gib(state.live),
            gib(state.reserved),
            state.host_bytes >> 10,
            state.held >> 10,
            state.views,
            state.mappings,
            state.events,
            state.stalls,
            state.driver_ms,
            state.streams,
            state.shortages,
        );
        program.check().expect("every rule holds");
    }
}
