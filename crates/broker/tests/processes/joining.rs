//! A process that looks for a broker: what it says meanwhile, and when it looks no more.

use crate::harness::LONG;
use seamalloc::{Allocator, Lent, Shortage};
use seamalloc_broker::{Member, Membership, Terms};
use std::fmt::Debug;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The warnings of all threads.
static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Watch;

impl Subscriber for Watch {
    fn enabled(&self, of: &Metadata<'_>) -> bool {
        *of.level() == Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = String::new();
        event.record(&mut |field: &Field, value: &dyn Debug| line += &format!(" {field}={value:?}"));
        WARNINGS.lock().unwrap().push(line);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Returns the warnings that name a socket.
fn warnings(socket: &Path) -> Vec<String> {
    let name = socket.display().to_string();
    WARNINGS.lock().unwrap().iter().filter(|line| line.contains(&name)).cloned().collect()
}

/// Somebody without an allocator, who may have ended.
struct Nobody(Arc<AtomicBool>);

impl Member for Nobody {
    fn with(&self, _: &mut dyn FnMut(&Allocator)) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn that_there_is_no_broker_is_said_once_with_the_reason() {
    let _ = tracing::subscriber::set_global_default(Watch);
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("broker.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let is_there = Arc::new(AtomicBool::new(true));
    let membership = Membership::start(Terms::new("gpu", &socket), Nobody(is_there)).unwrap();
    for turn in 0..3 {
        let (mut stream, _) = listener.accept().unwrap();
        let mut said = String::new();
        BufReader::new(&stream).read_line(&mut said).unwrap();
        assert!(said.starts_with("{\"join\":{\"version\":1,\"device\":\"gpu\""), "{said}");
        let before = warnings(&socket);
        assert_eq!(before.len(), usize::from(turn > 0), "{before:?}");
        assert!(before.iter().all(|line| line.contains("it is full")), "{before:?}");
        stream.write_all(b"{\"refused\":\"it is full\"}\n").unwrap();
    }
    assert!(!membership.is_joined());
}

/// The membership's thread holds the member, and drops it at its end.
#[test]
fn who_looks_for_a_broker_ends_with_its_membership_or_its_allocator() {
    let folder = tempfile::tempdir().unwrap();
    for its_own in [false, true] {
        let is_there = Arc::new(AtomicBool::new(true));
        let terms = Terms::new("gpu", &folder.path().join("broker.sock"));
        let membership = Membership::start(terms, Nobody(Arc::clone(&is_there))).unwrap();
        let kept = if its_own {
            drop(membership);
            None
        } else {
            is_there.store(false, Ordering::Relaxed);
            Some(membership)
        };
        let begun = Instant::now();
        while Arc::strong_count(&is_there) > 1 {
            assert!(begun.elapsed() < LONG, "it looks without end");
            thread::sleep(Duration::from_millis(1));
        }
        drop(kept);
    }
}

/// A broker that lets a member in, and gives the same answer to each question.
fn answering(socket: &Path, lent: String, questions: usize) -> thread::JoinHandle<()> {
    let listener = UnixListener::bind(socket).unwrap();
    thread::spawn(move || {
        let (mut member, _) = listener.accept().unwrap();
        member.write_all(b"{\"joined\":{\"version\":1,\"member\":7}}\n").unwrap();
        for _ in 0..questions {
            let (mut stream, _) = listener.accept().unwrap();
            let mut said = String::new();
            BufReader::new(&stream).read_line(&mut said).unwrap();
            let ask = r#"{"ask":{"version":1,"device":"gpu","member":7,"missing":9,"held":3}}"#;
            assert_eq!(said.trim_end(), ask);
            stream.write_all(lent.as_bytes()).unwrap();
        }
    })
}

/// A request is made again while others take part or may do so, for as long as it may wait.
#[test]
fn asking_again_is_worthwhile_while_others_may_give() {
    for (processes, departed, wait_s, again) in
        [(1, false, 60, true), (0, true, 60, true), (2, true, 60, true), (0, false, 60, false), (2, true, 0, false)]
    {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("broker.sock");
        let figures = r#""silent":0,"given":9,"held":30,"live":20,"guaranteed":5"#;
        let lent = format!("{{\"lent\":{{\"processes\":{processes},{figures},\"departed\":{departed}}}}}\n");
        let broker = answering(&socket, lent, 1);
        let mut terms = Terms::new("gpu", &socket);
        terms.wait = Duration::from_secs(wait_s);
        let membership = Membership::start(terms, Nobody(Arc::new(AtomicBool::new(true)))).unwrap();
        assert!(membership.wait_joined(LONG));
        let told = membership.lender().ask(&Shortage::new(9, 3));
        assert_eq!(told, Lent { processes, given: 9, held: 30, live: 20, guaranteed: 5, again });
        drop(membership);
        broker.join().unwrap();
    }
}
