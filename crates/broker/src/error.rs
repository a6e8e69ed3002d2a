//! The errors of a broker, and of requests to one.

use std::io;
use std::path::PathBuf;

/// The reason why a broker cannot run, or gives no valid answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// Another broker has this socket.
    #[error("a broker listens at {path} already", path = .path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// The socket cannot be made.
    #[error("cannot listen at {path}: {error}", path = .path.display())]
    Listen {
        /// The socket's name.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The folder of sockets is accessible to other users.
    #[cfg(unix)]
    #[error(transparent)]
    Folder(#[from] seamalloc_socket::FolderError),
    /// No broker answers at the socket, or the answer cannot be read.
    #[error("cannot ask at {path}: {error}", path = .path.display())]
    Ask {
        /// The socket.
        path: PathBuf,
        /// The system's error, or the error of reading the answer.
        error: io::Error,
    },
    /// The broker refuses, or answers another question.
    #[error("{path} answers: {said}", path = .path.display())]
    Answer {
        /// The socket.
        path: PathBuf,
        /// The answer, or the error in it.
        said: String,
    },
    /// The system refuses to make a thread or a pair of sockets.
    #[error("no thread can be started: {0}")]
    Thread(io::Error),
}
