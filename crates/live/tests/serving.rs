//! A program that serves, and its clients: those that ask, those that say nothing, and those that say anything.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a panic fails the test")]

#[path = "../../socket/tests/harness/mod.rs"]
mod harness;

use seamalloc::driver::StreamId;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::{Allocator, Config};
use seamalloc_live::{Served, Server, SocketError, Source, ask, listed, prometheus, samples_of};
use seamalloc_trace::{TraceEvent, read_bytes};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

struct Job {
    allocator: Arc<Allocator>,
    server: Server,
    folder: TempDir,
}

impl Job {
    fn new() -> Self {
        let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=1GiB").unwrap()).unwrap());
        let allocator = Arc::new(Allocator::new(gpu, Config::parse("memory_limit:512MiB").unwrap()).unwrap());
        let folder = tempfile::tempdir().unwrap();
        let served = Served::new([("sim:h200", &allocator)]);
        let server = Server::start_at(folder.path().join("job.sock"), served).unwrap();
        Self { allocator, server, folder }
    }

    /// Sends bytes, and returns what is answered until the connection ends.
    fn say(&self, bytes: &[u8]) -> String {
        String::from_utf8(harness::answer(self.server.path(), bytes)).unwrap()
    }
}

#[test]
fn it_tells_what_the_allocator_holds_and_has_done() {
    let job = Job::new();
    let one = job.allocator.allocate(100 * MIB, StreamId::DEFAULT).unwrap();
    let _two = job.allocator.allocate(20 * MIB, StreamId(7)).unwrap();
    let before = ask::samples(job.server.path()).unwrap();
    job.allocator.free(one).unwrap();
    assert!(job.allocator.allocate(600 * MIB, StreamId(7)).is_err());
    let told = ask::samples(job.server.path()).unwrap();
    assert_eq!((told.pid, told.version.as_str()), (std::process::id(), env!("CARGO_PKG_VERSION")));
    assert!(told.command.contains("serving"), "{}", told.command);
    let [sample] = &told.allocators[..] else { panic!("{told:?}") };
    assert_eq!((sample.device.as_str(), sample.strategy.as_str(), sample.allocator), ("sim:h200", "stitch", 0));
    assert_eq!((sample.live_bytes, sample.live_peak_bytes, sample.limit_bytes), (20 * MIB, 120 * MIB, 512 * MIB));
    assert_eq!((sample.allocations_total, sample.frees_total, sample.refusals_total), (2, 1, 1));
    assert_eq!(sample.reserved_bytes, job.allocator.reports().reserved());
    assert_eq!(sample.stranded_bytes, job.allocator.reports().fragmentation().stranded());
    assert_eq!(sample.reserved_bytes, sample.live_bytes + sample.pending_bytes + sample.free_bytes);
    assert_eq!(sample.stalls_total, job.allocator.stats().stalls.count);
    assert!(before.allocators[0].time_us < sample.time_us && before.allocators[0].live_bytes == 120 * MIB);
    // The same without a socket.
    let source = Served::new([("sim:h200", &job.allocator)]);
    let text = prometheus(&[samples_of(&source)]);
    let line = format!("seamalloc_live_bytes{{pid=\"{}\",device=\"sim:h200\",allocator=\"0\"}} {}", told.pid, 20 * MIB);
    assert!(text.lines().any(|found| found == line), "{text}");
}

#[test]
fn a_dump_is_what_was_done() {
    let job = Job::new();
    let address = job.allocator.allocate(3 * MIB, StreamId(7)).unwrap();
    job.allocator.free(address).unwrap();
    let traces = read_bytes("dump", &ask::flight(job.server.path(), 0).unwrap()).unwrap();
    let block = 0;
    let freed = [TraceEvent::FreeRequested { block }, TraceEvent::FreeCompleted { block }];
    assert_eq!(traces[0].events, [TraceEvent::Alloc { size: 3 * MIB, stream: 0 }, freed[0], freed[1]]);
    let error = ask::flight(job.server.path(), 5).unwrap_err();
    assert!(error.to_string().contains("has no allocator 5"), "{error}");
}

#[test]
fn garbage_is_answered_or_dropped_and_the_next_one_is_served() {
    let job = Job::new();
    for garbage in
        [&b"\n"[..], b"{}\n", b"GET / HTTP/1.1\r\n\r\n", b"\xff\xfe\n", b"{\"ask\":\"everything\"}\n", b"[[[[\n"]
    {
        let answer = job.say(garbage);
        assert!(answer.starts_with("{\"refused\":\"this is no question"), "{answer}");
    }
    // Deep nesting, and a line without an end.
    let deep = [b"[".repeat(4000), b"\n".to_vec()].concat();
    assert!(job.say(&deep).starts_with("{\"refused\""));
    assert_eq!(job.say(&b"x".repeat(1 << 20)), "");
    // Those that leave at once, before or after they asked.
    for question in [&b""[..], b"{\"ask\":\"sam", b"{\"ask\":\"samples\"}\n"] {
        let mut stream = UnixStream::connect(job.server.path()).unwrap();
        stream.write_all(question).unwrap();
    }
    assert_eq!(ask::samples(job.server.path()).unwrap().allocators.len(), 1);
}

#[test]
fn who_says_nothing_keeps_others_waiting_for_a_second_and_no_longer() {
    let job = Job::new();
    let silent = UnixStream::connect(job.server.path()).unwrap();
    let mut slow = UnixStream::connect(job.server.path()).unwrap();
    slow.write_all(b"{\"ask\"").unwrap();
    let begin = Instant::now();
    assert_eq!(ask::samples(job.server.path()).unwrap().allocators.len(), 1);
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    drop(silent);
}

#[test]
fn it_ends_with_its_socket_and_leaves_alone_what_took_its_place() {
    let Job { allocator, server, folder } = Job::new();
    let path: PathBuf = server.path().to_owned();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let again = Server::start_at(path.clone(), Served::default());
    assert!(matches!(again, Err(SocketError::Listen { .. })));
    drop(server);
    assert!(!path.exists());
    assert!(matches!(ask::samples(&path), Err(SocketError::Ask { .. })));

    let server = Server::start_at(path.clone(), Served::new([("sim:h200", &allocator)])).unwrap();
    drop(allocator);
    assert_eq!(ask::samples(&path).unwrap().allocators, [], "it has ended");
    std::fs::rename(&path, folder.path().join("other")).unwrap();
    std::fs::write(&path, "another's").unwrap();
    drop(server);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "another's");
}

#[test]
fn a_source_that_panics_costs_one_answer() {
    struct Bomb;
    impl Source for Bomb {
        fn each(&self, _: &mut dyn FnMut(u32, &str, &Allocator)) {
            panic!("on purpose");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_at(folder.path().join("bomb.sock"), Bomb).unwrap();
    for _ in 0..2 {
        assert!(matches!(ask::samples(server.path()), Err(SocketError::Ask { .. })));
    }
}

/// The variable that says what a process of [`programs_of_other_namespaces_are_seen_and_keep_their_sockets`] does.
const DOES: &str = "SEAMALLOC_TEST_DOES";

/// Returns whether this is such a process: one that serves until its input ends, or one that says whom it saw.
fn does() -> bool {
    let Some(does) = std::env::var_os(DOES) else { return false };
    if does == "serve" {
        let _server = Server::start(Served::default()).unwrap();
        assert!(Server::start(Served::default()).is_err(), "the process serves there already");
        println!("\nready");
        std::io::stdin().read_line(&mut String::new()).unwrap();
    } else {
        let seen = listed().unwrap().into_iter().filter_map(|(_, socket)| ask::samples(&socket).ok());
        println!("\ndone {:?}", seen.map(|process| process.pid).collect::<Vec<_>>());
    }
    true
}

/// Two programs with the number 1, as the first of each of two containers that share the folder.
#[test]
fn programs_of_other_namespaces_are_seen_and_keep_their_sockets() {
    const NAME: &str = "programs_of_other_namespaces_are_seen_and_keep_their_sockets";
    if does() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let environment = |does: &'static str| [(DOES, does.as_ref()), ("XDG_RUNTIME_DIR", folder.path().as_os_str())];
    let contained = |does| {
        let mut process = harness::Process::start_in_namespace(NAME, environment(does))?;
        let said = process.next();
        Some((process, said))
    };
    let look = || harness::Process::start(NAME, environment("look")).next();
    let sockets = || std::fs::read_dir(folder.path().join("seamalloc")).unwrap().count();
    let Some((one, _)) = contained("serve") else { return };
    let (two, _) = contained("serve").unwrap();
    assert_eq!(look(), "done [1, 1]");
    assert_eq!(contained("look").unwrap().1, "done [1, 1]");
    assert_eq!(sockets(), 2, "looks remove no socket of a program that lives");
    one.end();
    assert_eq!((look(), sockets()), ("done [1]".to_owned(), 1));
    two.kill();
    let begun = Instant::now();
    while look() != "done []" || sockets() > 0 {
        assert!(begun.elapsed() < harness::LONG, "the program was killed: its socket refuses, and is removed");
    }
}

/// As another user, where the test may become one: this program again, which asks and is refused.
#[test]
fn another_user_is_refused() {
    if harness::was_another_user(b"{\"ask\":\"samples\"}\n") {
        return;
    }
    let job = Job::new();
    harness::ask_as_another_user("another_user_is_refused", job.folder.path(), job.server.path());
    assert_eq!(ask::samples(job.server.path()).unwrap().allocators.len(), 1);
}

/// Without being dropped: nobody is answered, and the socket is gone.
#[test]
fn one_that_is_stopped_answers_nobody() {
    let Job { allocator: _allocator, server, folder: _folder } = Job::new();
    assert_eq!(ask::samples(server.path()).unwrap().allocators.len(), 1);
    server.stop();
    assert!(!server.path().exists());
    assert!(matches!(ask::samples(server.path()), Err(SocketError::Ask { .. })));
    server.stop();
    let again = Server::start_at(server.path().to_owned(), Served::default()).unwrap();
    drop(server);
    assert!(again.path().exists(), "the file of another is left alone");
}
