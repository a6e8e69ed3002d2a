//! A hundred million operations of a program that is hard on an allocator, on the simulated GPU: what the allocator's own
//! tables take, and what it holds of the process and the driver beside memory, must not grow.
//!
//! `cargo run --release --example endurance -- [OPERATIONS] [--conf OPTIONS] [--json FILE] [--plot FILE]`, with options as
//! `seamalloc --conf` takes them. It ends with 1 where something grows.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "an example prints, and one that cannot run should stop")]

mod heap;
#[path = "../../tests/common/instrumented.rs"]
mod instrumented;
mod plot;
mod process;
mod program;
#[path = "../../tests/common/random.rs"]
mod random;
mod series;

use program::{Program, Scale, State};
use series::SERIES;
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

const GIB: u64 = 1 << 30;
const OPERATIONS: u64 = 100_000_000;
/// Times at which the state is looked at, and every rule checked; and those of them that are printed.
const SAMPLES: u64 = 400;
const PRINTED: u64 = 20;

struct Args {
    operations: u64,
    options: String,
    json: Option<String>,
    plot: Option<String>,
}

fn args() -> Args {
    let mut parsed = Args { operations: OPERATIONS, options: String::new(), json: None, plot: None };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().expect("a value behind each option");
        match arg.as_str() {
            "--conf" => parsed.options = value(),
            "--json" => parsed.json = Some(value()),
            "--plot" => parsed.plot = Some(value()),
            number => parsed.operations = number.parse().expect("a number of operations"),
        }
    }
    parsed
}

fn main() -> ExitCode {
    let args = args();
    let scale =
        Scale { live: 24 * GIB, blocks: 40_000, phase: 25_000, stream: 500, ahead: 1500, pool: 5_000, fault: 1_009 };
    let mut program = Program::new("sim:h200,capacity=32GiB", &args.options, scale);
    let mut json = args.json.map(|path| std::fs::File::create(path).expect("a file for lines of JSON"));
    print!("{:>11}{:>7}", "operations", "ns/op");
    SERIES.iter().for_each(|series| print!("{:>w$}", series.heading, w = series.heading.len() + 2));
    println!();
    let mut states: Vec<State> = Vec::with_capacity(SAMPLES as usize);
    for sample in 1..=SAMPLES {
        let start = Instant::now();
        program.run(args.operations / SAMPLES);
        let ns = start.elapsed().as_nanos() as u64 / (args.operations / SAMPLES).max(1);
        program.check().expect("every rule holds");
        let state = program.state();
        if let Some(file) = &mut json {
            writeln!(file, "{}", series::json(&state, ns)).expect("a line is written");
        }
        if sample.is_multiple_of(SAMPLES / PRINTED) {
            print!("{:>11}{ns:>7}", state.ops);
            SERIES.iter().for_each(|series| print!("{:>w$}", series.shown(&state), w = series.heading.len() + 2));
            println!();
        }
        states.push(state);
    }
    if let Some(path) = args.plot {
        plot::write(&path, &states).expect("a plot is written");
    }
    let grown: Vec<String> = SERIES.iter().filter_map(|series| series.grown(&states)).collect();
    grown.iter().for_each(|what| println!("{what}"));
    if grown.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
