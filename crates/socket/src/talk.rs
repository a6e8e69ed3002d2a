//! Communication over a Unix socket, between processes of one user.
//!
//! Owns: the rule about the users that may communicate, and the time limits. [`connect`] and [`Bounded`] block for a
//! limited time; [`send_now`] and [`receive_now`] never block.

use crate::lines::Lines;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect as connect_to, send, socket_with,
};
use rustix::process::geteuid;
use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// The shortest timeout of a socket. A timeout of 0 would mean no limit.
const SHORTEST: Duration = Duration::from_millis(1);
/// The bytes of one read call.
const PIECE: usize = 4096;

/// Refuses a connection if the process at its other end is another user's. Returns the other process's number; 0 if it
/// is unknown because the process is outside of this process's namespace.
///
/// # Errors
/// [`ErrorKind::PermissionDenied`] if the process is another user's, and the system's error if the user is unknown.
pub fn admit(stream: &UnixStream) -> io::Result<i32> {
    let peer = getsockopt(stream, PeerCredentials)?;
    if peer.uid() != geteuid().as_raw() {
        let said = format!("process {} belongs to user {}", peer.pid(), peer.uid());
        return Err(io::Error::new(ErrorKind::PermissionDenied, said));
    }
    Ok(peer.pid())
}

/// Connects to a process of this user within a time limit, since a stopped process accepts no connection once its queue
/// is full.
///
/// # Errors
/// [`ErrorKind::TimedOut`], [`ErrorKind::PermissionDenied`] if another user's process listens there, and errors of the
/// system.
pub fn connect(path: &Path, time: Duration) -> io::Result<UnixStream> {
    let until = Instant::now() + time;
    let name = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    loop {
        let left = left(until)?;
        // The system's call waits at most this long until the other process's queue has a place.
        set_socket_timeout(&socket, Timeout::Send, Some(left))?;
        match connect_to(&socket, &name) {
            Ok(()) => break,
            Err(Errno::INTR) => {}
            // The time is over, or the system waited for less than the timeout.
            Err(Errno::AGAIN) => std::thread::sleep(SHORTEST),
            Err(error) => return Err(error.into()),
        }
    }
    set_socket_timeout(&socket, Timeout::Send, None)?;
    let stream = UnixStream::from(socket);
    admit(&stream)?;
    Ok(stream)
}

/// Returns the remaining time, which is never 0.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left.max(SHORTEST)) }
}

/// A connection with one time limit for the whole exchange, even if the other end sends slowly.
#[derive(Debug)]
pub struct Bounded<'a> {
    stream: &'a UnixStream,
    until: Instant,
}

impl<'a> Bounded<'a> {
    /// Makes a connection that is limited to `time`.
    #[must_use]
    pub fn new(stream: &'a UnixStream, time: Duration) -> Self {
        Self { stream, until: Instant::now() + time }
    }

    /// Reads a line of at most `most` bytes. Returns the line without its end, and the bytes that were read after the
    /// line.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`], [`ErrorKind::UnexpectedEof`], [`ErrorKind::InvalidData`] for a longer line, and errors
    /// of the system.
    pub fn line(&mut self, most: usize) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let (mut lines, mut piece) = (Lines::new(most), [0; PIECE]);
        loop {
            let read = self.read(&mut piece)?;
            if read == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            lines.push(piece.get(..read).unwrap_or_default());
            if let Some(line) = lines.next_line()? {
                return Ok((line, lines.into_rest()));
            }
        }
    }
}

impl Read for Bounded<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.stream.set_read_timeout(Some(left(self.until)?))?;
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
        self.stream.set_write_timeout(Some(left(self.until)?))?;
        // The other end may be closed. Without the flag, a SIGPIPE would then end a program that does not ignore the
        // signal.
        match send(self.stream, bytes, SendFlags::NOSIGNAL) {
            Err(Errno::AGAIN) => Err(ErrorKind::TimedOut.into()),
            sent => Ok(sent?),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends as many bytes as possible over a connection that does not block, and removes the sent bytes from `bytes`.
///
/// # Errors
/// The other end is closed.
pub fn send_now(stream: &UnixStream, bytes: &mut Vec<u8>) -> io::Result<()> {
    while !bytes.is_empty() {
        match send(stream, bytes, SendFlags::NOSIGNAL) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(sent) => drop(bytes.drain(..sent)),
            Err(Errno::AGAIN) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Reads received bytes of a connection that does not block, about `most` bytes at most, so that a busy connection does
/// not delay others. `take` gets the pieces, and returns whether it takes more.
///
/// # Errors
/// [`ErrorKind::UnexpectedEof`] at the end of the connection, and errors of the system.
pub fn receive_now(stream: &UnixStream, most: usize, take: &mut dyn FnMut(&[u8]) -> bool) -> io::Result<()> {
    let (mut piece, mut taken) = ([0; PIECE], 0);
    while taken < most {
        match Read::read(&mut &*stream, &mut piece) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                taken += read;
                if !take(piece.get(..read).unwrap_or_default()) {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{bind, listen};
    use std::io::Write;
    use std::os::unix::net::UnixListener;
    use std::thread;

    const TIME: Duration = Duration::from_millis(200);
    /// The time after which a test counts as hung, on a busy machine.
    const LONG: Duration = Duration::from_secs(20);

    fn late<T: std::fmt::Debug>(done: io::Result<T>, begun: Instant) {
        assert_eq!(done.unwrap_err().kind(), ErrorKind::TimedOut);
        assert!((TIME..LONG).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    }

    #[test]
    fn one_whose_queue_is_full_is_left_in_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("full.sock");
        let stopped = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&stopped, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&stopped, 0).unwrap();
        let mut queued = Vec::new();
        loop {
            assert!(queued.len() < 16, "its queue takes one or two");
            let begun = Instant::now();
            match connect(&path, TIME) {
                Ok(stream) => queued.push(stream),
                refused => {
                    late(refused, begun);
                    break;
                }
            }
        }
        assert!(!queued.is_empty());
        drop(stopped);
        assert!(connect(&path, TIME).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused));
        assert!(connect(&folder.path().join("none"), TIME).is_err_and(|error| error.kind() == ErrorKind::NotFound));
    }

    #[test]
    fn one_that_says_nothing_or_little_at_a_time_is_left_in_time() {
        let (one, other) = UnixStream::pair().unwrap();
        let begun = Instant::now();
        late(Bounded::new(&one, TIME).line(100), begun);
        let slow = thread::spawn(move || {
            while (&other).write_all(b"x").is_ok() {
                thread::sleep(TIME / 10);
            }
        });
        let begun = Instant::now();
        late(Bounded::new(&one, TIME).line(100_000), begun);
        drop(one);
        slow.join().unwrap();
    }

    #[test]
    fn one_that_does_not_read_is_left_in_time() {
        let (one, _other) = UnixStream::pair().unwrap();
        let begun = Instant::now();
        late(Bounded::new(&one, TIME).write_all(&vec![0; 16 << 20]), begun);
    }

    #[test]
    fn a_line_ends_and_what_is_longer_or_cut_off_is_an_error() {
        let (one, mut other) = UnixStream::pair().unwrap();
        other.write_all(b"first\nsecond").unwrap();
        assert_eq!(Bounded::new(&one, LONG).line(5).unwrap(), (b"first".to_vec(), b"second".to_vec()));
        other.write_all(&[b'x'; 101]).unwrap();
        assert_eq!(Bounded::new(&one, LONG).line(100).unwrap_err().kind(), ErrorKind::InvalidData);
        other.write_all(b"half").unwrap();
        drop(other);
        assert_eq!(Bounded::new(&one, LONG).line(100).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        let mut gone = Bounded::new(&one, LONG);
        assert_eq!(gone.write_all(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe, "and no signal");
    }

    #[test]
    fn what_waits_for_nobody_moves_what_it_can() {
        let (one, other) = UnixStream::pair().unwrap();
        one.set_nonblocking(true).unwrap();
        other.set_nonblocking(true).unwrap();
        let all: Vec<u8> = (0..4_000_000u32).map(|at| at as u8).collect();
        let (mut left, mut read) = (all.clone(), Vec::new());
        send_now(&one, &mut left).unwrap();
        assert!(!left.is_empty() && left.len() < all.len(), "{} are left", left.len());
        while read.len() < all.len() {
            let before = read.len();
            receive_now(&other, 10_000, &mut |piece| {
                read.extend_from_slice(piece);
                true
            })
            .unwrap();
            assert!(read.len() - before < 10_000 + PIECE);
            send_now(&one, &mut left).unwrap();
        }
        assert_eq!(read, all);
        receive_now(&other, 10_000, &mut |_| panic!("there is no more")).unwrap();
        drop(one);
        assert_eq!(receive_now(&other, 1, &mut |_| true).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert!(send_now(&other, &mut vec![1]).is_err());
    }

    #[test]
    fn the_other_process_is_known_by_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let stream = connect(&path, LONG).unwrap();
        let (other, _) = listener.accept().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!((admit(&stream).unwrap(), admit(&other).unwrap()), (own, own));
    }
}
