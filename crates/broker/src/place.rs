//! Where the broker's socket is.

use crate::error::BrokerError;
use seamalloc_socket::{folder, prepare};
use std::path::{Path, PathBuf};

/// The socket's name: each user has one broker.
const NAME: &str = "broker.sock";

/// Returns the socket of `broker:auto`: `broker.sock` in `$XDG_RUNTIME_DIR/seamalloc`, or in `/tmp/seamalloc-UID` where that variable is
/// not set.
#[must_use]
pub fn default_socket() -> PathBuf {
    folder().join(NAME)
}

/// Makes the folder of the default socket; for other sockets, the user makes it.
pub(crate) fn prepare_for(socket: &Path) -> Result<(), BrokerError> {
    if socket == default_socket() {
        prepare(&folder())?;
    }
    Ok(())
}
