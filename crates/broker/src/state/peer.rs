//! One connection, without its socket.
//!
//! Owns: what has come and what is to go, both bounded, and until when it may say nothing.

use crate::protocol::{MAX_LINE, MAX_LIST, MemberStatus, Said, line};
use seamalloc_socket::{Lines, TooLong};
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

/// How long a process may take from its connection to its first line.
const FIRST_LINE: Duration = Duration::from_secs(1);
/// How long one may take to read an answer.
const LAST_ANSWER: Duration = Duration::from_secs(5);
/// The most questions that one member has open.
const MAX_OPEN: usize = 16;

/// What a connection is for.
#[derive(Clone, Debug)]
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
#[derive(Clone, Debug, Default)]
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

    /// Lets it stay, and be asked.
    pub(super) fn join(&mut self, known: MemberStatus) {
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
        Ok(())
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

    /// Returns whether it may say anything: it has not spoken, or takes part. Others have asked their one question.
    pub(super) fn speaks(&self) -> bool {
        matches!(self.role, Role::New | Role::Member(_))
    }

    /// Returns whether it has its answer.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.role, Role::Leaving) && self.outbox.is_empty()
    }

    /// Takes the next line.
    pub(super) fn hear(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        self.inbox.next_line()
    }
}
