//! C programs against the library, as its users build them, on the simulated device.
//!
//! Each `.c` file of `ffi/tests` is a program that checks something and fails with a sentence.

use crate::tools::{FFI, compiler, library, run};
use seamalloc_trace::{TraceEvent, read_path};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// What a static library of Rust's needs, as `rustc --print native-static-libs` says for Linux.
const STATIC_NEEDS: [&str; 5] = ["-lgcc_s", "-lpthread", "-lm", "-ldl", "-lc"];

/// A program of this folder, built with the shared library; `None` without a compiler.
struct Program {
    path: PathBuf,
    folder: TempDir,
}

impl Program {
    fn build(source: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        // The name in a program is the soname, as where the library is installed.
        std::os::unix::fs::symlink(library().join("libseamalloc.so"), folder.path().join("libseamalloc.so.1")).unwrap();
        let mut command = compiler("CC", "cc")?.command();
        command.args(["-std=gnu11", "-g", "-Wall", "-Wextra", "-Wno-unused-function", "-Werror", "-pthread", "-o"]);
        command.arg(&path).arg(Path::new(FFI).join(source)).arg("-L").arg(library()).arg("-lseamalloc");
        run(command.arg(format!("-Wl,-rpath,{}", folder.path().display())));
        Some(Self { path, folder })
    }

    /// It, without the environment that the pluggable functions read.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(self.folder.path()).env_remove("SEAMALLOC_CONF").env_remove("SEAMALLOC_DEVICE");
        command
    }
}

#[test]
fn guard_mode_tells_of_mistakes() {
    let Some(program) = Program::build("tests/guard.c") else { return };
    let output = program.command().env_remove("SEAMALLOC_LOG").output().unwrap();
    let lines = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{lines}");
    assert_eq!(lines.lines().count(), 1, "each finding is a line on standard error: {lines}");
    assert!(lines.contains("freed twice: 0x"), "{lines}");
}

#[test]
fn memory_and_files() {
    let Some(program) = Program::build("tests/memory.c") else { return };
    run(program.command().arg(program.folder.path()));
    for name in ["trace.csv", "trace.seam", "snapshot.pickle"] {
        let traces = read_path(&program.folder.path().join(name)).unwrap();
        let [trace] = traces.as_slice() else { panic!("{name}: {traces:?}") };
        let sizes = trace.events.iter().filter_map(|event| match event {
            TraceEvent::Alloc { size, .. } => Some(*size >> 20),
            _ => None,
        });
        assert_eq!(sizes.collect::<Vec<_>>(), [3, 5], "{name}");
        assert!(trace.events.contains(&TraceEvent::FreeCompleted { block: 0 }), "{name}: {:?}", trace.events);
    }
    let left = std::fs::read_dir(program.folder.path()).unwrap().count();
    assert_eq!(left, 5, "nothing half done is left beside three files, the program and the library");
}

#[test]
fn what_others_are_told() {
    let Some(program) = Program::build("tests/live.c") else { return };
    let folder = program.folder.path();
    run(program.command().arg(folder).env_remove("SEAMALLOC_SERVE"));
    for name in ["flight.pickle", "flight.seam", "refused-0.pickle"] {
        let [trace] = &read_path(&folder.join(name)).unwrap()[..] else { panic!("{name}") };
        assert_eq!(trace.events[0], TraceEvent::Alloc { size: 3 << 20, stream: 0 }, "{name}");
        assert!(trace.events.contains(&TraceEvent::FreeCompleted { block: 0 }), "{name}: {:?}", trace.events);
    }
    assert!(!folder.join("job.sock").exists());
    // By the environment; the program ends without a word.
    let socket = folder.join("asked.sock");
    run(program.command().arg(folder).env("SEAMALLOC_SERVE", &socket));
    assert!(!socket.exists());
    let output = program.command().arg(folder).env("SEAMALLOC_SERVE", "/nowhere/job.sock").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("seamalloc: SEAMALLOC_SERVE: cannot listen at /nowhere/job.sock"), "{said}");
}

#[test]
fn misuse() {
    if let Some(program) = Program::build("tests/misuse.c") {
        run(&mut program.command());
    }
}

#[test]
fn pools() {
    if let Some(program) = Program::build("tests/pools.c") {
        run(&mut program.command());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn shared_memory() {
    if let Some(program) = Program::build("tests/shared_memory.c") {
        run(&mut program.command());
    }
}

#[test]
fn sources() {
    if let Some(program) = Program::build("tests/sources.c") {
        run(&mut program.command());
    }
}

#[test]
fn threads() {
    if let Some(program) = Program::build("tests/threads.c") {
        run(&mut program.command());
    }
}

#[test]
fn fork() {
    if let Some(program) = Program::build("tests/fork.c") {
        run(&mut program.command());
    }
}

/// It is not linked with the library, which it loads itself.
#[cfg(target_os = "linux")]
#[test]
fn a_library_that_is_closed_again_stays() {
    let Some(compiler) = compiler("CC", "cc") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    let mut command = compiler.command();
    command.args(["-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&path);
    run(command.arg(Path::new(FFI).join("tests/unload.c")).arg("-ldl"));
    let said = run(Command::new(&path).arg(library().join("libseamalloc.so"))).stdout;
    assert_eq!(String::from_utf8_lossy(&said), "used after it was closed\nused at the end of the process\n");
}

#[test]
fn the_pluggable_pair() {
    let Some(program) = Program::build("tests/pluggable.c") else { return };
    let said = |what: &str, device: &str, options: &str| {
        let mut command = program.command();
        let output = run(command.arg(what).env("SEAMALLOC_DEVICE", device).env("SEAMALLOC_CONF", options));
        String::from_utf8(output.stderr).unwrap()
    };
    let good = said("good", "sim:h200,capacity=1GiB", "strategy:stitch,max_views:7");
    assert!(good.starts_with("seamalloc, device 1: ") && good.contains("3.00 GiB"), "{good}");
    let mut command = program.command();
    command.arg("good").env("SEAMALLOC_DEVICE", "sim:h200,capacity=1GiB").env("SEAMALLOC_CONF", "max_views:7");
    let logged = String::from_utf8(run(command.env("SEAMALLOC_LOG", "info")).stderr).unwrap();
    assert_eq!(logged.matches("INFO seamalloc::instance: an allocator is open").count(), 2, "{logged}");
    assert!(logged.contains("an allocator in sum") && logged.contains("peak_in_use=\"10.00 MiB\""), "{logged}");
    // Once for each of two devices.
    let options = said("options", "sim:h200", "strateg:stitch");
    assert_eq!(options.matches("unknown option `strateg`; did you mean `strategy`?").count(), 2, "{options}");
    let device = said("device", "cuda:1", "");
    assert_eq!(device.matches("expected a simulated device").count(), 2, "{device}");
    assert_eq!((options.lines().count(), device.lines().count()), (2, 2));
    assert_eq!(said("later", "cuda:1", ""), "");
}

#[test]
fn the_example_runs_also_with_the_static_library() {
    let Some(program) = Program::build("examples/training_step.c") else { return };
    let shared = run(&mut program.command()).stdout;
    let path = program.folder.path().join("static");
    let mut command = compiler("CC", "cc").unwrap().command();
    command.args(["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"]).arg(&path);
    command.arg(Path::new(FFI).join("examples/training_step.c")).arg(library().join("libseamalloc.a"));
    run(command.args(STATIC_NEEDS));
    let alone = run(&mut Command::new(&path)).stdout;
    assert_eq!(String::from_utf8_lossy(&shared), String::from_utf8_lossy(&alone));
    assert!(String::from_utf8_lossy(&shared).contains("stitched"), "{}", String::from_utf8_lossy(&shared));
}

#[test]
fn what_is_seen_from_outside() {
    let Some(program) = Program::build("tests/observing.c") else { return };
    run(&mut program.command());
}
