//! `seamalloc broker`: it listens, says what happens, shows who takes part, and leaves nothing behind.

use super::{Folder, has, run, seamalloc};
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::{Allocator, Config};
use seamalloc_broker::{Membership, Terms};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(30);

struct Broker(Child, BufReader<std::process::ChildStdout>);

impl Broker {
    fn start(args: &[&str], folder: &Folder) -> Self {
        Self::of(Command::new(assert_cmd::cargo::cargo_bin!("seamalloc")), args, folder)
    }

    fn of(mut command: Command, args: &[&str], folder: &Folder) -> Self {
        command.arg("broker").args(args).env("XDG_RUNTIME_DIR", folder.name("")).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut broker = Self(child, output);
        has(&broker.line(), &["listens"]);
        broker
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        line
    }

    /// Sends a signal, and returns how it ended.
    fn end(mut self, signal: &str) -> Option<i32> {
        let killed = Command::new("kill").args([signal, &self.0.id().to_string()]).status().unwrap();
        assert!(killed.success());
        let begun = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(begun.elapsed() < LONG, "it goes on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn allocators(socket: &Path) -> [(Arc<Allocator>, Membership); 2] {
    let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=1GiB").unwrap()).unwrap());
    [(); 2].map(|()| {
        let allocator = Arc::new(Allocator::new(gpu.clone(), Config::default()).unwrap());
        let membership = Membership::start(Terms::new("gpu", socket), Arc::downgrade(&allocator)).unwrap();
        allocator.lending().set_lender(Some(membership.lender()));
        assert!(membership.wait_joined(LONG));
        (allocator, membership)
    })
}

#[cfg(target_os = "linux")]
#[test]
fn it_raises_its_soft_limit_of_descriptors() {
    let folder = Folder::new();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -S -n 64; exec \"$0\" \"$@\""]).arg(assert_cmd::cargo::cargo_bin!("seamalloc"));
    let broker = Broker::of(command, &[], &folder);
    let limits = |pid: &str| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let line = text.lines().find(|line| line.starts_with("Max open files")).unwrap();
        let figures = line.split_whitespace().filter_map(|figure| figure.parse::<u64>().ok());
        figures.collect::<Vec<_>>()
    };
    let hard = limits("self").get(1).copied().unwrap_or(u64::MAX);
    assert_eq!(limits(&broker.0.id().to_string())[0], hard.min(4096));
    assert_eq!(broker.end("-TERM"), Some(0));
}

#[test]
fn it_says_what_happens_and_status_shows_who_takes_part() {
    let folder = Folder::new();
    let socket = folder.path("b.sock");
    let name = socket.to_str().unwrap();
    let mut broker = Broker::start(&["--socket", name, "--json"], &folder);
    assert_eq!(run(&["broker", "status", "--socket", name], 0).get_output().stdout, b"no process takes part\n");
    let [(one, _first), (two, _second)] = allocators(&socket);
    one.free(one.allocate(700 * MIB, StreamId::DEFAULT).unwrap()).unwrap();
    let _taken = two.allocate(600 * MIB, StreamId::DEFAULT).unwrap();
    let mut events: Vec<Value> = Vec::new();
    while events.last().is_none_or(|event| event["event"] != "lent") {
        events.push(serde_json::from_str(&broker.line()).unwrap());
    }
    assert_eq!((events.len(), &events[0]["event"], &events[0]["device"]), (3, &"joined".into(), &"gpu".into()));
    assert_eq!(events[2]["by"][0]["member"], events[0]["member"]);
    assert!(events[2]["given"].as_u64() >= events[2]["missing"].as_u64());
    let pid = std::process::id().to_string();
    let text = String::from_utf8(run(&["broker", "status", "--socket", name], 0).get_output().stdout.clone()).unwrap();
    has(&text, &["held", "guarantee", &pid, "600.00 MiB", "gpu"]);
    let text = run(&["broker", "status", "--socket", name, "--json"], 0).get_output().stdout.clone();
    let lines: Vec<Value> =
        String::from_utf8(text).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        (lines.len(), &lines[1]["live"], &lines[1]["held"]),
        (2, &(600 * MIB).into(), &two.reports().reserved().into())
    );
    assert_eq!(broker.end("-TERM"), Some(0));
    assert!(!socket.exists());
}

#[test]
fn it_ends_at_signals_and_what_a_killed_one_left_is_taken_over() {
    let folder = Folder::new();
    let usual = folder.path("seamalloc").join("broker.sock");
    for (signal, code) in [("-TERM", Some(0)), ("-INT", Some(0)), ("-KILL", None), ("-TERM", Some(0))] {
        let broker = Broker::start(&[], &folder);
        assert!(usual.exists());
        let mut second = seamalloc(&["broker"]);
        let refused = second.env("XDG_RUNTIME_DIR", folder.name("")).timeout(LONG).assert().code(1);
        has(&String::from_utf8_lossy(&refused.get_output().stderr), &["a broker listens at", "already"]);
        assert_eq!(broker.end(signal), code);
        assert_eq!(usual.exists(), signal == "-KILL");
    }
    let nobody = run(&["broker", "status", "--socket", "/nonexistent/b.sock"], 1);
    has(
        &String::from_utf8_lossy(&nobody.get_output().stderr),
        &[
            "cannot ask at /nonexistent/b.sock: no broker listens there",
            "`seamalloc broker --socket /nonexistent/b.sock` starts one",
        ],
    );
}
