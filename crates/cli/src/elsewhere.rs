//! Subcommands that this command lacks, and the message for users who try them.

use clap::Error;
use clap::error::{ContextKind, ContextValue};

/// Subcommands of `python -m seamalloc` that this command lacks.
const SUBCOMMANDS: [&str; 2] = ["run", "fleet"];

/// Subcommands of earlier versions, and their replacements.
const REMOVED: [(&str, &str); 1] = [("cliff", "seamalloc fit TRACE --times-live")];

/// Returns the message for a command line that names a subcommand of the Python package or of an earlier version;
/// `None` for any other mistake.
pub(crate) fn explain(error: &Error) -> Option<String> {
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    if let Some((name, instead)) = REMOVED.iter().find(|(removed, _)| removed == name) {
        return Some(format!("`{name}` was removed: write {instead}"));
    }
    SUBCOMMANDS.contains(&name.as_str()).then(|| {
        format!(
            "`{name}` is a subcommand of the Python package: python -m seamalloc {name}. pip installs the package from the wheel \
             of a release, or in the repository: pip install ./ffi/python"
        )
    })
}
