//! How descriptors reach another process: a thread of the process that shares memory answers on a socket.
//!
//! Owns: that thread, the threads that it starts for each client process, and which descriptors they may send. They
//! hold no descriptor: it is closed when its memory goes back to the driver, and asking for it then is an error.
//!
//! PyTorch takes descriptors out of the other process (`pidfd_getfd`), which needs the right to trace it: containers,
//! and Ubuntu's default for processes that are not parent and child, deny it. A socket does not need that right.

use super::error::IpcError;
use super::handle::Endpoint;
use crate::driver::Exported;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg, sockopt,
};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

/// Descriptors in one message. Linux allows 253.
const BATCH: usize = 64;
/// Client processes that are served at once.
const MAX_CLIENTS: usize = 64;
/// How long either side waits for the other.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The first byte of an answer, if the descriptors come with it.
const FOUND: u8 = 1;
const GONE: u8 = 2;

/// The descriptors that may be sent, by [`Exported::number`].
type FdTable = FxHashMap<u64, Weak<OwnedFd>>;

struct Server {
    endpoint: Endpoint,
    table: Mutex<FdTable>,
    /// How many client processes are being served.
    clients: AtomicUsize,
}

/// A client process that is being served.
struct Client(&'static AtomicUsize);

impl Client {
    fn register(all: &'static AtomicUsize) -> io::Result<Self> {
        let before = all.fetch_add(1, Ordering::Relaxed);
        let client = Self(all);
        if before >= MAX_CLIENTS { Err(io::Error::other("too many ask at once")) } else { Ok(client) }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Lets other processes of this user ask for these descriptors by their numbers. Returns the endpoint at which they
/// ask.
pub(crate) fn offer(memory: &[Exported]) -> Result<Endpoint, IpcError> {
    static SERVER: Mutex<Option<&'static Server>> = Mutex::new(None);
    let server = {
        let mut server = SERVER.lock();
        match *server {
            Some(server) => server,
            // After a failure, probably because of too many open files, the next call tries again.
            None => *server.insert(open()?),
        }
    };
    if server.endpoint.pid != std::process::id() {
        return Err(unavailable("this process was forked from one that shares memory"));
    }
    let mut table = server.table.lock();
    // Entries whose memory is gone are removed only when the table would grow.
    if table.len() + memory.len() > table.capacity() {
        table.retain(|_, descriptor| descriptor.strong_count() > 0);
    }
    table.extend(memory.iter().map(|exported| (exported.number(), Arc::downgrade(exported.descriptor()))));
    Ok(server.endpoint)
}

fn unavailable(why: impl ToString) -> IpcError {
    IpcError::Unavailable { why: why.to_string() }
}

fn open() -> Result<&'static Server, IpcError> {
    let mut secret = [0; 16];
    rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty()).map_err(unavailable)?;
    let endpoint = Endpoint { pid: std::process::id(), secret };
    let listener = SocketAddr::from_abstract_name(endpoint.name()).and_then(|name| UnixListener::bind_addr(&name));
    let listener = listener.map_err(unavailable)?;
    // Leaked for the thread, which runs until the process ends.
    let server: &'static Server =
        Box::leak(Box::new(Server { endpoint, table: Mutex::default(), clients: AtomicUsize::new(0) }));
    let thread = thread::Builder::new().name("seamalloc-ipc".to_owned());
    thread.spawn(move || server.serve(&listener)).map_err(unavailable)?;
    Ok(server)
}

/// Refuses a process of another user, at either end: once a process has ended, anyone can bind its name.
fn begin(stream: &UnixStream) -> io::Result<()> {
    let peer = sockopt::socket_peercred(stream)?;
    if peer.uid != rustix::process::geteuid() && !peer.uid.is_root() {
        return Err(io::Error::new(ErrorKind::PermissionDenied, format!("it is of user {}", peer.uid.as_raw())));
    }
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))
}

impl Server {
    fn serve(&'static self, listener: &UnixListener) {
        loop {
            match listener.accept().and_then(|(stream, _)| self.serve_client(stream)) {
                Ok(()) => {}
                // Any process on the machine can connect.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => tracing::debug!(%error, "not served"),
                Err(error) => {
                    tracing::warn!(%error, "a process that asked for shared memory was not served");
                    // Probably there are too many open files; others may close some.
                    thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }

    /// Serves a client in a thread of its own, so that a stopped client does not block the others.
    fn serve_client(&'static self, stream: UnixStream) -> io::Result<()> {
        begin(&stream)?;
        let client = Client::register(&self.clients)?;
        let answer = move || {
            if let Err(error) = self.answer(&stream) {
                tracing::debug!(%error, "a process that asked for shared memory was not served");
            }
            drop(client);
        };
        thread::Builder::new().name("seamalloc-ipc".to_owned()).spawn(answer).map(drop)
    }

    /// Serves one client until it closes the connection.
    fn answer(&self, mut stream: &UnixStream) -> io::Result<()> {
        let mut password = [0; 8];
        stream.read_exact(&mut password)?;
        if password != self.endpoint.password() {
            return Err(io::Error::new(ErrorKind::PermissionDenied, "it has no handle"));
        }
        let mut keys = [0; 8 * BATCH];
        loop {
            let mut count = [0];
            match stream.read_exact(&mut count) {
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
                read => read?,
            }
            let Some(keys) = keys.get_mut(..8 * usize::from(count[0])) else {
                return Err(io::Error::new(ErrorKind::InvalidData, "it wants too much at once"));
            };
            stream.read_exact(keys)?;
            match self.find(keys) {
                Some(descriptors) => send(stream, &descriptors)?,
                None => stream.write_all(&[GONE])?,
            }
        }
    }

    fn find(&self, keys: &[u8]) -> Option<Vec<Arc<OwnedFd>>> {
        let table = self.table.lock();
        let (keys, _) = keys.as_chunks::<8>();
        keys.iter().map(|key| table.get(&u64::from_le_bytes(*key))?.upgrade()).collect()
    }
}

fn send(stream: &UnixStream, descriptors: &[Arc<OwnedFd>]) -> io::Result<()> {
    let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    if !message.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(io::Error::new(ErrorKind::InvalidData, "too many descriptors"));
    }
    retry_on_intr(|| sendmsg(stream, &[IoSlice::new(&[FOUND])], &mut message, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Fetches the descriptors with these numbers, of another process or of this one.
pub(crate) fn fetch(endpoint: &Endpoint, keys: impl Iterator<Item = u64>) -> Result<Vec<Exported>, IpcError> {
    let pid = endpoint.pid;
    let unreachable = |error: io::Error| IpcError::Unreachable { pid, why: error.to_string() };
    let name = SocketAddr::from_abstract_name(endpoint.name()).map_err(unreachable)?;
    let mut stream = UnixStream::connect_addr(&name).map_err(unreachable)?;
    begin(&stream).and_then(|()| stream.write_all(endpoint.password())).map_err(unreachable)?;
    let keys: Vec<u64> = keys.collect();
    let mut found = Vec::with_capacity(keys.len());
    for batch in keys.chunks(BATCH) {
        let mut question = vec![batch.len() as u8];
        question.extend(batch.iter().flat_map(|key| key.to_le_bytes()));
        stream.write_all(&question).map_err(unreachable)?;
        let descriptors = receive(&stream).map_err(unreachable)?.ok_or(IpcError::Gone { pid })?;
        if descriptors.len() != batch.len() {
            let why = format!("{} descriptors came, not {} (too many open files?)", descriptors.len(), batch.len());
            return Err(IpcError::Unreachable { pid, why });
        }
        found.extend(descriptors.into_iter().map(Exported::new));
    }
    Ok(found)
}

/// Receives one answer. Returns `None` if the memory is gone.
fn receive(stream: &UnixStream) -> io::Result<Option<Vec<OwnedFd>>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut messages = RecvAncillaryBuffer::new(&mut space);
    let mut status = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    // A signal interrupts the call even if the program restarts system calls, because the socket has a timeout.
    let answer = retry_on_intr(|| recvmsg(stream, &mut [IoSliceMut::new(&mut status)], &mut messages, flags))?;
    let mut descriptors = Vec::new();
    for message in messages.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    match status {
        [FOUND] if answer.bytes == 1 => Ok(Some(descriptors)),
        [GONE] if answer.bytes == 1 => Ok(None),
        _ => Err(io::Error::new(ErrorKind::UnexpectedEof, "it hung up")),
    }
}
