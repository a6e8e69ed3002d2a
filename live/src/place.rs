//! Where the sockets are: one for each process, in a folder of its user's alone.

use crate::error::LiveError;
use rustix::fs::{AtFlags, CWD, FileType, Mode, mkdir, statat};
use rustix::io::Errno;
use rustix::process::{Pid, geteuid, test_kill_process};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// What follows the number of the process in the name of its socket.
const ENDING: &str = ".sock";

/// Returns the folder of sockets: `$XDG_RUNTIME_DIR/seamalloc`, or `/tmp/seamalloc-UID` where that variable is not set.
#[must_use]
pub fn folder() -> PathBuf {
    match env::var_os("XDG_RUNTIME_DIR").filter(|folder| Path::new(folder).is_absolute()) {
        Some(folder) => Path::new(&folder).join("seamalloc"),
        None => PathBuf::from(format!("/tmp/seamalloc-{}", geteuid().as_raw())),
    }
}

/// Returns the socket of a process.
pub(crate) fn socket_of(pid: u32) -> PathBuf {
    folder().join(format!("{pid}{ENDING}"))
}

/// Makes the folder, if it is not there, for this user alone.
///
/// # Errors
/// [`LiveError::Folder`] if it cannot be made, or others may use it.
pub fn prepare(folder: &Path) -> Result<(), LiveError> {
    match mkdir(folder, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => is_private(folder),
        Err(error) => Err(LiveError::Folder { path: folder.to_owned(), why: error.to_string() }),
    }
}

/// Whoever can write to the folder can put another socket there.
fn is_private(folder: &Path) -> Result<(), LiveError> {
    let refused = |why: String| Err(LiveError::Folder { path: folder.to_owned(), why });
    let found = match statat(CWD, folder, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => found,
        Err(error) => return refused(error.to_string()),
    };
    let mode = found.st_mode & 0o7777;
    if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
        refused("it is none".to_owned())
    } else if found.st_uid != geteuid().as_raw() {
        refused(format!("it belongs to user {}", found.st_uid))
    } else if mode & 0o077 != 0 {
        refused(format!("others may use it: mode {mode:o}"))
    } else {
        Ok(())
    }
}

/// Returns the processes of this user that have a socket, by number, with it. What processes left behind that have ended is
/// removed.
///
/// # Errors
/// [`LiveError::Folder`] if the folder is not this user's alone. One that is not there is empty.
pub fn listed() -> Result<Vec<(u32, PathBuf)>, LiveError> {
    let folder = folder();
    let Ok(entries) = fs::read_dir(&folder) else { return Ok(Vec::new()) };
    is_private(&folder)?;
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
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_folder_that_others_may_use_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        prepare(&at("new")).unwrap();
        assert_eq!(fs::metadata(at("new")).unwrap().permissions().mode() & 0o777, 0o700);
        prepare(&at("new")).unwrap();
        fs::set_permissions(at("new"), fs::Permissions::from_mode(0o750)).unwrap();
        let error = prepare(&at("new")).unwrap_err().to_string();
        assert!(error.contains("others may use it: mode 750"), "{error}");
        fs::create_dir(at("private")).unwrap();
        fs::set_permissions(at("private"), fs::Permissions::from_mode(0o700)).unwrap();
        symlink(at("private"), at("link")).unwrap();
        assert!(prepare(&at("link")).unwrap_err().to_string().contains("it is none"));
        fs::write(at("file"), "").unwrap();
        assert!(prepare(&at("file")).is_err());
        assert!(prepare(&at("missing/folder")).is_err());
    }

    #[test]
    fn processes_that_have_ended_are_known() {
        assert!(is_alive(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(!is_alive(child.id()));
        assert!(!is_alive(0) && !is_alive(u32::MAX));
    }
}
