//! The errors of serving and asking for statistics.

use std::io;
use std::path::PathBuf;

/// The reason why statistics cannot be served or requested.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LiveError {
    /// The folder of sockets is accessible to other users, who could answer in the place of a process.
    #[cfg(unix)]
    #[error(transparent)]
    Folder(#[from] seamalloc_socket::FolderError),
    /// The socket cannot be made.
    #[error("cannot listen at {path}: {error}", path = .path.display())]
    Listen {
        /// The socket's name.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// No program answers at the socket.
    #[error("cannot ask at {path}: {error}", path = .path.display())]
    Ask {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The answer does not follow this protocol, or is a refusal.
    #[error("{path} answers: {said}", path = .path.display())]
    Answer {
        /// The socket.
        path: PathBuf,
        /// The answer, or the error in it.
        said: String,
    },
}
