//! Processes that misbehave, at either end: nobody waits for them for ever, and they hold nothing of others.
//!
//! Clients that misbehave are of this process; so is the one that shares, but where it has to stop.

use super::alone::{alone, open_files};
use super::{A, MIB, NAME, of};
use seamalloc::{Error, IpcError, StrategyKind};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Within which `sharing().open` says that it ends, and a client is served.
const DEADLINE: Duration = Duration::from_secs(10);
/// The time that the machine may take beyond that.
const SLOW: Duration = Duration::from_secs(10);
/// More clients than are served at once.
const MANY: usize = 200;

fn connect(handle: &[u8]) -> UnixStream {
    // The name as the opener makes it, of the process and the first half of the secret.
    let hex: String = handle[16..24].iter().map(|byte| format!("{byte:02x}")).collect();
    let pid = u32::from_le_bytes(handle[12..16].try_into().unwrap());
    let name = SocketAddr::from_abstract_name(format!("seamalloc-{pid}-{hex}")).unwrap();
    UnixStream::connect_addr(&name).unwrap()
}

/// The second half of the secret.
fn password(handle: &[u8]) -> &[u8] {
    &handle[24..32]
}

/// A question for this many chunks of a handle.
fn question(handle: &[u8], chunks: usize) -> Vec<u8> {
    let keys = handle[32..].chunks(16).take(chunks).flat_map(|chunk| chunk[..8].to_vec());
    std::iter::once(chunks as u8).chain(keys).collect()
}

/// Opens and closes what a handle names. Fails the test if that takes longer than anyone may take.
fn opens(handle: &[u8]) -> Result<Duration, Error> {
    let handle = handle.to_vec();
    let start = Instant::now();
    let opening = thread::spawn(move || {
        let receiver = of(StrategyKind::Stitch).1;
        let start = Instant::now();
        let done = receiver.sharing().open(&handle).map(|opened| receiver.sharing().close(opened).unwrap());
        done.map(|()| start.elapsed())
    });
    while !opening.is_finished() {
        assert!(start.elapsed() < DEADLINE + SLOW, "open_shared hangs");
        thread::sleep(Duration::from_millis(1));
    }
    opening.join().unwrap()
}

#[test]
fn clients_that_say_nothing_keep_nobody_waiting_and_are_dropped() {
    let (_gpu, allocator) = of(StrategyKind::Stitch);
    let handle = allocator.sharing().export(allocator.allocate(MIB, A).unwrap()).unwrap().handle;
    let start = Instant::now();
    let mut silent: Vec<UnixStream> = (0..MANY).map(|_| connect(&handle)).collect();
    let took = opens(&handle).unwrap();
    assert!(took < DEADLINE / 2, "{took:?}");
    // They prove that they have the handle, and then say half of a question.
    let mut slow: Vec<UnixStream> = (0..8).map(|_| connect(&handle)).collect();
    for stream in &mut slow {
        stream.write_all(password(&handle)).unwrap();
        stream.write_all(&[1, 0]).unwrap();
    }
    let took = opens(&handle).unwrap();
    assert!(took < DEADLINE / 2, "{took:?}");
    for stream in silent.iter_mut().chain(&mut slow) {
        stream.set_read_timeout(Some(DEADLINE + SLOW)).unwrap();
        // The connection ends, and not because of the time here.
        let read = stream.read(&mut [0]);
        assert!(matches!(read, Ok(0)) || read.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset));
    }
    assert!(start.elapsed() < DEADLINE + SLOW);
}

#[test]
fn a_client_that_takes_no_answers_holds_no_descriptor() {
    alone("sharing::peers::a_client_that_takes_no_answers_holds_no_descriptor", || {
        let (_gpu, allocator) = of(StrategyKind::Stitch);
        let before = open_files();
        let address = allocator.allocate(30 * MIB, A).unwrap();
        let handle = allocator.sharing().export(address).unwrap().handle;
        let mut client = connect(&handle);
        client.write_all(password(&handle)).unwrap();
        client.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        // Until the answers fill one queue, and the questions the other. (The system may end it first: it counts the
        // descriptors that are under way.)
        while client.write_all(&question(&handle, 1)).is_ok() {}
        allocator.free(address).unwrap();
        // The listener, and both ends of the connection, if it still stands.
        assert!(open_files() <= before + 3, "the descriptor is closed");
        let other = allocator.sharing().export(allocator.allocate(MIB, A).unwrap()).unwrap().handle;
        opens(&other).unwrap();
        drop(client);
    });
}

#[test]
fn a_question_may_come_in_pieces() {
    let (_gpu, allocator) = of(StrategyKind::Stitch);
    let handle = allocator.sharing().export(allocator.allocate(30 * MIB, A).unwrap()).unwrap().handle;
    let mut client = connect(&handle);
    let said = [password(&handle), &question(&handle, 1), &[1]].concat();
    for byte in said {
        client.write_all(&[byte]).unwrap();
        thread::yield_now();
    }
    let mut answer = [0];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [1]);
    // A number that was never given; then none, and more than a question may have.
    client.write_all(&u64::MAX.to_le_bytes()).unwrap();
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [2]);
    for count in [0, 65, 255] {
        let mut client = connect(&handle);
        client.write_all(password(&handle)).unwrap();
        client.write_all(&[count]).unwrap();
        client.set_read_timeout(Some(DEADLINE / 2)).unwrap();
        assert_eq!(client.read(&mut answer).unwrap(), 0, "{count}");
    }
}

#[test]
fn many_threads_open_at_once() {
    let (_gpu, allocator) = of(StrategyKind::Stitch);
    let handle = allocator.sharing().export(allocator.allocate(30 * MIB, A).unwrap()).unwrap().handle;
    thread::scope(|scope| {
        let open = || of(StrategyKind::Stitch).1.sharing().open(&handle).unwrap();
        let all: Vec<_> = (0..MANY).map(|_| scope.spawn(open)).collect();
        all.into_iter().for_each(|thread| assert!(thread.join().is_ok()));
    });
}

/// A process that shares memory, and ends with its standard input.
struct Sharer(Child);

impl Sharer {
    fn start() -> (Self, Vec<u8>) {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "sharing::peers::the_process_that_shares", "--nocapture"]).env(NAME, "");
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let handle = lines.map(Result::unwrap).find_map(|line| {
            let digits = line.split_once("HANDLE ")?.1.to_owned();
            let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
            Some((0..digits.len()).step_by(2).map(byte).collect())
        });
        (Self(child), handle.unwrap())
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Sharer {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn the_process_that_shares() {
    if std::env::var_os(NAME).is_none_or(|name| !name.is_empty()) {
        return;
    }
    let (_gpu, allocator) = of(StrategyKind::Stitch);
    let shared = allocator.sharing().export(allocator.allocate(30 * MIB, A).unwrap()).unwrap();
    println!("HANDLE {}", shared.handle.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn a_stopped_process_whose_queue_is_full_is_left_in_time() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

    alone("sharing::peers::a_stopped_process_whose_queue_is_full_is_left_in_time", || {
        let (sharer, handle) = Sharer::start();
        opens(&handle).unwrap();
        sharer.signal(rustix::process::Signal::STOP);
        let hex: String = handle[16..24].iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!("seamalloc-{}-{hex}", sharer.0.id());
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        // As many as the machine lets a queue have, on any machine where the process may open so many files.
        let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        limit.current = limit.maximum;
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let mut queued = Vec::new();
        while let Ok(socket) = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None) {
            if connect(&socket, &name).is_err() {
                break;
            }
            queued.push(socket);
        }
        // Room for the files of the test itself.
        queued.truncate(queued.len().saturating_sub(16));
        for _ in 0..16 {
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
            let _ = connect(&socket, &name).map(|()| queued.push(socket));
        }
        let start = Instant::now();
        let error = opens(&handle).unwrap_err();
        assert!(
            matches!(&error, Error::Ipc(IpcError::Unreachable { pid, why }) if *pid == sharer.0.id() && why.contains("within 10s")),
            "{error}"
        );
        assert!(start.elapsed() >= DEADLINE);
        // It goes on, and works off its queue of clients that have nothing to say.
        sharer.signal(rustix::process::Signal::CONT);
        opens(&handle).unwrap();
    });
}
