//! Where the sockets are: one for each process, in a folder of its user's alone.

use crate::error::LiveError;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use seamalloc_socket::{check_private, folder};
use std::fs;
use std::path::PathBuf;

/// What follows the number of the process in the name of its socket.
const ENDING: &str = ".sock";

/// Returns the socket of a process.
pub(crate) fn socket_of(pid: u32) -> PathBuf {
    folder().join(format!("{pid}{ENDING}"))
}

/// Returns the processes of this user that have a socket, by number, with it. What processes left behind that have ended is
/// removed.
///
/// # Errors
/// [`LiveError::Folder`] if the folder is not this user's alone. One that is not there is empty.
pub fn listed() -> Result<Vec<(u32, PathBuf)>, LiveError> {
    let folder = folder();
    let Ok(entries) = fs::read_dir(&folder) else { return Ok(Vec::new()) };
    check_private(&folder)?;
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_suffix(ENDING)).and_then(|pid| pid.parse::<u32>().ok());
        let Some(pid) = pid else { continue };
        if is_alive(pid) {
            found.push((pid, entry.path()));
        } else {
            // Another client may have been faster.
            let _ = fs::remove_file(entry.path());
        }
    }
    found.sort_unstable();
    Ok(found)
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
}
