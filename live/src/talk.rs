//! A talk over a Unix socket in lines, between processes of one user.
//!
//! Owns: who may talk, and for how long.

use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SendFlags, send};
use rustix::process::geteuid;
use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Refuses a process of another user, at either end.
///
/// # Errors
/// [`ErrorKind::PermissionDenied`] if it is another's, and what the system says where it does not tell.
pub fn admit(stream: &UnixStream) -> io::Result<()> {
    let peer = socket_peercred(stream)?;
    if peer.uid != geteuid() {
        let said = format!("process {} belongs to user {}", peer.pid.as_raw_nonzero(), peer.uid.as_raw());
        return Err(io::Error::new(ErrorKind::PermissionDenied, said));
    }
    Ok(())
}

/// A connection with a time at which it is over, whoever says how little at a time.
#[derive(Debug)]
pub struct Bounded<'a> {
    stream: &'a UnixStream,
    until: Instant,
}

impl<'a> Bounded<'a> {
    /// A talk that is over in so much time.
    #[must_use]
    pub fn new(stream: &'a UnixStream, time: Duration) -> Self {
        Self { stream, until: Instant::now() + time }
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    /// Reads a line of about so many bytes at most. Returns it without its end, and what was read beyond it.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`], [`ErrorKind::UnexpectedEof`], [`ErrorKind::InvalidData`] for a longer line, and the system's.
    pub fn line(&mut self, most: usize) -> io::Result<(Vec<u8>, Vec<u8>)> {
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
        // The other end may be gone, which must not end a program that does not ignore SIGPIPE.
        match send(self.stream, bytes, SendFlags::NOSIGNAL) {
            Err(Errno::AGAIN) => Err(ErrorKind::TimedOut.into()),
            sent => Ok(sent?),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
