//! Ending a thread, in the process that owns it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The process that made an object. A forked child has a copy of the object, but not its threads, and a lock of the
/// object that was held at the fork stays locked for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(u32);

impl Owner {
    /// Returns this process as the owner.
    #[must_use]
    pub fn here() -> Self {
        Self(std::process::id())
    }

    /// Returns another process as the owner, for tests.
    #[cfg(test)]
    pub(crate) fn of(pid: u32) -> Self {
        Self(pid)
    }

    /// Returns whether the current process is the owner. Makes a system call, and takes no lock.
    #[must_use]
    pub fn is_here(self) -> bool {
        self == Self::here()
    }
}

/// Ends a thread when this object is dropped in the process that made it. Dropping a forked child's copy has no effect.
#[derive(Debug)]
pub struct Stop {
    end: UnixStream,
    owner: Owner,
}

/// The thread's side of a [`Stop`]. The connection is readable once the thread must end.
#[derive(Debug)]
pub struct Stopped(UnixStream);

impl Stop {
    /// Makes a [`Stop`], and the [`Stopped`] for the thread that it ends.
    ///
    /// # Errors
    /// The system's error, such as too many open files.
    pub fn new() -> io::Result<(Self, Stopped)> {
        let (end, thread) = UnixStream::pair()?;
        Ok((Self { end, owner: Owner::here() }, Stopped(thread)))
    }

    /// Returns whether this process made the `Stop`.
    #[must_use]
    pub fn is_owned(&self) -> bool {
        self.owner.is_here()
    }

    /// Ends the thread, as dropping this object does.
    pub fn stop(&self) {
        if self.is_owned() {
            // The thread may have ended already. A plain close would leave a forked child's copy open, and the thread
            // would go on waiting.
            let _ = self.end.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Stopped {
    /// Waits until the thread must end, for at most `most`. Returns whether it must end.
    #[must_use]
    pub fn within(&self, most: Duration) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        let timeout = Timespec::try_from(most).ok();
        poll(&mut polled, timeout.as_ref()).is_ok_and(|ready| ready > 0)
    }
}

impl AsFd for Stopped {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn the_thread_sees_the_end_although_a_copy_is_open() {
        let (stop, stopped) = Stop::new().unwrap();
        assert!(!stopped.within(Duration::ZERO));
        // The copy acts as a forked child's copy.
        let copy = stop.end.try_clone().unwrap();
        drop(stop);
        assert!(stopped.within(LONG));
        drop(copy);
    }

    #[test]
    fn the_copy_of_another_process_ends_nothing() {
        let (mut stop, stopped) = Stop::new().unwrap();
        let end = stop.end.try_clone().unwrap();
        // The owner is another process, as a forked child sees it.
        stop.owner = Owner::of(0);
        assert!(!stop.is_owned());
        stop.stop();
        drop(stop);
        assert!(!stopped.within(Duration::ZERO));
        drop(end);
        assert!(stopped.within(LONG));
    }
}
