//! benches/gpu/compare, on the simulated device: what it needs of the library, and that its figures are those of the
//! trace.

use crate::tools::{FFI, compiler, library, run};
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::{Allocator, Config};
use seamalloc_trace::{Trace, TraceEvent, recorded, write_path};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// The script, where there are Python and a C++ compiler.
fn compare() -> Option<Command> {
    let python = compiler("PYTHON", "python3")?;
    compiler("CXX", "c++")?;
    let mut command = python.bare();
    command.arg(format!("{FFI}/../benches/gpu/compare/compare.py"));
    command.env("SEAMALLOC_DEVICE", "sim:h200").env_remove("SEAMALLOC_CONF").env("PYTHONDONTWRITEBYTECODE", "1");
    Some(command)
}

/// What an allocator reserves at most when a trace is replayed as the script does it, twice.
fn reserved_peak(trace: &Trace, strategy: &str) -> u64 {
    let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200").unwrap()).unwrap());
    let allocator = Allocator::new(gpu, Config::parse(&format!("strategy:{strategy}")).unwrap()).unwrap();
    for _ in 0..2 {
        let mut addresses = Vec::new();
        for event in &trace.events {
            match *event {
                TraceEvent::Alloc { size, stream } => {
                    addresses.push(allocator.allocate(size, trace.streams[stream as usize]).unwrap());
                }
                TraceEvent::FreeRequested { block } => {
                    allocator.free(std::mem::take(&mut addresses[block as usize])).unwrap();
                }
                TraceEvent::FreeCompleted { .. } => {}
            }
        }
        addresses.into_iter().for_each(|address| allocator.free(address).unwrap());
    }
    allocator.stats().reserved_bytes.all.peak
}

fn rows(out: &Path) -> Vec<Value> {
    fs::read_to_string(out.join("raw.jsonl")).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn its_figures_are_those_of_the_trace() {
    let Some(mut command) = compare() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut trace = recorded::find("llama8b-fsdp2").unwrap().load().unwrap();
    // A step or so is enough here; what is live then stays live.
    trace.events.truncate(20_000);
    let path = folder.path().join("job.csv.gz");
    write_path(&trace, &path).unwrap();
    let pair = format!("{}/libseamalloc.so,seamalloc_malloc,seamalloc_free", library().display());
    command.args([
        "--no-cuda",
        "--timed",
        "1",
        "--plain",
        "1",
        "--only",
        "stitch,caching,torch-native,torch-expandable",
    ]);
    command.arg("--library").arg(library().join("libseamalloc.so")).arg("--out").arg(folder.path().join("out"));
    // Under these names the table takes them for PyTorch's.
    command.args(["--pair", &format!("torch-native={pair}"), "--pair", &format!("torch-expandable={pair}")]);
    run(command.arg(path));

    let count = |wanted: fn(&TraceEvent) -> bool| trace.events.iter().filter(|event| wanted(event)).count();
    let allocations = count(|event| matches!(event, TraceEvent::Alloc { .. }));
    let frees = count(|event| matches!(event, TraceEvent::FreeRequested { .. }));
    let rows = rows(&folder.path().join("out"));
    for strategy in ["stitch", "caching"] {
        let passes: Vec<&Value> =
            rows.iter().filter(|row| row["candidate"] == strategy && row["pass"].is_u64()).collect();
        let [timed, plain] = passes.as_slice() else { panic!("{strategy}: {passes:?}") };
        for pass in [timed, plain] {
            assert_eq!(pass["ops"], allocations + frees, "{pass}");
            assert_eq!((&pass["of_ops"], &pass["failed"]), (&pass["ops"], &Value::from(0)), "{pass}");
            assert_eq!(pass["figures"]["allocated_bytes"]["all"]["current"], 0, "what is left live is freed: {pass}");
        }
        assert_eq!(timed["allocations"]["count"], allocations);
        assert_eq!(timed["frees"]["count"], frees);
        assert_eq!(timed["peak_live"], timed["figures"]["requested_bytes"]["all"]["peak"], "{strategy}");
        let reserved = &plain["figures"]["reserved_bytes"]["all"]["peak"];
        assert_eq!(*reserved, reserved_peak(&trace, strategy), "{strategy}");
    }
    assert_ne!(reserved_peak(&trace, "stitch"), reserved_peak(&trace, "caching"), "the options reach the library");
    let table = fs::read_to_string(folder.path().join("out/table.md")).unwrap();
    for name in ["stitch", "caching", "torch-native"] {
        assert!(table.contains(&format!("| job | {name} | ")), "{name}:\n{table}");
    }
    assert!(table.contains("pass 1 / expandable"), "{table}");
}

#[test]
fn what_goes_wrong_is_in_the_table() {
    let Some(mut command) = compare() else { return };
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let large = write("large.csv", "a,1,2147483648,0\nr,1\nf,1\na,2,512,0\n");
    let broken = write("broken.csv", "a,1,512,0\nr,2\n");
    command.args(["--no-cuda", "--only", "caching"]).env("SEAMALLOC_DEVICE", "sim:h200,capacity=1GiB");
    command.arg("--library").arg(library().join("libseamalloc.so")).arg("--out").arg(folder.path().join("out"));
    run(command.args([large, broken]));
    let table = fs::read_to_string(folder.path().join("out/table.md")).unwrap();
    assert!(table.contains("- large, caching: 1 requests failed in pass 1"), "{table}");
    assert!(table.contains("broken.csv, line 2: the block is not live"), "{table}");
}
