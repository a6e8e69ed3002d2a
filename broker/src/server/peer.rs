//! One connection.
//!
//! Owns: its bytes, both ways, and their bounds. Nothing here waits.

use crate::protocol::{MAX_LINE, MAX_LIST, MemberStatus, Said, line};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SendFlags, send};
use rustix::process::{PidfdFlags, pidfd_open};
use seamalloc_live::talk::admit;
use std::io::{self, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long a process may take from its connection to its first line.
const FIRST_LINE: Duration = Duration::from_secs(1);
/// How long one may take to read an answer.
const LAST_ANSWER: Duration = Duration::from_secs(5);
/// The most bytes that a connection is read of at a time, so that one that says much does not keep others waiting.
const AT_A_TIME: usize = 16 << 10;

/// The most questions that one member has open.
const MAX_OPEN: usize = 16;

/// What a connection is for.
#[derive(Debug)]
pub(super) enum Role {
    /// It has said nothing yet.
    New,
    /// A process that is asked.
    Member(Box<Member>),
    /// It waits for the answer to its one question.
    Asker,
    /// It has its answer, and is closed when that is sent.
    Leaving,
}

/// A process that takes part.
#[derive(Debug, Default)]
pub(super) struct Member {
    pub(super) known: MemberStatus,
    /// The questions that it has not answered.
    pub(super) open: Vec<u64>,
    /// Whether one of them was not answered in time.
    pub(super) late: bool,
}

impl Member {
    /// Returns whether an answer can be hoped for.
    pub(super) fn may_be_asked(&self) -> bool {
        !self.late && self.open.len() < MAX_OPEN
    }
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) stream: UnixStream,
    pub(super) role: Role,
    pub(super) pid: i32,
    /// Of a member, where the system has it: readable once the process has ended.
    pub(super) process: Option<OwnedFd>,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    until: Option<Instant>,
}

impl Peer {
    /// Takes a connection of a process of the same user.
    pub(super) fn admit(stream: UnixStream, now: Instant) -> io::Result<Self> {
        admit(&stream)?;
        stream.set_nonblocking(true)?;
        let pid = socket_peercred(&stream)?.pid.as_raw_nonzero().get();
        let (inbox, outbox) = (Vec::new(), Vec::new());
        Ok(Self { stream, role: Role::New, pid, process: None, inbox, outbox, until: Some(now + FIRST_LINE) })
    }

    /// Lets it stay, and be asked.
    pub(super) fn join(&mut self, known: MemberStatus) {
        let pid = rustix::process::Pid::from_raw(self.pid);
        // Without it, its connection alone says that it has ended.
        self.process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        self.role = Role::Member(Box::new(Member { known, ..Member::default() }));
        self.until = None;
    }

    /// Lets it wait for its answer, for which the demand has a bound.
    pub(super) fn wait(&mut self) {
        (self.role, self.until) = (Role::Asker, None);
    }

    /// Says the last thing.
    pub(super) fn dismiss(&mut self, said: &Said, now: Instant) -> io::Result<()> {
        (self.role, self.until) = (Role::Leaving, Some(now + LAST_ANSWER));
        self.say(said)
    }

    pub(super) fn say(&mut self, said: &Said) -> io::Result<()> {
        self.outbox.extend(line(said)?);
        if self.outbox.len() > MAX_LIST {
            return Err(io::Error::new(ErrorKind::OutOfMemory, "it does not read"));
        }
        self.send()
    }

    /// When it is closed whatever it does.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    pub(super) fn member(&self) -> Option<&Member> {
        if let Role::Member(member) = &self.role { Some(member) } else { None }
    }

    pub(super) fn member_mut(&mut self) -> Option<&mut Member> {
        if let Role::Member(member) = &mut self.role { Some(member) } else { None }
    }

    pub(super) fn wants(&self) -> PollFlags {
        if self.outbox.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT }
    }

    /// Returns whether it has its answer.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.role, Role::Leaving) && self.outbox.is_empty()
    }

    /// Sends what can be sent.
    pub(super) fn send(&mut self) -> io::Result<()> {
        while !self.outbox.is_empty() {
            // A peer that is gone must not end a program that does not ignore SIGPIPE.
            match send(&self.stream, &self.outbox, SendFlags::NOSIGNAL) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => drop(self.outbox.drain(..sent)),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads what has come. Returns the whole lines of it.
    pub(super) fn receive(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let mut piece = [0; 4096];
        let mut read = 0;
        while read < AT_A_TIME {
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    self.inbox.extend_from_slice(piece.get(..count).unwrap_or_default());
                    read += count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let mut lines = Vec::new();
        while let Some(end) = self.inbox.iter().position(|byte| *byte == b'\n') {
            let mut line: Vec<u8> = self.inbox.drain(..=end).collect();
            line.pop();
            if line.len() > MAX_LINE {
                return Err(too_long());
            }
            lines.push(line);
        }
        if self.inbox.len() > MAX_LINE { Err(too_long()) } else { Ok(lines) }
    }
}

fn too_long() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("a line of more than {MAX_LINE} bytes"))
}
