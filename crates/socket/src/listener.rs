//! A listening socket.
//!
//! Owns: the socket's file, which only the process that made it removes, and the lock that reserves a name for one
//! process.

use crate::stop::Owner;
use crate::talk::admit;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, chmodat, flock, open};
use rustix::io::Errno;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// The pause after a failed accept, whose probable cause is too many open files.
const PAUSE: Duration = Duration::from_millis(100);
/// The mode of a socket: its user alone may read and write.
const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// A listening socket that does not block.
#[derive(Debug)]
pub struct Listener(UnixListener);

/// The file of a socket. Dropping this object removes the file, in the process that made it, if the path still names
/// the same file.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// The file's device and inode, which identify the file before it is removed.
    inode: (u64, u64),
    owner: Owner,
}

/// The lock of a name or a folder. The lock is held until this object is dropped or the process ends in any way. Only a
/// child forked without `exec` keeps the lock after a `kill` of its parent.
#[derive(Debug)]
pub struct Lock {
    file: OwnedFd,
    owner: Owner,
}

impl Listener {
    /// Listens at a name that must not exist, for this user alone (mode 0600).
    ///
    /// # Errors
    /// [`ErrorKind::AddrInUse`] if the name exists, [`ErrorKind::InvalidInput`] for a name that is empty or too long
    /// for a socket, and errors of the system.
    pub fn bind(path: &Path) -> io::Result<(Self, SocketFile)> {
        if path.as_os_str().is_empty() {
            // For an empty name, the system would choose a name of its own.
            return Err(ErrorKind::InvalidInput.into());
        }
        let listener = UnixListener::bind(path)?;
        let ready = || {
            chmodat(CWD, path, PRIVATE, AtFlags::empty())?;
            listener.set_nonblocking(true)?;
            identity(path)
        };
        let inode = ready().inspect_err(|_| drop(fs::remove_file(path)))?;
        Ok((Self(listener), SocketFile { path: path.to_owned(), inode, owner: Owner::here() }))
    }

    /// Listens at a name, in place of a socket that a killed process left behind. The caller must know that no other
    /// process listens there: the caller has the [`Lock`] of the name, or has the lock of the folder and was refused a
    /// connection. A file that is no socket is not replaced.
    ///
    /// # Errors
    /// The errors of [`Self::bind`].
    pub fn bind_over(path: &Path) -> io::Result<(Self, SocketFile)> {
        if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
            fs::remove_file(path)?;
        }
        Self::bind(path)
    }

    /// Takes the next connection of a process of this user, in blocking mode. Returns `None` if no connection is
    /// waiting, or if the waiting connection was refused, which is logged.
    #[must_use]
    pub fn take(&self) -> Option<UnixStream> {
        let taken = self.0.accept().and_then(|(stream, _)| admit(&stream).map(|_| stream));
        match taken {
            Ok(stream) => return Some(stream),
            // The file may have been removed already.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                ) => {}
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                tracing::warn!(%error, "a process of another user was not served");
            }
            Err(error) => {
                tracing::warn!(%error, "a process was not served");
                thread::sleep(PAUSE);
            }
        }
        None
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

impl SocketFile {
    /// Returns the socket's name.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A forked child must not remove the file, since its parent still uses it.
        if self.owner.is_here() && identity(&self.path).is_ok_and(|found| found == self.inode) {
            // The folder may have been removed already.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Lock {
    /// Takes the lock of a name through the file `NAME.lock`, which is never removed. Returns `None` if another
    /// process, or this one, holds the lock.
    ///
    /// # Errors
    /// The errors of the system: the file cannot be made, or is a link.
    pub fn take(path: &Path) -> io::Result<Option<Self>> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Self::of(open(Path::new(&name), flags, PRIVATE)?)
    }

    /// Takes the lock of a folder, which lets one process at a time make and remove files in it. Returns `None` if
    /// another process, or this one, holds the lock.
    ///
    /// # Errors
    /// The system's errors: the path is no folder, or a link.
    pub fn of_folder(folder: &Path) -> io::Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Self::of(open(folder, flags, Mode::empty())?)
    }

    fn of(file: OwnedFd) -> io::Result<Option<Self>> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { file, owner: Owner::here() })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A forked child shares the lock. Closing this descriptor would leave the lock with the child, and unlocking
        // releases it for both.
        if self.owner.is_here() {
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::talk::connect;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use tempfile::TempDir;

    const LONG: Duration = Duration::from_secs(20);

    fn named(name: &str) -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        (folder, path)
    }

    #[test]
    fn a_socket_is_its_users_alone_and_goes_with_its_file() {
        let (_folder, path) = named("a.sock");
        let (listener, file) = Listener::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Listener::bind(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert!(listener.take().is_none(), "it waits for nobody");
        let asking = connect(&path, LONG).unwrap();
        assert!(listener.take().is_some());
        drop((asking, file));
        assert!(!path.exists());
    }

    #[test]
    fn what_took_its_place_is_left_alone() {
        let (_folder, path) = named("a.sock");
        let (_listener, file) = Listener::bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another's").unwrap();
        drop(file);
        assert_eq!(fs::read_to_string(&path).unwrap(), "another's");
    }

    #[test]
    fn a_forked_childs_copy_removes_nothing() {
        let (_folder, path) = named("a.sock");
        let (_listener, file) = Listener::bind(&path).unwrap();
        // The drop acts as in a forked child.
        drop(SocketFile { path: path.clone(), inode: file.inode, owner: Owner::of(0) });
        assert!(path.exists());
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn what_was_left_behind_is_taken_over_and_what_is_no_socket_is_not() {
        let (folder, path) = named("a.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "its file stays");
        let (listener, file) = Listener::bind_over(&path).unwrap();
        assert!(connect(&path, LONG).is_ok() && listener.take().is_some());
        drop(file);
        let other = folder.path().join("file");
        fs::write(&other, "another's").unwrap();
        assert!(Listener::bind_over(&other).is_err());
        let link = folder.path().join("link");
        symlink(&other, &link).unwrap();
        assert!(Listener::bind_over(&link).is_err());
        assert_eq!(fs::read_to_string(&other).unwrap(), "another's");
    }

    #[test]
    fn names_that_cannot_be_are_errors() {
        let (folder, _) = named("");
        for name in [PathBuf::new(), folder.path().join("x".repeat(200)), folder.path().join("missing/a.sock")] {
            assert!(Listener::bind(&name).is_err(), "{}", name.display());
        }
    }

    #[test]
    fn a_name_is_one_holders_at_a_time() {
        let (folder, path) = named("a.sock");
        let lock = Lock::take(&path).unwrap().unwrap();
        assert!(Lock::take(&path).unwrap().is_none());
        assert!(Lock::take(&folder.path().join("b.sock")).unwrap().is_some());
        // A forked child has the descriptor too. Dropping the child's copy does not release the lock, and keeping the
        // copy does not keep the lock once the parent has dropped it.
        let copy = lock.file.try_clone().unwrap();
        drop(Lock { file: lock.file.try_clone().unwrap(), owner: Owner::of(0) });
        assert!(Lock::take(&path).unwrap().is_none());
        drop(lock);
        assert!(Lock::take(&path).unwrap().is_some());
        drop(copy);
        // Without the check, a user who can write to the folder could have another file locked or created.
        symlink(folder.path().join("elsewhere"), folder.path().join("c.sock.lock")).unwrap();
        assert!(Lock::take(&folder.path().join("c.sock")).is_err());
        assert!(!folder.path().join("elsewhere").exists());
        let whole = Lock::of_folder(folder.path()).unwrap().unwrap();
        assert!(Lock::of_folder(folder.path()).unwrap().is_none());
        drop(whole);
        assert!(Lock::of_folder(folder.path()).unwrap().is_some());
        assert!(Lock::of_folder(&path).is_err());
    }
}
