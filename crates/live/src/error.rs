//! Why a program is not served, or not asked.

use std::io;
use std::path::PathBuf;

/// Why statistics cannot be offered or had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LiveError {
    /// The folder of sockets is not this user's alone, so that another could answer in its place.
    #[cfg(unix)]
    #[error(transparent)]
    Folder(#[from] seamalloc_socket::FolderError),
    /// The socket cannot be made.
    #[error("cannot listen at {path}: {error}", path = .path.display())]
    Listen {
        /// Its name.
        path: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// No program answers there.
    #[error("cannot ask at {path}: {error}", path = .path.display())]
    Ask {
        /// The socket.
        path: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// The program answers something else, or says why it does not.
    #[error("{path} answers: {said}", path = .path.display())]
    Answer {
        /// The socket.
        path: PathBuf,
        /// What it said, or what is wrong with it.
        said: String,
    },
}
