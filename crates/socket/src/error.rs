//! The errors of serving at a socket, and of asking there.

use std::io;
use std::path::PathBuf;

/// The reason why a process cannot serve at a socket, or gets no valid answer from one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// The folder of sockets is accessible to other users, who could answer in the place of a process.
    #[cfg(unix)]
    #[error(transparent)]
    Folder(#[from] crate::FolderError),
    /// The socket cannot be made.
    #[error("cannot listen at {path}: {error}", path = .path.display())]
    Listen {
        /// The socket's name.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// No process answers at the socket, or the answer cannot be read.
    #[error("cannot ask at {path}: {error}", path = .path.display())]
    Ask {
        /// The socket.
        path: PathBuf,
        /// The system's error, or the error of reading the answer.
        error: io::Error,
    },
    /// The answer does not follow the protocol, or is a refusal.
    #[error("{path} answers: {said}", path = .path.display())]
    Answer {
        /// The socket.
        path: PathBuf,
        /// The answer, or the error in it.
        said: String,
    },
}
