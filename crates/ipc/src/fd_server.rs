//! The sending of descriptors to other processes: a thread of the process that shares memory answers on a socket.
//!
//! Owns: that thread, and which descriptors it may send. The thread holds no descriptor open: a descriptor is closed
//! with the last allocation that was shared through it, and a later request for it is an error.
//!
//! The thread waits for no single client: for all clients, it reads and writes as much as is possible without waiting,
//! and drops a client at its deadline. So a client that sends nothing, or does not take its answers, delays no other
//! client, and takes up only its connection.
//!
//! PyTorch takes descriptors out of the other process (`pidfd_getfd`), which needs the right to trace that process:
//! containers, and Ubuntu's default for processes that are not parent and child, deny this right. A socket does not
//! need that right.

use super::error::{IpcError, NotDone};
use super::fd_protocol::admit;
use super::fd_questions::{Client, FdTable};
use super::handle::Endpoint;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use seamalloc_driver::Exported;
use seamalloc_driver::fallible::text;
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The target of log events.
const TARGET: &str = "seamalloc::ipc";
/// The most clients that are served at the same time. Others wait in the queue of connections.
const MAX_CLIENTS: usize = 64;
/// The time in which a client must prove that it has a handle while other clients wait. Clients send the proof as soon
/// as they are connected. At this pace a queue full of clients that never send the proof (4096, Linux's default) is
/// worked off in 6.4 s, before clients that came later give up.
const PATIENCE: Duration = Duration::from_millis(100);
/// The pause in which no new client is served after a connection could not be taken, probably because of too many open
/// files.
const PAUSE: Duration = Duration::from_millis(10);

struct Server {
    endpoint: Endpoint,
    table: Mutex<FdTable>,
}

/// Lets other processes of this user ask for these descriptors by their numbers. Returns the endpoint at which they
/// ask.
pub fn offer(memory: &[Exported]) -> Result<Endpoint, NotDone> {
    static OFFERS: Offers = Offers::new();
    let server = OFFERS.server()?;
    server.table.lock().add(memory)?;
    Ok(server.endpoint)
}

/// The server of the process, once it shares memory.
struct Offers {
    /// The process id of the first process that shared memory, 0 before. A forked child has another id, and may have a
    /// copy of locks held by a thread that does not exist in the child.
    owner: AtomicU32,
    server: Mutex<Option<Arc<Server>>>,
}

impl Offers {
    const fn new() -> Self {
        Self { owner: AtomicU32::new(0), server: Mutex::new(None) }
    }

    fn server(&self) -> Result<Arc<Server>, IpcError> {
        let here = std::process::id();
        let first = self.owner.compare_exchange(0, here, Ordering::Relaxed, Ordering::Relaxed).err();
        if first.is_some_and(|first| first != here) {
            return Err(unavailable("this process was forked from one that shares memory"));
        }
        let mut server = self.server.lock();
        Ok(match &*server {
            Some(server) => Arc::clone(server),
            // After a failure, probably because of too many open files, the next call tries again.
            None => Arc::clone(server.insert(open()?)),
        })
    }
}

fn unavailable(why: impl fmt::Display) -> IpcError {
    IpcError::Unavailable { why: text(format_args!("{why}")) }
}

fn open() -> Result<Arc<Server>, IpcError> {
    let mut secret = [0; 16];
    rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty()).map_err(unavailable)?;
    let endpoint = Endpoint { pid: std::process::id(), secret };
    let listener = SocketAddr::from_abstract_name(endpoint.name()).and_then(|name| UnixListener::bind_addr(&name));
    let listener = listener.map_err(unavailable)?;
    listener.set_nonblocking(true).map_err(unavailable)?;
    let server = Arc::new(Server { endpoint, table: Mutex::default() });
    let serving = Arc::clone(&server);
    // The thread runs until the process ends.
    let thread = thread::Builder::new().name("seamalloc-ipc".to_owned());
    thread.spawn(move || serving.serve(&listener)).map_err(unavailable)?;
    Ok(server)
}

impl Server {
    fn serve(&self, listener: &UnixListener) {
        let mut clients: Vec<Client> = Vec::with_capacity(MAX_CLIENTS);
        let mut paused_until = None;
        loop {
            let now = Instant::now();
            clients.retain(|client| client.end() > now);
            paused_until = paused_until.filter(|end| *end > now);
            let overdue = make_room(&mut clients, now);
            let listens = clients.len() < MAX_CLIENTS && paused_until.is_none();
            let next = clients.iter().map(Client::end).chain(overdue).chain(paused_until).min();
            match wait(listener, listens, &clients, next.map(|next| next - now)) {
                Ok(ready) => {
                    let [connected, rest @ ..] = ready.as_slice() else { continue };
                    let mut ready = rest.iter();
                    clients.retain_mut(|client| match ready.next() {
                        Some(true) => self.attend(client),
                        _ => true,
                    });
                    if *connected && listens {
                        paused_until = take(listener, &mut clients).err().map(|()| now + PAUSE);
                    }
                }
                Err(error) => {
                    tracing::warn!(target: TARGET, %error, "processes that ask for shared memory cannot be waited for");
                    thread::sleep(PAUSE);
                }
            }
        }
    }

    /// Serves a client as far as that is possible without waiting. Returns whether the client stays.
    fn attend(&self, client: &mut Client) -> bool {
        match client.proceed(self.endpoint.password(), &self.table) {
            Ok(stays) => stays,
            Err(error) => {
                tracing::debug!(target: TARGET, %error, "a process that asked for shared memory was not served");
                false
            }
        }
    }
}

/// If all places are taken, drops the client that has waited longest without a proof that it has a handle, or returns
/// when this client's time will be over.
fn make_room(clients: &mut Vec<Client>, now: Instant) -> Option<Instant> {
    if clients.len() < MAX_CLIENTS {
        return None;
    }
    // The clients are in the order in which they came.
    let first = clients.iter().position(|client| !client.is_known())?;
    let patient_until = clients.get(first)?.since + PATIENCE;
    if patient_until > now {
        return Some(patient_until);
    }
    clients.remove(first);
    None
}

/// Waits, at most for this time, until a socket is ready. Returns for the listener and each client whether its socket
/// is ready.
fn wait(listener: &UnixListener, listens: bool, clients: &[Client], time: Option<Duration>) -> io::Result<Vec<bool>> {
    let listening = if listens { PollFlags::IN } else { PollFlags::empty() };
    let mut polled = Vec::with_capacity(1 + clients.len());
    polled.push(PollFd::new(listener, listening));
    polled.extend(clients.iter().map(|client| PollFd::new(client.socket(), client.awaits())));
    let time = time.and_then(|time| Timespec::try_from(time).ok());
    match poll(&mut polled, time.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(polled.iter().map(|polled| !polled.revents().is_empty()).collect())
}

/// Takes one connection.
fn take(listener: &UnixListener, clients: &mut Vec<Client>) -> Result<(), ()> {
    let client = listener.accept().and_then(|(stream, _)| {
        admit(&stream)?;
        Client::new(stream)
    });
    match client {
        Ok(client) => clients.push(client),
        // The client may be gone already.
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
        // Any process on the machine can connect.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            tracing::debug!(target: TARGET, %error, "not served")
        }
        Err(error) => {
            tracing::warn!(target: TARGET, %error, "a process that asked for shared memory was not served");
            return Err(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_is_refused_without_a_wait_for_a_lock_that_no_thread_holds_there() {
        // This is the state in a child that was forked while another thread of its parent began to share.
        let offers = Arc::new(Offers::new());
        offers.owner.store(std::process::id() ^ 1, Ordering::Relaxed);
        let held = offers.server.lock();
        let of_child = Arc::clone(&offers);
        let asking = thread::spawn(move || of_child.server().map(drop));
        let begun = Instant::now();
        while !asking.is_finished() {
            assert!(begun.elapsed() < Duration::from_secs(20), "it waits for the lock");
            thread::sleep(Duration::from_millis(1));
        }
        assert!(matches!(asking.join().unwrap(), Err(IpcError::Unavailable { why }) if why.contains("forked")));
        drop(held);
        // The parent goes on sharing.
        offers.owner.store(0, Ordering::Relaxed);
        assert_eq!(offers.server().unwrap().endpoint.pid, std::process::id());
        assert!(Arc::ptr_eq(&offers.server().unwrap(), &offers.server().unwrap()));
    }
}
