//! The broker: one thread, which waits for nobody.
//!
//! Owns: its sockets, and the loop. What becomes of what is said is the matter of `state`.

use crate::error::BrokerError;
use crate::place::prepare_for;
use crate::state::{Event, Room};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use seamalloc_socket::{Listener, Lock, SocketFile, Stop, admit, receive_now, send_now};
use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The most connections at once. Others wait in the system's queue.
const MAX_PEERS: usize = 1024;
/// The most bytes that a connection is read of at a time, so that one that says much does not keep others waiting.
const AT_A_TIME: usize = 16 << 10;

/// A broker that listens.
#[derive(Debug)]
pub struct Broker {
    listener: Listener,
    file: SocketFile,
    /// After the socket's file: who takes the lock next finds no file, or one that nobody listens at.
    _lock: Lock,
}

/// A connection of a process.
#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    pid: i32,
    /// Of a member, where the system has it: readable once the process has ended.
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
        // A child that this process forked has it too.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Broker {
    /// Listens at a socket. One that a broker has left behind that was killed is taken over.
    ///
    /// # Errors
    /// [`BrokerError::InUse`], [`BrokerError::Listen`]; [`BrokerError::Folder`] for the usual socket, if others may use its folder.
    pub fn bind(path: &Path) -> Result<Self, BrokerError> {
        prepare_for(path)?;
        let listen = |error| BrokerError::Listen { path: path.to_owned(), error };
        let lock = Lock::take(path).map_err(listen)?.ok_or_else(|| BrokerError::InUse { path: path.to_owned() })?;
        let (listener, file) = Listener::bind_over(path).map_err(listen)?;
        Ok(Self { listener, file, _lock: lock })
    }

    /// Returns the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Serves until something can be read at `stop`, or its other end is closed. `tell` is called with what happens.
    ///
    /// # Errors
    /// The system cannot wait for connections.
    pub fn run(&self, stop: impl AsFd, tell: &mut dyn FnMut(&Event)) -> io::Result<()> {
        let mut room = Room::new(Instant::now());
        let mut connections = BTreeMap::new();
        while self.turn(&stop, &mut room, &mut connections)? {
            settle(&mut room, &mut connections);
            room.told().iter().for_each(&mut *tell);
        }
        Ok(())
    }

    /// Starts a thread that serves until [`Running`] is dropped.
    ///
    /// # Errors
    /// Those of [`Self::bind`], [`BrokerError::Thread`].
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

    /// Waits for the next thing to happen, and lets it. Returns `false` at the end.
    fn turn(&self, stop: &impl AsFd, room: &mut Room, connections: &mut BTreeMap<u64, Connection>) -> io::Result<bool> {
        let listens = if connections.len() < MAX_PEERS { PollFlags::IN } else { PollFlags::empty() };
        let mut polled = vec![PollFd::new(stop, PollFlags::IN), PollFd::new(&self.listener, listens)];
        let mut whose = Vec::new();
        for (id, connection) in connections.iter() {
            let sends = room.outbox(*id).is_some_and(|outbox| !outbox.is_empty());
            let wants = if sends { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
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
        let happened: Vec<bool> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
        let [is_over, connected, ready @ ..] = happened.as_slice() else { return Ok(false) };
        if *is_over {
            return Ok(false);
        }
        let now = Instant::now();
        for ((id, is_process), _) in whose.into_iter().zip(ready).filter(|(_, ready)| **ready) {
            match connections.get_mut(&id) {
                // Its connection may live on in a child that it forked.
                _ if is_process => room.leave(id, now),
                Some(connection) => listen_to(id, connection, room, now),
                None => {}
            }
        }
        if *connected && let Some(stream) = self.listener.take() {
            match Connection::new(stream) {
                Ok(connection) => drop(connections.insert(room.enter(connection.pid, now), connection)),
                Err(error) => tracing::debug!(%error, "a process that came to the broker has gone"),
            }
        }
        Ok(true)
    }
}

/// Hands over what has come from a process.
fn listen_to(id: u64, connection: &mut Connection, room: &mut Room, now: Instant) {
    if let Err(error) = receive_now(&connection.stream, AT_A_TIME, &mut |bytes| room.hear(id, bytes, now)) {
        tracing::debug!(%error, peer = id, "a connection of the broker is closed");
        room.leave(id, now);
    }
    if connection.process.is_none() && room.is_member(id) {
        // Without it, its connection alone says that it has ended.
        connection.process = Pid::from_raw(connection.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    }
}

/// Does what is due, and sends what can be sent, until there is no more of either.
fn settle(room: &mut Room, connections: &mut BTreeMap<u64, Connection>) {
    loop {
        let now = Instant::now();
        room.advance(now);
        let mut is_settled = true;
        for (id, connection) in &*connections {
            let Some(outbox) = room.outbox(*id).filter(|outbox| !outbox.is_empty()) else { continue };
            let sent = send_now(&connection.stream, outbox);
            // One that has its answer is closed now; one that is gone is waited for no longer.
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

/// A broker on a thread of this process. It ends when this is dropped, with its socket.
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
            // It panicked, if at all, on its own thread.
            let _ = thread.join();
        }
    }
}
