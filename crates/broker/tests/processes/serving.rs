//! A broker and those that come to it: members, those that say nothing, those that say anything, those that are not of its user.

use crate::harness::{self, LONG, Raw};
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::driver::{Call, Status, StreamId};
use seamalloc::{Allocator, Config, Shortage};
use seamalloc_broker::{Broker, BrokerError, Membership, Running, SocketError, Terms, default_socket, status};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

struct World {
    folder: TempDir,
    broker: Option<Running>,
    gpu: Arc<SimGpu>,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let broker = Some(Broker::start(&folder.path().join("broker.sock")).unwrap());
        Self {
            folder,
            broker,
            gpu: Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=1GiB").unwrap()).unwrap()),
        }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("broker.sock")
    }

    /// An allocator that takes part.
    fn member(&self, wait: Duration) -> (Arc<Allocator>, Membership) {
        let allocator = Arc::new(Allocator::new(self.gpu.clone(), Config::default()).unwrap());
        let mut terms = Terms::new("gpu", &self.socket());
        terms.wait = wait;
        let membership = Membership::start(terms, Arc::downgrade(&allocator)).unwrap();
        allocator.lending().set_lender(Some(membership.lender()));
        assert!(membership.wait_joined(LONG));
        (allocator, membership)
    }

    fn connect(&self) -> Raw {
        Raw::connect(&self.socket())
    }

    /// Somebody who speaks by hand, and joins.
    fn by_hand(&self) -> Raw {
        let mut raw = self.connect();
        raw.say("{\"join\":{\"version\":1,\"device\":\"gpu\",\"guarantee\":0,\"command\":\"by hand\"}}\n");
        assert!(raw.hear().starts_with("{\"joined\""));
        raw
    }
}

/// One holds most of the device, free; the other needs it.
fn is_lent(from: &Allocator, to: &Allocator) -> bool {
    from.free(from.allocate(700 * MIB, StreamId::DEFAULT).unwrap()).unwrap();
    let taken = to.allocate(600 * MIB, StreamId::DEFAULT);
    let served = taken.is_ok();
    taken.map_or(Ok(()), |address| to.free(address)).unwrap();
    to.empty_cache().unwrap();
    served
}

#[test]
fn members_come_lend_and_go() {
    let world = World::new();
    let (one, first) = world.member(LONG);
    let (two, second) = world.member(LONG);
    assert!(is_lent(&one, &two) && is_lent(&two, &one));
    let members = status::members(&world.socket()).unwrap();
    assert_eq!(members.len(), 2);
    assert_eq!(
        members.iter().map(|member| member.given).sum::<u64>(),
        members.iter().map(|member| member.received).sum::<u64>()
    );
    assert!(
        members.iter().all(|member| member.pid == std::process::id() as i32 && member.command.contains("processes"))
    );
    assert_eq!((members[0].held, members[1].held), (one.reports().reserved(), two.reports().reserved()));
    drop(second);
    let begun = Instant::now();
    while status::members(&world.socket()).unwrap().len() > 1 {
        assert!(begun.elapsed() < LONG);
    }
    // An allocator that has ended leaves too.
    drop(one);
    while first.is_joined() {
        let _ = status::members(&world.socket()).unwrap();
        assert!(begun.elapsed() < LONG);
    }
}

#[test]
fn garbage_is_refused_and_the_next_one_is_served() {
    let world = World::new();
    let (one, _first) = world.member(LONG);
    let (two, _second) = world.member(LONG);
    for garbage in [
        "\n",
        "{}\n",
        "GET / HTTP/1.1\r\n",
        "{\"join\":{}}\n",
        "{\"ask\":{\"version\":1,\"device\":\"gpu\",\"member\":null,\"missing\":-1,\"held\":0}}\n",
        "{\"join\":{\"version\":2,\"device\":\"gpu\",\"guarantee\":0}}\n",
        "{\"join\":{\"version\":1,\"device\":\"\",\"guarantee\":0}}\n",
        "{\"status\":{\"version\":0}}\n",
        "[[[[[[[[[[\n",
    ] {
        let mut raw = world.connect();
        raw.say(garbage);
        let answer = raw.hear();
        assert!(answer.starts_with("{\"refused\""), "{garbage}: {answer}");
        assert_eq!(raw.hear(), "", "it is closed");
    }
    // A line without an end, deep nesting, bytes that are no text; a device's name that is too long.
    for garbage in [vec![b'x'; 1 << 20], [vec![b'['; 4000], vec![b'\n']].concat(), b"\xff\xfe\n".to_vec()] {
        let answer = harness::answer(&world.socket(), &garbage);
        assert!(answer.is_empty() || answer.starts_with(b"{\"refused\""));
    }
    let mut raw = world.connect();
    let name = "x".repeat(600);
    raw.say(&format!("{{\"join\":{{\"version\":1,\"device\":\"{name}\",\"guarantee\":0}}}}\n"));
    assert!(raw.hear().contains("of 512 bytes at most"));
    // A member that does not speak as one is put out; figures that cannot be are bounded.
    let mut raw = world.by_hand();
    raw.say("{\"joined\":1}\n");
    assert_eq!(raw.hear(), "");
    assert!(is_lent(&one, &two));
    assert_eq!(status::members(&world.socket()).unwrap().len(), 2);
}

#[test]
fn who_lies_about_what_it_has_is_asked_and_believed_no_further() {
    let world = World::new();
    let (one, _membership) = world.member(Duration::from_millis(50));
    let (two, _second) = world.member(LONG);
    let mut liar = world.by_hand();
    one.free(one.allocate(700 * MIB, StreamId::DEFAULT).unwrap()).unwrap();
    let asking = std::thread::spawn(move || two.allocate(600 * MIB, StreamId::DEFAULT).map(|_| ()));
    // It has everything, gives nothing and says that it gave it; and answers what it was not asked.
    let max = u64::MAX;
    let mut gave = 0;
    while !asking.is_finished() && gave < 20 {
        let question = liar.hear();
        let number: u64 = question
            .split("\"number\":")
            .nth(1)
            .and_then(|rest| rest.split([',', '}']).next())
            .unwrap()
            .parse()
            .unwrap();
        gave += u32::from(question.contains("give"));
        liar.say(&format!(
            "{{\"has\":{{\"number\":{},\"given\":{max},\"held\":{max},\"live\":7,\"free\":{max}}}}}\n",
            number + 1000
        ));
        liar.say(&format!(
            "{{\"has\":{{\"number\":{number},\"given\":{max},\"held\":{max},\"live\":{max},\"free\":{max}}}}}\n"
        ));
        if gave == 3 {
            // Once it has gone, the others serve.
            liar.hang_up();
            break;
        }
    }
    asking.join().unwrap().unwrap();
    assert!(gave > 0);
}

/// One event that cannot be queried is no reason to take part no more.
#[test]
fn who_fails_once_to_give_gives_the_next_time() {
    let world = World::new();
    let (one, membership) = world.member(LONG);
    let (two, _second) = world.member(LONG);
    let [free, used] = [300, 400].map(|size| one.allocate(size * MIB, StreamId(1)).unwrap());
    one.free(free).unwrap();
    // Another stream uses it until after the first question.
    let hold = world.gpu.hold(StreamId(2));
    one.record_stream(used, StreamId(2)).unwrap();
    one.free(used).unwrap();
    (1..=4).for_each(|nth| world.gpu.fail_nth(Call::EventQuery, nth, Status::UNKNOWN));
    let asking = std::thread::spawn(move || two.allocate(600 * MIB, StreamId::DEFAULT).map(|_| ()));
    let begun = Instant::now();
    let asked = || status::members(&world.socket()).unwrap().iter().any(|member| member.asked_for > 0);
    while !asked() && begun.elapsed() < LONG {}
    world.gpu.finish_hold(hold);
    asking.join().unwrap().unwrap();
    assert!(membership.is_joined());
    // A lost context gives nothing back.
    world.gpu.lose_context(Status::ILLEGAL_ADDRESS);
    let mut asks = world.connect();
    asks.say("{\"ask\":{\"version\":1,\"device\":\"gpu\",\"member\":null,\"missing\":1,\"held\":0}}\n");
    assert!(asks.hear().starts_with("{\"lent\""));
    let begun = Instant::now();
    while membership.is_joined() {
        assert!(begun.elapsed() < LONG, "a process that gives nothing back takes part");
    }
}

/// The broker reads nothing of a process that has asked until its answer has gone, so that no more is taken of it than the system's queue
/// holds.
#[cfg(target_os = "linux")]
#[test]
fn who_waits_for_an_answer_is_not_read() {
    let world = World::new();
    let _silent = world.by_hand();
    let mut stream = UnixStream::connect(world.socket()).unwrap();
    stream
        .write_all(b"{\"ask\":{\"version\":1,\"device\":\"gpu\",\"member\":null,\"missing\":1,\"held\":0}}\n")
        .unwrap();
    const PIECE: usize = 4096;
    let (piece, mut sent) = ([b'\n'; PIECE], 0);
    while let Ok(now) = stream.write(&piece) {
        sent += now;
    }
    let queue: usize = std::fs::read_to_string("/proc/sys/net/core/wmem_default").unwrap().trim().parse().unwrap();
    // The broker may have read some with the question.
    assert!(sent <= queue + 2 * PIECE, "{sent} bytes were taken, and {queue} fit the queue");
}

#[test]
fn who_says_nothing_is_waited_for_once() {
    let world = World::new();
    let (one, _first) = world.member(LONG);
    let (two, _second) = world.member(LONG);
    let mut silent: Vec<Raw> = (0..3).map(|_| world.by_hand()).collect();
    let unspoken: Vec<Raw> = (0..5).map(|_| world.connect()).collect();
    let mut half = world.connect();
    half.say("{\"ask\"");
    let begun = Instant::now();
    assert!(is_lent(&one, &two));
    let first = begun.elapsed();
    assert!(first < Duration::from_secs(5), "{first:?}");
    let begun = Instant::now();
    for _ in 0..10 {
        assert!(is_lent(&one, &two));
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "ten take {:?}", begun.elapsed());
    let members = status::members(&world.socket()).unwrap();
    assert_eq!(members.iter().filter(|member| member.silent > 0).count(), 3, "{members:?}");
    // Late answers bring it back.
    let question = silent[0].hear();
    let number = question.split("\"number\":").nth(1).unwrap().trim_end_matches("}}\n").to_owned();
    silent[0].say(&format!("{{\"has\":{{\"number\":{number},\"given\":0,\"held\":5,\"live\":5,\"free\":0}}}}\n"));
    assert!(is_lent(&one, &two));
    assert!(silent[0].hear().contains("spare"));
    drop(unspoken);
}

#[test]
fn a_broker_that_hangs_costs_bounded_time() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("broker.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let hangs = std::thread::spawn(move || {
        // It lets a member in, and then says nothing to anybody.
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"{\"joined\":{\"version\":1,\"member\":1}}\n").unwrap();
        (listener, stream)
    });
    let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=1GiB").unwrap()).unwrap());
    let [one, two] = [(); 2].map(|()| Arc::new(Allocator::new(gpu.clone(), Config::default()).unwrap()));
    let mut terms = Terms::new("gpu", &socket);
    terms.wait = Duration::from_millis(500);
    let membership = Membership::start(terms, Arc::downgrade(&two)).unwrap();
    two.lending().set_lender(Some(membership.lender()));
    assert!(membership.wait_joined(LONG));
    let kept = one.allocate(700 * MIB, StreamId::DEFAULT).unwrap();
    let begun = Instant::now();
    assert!(two.allocate(600 * MIB, StreamId::DEFAULT).is_err());
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    one.free(kept).unwrap();
    drop(membership);
    drop(hangs.join().unwrap());
}

#[test]
fn without_a_broker_everything_is_as_before_and_one_that_comes_is_joined() {
    let mut world = World::new();
    world.broker = None;
    let allocator = Arc::new(Allocator::new(world.gpu.clone(), Config::default()).unwrap());
    let membership = Membership::start(Terms::new("gpu", &world.socket()), Arc::downgrade(&allocator)).unwrap();
    allocator.lending().set_lender(Some(membership.lender()));
    let begun = Instant::now();
    assert!(!membership.is_joined());
    let kept = allocator.allocate(700 * MIB, StreamId::DEFAULT).unwrap();
    let error = allocator.allocate(600 * MIB, StreamId::DEFAULT).unwrap_err().to_string();
    assert!(error.contains("No other process lends memory"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(2), "it waited for nobody: {:?}", begun.elapsed());
    allocator.free(kept).unwrap();
    world.broker = Some(Broker::start(&world.socket()).unwrap());
    assert!(membership.wait_joined(LONG));
}

#[test]
fn a_socket_is_one_brokers_and_one_that_was_left_behind_is_taken_over() {
    let world = World::new();
    assert_eq!(std::fs::metadata(world.socket()).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(Broker::start(&world.socket()), Err(BrokerError::InUse { .. })));
    let stale = world.folder.path().join("stale.sock");
    drop(UnixListener::bind(&stale).unwrap());
    assert!(stale.exists(), "its file stays");
    let broker = Broker::start(&stale).unwrap();
    assert_eq!(status::members(&stale).unwrap(), []);
    drop(broker);
    assert!(!stale.exists());
    // What is no socket is left alone.
    let file = world.folder.path().join("file");
    std::fs::write(&file, "another's").unwrap();
    assert!(matches!(Broker::start(&file), Err(BrokerError::Socket(SocketError::Listen { .. }))));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "another's");
}

/// A member alone has nobody to ask, and waits for nobody, once others had time to come to a broker that has just begun.
#[test]
fn one_alone_is_refused_at_once() {
    let world = World::new();
    let (allocator, membership) = world.member(LONG);
    let begun = Instant::now();
    while membership.lender().ask(&Shortage::new(MIB, 0)).again {
        assert!(begun.elapsed() < LONG, "it waits for others without end");
    }
    let lent = membership.lender().ask(&Shortage::new(MIB, 0));
    assert_eq!((lent.processes, lent.again), (0, false));
    let begun = Instant::now();
    let _kept = allocator.allocate(700 * MIB, StreamId::DEFAULT).unwrap();
    assert!(allocator.allocate(600 * MIB, StreamId::DEFAULT).is_err());
    assert!(begun.elapsed() < Duration::from_secs(2));
}

/// As another user, where the test may become one: this program again, which asks and is refused.
#[test]
fn another_user_is_refused() {
    if harness::was_another_user(b"{\"status\":{\"version\":1}}\n") {
        return;
    }
    let world = World::new();
    harness::ask_as_another_user("serving::another_user_is_refused", world.folder.path(), &world.socket());
    assert_eq!(status::members(&world.socket()).unwrap(), []);
}

/// The folder of the usual socket is made, and must be its user's alone; that of another socket is its user's affair.
#[test]
fn the_usual_socket_lies_in_a_folder_of_its_own() {
    const NAME: &str = "serving::the_usual_socket_lies_in_a_folder_of_its_own";
    const STARTS: &str = "SEAMALLOC_TEST_STARTS_THE_USUAL_BROKER";
    if std::env::var_os(STARTS).is_some() {
        match Broker::start(&default_socket()) {
            Ok(broker) => println!("\ndone {}", broker.path().display()),
            Err(error) => println!("\nfailed {error}"),
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let start = || {
        harness::Process::start(NAME, [(STARTS, "1".as_ref()), ("XDG_RUNTIME_DIR", folder.path().as_os_str())]).next()
    };
    let usual = folder.path().join("seamalloc");
    assert_eq!(start(), format!("done {}", usual.join("broker.sock").display()));
    assert_eq!(std::fs::metadata(&usual).unwrap().permissions().mode() & 0o777, 0o700);
    std::fs::set_permissions(&usual, std::fs::Permissions::from_mode(0o777)).unwrap();
    let refused = start();
    assert!(refused.starts_with("failed") && refused.contains("no folder of this user alone"), "{refused}");
    let missing = folder.path().join("missing");
    assert!(matches!(
        Broker::start(&missing.join("broker.sock")),
        Err(BrokerError::Socket(SocketError::Listen { .. }))
    ));
    assert!(!missing.exists());
}

#[test]
fn the_options_of_an_allocator_are_its_terms() {
    let of = |options: &str| Terms::of(&Allocator::open("sim:h200", options).unwrap());
    assert!(of("broker_guarantee:3GiB").is_none());
    let plain = of("broker:auto").unwrap();
    let config = Config::default();
    assert_eq!(plain.socket, default_socket());
    assert_eq!(plain.guarantee, config.broker_guarantee);
    assert_eq!(plain.wait, Duration::from_millis(config.broker_wait_ms));
    let terms = of("broker:/run/a.sock,broker_guarantee:3GiB,broker_wait_ms:70").unwrap();
    assert_eq!((terms.socket, terms.guarantee), (PathBuf::from("/run/a.sock"), 3 << 30));
    assert_eq!((terms.wait, terms.device), (Duration::from_millis(70), plain.device));
}

/// Returns once the broker has read all that was sent before.
fn has_caught_up(world: &World) {
    let mut raw = world.connect();
    raw.say("nonsense\n");
    assert!(raw.hear().starts_with("{\"refused\""));
}

/// Nobody is asked for somebody who has gone.
#[test]
fn who_leaves_before_its_turn_is_forgotten() {
    const ASK: &str = "{\"ask\":{\"version\":1,\"device\":\"gpu\",\"member\":null,\"missing\":1,\"held\":0}}\n";
    let mut world = World::new();
    let mut member = world.by_hand();
    let mut asks = world.connect();
    asks.say(ASK);
    let question = member.hear();
    let number = question.split("\"number\":").nth(1).unwrap().trim_end_matches("}}\n").to_owned();
    let mut leaves = world.connect();
    leaves.say(ASK);
    has_caught_up(&world);
    leaves.hang_up();
    has_caught_up(&world);
    member.say(&format!("{{\"has\":{{\"number\":{number},\"given\":0,\"held\":5,\"live\":5,\"free\":0}}}}\n"));
    assert!(asks.hear().starts_with("{\"lent\""));
    has_caught_up(&world);
    world.broker = None;
    assert_eq!(member.hear(), "", "it is asked no more before the broker ends");
}

/// An answer that does not fit the system's queue is sent as it is read.
#[test]
fn a_long_answer_arrives_whole() {
    let world = World::new();
    // Six bytes each in JSON.
    let device = "\\u0001".repeat(500);
    let join = format!("{{\"join\":{{\"version\":1,\"device\":\"{device}\",\"guarantee\":0}}}}\n");
    let members: Vec<Raw> = (0..120)
        .map(|_| {
            let mut raw = world.connect();
            raw.say(&join);
            assert!(raw.hear().starts_with("{\"joined\""));
            raw
        })
        .collect();
    let mut asks = world.connect();
    asks.say("{\"status\":{\"version\":1}}\n");
    // Nobody reads until the queue is full: the broker lists the members after 100 ms, for they say nothing.
    std::thread::sleep(Duration::from_millis(300));
    let answer: serde_json::Value = serde_json::from_str(&asks.hear()).unwrap();
    assert_eq!(answer["members"].as_array().unwrap().len(), members.len());
}
