//! What is said over the socket: a line of JSON each way, then the bytes of a file where one was asked for.
//!
//! Owns: the words, their bounds, and who may talk.
//!
//! ```text
//! client   {"ask":"samples"}                     server   {"process":{"pid":7,"allocators":[...]}}
//! client   {"ask":{"flight":{"allocator":0}}}    server   {"flight":{"bytes":N}} and N bytes, a pickle
//!                                                server   {"refused":"why"}
//! ```
//! One question for each connection.

use crate::sample::Process;
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The longest question, in bytes.
pub(crate) const MAX_QUESTION: usize = 4 << 10;
/// The longest line of an answer: a thousand allocators take less.
pub(crate) const MAX_ANSWER: usize = 4 << 20;
/// The most bytes of a dump: a full recorder of the largest size that is sensible.
pub(crate) const MAX_DUMP: u64 = 1 << 30;

/// A question.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Question {
    Samples,
    Flight { allocator: u32 },
}

/// The whole of a client's line.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) ask: Question,
}

/// The line of an answer.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    Process(Process),
    Flight { bytes: u64 },
    Refused(String),
}

/// Refuses a process of another user, at either end.
pub(crate) fn admit(stream: &UnixStream) -> io::Result<()> {
    let peer = socket_peercred(stream)?;
    if peer.uid != geteuid() {
        let said = format!("process {} belongs to user {}", peer.pid.as_raw_nonzero(), peer.uid.as_raw());
        return Err(io::Error::new(ErrorKind::PermissionDenied, said));
    }
    Ok(())
}

/// A connection with a time at which it is over, whoever says how little at a time.
pub(crate) struct Bounded<'a> {
    stream: &'a UnixStream,
    until: Instant,
}

impl<'a> Bounded<'a> {
    pub(crate) fn new(stream: &'a UnixStream, time: Duration) -> Self {
        Self { stream, until: Instant::now() + time }
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    /// Reads a line of at most so many bytes. What follows it stays unread, up to the end of a piece.
    pub(crate) fn line(&mut self, most: usize) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let (mut line, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            let read = self.read(&mut piece)?;
            if read == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let got = piece.get(..read).unwrap_or_default();
            if let Some(end) = got.iter().position(|byte| *byte == b'\n') {
                let (last, rest) = got.split_at_checked(end).unwrap_or((got, &[]));
                line.extend_from_slice(last);
                return Ok((line, rest.get(1..).unwrap_or_default().to_vec()));
            }
            line.extend_from_slice(got);
            if line.len() > most {
                return Err(io::Error::new(ErrorKind::InvalidData, format!("a line of more than {most} bytes")));
            }
        }
    }
}

impl Read for Bounded<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.stream.set_read_timeout(Some(self.left()?))?;
            match Read::read(&mut &*self.stream, buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
                read => return read,
            }
        }
    }
}

impl io::Write for Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        match io::Write::write(&mut &*self.stream, bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err(ErrorKind::TimedOut.into()),
            written => written,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
