//! One connection, without its socket.
//!
//! Owns: the bytes received and the bytes to be sent, both bounded, and the time limit for the connection's next
//! message.

use crate::protocol::{MAX_LINE, MAX_LIST, MemberStatus, Said, line};
use seamalloc_socket::{Lines, TooLong};
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

/// The time limit from a process's connection to its first line.
const FIRST_LINE: Duration = Duration::from_secs(1);
/// The time limit for reading an answer.
const LAST_ANSWER: Duration = Duration::from_secs(5);
/// The most questions that one member has open.
const MAX_OPEN: usize = 16;

/// The role of a connection.
#[derive(Clone, Debug)]
pub(super) enum Role {
    /// The connection has sent nothing yet.
    New,
    /// The connection belongs to a member, which answers questions.
    Member(Box<Member>),
    /// The connection waits for the answer to its one question.
    Asker,
    /// The connection has its answer, and is closed when the answer is sent.
    Leaving,
}

/// A member.
#[derive(Clone, Debug, Default)]
pub(super) struct Member {
    pub(super) known: MemberStatus,
    /// The questions that the member has not answered.
    pub(super) open: Vec<u64>,
    /// Whether the member did not answer one of these questions in time.
    pub(super) late: bool,
}

impl Member {
    /// Returns whether an answer can be expected.
    pub(super) fn may_be_asked(&self) -> bool {
        !self.late && self.open.len() < MAX_OPEN
    }
}

#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) role: Role,
    pub(super) pid: i32,
    pub(super) inbox: Lines,
    pub(super) outbox: Vec<u8>,
    until: Option<Instant>,
}

impl Peer {
    pub(super) fn new(pid: i32, now: Instant) -> Self {
        Self { role: Role::New, pid, inbox: Lines::new(MAX_LINE), outbox: Vec::new(), until: Some(now + FIRST_LINE) }
    }

    /// Makes the connection a member.
    pub(super) fn join(&mut self, known: MemberStatus) {
        self.role = Role::Member(Box::new(Member { known, ..Member::default() }));
        self.until = None;
    }

    /// Makes the connection wait for its answer. The connection has no time limit meanwhile, since the demand has one.
    pub(super) fn wait(&mut self) {
        (self.role, self.until) = (Role::Asker, None);
    }

    /// Sends the last message.
    pub(super) fn dismiss(&mut self, said: &Said, now: Instant) -> io::Result<()> {
        (self.role, self.until) = (Role::Leaving, Some(now + LAST_ANSWER));
        self.say(said)
    }

    pub(super) fn say(&mut self, said: &Said) -> io::Result<()> {
        self.outbox.extend(line(said)?);
        if self.outbox.len() > MAX_LIST {
            return Err(io::Error::new(ErrorKind::OutOfMemory, "it does not read"));
        }
        Ok(())
    }

    /// Returns the time at which the connection is closed in any case; `None` if there is no limit.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    pub(super) fn member(&self) -> Option<&Member> {
        if let Role::Member(member) = &self.role { Some(member) } else { None }
    }

    pub(super) fn member_mut(&mut self) -> Option<&mut Member> {
        if let Role::Member(member) = &mut self.role { Some(member) } else { None }
    }

    /// Returns whether messages are expected: the connection has sent none yet, or belongs to a member. Other
    /// connections have asked their question.
    pub(super) fn speaks(&self) -> bool {
        matches!(self.role, Role::New | Role::Member(_))
    }

    /// Returns whether the connection has its answer.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.role, Role::Leaving) && self.outbox.is_empty()
    }

    /// Takes the next line. Returns `None` if no line is complete.
    pub(super) fn hear(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        self.inbox.next_line()
    }
}
