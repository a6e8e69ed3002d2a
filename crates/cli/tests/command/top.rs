//! `seamalloc top`, of this process.

use super::{Folder, has, run, seamalloc};
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::{Allocator, Config};
use seamalloc_live::{Served, Server};
use seamalloc_trace::{TraceEvent, read_path};
use serde_json::Value;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// A folder in which this process serves, with one allocator that has a block, and has freed another.
struct Job {
    folder: Folder,
    allocator: Arc<Allocator>,
    _server: Server,
}

impl Job {
    fn new() -> Self {
        let folder = Folder::new();
        let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=1GiB").unwrap()).unwrap());
        let allocator = Arc::new(Allocator::new(gpu, Config::default()).unwrap());
        let sizes = [(30, 1), (10, 2)];
        let [held, freed] = sizes.map(|(size, stream)| allocator.allocate(size * MIB, StreamId(stream)).unwrap());
        allocator.free(freed).unwrap();
        let sockets = folder.path("seamalloc");
        std::fs::create_dir(&sockets).unwrap();
        std::fs::set_permissions(&sockets, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let socket = sockets.join(format!("{}.sock", std::process::id()));
        let served = Served::new([("sim:h200", &allocator)]);
        assert!(held > 0);
        Self { folder, allocator, _server: Server::start_at(socket, served).unwrap() }
    }

    fn top(&self, args: &[&str]) -> String {
        let mut command = seamalloc(&["top"]);
        command.args(args).env("XDG_RUNTIME_DIR", self.folder.name(""));
        String::from_utf8(command.assert().success().get_output().stdout.clone()).unwrap()
    }
}

#[test]
fn a_look_shows_what_is_held_and_what_it_costs() {
    let job = Job::new();
    let pid = std::process::id().to_string();
    for args in [&["--once", "--interval", "0.05"][..], &["--once", "--interval", "0.05", &pid]] {
        let text = job.top(args);
        has(&text, &["reserved", "stranded", "waits/s", "stalls/s", &pid, "30.00 MiB", "40.00 MiB", "75.00%"]);
    }
    let text = job.top(&["--once", "--json", "--interval", "0.05"]);
    let line: Value = serde_json::from_str(text.trim_end()).unwrap();
    assert_eq!((&line["pid"], &line["live_bytes"]), (&std::process::id().into(), &(30 * MIB).into()));
    assert_eq!(line["reserved_bytes"], job.allocator.reports().reserved());
    assert_eq!(line["stranded_bytes"], job.allocator.reports().fragmentation().stranded());
    assert_eq!((&line["stalls_per_second"], &line["waits_per_second"]), (&0.0.into(), &0.0.into()));
    assert_eq!(line["stalls_total"], job.allocator.stats().stalls.count);
}

#[test]
fn metrics_are_printed_once() {
    let text = Job::new().top(&["--prometheus"]);
    has(&text, &["# TYPE seamalloc_reserved_bytes gauge\n", "device=\"sim:h200\",allocator=\"0\"} 31457280\n"]);
    let empty = Folder::new();
    let mut command = seamalloc(&["top", "--prometheus"]);
    command.env("XDG_RUNTIME_DIR", empty.name("")).assert().success();
}

#[test]
fn a_dump_is_a_trace() {
    let job = Job::new();
    let path = job.folder.path("flight.pickle");
    let said = job.top(&["--dump", path.to_str().unwrap()]);
    has(&said, &["sim:h200 of process", "flight.pickle"]);
    let trace = &read_path(&path).unwrap()[0];
    let sizes = trace.events.iter().filter_map(|event| match event {
        TraceEvent::Alloc { size, .. } => Some(size >> 20),
        _ => None,
    });
    assert_eq!(sizes.collect::<Vec<_>>(), [30, 10]);
    has(
        &String::from_utf8(run(&["replay", path.to_str().unwrap()], 0).get_output().stdout.clone()).unwrap(),
        &["stitch"],
    );
}

#[test]
fn who_is_not_there_is_said() {
    let empty = Folder::new();
    let said = |args: &[&str], code| {
        let mut command = seamalloc(&["top"]);
        let ended = command.args(args).env("XDG_RUNTIME_DIR", empty.name("")).assert().code(code);
        String::from_utf8(ended.get_output().stderr.clone()).unwrap()
    };
    has(
        &said(&["--once"], 1),
        &["no program of this user", "SEAMALLOC_SERVE=1 in its environment, or seamalloc.enable(serve=True)"],
    );
    has(&said(&["--once", "123456789"], 1), &["123456789.sock", "No such file"]);
    has(&said(&["--socket", "/nowhere/job.sock", "--json"], 1), &["cannot ask at /nowhere/job.sock"]);
    has(&said(&["--dump"], 2), &["--dump"]);
    let job = Job::new();
    let mut command = seamalloc(&["top", "--dump", "/nowhere/x.pickle", "--allocator", "9"]);
    let ended = command.env("XDG_RUNTIME_DIR", job.folder.name("")).assert().code(2);
    has(&String::from_utf8_lossy(&ended.get_output().stderr), &["0 allocators fit"]);
}
