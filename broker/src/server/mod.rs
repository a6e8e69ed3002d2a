//! The broker: one thread, which waits for nobody.
//!
//! Owns: its socket, which goes with it, and the loop. What is said with one connection is in `peer.rs`, what becomes of demands in
//! `room.rs` and `demand.rs`.

mod demand;
mod event;
mod peer;
mod room;

use crate::error::BrokerError;
use crate::place::prepare_for;
pub use event::{Event, GivenBy};
use parking_lot::Mutex;
use peer::Peer;
use room::Room;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FlockOperation, Mode, chmodat, flock};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The most connections at once. Others wait in the system's queue.
const MAX_PEERS: usize = 1024;
/// After a connection could not be taken, probably because of too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// A broker that listens.
#[derive(Debug)]
pub struct Broker {
    listener: UnixListener,
    path: PathBuf,
    /// The socket's device and inode, so that nothing else is removed in its place.
    inode: (u64, u64),
    /// Held as long as the broker lives; the system gives it back however the process ends.
    _lock: File,
}

impl Broker {
    /// Listens at a socket. One that a broker has left behind that was killed is taken over.
    ///
    /// # Errors
    /// [`BrokerError::InUse`], [`BrokerError::Listen`]; [`BrokerError::Folder`] for the usual socket, if others may use its folder.
    pub fn bind(path: &Path) -> Result<Self, BrokerError> {
        prepare_for(path)?;
        let listen = |error| BrokerError::Listen { path: path.to_owned(), error };
        let lock = lock(path).map_err(listen)?.ok_or_else(|| BrokerError::InUse { path: path.to_owned() })?;
        let (listener, inode) = bind(path).map_err(listen)?;
        Ok(Self { listener, path: path.to_owned(), inode, _lock: lock })
    }

    /// Returns the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Serves until something can be read at `stop`, or its other end is closed. `tell` is called with what happens.
    ///
    /// # Errors
    /// The system cannot wait for connections.
    pub fn run(&self, stop: &UnixStream, tell: &mut dyn FnMut(&Event)) -> io::Result<()> {
        let mut room = Room::default();
        loop {
            if !self.turn(stop, &mut room)? {
                return Ok(());
            }
            room.advance(Instant::now());
            room.told().iter().for_each(&mut *tell);
        }
    }

    /// Starts a thread that serves until [`Running`] is dropped.
    ///
    /// # Errors
    /// Those of [`Self::bind`], [`BrokerError::Thread`].
    pub fn start(path: &Path) -> Result<Running, BrokerError> {
        let broker = Self::bind(path)?;
        let (stop, stopped) = UnixStream::pair().map_err(BrokerError::Thread)?;
        let path = broker.path.clone();
        let serve = move || {
            if let Err(error) = broker.run(&stopped, &mut |_| {}) {
                tracing::warn!(%error, "the broker has ended");
            }
        };
        let thread = thread::Builder::new().name("seamalloc-broker".to_owned()).spawn(serve);
        Ok(Running { path, ended: Mutex::new(Some((stop, thread.map_err(BrokerError::Thread)?))) })
    }

    /// Waits for the next thing to happen, and lets it. Returns `false` at the end.
    fn turn(&self, stop: &UnixStream, room: &mut Room) -> io::Result<bool> {
        let full = room.peers.len() >= MAX_PEERS;
        let mut polled = vec![PollFd::new(stop, PollFlags::IN)];
        if !full {
            polled.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        let first = polled.len();
        let order: Vec<u64> = room.peers.keys().copied().collect();
        let mut lives = Vec::new();
        for (id, peer) in &room.peers {
            polled.push(PollFd::new(&peer.stream, peer.wants()));
            lives.extend(peer.process.as_ref().map(|process| (*id, PollFd::new(process, PollFlags::IN))));
        }
        let (ended, of): (Vec<u64>, Vec<PollFd<'_>>) = lives.into_iter().unzip();
        let processes = polled.len();
        polled.extend(of);
        let timeout = room.next_deadline().map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = timeout.and_then(|left| Timespec::try_from(left + Duration::from_millis(1)).ok());
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let happened = |at: usize| polled.get(at).is_some_and(|polled| !polled.revents().is_empty());
        if happened(0) {
            return Ok(false);
        }
        let connected = !full && happened(1);
        let ready: Vec<u64> =
            order.iter().enumerate().filter(|(at, _)| happened(first + at)).map(|(_, id)| *id).collect();
        let ended: Vec<u64> =
            ended.iter().enumerate().filter(|(at, _)| happened(processes + at)).map(|(_, id)| *id).collect();
        drop(polled);
        let now = Instant::now();
        ready.into_iter().for_each(|id| room.talk(id, now));
        // Its connection may live on in a child that it forked.
        ended.into_iter().for_each(|id| room.leave(id, now));
        if connected {
            self.accept(room, now);
        }
        Ok(true)
    }

    fn accept(&self, room: &mut Room, now: Instant) {
        match self.listener.accept().and_then(|(stream, _)| Peer::admit(stream, now)) {
            Ok(peer) => room.enter(peer),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => {
                tracing::warn!(%error, "a process that came to the broker was not served");
                if error.kind() != ErrorKind::PermissionDenied {
                    thread::sleep(PAUSE);
                }
            }
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let is_ours = fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.inode);
        if is_ours {
            // The folder may be gone already.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Takes the lock beside a socket. Returns `None` if another broker has it.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(name)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Makes the socket. What lies there is of a broker that has ended: its lock was free.
fn bind(path: &Path) -> io::Result<(UnixListener, (u64, u64))> {
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    let ready = || {
        chmodat(CWD, path, Mode::RUSR | Mode::WUSR, rustix::fs::AtFlags::empty())?;
        listener.set_nonblocking(true)?;
        let found = fs::symlink_metadata(path)?;
        Ok((found.dev(), found.ino()))
    };
    let inode = ready().inspect_err(|_: &io::Error| drop(fs::remove_file(path)))?;
    Ok((listener, inode))
}

/// A broker on a thread of this process. It ends when this is dropped, with its socket.
#[derive(Debug)]
pub struct Running {
    path: PathBuf,
    ended: Mutex<Option<(UnixStream, JoinHandle<()>)>>,
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
        if let Some((stop, thread)) = self.ended.lock().take() {
            drop(stop);
            // It panicked, if at all, on its own thread.
            let _ = thread.join();
        }
    }
}
