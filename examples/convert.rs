//! Converts traces: `cargo run --release --example convert -- IN OUT`.
//!
//! IN is anything that `memquilt::trace::read_path` reads: a csv or `.mqt` trace, or a PyTorch memory snapshot. OUT
//! becomes a csv trace where its name ends in `.csv`, and a compact one otherwise; of a snapshot of several devices,
//! each has its own file, with the device before the ending.

use std::error::Error;
use std::fs::File;
use std::io::{Write, stdout};
use std::path::PathBuf;

use memquilt::trace::{read_path, write_compact, write_csv};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [input, output] = arguments.as_slice() else {
        return Err("expected two arguments: the file to read and the file to write".into());
    };
    let traces = read_path(input)?;
    for trace in &traces {
        let mut path = output.clone();
        if let Some((_, device)) = trace.name.rsplit_once(".dev").filter(|_| traces.len() > 1) {
            let ending = output.extension().unwrap_or_default().to_string_lossy();
            path.set_extension(format!("dev{device}.{ending}"));
        }
        let file = File::create(&path)?;
        if path.extension().is_some_and(|ending| ending == "csv") {
            write_csv(trace, file)?;
        } else {
            write_compact(trace, file)?;
        }
        let bytes = path.metadata()?.len();
        writeln!(stdout(), "{}: {} events, {bytes} bytes", path.display(), trace.events.len())?;
    }
    Ok(())
}
