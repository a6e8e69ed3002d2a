//! The places of the sockets: one socket for each process, in a folder that only its user can access.
//!
//! Owns: the sockets' names, and the rules for making and removing a socket. Containers may share the folder, and
//! processes in containers have numbers of their own. So a name contains the process's namespace and its number. A
//! socket of another namespace counts as that of an ended process only if it refuses a connection.

use crate::namespace::namespace;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use seamalloc_socket::{Listener, Lock, SocketError, SocketFile, check_private, connect, folder};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// The ending of a socket's name, after the process number.
const ENDING: &str = ".sock";
/// The separator between the namespace and the process number in a socket's name.
const BETWEEN: char = '-';
/// The time limit for the folder's lock. Other processes hold the lock while they make or remove a socket.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time between two attempts to take the folder's lock.
const PAUSE: Duration = Duration::from_millis(1);
/// The time limit for a connection. A socket whose queue is full does not refuse the connection.
const SHORT: Duration = Duration::from_millis(1);

/// Returns the socket of a process of this namespace: `NAMESPACE-PID.sock`, or `PID.sock` if the system reports no
/// namespace.
pub(crate) fn socket_of(pid: u32) -> PathBuf {
    let name = match namespace() {
        Some(namespace) => format!("{namespace}{BETWEEN}{pid}{ENDING}"),
        None => format!("{pid}{ENDING}"),
    };
    folder().join(name)
}

/// Returns the namespace, if any, and the process number in the name of a socket; `None` for other names.
fn parsed(name: &str) -> Option<(Option<u64>, u32)> {
    let name = name.strip_suffix(ENDING)?;
    match name.split_once(BETWEEN) {
        Some((namespace, pid)) => Some((Some(namespace.parse().ok()?), pid.parse().ok()?)),
        None => Some((None, name.parse().ok()?)),
    }
}

/// Listens at the socket's path. A socket that was left behind there is replaced.
///
/// # Errors
/// [`ErrorKind::AddrInUse`] if a process listens there: this process, or, if the system reports no namespace, a process
/// of another namespace.
pub(crate) fn listen(path: &Path) -> io::Result<(Listener, SocketFile)> {
    let until = Instant::now() + PATIENCE;
    let _lock = loop {
        match Lock::of_folder(path.parent().unwrap_or(Path::new("")))? {
            Some(lock) => break lock,
            None if Instant::now() >= until => return Err(ErrorKind::TimedOut.into()),
            None => thread::sleep(PAUSE),
        }
    };
    match connect(path, SHORT).map_err(|error| error.kind()) {
        Err(ErrorKind::ConnectionRefused | ErrorKind::NotFound) => Listener::bind_over(path),
        // A process listens there, even if it does not answer in time.
        _ => Err(ErrorKind::AddrInUse.into()),
    }
}

/// Returns the numbers and the sockets of this user's processes. Two processes of different namespaces may have the
/// same number. Removes the sockets of ended processes.
///
/// # Errors
/// [`SocketError::Folder`] if other users may access the folder. A missing folder has no sockets.
pub fn listed() -> Result<Vec<(u32, PathBuf)>, SocketError> {
    let folder = folder();
    let Ok(entries) = fs::read_dir(&folder) else { return Ok(Vec::new()) };
    check_private(&folder)?;
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let Some((namespace, pid)) = entry.file_name().to_str().and_then(parsed) else { continue };
        let path = entry.path();
        if !has_ended(namespace, pid, &path) {
            found.push((pid, path));
        } else if let Ok(Some(_lock)) = Lock::of_folder(&folder)
            // Meanwhile the process number may belong to a new process that listens.
            && has_ended(namespace, pid, &path)
        {
            // Another client may have removed the socket already.
            let _ = fs::remove_file(path);
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Returns whether the process of a socket has ended. In this namespace the process number decides, even if a child
/// still has the socket. In another or an unknown namespace, process numbers have no meaning for this process, and a
/// refused connection decides.
fn has_ended(of: Option<u64>, pid: u32, socket: &Path) -> bool {
    if of.is_some() && of == namespace() {
        return !is_alive(pid);
    }
    connect(socket, SHORT).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| !matches!(test_kill_process(pid), Err(Errno::SRCH)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_have_ended_are_known() {
        assert!(is_alive(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(!is_alive(child.id()));
        assert!(!is_alive(0) && !is_alive(u32::MAX));
    }

    #[test]
    fn names_have_the_namespace_and_the_number() {
        let own = socket_of(4711);
        assert_eq!(own.file_name().and_then(|name| parsed(name.to_str()?)), Some((namespace(), 4711)));
        assert_eq!(parsed("4711.sock"), Some((None, 4711)));
        for other in ["broker.sock", "broker.sock.lock", "1-x.sock", "-1.sock", "1-.sock", "1-2"] {
            assert_eq!(parsed(other), None, "{other}");
        }
    }

    #[test]
    fn of_this_namespace_the_number_says_who_has_ended() {
        let Some(own) = namespace() else { return };
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        // No socket exists here that could refuse a connection.
        let socket = Path::new("/no/such/folder/1.sock");
        assert!(has_ended(Some(own), child.id(), socket));
        assert!(!has_ended(Some(own), std::process::id(), socket));
    }

    #[test]
    fn others_at_work_in_the_folder_are_waited_for_a_second_at_most() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.sock");
        let lock = Lock::of_folder(folder.path()).unwrap().unwrap();
        assert_eq!(listen(&path).unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(!path.exists());
        let at_work = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            drop(lock);
        });
        let (_listener, file) = listen(&path).unwrap();
        at_work.join().unwrap();
        assert_eq!(file.path(), path);
        assert_eq!(listen(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert!(Lock::of_folder(folder.path()).unwrap().is_some());
    }

    #[test]
    fn of_another_namespace_only_what_refuses_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.sock");
        let (listener, file) = Listener::bind(&path).unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        // No process of this namespace has the child's number any more.
        for of in [None, Some(1)] {
            assert!(!has_ended(of, child.id(), &path));
        }
        drop(listener);
        for of in [None, Some(1)] {
            // A child that another test starts also has the listener, until it runs its own program.
            let is_seen = (0..1000).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(10));
                has_ended(of, std::process::id(), &path)
            });
            assert!(is_seen, "whoever has the number here");
        }
        drop(file);
        assert!(!has_ended(None, 1, &path), "there is nothing to remove");
    }
}
