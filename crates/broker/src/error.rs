//! Why there is no broker, or no answer of one.

use std::io;
use std::path::PathBuf;

/// Why a broker cannot run, or be asked.
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
        /// Its name.
        path: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// The folder of sockets is not this user's alone.
    #[cfg(unix)]
    #[error(transparent)]
    Folder(#[from] seamalloc_socket::FolderError),
    /// No broker answers there.
    #[error("cannot ask at {path}: {error}", path = .path.display())]
    Ask {
        /// The socket.
        path: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// What answers is something else, or refuses.
    #[error("{path} answers: {said}", path = .path.display())]
    Answer {
        /// The socket.
        path: PathBuf,
        /// What it said, or what is wrong with it.
        said: String,
    },
    /// The system gives no thread, or no pair of sockets.
    #[error("no thread can be started: {0}")]
    Thread(io::Error),
}
