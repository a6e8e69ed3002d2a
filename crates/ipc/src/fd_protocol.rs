//! The protocol that both ends of the socket share.
//!
//! ```text
//! client   password: 8 bytes | then any number of questions: a count, 1 byte | that many descriptor numbers, 8 bytes each
//! server   to each question one byte: FOUND, with as many descriptors in the message, or GONE
//! ```
//! Owns: the sizes and times of this protocol, and which users either end talks to.

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::process::geteuid;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::time::Duration;

/// The time in which a client must get all descriptors of a handle, and for which a server serves one client.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);
/// Descriptors in one message. Linux allows 253.
pub(super) const BATCH: usize = 64;
/// Bytes of the password, and of the number of a descriptor.
pub(super) const WORD: usize = 8;
/// The answer if the descriptors come with it.
pub(super) const FOUND: u8 = 1;
/// The answer if one of the descriptors is closed.
pub(super) const GONE: u8 = 2;

/// Refuses a process of another user, at either end: everyone can connect, and once a process has ended, anyone can
/// bind the name of its socket.
pub(super) fn admit(socket: impl AsFd) -> io::Result<()> {
    const ROOT: u32 = 0;
    let user = getsockopt(&socket.as_fd(), PeerCredentials)?.uid();
    if user != geteuid().as_raw() && user != ROOT {
        return Err(io::Error::new(ErrorKind::PermissionDenied, format!("it is of user {user}")));
    }
    Ok(())
}
