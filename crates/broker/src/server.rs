//! The broker, which runs on one thread. No process can block it.
//!
//! Owns: its sockets, and the loop. `state` handles the messages.

use crate::error::BrokerError;
use crate::place::prepare_for;
use crate::state::{Event, Room};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Resource, getrlimit, pidfd_open};
use seamalloc_socket::{Listener, Lock, SocketError, SocketFile, Stop, admit, receive_now, send_now};
use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The most members.
const MAX_MEMBERS: usize = 1024;
/// The most descriptors that are reserved for questions. Each question has its own connection.
const MAX_QUESTIONS: usize = 256;
/// At most this part (1/n) of the descriptors is reserved for questions.
const QUESTIONS: usize = 8;
/// Descriptors of a member: its connection and its process.
const OF_A_MEMBER: usize = 2;
/// Descriptors of the program itself: descriptors opened before, the socket, and its lock.
const OWN: usize = 32;
/// The most bytes that are read from a connection at a time, so that a busy connection does not delay other
/// connections.
const AT_A_TIME: usize = 16 << 10;

/// A broker that listens.
#[derive(Debug)]
pub struct Broker {
    listener: Listener,
    file: SocketFile,
    /// The lock is dropped after the socket's file. The next holder of the lock then finds no file, or a file without a
    /// listener.
    _lock: Lock,
}

/// The limits on descriptors for connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    descriptors: usize,
    members: usize,
}

impl Bounds {
    /// Divides the process's descriptors so that members leave some for questions. `None` means no limit.
    fn of(limit: Option<u64>) -> Self {
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        let descriptors = limit.saturating_sub(OWN).clamp(2 * QUESTIONS, MAX_MEMBERS * OF_A_MEMBER + MAX_QUESTIONS);
        let questions = (descriptors / QUESTIONS).min(MAX_QUESTIONS);
        Self { descriptors, members: (descriptors - questions) / OF_A_MEMBER }
    }
}

/// A connection of a process.
#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    pid: i32,
    /// A descriptor of a member's process, if the system supports such descriptors. The descriptor is readable once the
    /// process has ended.
    process: Option<OwnedFd>,
}

impl Connection {
    fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { pid: admit(&stream)?, stream, process: None })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A child forked by this process may hold a copy of the connection.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Broker {
    /// Listens at a socket. The socket of a killed broker is taken over.
    ///
    /// # Errors
    /// [`BrokerError::InUse`]; [`BrokerError::Socket`], for the default socket also if other users may access its
    /// folder.
    pub fn bind(path: &Path) -> Result<Self, BrokerError> {
        prepare_for(path)?;
        let listen = |error| SocketError::Listen { path: path.to_owned(), error };
        let lock = Lock::take(path).map_err(listen)?.ok_or_else(|| BrokerError::InUse { path: path.to_owned() })?;
        let (listener, file) = Listener::bind_over(path).map_err(listen)?;
        Ok(Self { listener, file, _lock: lock })
    }

    /// Returns the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Serves until `stop` is readable or its other end is closed. Calls `tell` with each event. The process's limit of
    /// open descriptors bounds the number of members; an eighth of the descriptors, 256 at most, is reserved for
    /// questions.
    ///
    /// # Errors
    /// The system cannot wait for connections.
    pub fn run(&self, stop: impl AsFd, tell: &mut dyn FnMut(&Event)) -> io::Result<()> {
        let bounds = Bounds::of(getrlimit(Resource::Nofile).current);
        let mut room = Room::new(Instant::now());
        room.bound_members(bounds.members);
        let mut connections = BTreeMap::new();
        while self.turn(&stop, bounds, &mut room, &mut connections)? {
            settle(&mut room, &mut connections);
            room.told().iter().for_each(&mut *tell);
        }
        Ok(())
    }

    /// Starts a thread that serves until [`Running`] is dropped.
    ///
    /// # Errors
    /// The errors of [`Self::bind`], [`BrokerError::Thread`].
    pub fn start(path: &Path) -> Result<Running, BrokerError> {
        let broker = Self::bind(path)?;
        let (stop, stopped) = Stop::new().map_err(BrokerError::Thread)?;
        let path = broker.path().to_owned();
        let serve = move || {
            if let Err(error) = broker.run(stopped, &mut |_| {}) {
                tracing::warn!(%error, "the broker has ended");
            }
        };
        let thread = thread::Builder::new().name("seamalloc-broker".to_owned()).spawn(serve);
        Ok(Running { path, ended: Some((stop, thread.map_err(BrokerError::Thread)?)) })
    }

    /// Waits for the next event and handles it. Returns `false` once `stop` is readable.
    fn turn(
        &self,
        stop: &impl AsFd,
        bounds: Bounds,
        room: &mut Room,
        connections: &mut BTreeMap<u64, Connection>,
    ) -> io::Result<bool> {
        // Every connection may become a member. Further connections wait in the system's queue.
        let descriptors = connections.keys().map(|id| if room.listens_to(*id) { OF_A_MEMBER } else { 1 });
        let has_room = descriptors.sum::<usize>() + OF_A_MEMBER <= bounds.descriptors;
        let listens = if has_room { PollFlags::IN } else { PollFlags::empty() };
        let mut polled = vec![PollFd::new(stop, PollFlags::IN), PollFd::new(&self.listener, listens)];
        let mut whose = Vec::new();
        for (id, connection) in connections.iter() {
            let sends = room.outbox(*id).is_some_and(|outbox| !outbox.is_empty());
            let mut wants = if sends { PollFlags::OUT } else { PollFlags::empty() };
            wants.set(PollFlags::IN, room.listens_to(*id));
            polled.push(PollFd::new(&connection.stream, wants));
            whose.push((*id, false));
            if let Some(process) = &connection.process {
                polled.push(PollFd::new(process, PollFlags::IN));
                whose.push((*id, true));
            }
        }
        let timeout = room.next_deadline().map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = timeout.and_then(|left| Timespec::try_from(left + Duration::from_millis(1)).ok());
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let happened: Vec<PollFlags> = polled.iter().map(PollFd::revents).collect();
        let [is_over, connected, ready @ ..] = happened.as_slice() else { return Ok(false) };
        if !is_over.is_empty() {
            return Ok(false);
        }
        let now = Instant::now();
        for ((id, is_process), flags) in whose.into_iter().zip(ready).filter(|(_, flags)| !flags.is_empty()) {
            match connections.get_mut(&id) {
                // A child forked by the process may keep the connection open.
                _ if is_process => room.leave(id, now),
                Some(connection) if room.listens_to(id) => listen_to(id, connection, room, now),
                // The system reports the end of a connection even if reading is not requested.
                Some(_) if flags.intersects(PollFlags::HUP | PollFlags::ERR) => room.leave(id, now),
                _ => {}
            }
        }
        if !connected.is_empty()
            && let Some(stream) = self.listener.take()
        {
            match Connection::new(stream) {
                Ok(connection) => drop(connections.insert(room.enter(connection.pid, now), connection)),
                Err(error) => tracing::debug!(%error, "a process that came to the broker has gone"),
            }
        }
        Ok(true)
    }
}

/// Passes on the bytes received from a process.
fn listen_to(id: u64, connection: &mut Connection, room: &mut Room, now: Instant) {
    if let Err(error) =
        receive_now(&connection.stream, AT_A_TIME, &mut |bytes| room.hear(id, bytes, now) && room.listens_to(id))
    {
        tracing::debug!(%error, peer = id, "a connection of the broker is closed");
        room.leave(id, now);
    }
    if connection.process.is_none() && room.is_member(id) {
        // Without the descriptor, only the end of the connection shows the end of the process.
        connection.process = Pid::from_raw(connection.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    }
}

/// Handles all due work and sends all that can be sent, until no work is due and no more can be sent.
fn settle(room: &mut Room, connections: &mut BTreeMap<u64, Connection>) {
    loop {
        let now = Instant::now();
        room.advance(now);
        let mut is_settled = true;
        for (id, connection) in &*connections {
            let Some(outbox) = room.outbox(*id).filter(|outbox| !outbox.is_empty()) else { continue };
            let sent = send_now(&connection.stream, outbox);
            // A connection that has its answer is closed here. A broken connection is dropped.
            is_settled &= sent.is_ok() && !outbox.is_empty();
            if let Err(error) = sent {
                tracing::debug!(%error, peer = id, "a process that the broker spoke to has gone");
                room.leave(*id, now);
            }
        }
        connections.retain(|id, _| room.is_open(*id));
        if is_settled {
            return;
        }
    }
}

/// A broker on a thread of this process. Dropping it ends the broker and removes its socket.
#[derive(Debug)]
pub struct Running {
    path: PathBuf,
    ended: Option<(Stop, JoinHandle<()>)>,
}

impl Running {
    /// Returns the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.ended.take().filter(|(stop, _)| stop.is_owned()) {
            drop(stop);
            // A panic of the broker stays on the broker's thread.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    /// The broker watches the process of a member through a descriptor. The broker does not watch a process that only
    /// asks.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_process_of_a_member_is_watched() {
        let ask = r#"{"ask":{"version":1,"device":"gpu","member":null,"missing":1,"held":0}}"#;
        let join = r#"{"join":{"version":1,"device":"gpu","guarantee":0}}"#;
        for (said, is_watched) in [(ask, false), (join, true)] {
            let now = Instant::now();
            let (mut theirs, ours) = UnixStream::pair().unwrap();
            let mut connection = Connection::new(ours).unwrap();
            let mut room = Room::new(now);
            let id = room.enter(connection.pid, now);
            theirs.write_all(format!("{said}\n").as_bytes()).unwrap();
            listen_to(id, &mut connection, &mut room, now);
            assert_eq!((room.is_member(id), connection.process.is_some()), (is_watched, is_watched));
        }
    }

    /// A forked child has a copy of the connection, and the copy does not delay the end of the connection.
    #[test]
    fn a_connection_ends_although_a_copy_is_open() {
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        let copy = ours.try_clone().unwrap();
        theirs.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        drop(Connection::new(ours).unwrap());
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
        drop(copy);
    }

    #[test]
    fn members_leave_descriptors_for_questions() {
        for limit in [0, 32, 64, 256, 1024, 4096, 1 << 20, u64::MAX] {
            let Bounds { descriptors, members } = Bounds::of(Some(limit));
            let questions = descriptors - members * OF_A_MEMBER;
            assert!(members > 0 && questions >= 2 && questions >= descriptors / QUESTIONS / 2, "{limit}: {members}");
            assert!(limit < 64 || descriptors + OWN <= usize::try_from(limit).unwrap(), "{limit}: {descriptors}");
        }
        assert_eq!(Bounds::of(Some(1024)), Bounds { descriptors: 992, members: 434 });
        assert_eq!(Bounds::of(Some(0)), Bounds { descriptors: 16, members: 7 });
        assert_eq!(Bounds::of(None).members, MAX_MEMBERS);
        assert_eq!(Bounds::of(Some(1 << 20)), Bounds::of(None));
    }
}
