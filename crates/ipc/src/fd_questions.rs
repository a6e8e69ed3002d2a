//! One client of the server: the bytes that it has sent so far, and the answers to its questions.
//!
//! Owns: how a client's bytes become questions, and which descriptors answer them. The code never waits, and holds no
//! descriptor between two calls.

use super::fd_protocol::{BATCH, DEADLINE, FOUND, GONE, WORD};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use rustix::event::PollFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use seamalloc_driver::Exported;
use seamalloc_driver::fallible::Grown;
use std::io::{self, ErrorKind, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// The descriptors that may be sent, by [`Exported::number`].
#[derive(Default)]
pub(super) struct FdTable(FxHashMap<u64, Weak<OwnedFd>>);

impl FdTable {
    /// Adds all of these descriptors, or none.
    pub(super) fn add(&mut self, memory: &[Exported]) -> Grown<()> {
        // Entries whose memory is gone are removed only when the table would grow.
        if self.0.len() + memory.len() > self.0.capacity() {
            self.0.retain(|_, descriptor| descriptor.strong_count() > 0);
        }
        self.0.try_reserve(memory.len())?;
        self.0.extend(memory.iter().map(|exported| (exported.number(), Arc::downgrade(exported.descriptor()))));
        Ok(())
    }

    fn find(&self, keys: &[u8]) -> Option<Vec<Arc<OwnedFd>>> {
        let (keys, _) = keys.as_chunks::<WORD>();
        keys.iter().map(|key| self.0.get(&u64::from_le_bytes(*key))?.upgrade()).collect()
    }
}

/// The next step of a client: the message that it must send or receive.
enum State {
    Password,
    Count,
    Keys,
    /// The client has not received its answer yet.
    Answer,
}

/// A client process that is being served.
pub(super) struct Client {
    stream: UnixStream,
    /// The time at which the client connected.
    pub(super) since: Instant,
    state: State,
    /// The bytes received in this state, with room for all bytes that the state expects.
    said: [u8; BATCH * WORD],
    length: usize,
    expected: usize,
}

impl Client {
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let said = [0; BATCH * WORD];
        Ok(Self { stream, since: Instant::now(), state: State::Password, said, length: 0, expected: WORD })
    }

    /// Returns whether the client has proved that it has a handle.
    pub(super) fn is_known(&self) -> bool {
        !matches!(self.state, State::Password)
    }

    /// Returns the time at which the client is dropped, whatever its state.
    pub(super) fn end(&self) -> Instant {
        self.since + DEADLINE
    }

    pub(super) fn socket(&self) -> &UnixStream {
        &self.stream
    }

    /// Returns the socket events for which the server waits before it serves this client again.
    pub(super) fn awaits(&self) -> PollFlags {
        if matches!(self.state, State::Answer) { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Reads once, or answers once, so that a client that never stops asking takes turns with others. Returns whether
    /// the client stays.
    pub(super) fn proceed(&mut self, password: &[u8], table: &Mutex<FdTable>) -> io::Result<bool> {
        if !matches!(self.state, State::Answer) {
            let Some(wanted) = self.said.get_mut(self.length..self.expected) else { return Ok(false) };
            match self.stream.read(wanted) {
                Ok(0) => return Ok(false),
                Ok(read) => self.length += read,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    return Ok(true);
                }
                Err(error) => return Err(error),
            }
            if self.length < self.expected {
                return Ok(true);
            }
        }
        let said = self.said.get(..self.expected).unwrap_or_default();
        match self.state {
            State::Password if said != password => {
                return Err(io::Error::new(ErrorKind::PermissionDenied, "it has no handle"));
            }
            State::Password => self.expect(State::Count, 1),
            State::Count => {
                let keys = usize::from(self.said[0]) * WORD;
                if keys == 0 || keys > self.said.len() {
                    return Err(io::Error::new(ErrorKind::InvalidData, "it wants nothing, or too much at once"));
                }
                self.expect(State::Keys, keys);
            }
            State::Keys | State::Answer => {
                let descriptors = table.lock().find(said);
                match send(&self.stream, descriptors.as_deref()) {
                    Ok(()) => self.expect(State::Count, 1),
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                        self.state = State::Answer;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(true)
    }

    fn expect(&mut self, state: State, expected: usize) {
        (self.state, self.length, self.expected) = (state, 0, expected);
    }
}

fn send(stream: &UnixStream, descriptors: Option<&[Arc<OwnedFd>]>) -> io::Result<()> {
    let borrowed: Vec<BorrowedFd<'_>> = descriptors.unwrap_or_default().iter().map(|each| each.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() && !message.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(io::Error::new(ErrorKind::InvalidData, "too many descriptors"));
    }
    let answer = [if descriptors.is_some() { FOUND } else { GONE }];
    sendmsg(stream, &[IoSlice::new(&answer)], &mut message, SendFlags::NOSIGNAL)?;
    Ok(())
}
