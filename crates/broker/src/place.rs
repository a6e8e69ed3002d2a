//! The place of the broker's socket.

use seamalloc_socket::{SocketError, folder, prepare};
use std::path::{Path, PathBuf};

/// The socket's name. Each user has one broker.
const NAME: &str = "broker.sock";

/// Returns the socket of `broker:auto`: `broker.sock` in `$XDG_RUNTIME_DIR/seamalloc`, or in `/tmp/seamalloc-UID` if
/// the variable is not set.
#[must_use]
pub fn default_socket() -> PathBuf {
    folder().join(NAME)
}

/// Makes the folder of the default socket. The user makes the folders of other sockets.
pub(crate) fn prepare_for(socket: &Path) -> Result<(), SocketError> {
    if socket == default_socket() {
        prepare(&folder())?;
    }
    Ok(())
}
