//! The folder of sockets, which only this user can access.

use rustix::fs::{AtFlags, CWD, FileType, Mode, mkdir, statat};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::env;
use std::path::{Path, PathBuf};

/// The error of a folder that other users may access. Another user could answer there in the place of a process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path} is no folder of this user alone ({why}); remove it, or name a socket elsewhere", path = .path.display())]
#[non_exhaustive]
pub struct FolderError {
    /// The folder.
    pub path: PathBuf,
    /// The problem.
    pub why: String,
}

/// Returns the folder of sockets: `$XDG_RUNTIME_DIR/seamalloc`, or `/tmp/seamalloc-UID` if that variable is not set.
#[must_use]
pub fn folder() -> PathBuf {
    match env::var_os("XDG_RUNTIME_DIR").filter(|folder| Path::new(folder).is_absolute()) {
        Some(folder) => Path::new(&folder).join("seamalloc"),
        None => PathBuf::from(format!("/tmp/seamalloc-{}", geteuid().as_raw())),
    }
}

/// Makes a folder for this user alone, if it does not exist.
///
/// # Errors
/// [`FolderError`] if the folder cannot be made, or [`check_private`] refuses it.
pub fn prepare(folder: &Path) -> Result<(), FolderError> {
    match mkdir(folder, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => check_private(folder),
        Err(error) => Err(FolderError { path: folder.to_owned(), why: error.to_string() }),
    }
}

/// Refuses a folder that other users may access, since a user who can write to the folder can replace the socket.
///
/// # Errors
/// [`FolderError`] if the path is a link or a file, or if the folder is another user's or its mode allows others
/// access.
pub fn check_private(folder: &Path) -> Result<(), FolderError> {
    let refused = |why: String| Err(FolderError { path: folder.to_owned(), why });
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
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
}
