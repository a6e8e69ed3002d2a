//! The errors of a broker.

use seamalloc_socket::SocketError;
use std::io;
use std::path::PathBuf;

/// The reason why a broker, or a process that takes part, cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// Another broker has this socket.
    #[error("a broker listens at {path} already", path = .path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// The socket cannot be made, or its folder is accessible to other users.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The system refuses to make a thread or a pair of sockets.
    #[error("no thread can be started: {0}")]
    Thread(io::Error),
}
