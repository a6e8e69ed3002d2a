//! Where the broker's socket is.

use crate::error::BrokerError;
use seamalloc_socket::{folder, prepare};
use std::path::{Path, PathBuf};

/// The broker of a user is one.
const NAME: &str = "broker.sock";

/// Returns the socket of `broker:auto`: `broker.sock` in `$XDG_RUNTIME_DIR/seamalloc`, or in `/tmp/seamalloc-UID` where that variable is
/// not set.
#[must_use]
pub fn default_socket() -> PathBuf {
    folder().join(NAME)
}

/// Makes the folder of the usual socket; that of another is its user's affair.
pub(crate) fn prepare_for(socket: &Path) -> Result<(), BrokerError> {
    if socket == default_socket() {
        prepare(&folder())?;
    }
    Ok(())
}
