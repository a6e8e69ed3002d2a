//! The subcommands that only the Python package has, and the message for somebody who looks for them here.

use clap::Error;
use clap::error::{ContextKind, ContextValue};

/// Subcommands of `python -m seamalloc` that this command lacks.
const SUBCOMMANDS: [&str; 2] = ["run", "fleet"];

/// Returns the message for a command line that names a subcommand of the Python package; None for any other mistake.
pub(crate) fn explain(error: &Error) -> Option<String> {
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    SUBCOMMANDS.contains(&name.as_str()).then(|| {
        format!(
            "`{name}` is a subcommand of the Python package: python -m seamalloc {name}. pip installs the package from the wheel \
             of a release, or in the repository: pip install ./ffi/python"
        )
    })
}
