//! The client's end of the socket, which asks another process for descriptors.
//!
//! Owns: the deadline. A fetch ends by the deadline, even if the other process has stopped, its queue of connections is
//! full, or it sends nothing or one byte at a time. Every system call gets the rest of the time as its timeout.

use super::error::{IpcError, NotDone};
use super::fd_protocol::{BATCH, DEADLINE, FOUND, GONE, WORD, admit};
use super::handle::Endpoint;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, connect, recvmsg, send, socket_with,
};
use seamalloc_driver::Exported;
use seamalloc_driver::fallible::{TryCollect, text, with_room};
use std::io::{self, ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

/// The shortest timeout that a socket is given: a timeout that is rounded to 0 would mean no timeout.
const SHORTEST: Duration = Duration::from_millis(1);

/// Fetches the descriptors with these numbers, of another process or of this one.
pub fn fetch(endpoint: &Endpoint, keys: impl Iterator<Item = u64>) -> Result<Vec<Exported>, NotDone> {
    fetch_within(DEADLINE, endpoint, keys)
}

fn fetch_within(
    time: Duration,
    endpoint: &Endpoint,
    keys: impl Iterator<Item = u64>,
) -> Result<Vec<Exported>, NotDone> {
    let pid = endpoint.pid;
    let unreachable = |error: io::Error| IpcError::Unreachable { pid, why: text(format_args!("{error}")) };
    let keys = keys.try_to_vec()?;
    let mut found = with_room(keys.len())?;
    let mut question = with_room(1 + BATCH * WORD)?;
    let mut conversation = Conversation::begin(endpoint, time).map_err(unreachable)?;
    conversation.say(endpoint.password()).map_err(unreachable)?;
    for batch in keys.chunks(BATCH) {
        question.clear();
        question.push(batch.len() as u8);
        question.extend(batch.iter().flat_map(|key| key.to_le_bytes()));
        conversation.say(&question).map_err(unreachable)?;
        let descriptors = conversation.hear().map_err(unreachable)?.ok_or(IpcError::Gone { pid })?;
        if descriptors.len() != batch.len() {
            let (came, asked) = (descriptors.len(), batch.len());
            let why = text(format_args!("{came} descriptors came, not {asked} (too many open files?)"));
            return Err(IpcError::Unreachable { pid, why }.into());
        }
        found.extend(descriptors.into_iter().map(Exported::new));
    }
    Ok(found)
}

/// A connection, and the deadline of the fetch.
struct Conversation {
    socket: OwnedFd,
    time: Duration,
    end: Instant,
}

impl Conversation {
    fn begin(endpoint: &Endpoint, time: Duration) -> io::Result<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let conversation = Self { socket, time, end: Instant::now() + time };
        let name = SocketAddrUnix::new_abstract_name(endpoint.name().as_bytes())?;
        // If the other process's queue of connections is full, this call waits in line with others that connect. A
        // non-blocking socket would have to try again and again, and would lose to clients that try more often.
        conversation.by_the_end(Timeout::Send, |socket| connect(socket, &name))?;
        admit(&conversation.socket)?;
        Ok(conversation)
    }

    /// Makes a system call that waits until the deadline at most. A signal interrupts the call, even in a program that
    /// restarts system calls, because the socket has a timeout. The call is then made again.
    fn by_the_end<T>(&self, timeout: Timeout, mut call: impl FnMut(&OwnedFd) -> Result<T, Errno>) -> io::Result<T> {
        loop {
            let left = self.end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = format!("it did not answer within {:?}", self.time);
                return Err(io::Error::new(ErrorKind::TimedOut, why));
            }
            set_socket_timeout(&self.socket, timeout, Some(left.max(SHORTEST)))?;
            match call(&self.socket) {
                Err(Errno::INTR) => {}
                // The time is over, or the system only imitates Linux and has waited for less than the timeout.
                Err(Errno::AGAIN) => thread::sleep(SHORTEST),
                done => return Ok(done?),
            }
        }
    }

    fn say(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = self.by_the_end(Timeout::Send, |socket| send(socket, bytes, SendFlags::NOSIGNAL))?;
            bytes = bytes.get(sent..).unwrap_or_default();
        }
        Ok(())
    }

    /// Receives one answer. Returns `None` if the memory is gone.
    fn hear(&mut self) -> io::Result<Option<Vec<OwnedFd>>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut messages = RecvAncillaryBuffer::new(&mut space);
        let mut answer = [0];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = self.by_the_end(Timeout::Recv, |socket| {
            recvmsg(socket, &mut [IoSliceMut::new(&mut answer)], &mut messages, flags)
        })?;
        let mut descriptors = Vec::new();
        for message in messages.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        match answer {
            [FOUND] if received.bytes == 1 => Ok(Some(descriptors)),
            [GONE] if received.bytes == 1 => Ok(None),
            _ => Err(io::Error::new(ErrorKind::UnexpectedEof, "it hung up")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, bind, listen, sendmsg};
    use std::io::{IoSlice, Read, Write};
    use std::os::fd::AsFd;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

    /// The time limit of a fetch in these tests.
    const TIME: Duration = Duration::from_millis(400);
    /// The time after which a fetch counts as hung, on a busy machine.
    const HUNG: Duration = Duration::from_secs(20);
    /// The number of keys of a fetch: more than one message holds.
    const KEYS: u64 = 40 * BATCH as u64;

    fn peer() -> (UnixListener, Endpoint) {
        let mut secret = [0; 16];
        rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty()).unwrap();
        let endpoint = Endpoint { pid: std::process::id(), secret };
        let name = SocketAddr::from_abstract_name(endpoint.name()).unwrap();
        (UnixListener::bind_addr(&name).unwrap(), endpoint)
    }

    /// Fetches from a peer in a thread of its own. Returns the result of the fetch, and the time that it took.
    fn fetch_from(endpoint: Endpoint) -> (Result<Vec<Exported>, NotDone>, Duration) {
        let start = Instant::now();
        let fetching = thread::spawn(move || {
            let start = Instant::now();
            (fetch_within(TIME, &endpoint, 0..KEYS), start.elapsed())
        });
        while !fetching.is_finished() {
            assert!(start.elapsed() < HUNG, "a fetch that has a deadline hangs");
            thread::sleep(SHORTEST);
        }
        fetching.join().unwrap()
    }

    fn why(done: Result<Vec<Exported>, NotDone>) -> String {
        match done {
            Err(NotDone::Ipc(IpcError::Unreachable { why, .. })) => why,
            other => panic!("{other:?}"),
        }
    }

    fn late(endpoint: Endpoint) {
        let (done, took) = fetch_from(endpoint);
        assert_eq!(why(done), "it did not answer within 400ms");
        assert!(took >= TIME, "{took:?}");
    }

    /// Reads the password, then each question, and answers by `answer`, until this returns `false`.
    fn answering(listener: UnixListener, mut answer: impl FnMut(&UnixStream, usize) -> bool + Send + 'static) {
        thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            stream.read_exact(&mut [0; WORD]).unwrap();
            for question in 0.. {
                let (mut count, mut keys) = ([0], [0; BATCH * WORD]);
                let asked = stream.read_exact(&mut count);
                let asked = asked.and_then(|()| stream.read_exact(&mut keys[..usize::from(count[0]) * WORD]));
                if asked.is_err() || !answer(&stream, question) {
                    return;
                }
            }
        });
    }

    fn found(stream: &UnixStream, descriptors: usize) -> bool {
        let file = std::fs::File::open("/dev/null").unwrap();
        let all = vec![file.as_fd(); descriptors];
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2 * BATCH))];
        let mut message = SendAncillaryBuffer::new(&mut space);
        assert!(all.is_empty() || message.push(SendAncillaryMessage::ScmRights(&all)));
        sendmsg(stream, &[IoSlice::new(&[FOUND])], &mut message, SendFlags::NOSIGNAL).is_ok()
    }

    #[test]
    fn a_peer_that_answers_is_heard() {
        let (listener, endpoint) = peer();
        answering(listener, |stream, _| found(stream, BATCH));
        assert_eq!(fetch_from(endpoint).0.unwrap().len() as u64, KEYS);
    }

    #[test]
    fn one_that_takes_no_connection_is_left_in_time() {
        let (_stopped, endpoint) = peer();
        late(endpoint);
    }

    #[test]
    fn one_whose_queue_is_full_is_left_in_time() {
        let endpoint = peer().1;
        let name = SocketAddrUnix::new_abstract_name(endpoint.name().as_bytes()).unwrap();
        let socket = |flags| {
            let flags = SocketFlags::CLOEXEC | flags;
            socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
        };
        let stopped = socket(SocketFlags::empty());
        bind(&stopped, &name).unwrap();
        listen(&stopped, 1).unwrap();
        let queued: Vec<_> = (0..3).map(|_| socket(SocketFlags::NONBLOCK)).collect();
        let refused =
            queued.iter().map(|socket| connect(socket, &name)).filter(|done| *done == Err(Errno::AGAIN)).count();
        assert!(refused > 0, "there is room for one or two");
        late(endpoint);
    }

    #[test]
    fn one_that_says_nothing_is_left_in_time() {
        let (listener, endpoint) = peer();
        let accepting = thread::spawn(move || listener.accept().unwrap());
        late(endpoint);
        accepting.join().unwrap();
    }

    #[test]
    fn one_that_answers_slowly_is_left_in_time() {
        let (listener, endpoint) = peer();
        answering(listener, |stream, _| {
            thread::sleep(TIME / 4);
            found(stream, BATCH)
        });
        late(endpoint);
    }

    #[test]
    fn one_that_never_stops_is_not_listened_to_for_ever() {
        let (listener, endpoint) = peer();
        thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            while stream.write_all(&[FOUND; 4096]).is_ok() {}
        });
        let (done, took) = fetch_from(endpoint);
        assert!(why(done).starts_with("0 descriptors came, not 64") && took < HUNG);
    }

    #[test]
    fn one_that_sends_too_few_or_too_many_is_refused() {
        // The system closes descriptors for which there is no room.
        for sent in [0, BATCH - 1, 2 * BATCH] {
            let (listener, endpoint) = peer();
            answering(listener, move |stream, question| found(stream, if question == 1 { sent } else { BATCH }));
            let why = why(fetch_from(endpoint).0);
            assert!(why.contains("descriptors came, not 64"), "{sent}: {why}");
        }
    }

    #[test]
    fn one_that_hangs_up_is_noticed() {
        for last in [0, 1] {
            let (listener, endpoint) = peer();
            answering(listener, move |stream, question| question < last && found(stream, BATCH));
            let why = why(fetch_from(endpoint).0);
            assert!(["it hung up", "reset", "Broken pipe"].iter().any(|said| why.contains(said)), "{why}");
        }
        let (listener, endpoint) = peer();
        drop(listener);
        assert!(why(fetch_from(endpoint).0).contains("refused"));
    }
}
