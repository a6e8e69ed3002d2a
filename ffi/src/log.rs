//! What the environment variable SEAMALLOC_LOG asks for, as lines on standard error.
//!
//! Owns: the subscriber, which is there from the first allocator on. Without the variable nothing is logged, so that a
//! library in someone's process is quiet, but for the mistakes that guard mode was asked to find, for a device that cannot have the
//! default strategy, for options that have no effect, and for waits that stay pending.

use std::env;
use std::io;
use std::sync::Once;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Directives as the command `seamalloc` reads them: `info`, or `seamalloc::config=warn,error`.
const VARIABLE: &str = "SEAMALLOC_LOG";

/// A strategy in the place of another one, options that have no effect, and waits that stay pending.
const USUAL: &str = "seamalloc::fallback=warn,seamalloc::config=warn,seamalloc::waits=warn";

/// The same, and what guard mode has found.
const FINDINGS: &str = "seamalloc::fallback=warn,seamalloc::config=warn,seamalloc::waits=warn,seamalloc::guard=error";

/// Logs what is asked for from now on; where nothing is, what nobody should miss.
pub(crate) fn start(guards: bool) {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let asked = env::var_os(VARIABLE).filter(|text| !text.is_empty());
        let wanted = asked.unwrap_or_else(|| if guards { FINDINGS } else { USUAL }.into());
        let wanted = wanted.to_string_lossy();
        // An empty part would be read as `error`.
        let parts: Vec<_> = wanted.split(',').filter(|part| !part.trim().is_empty()).collect();
        let found = parts.join(",").parse::<Targets>();
        let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false).without_time();
        let filter = found.as_ref().cloned().unwrap_or_else(|_| Targets::new().with_default(tracing::Level::WARN));
        // Elsewhere than in this library's own copy of `tracing` there may be one already, which is as good.
        let _ = tracing_subscriber::registry().with(lines).with(filter).try_init();
        if let Err(error) = found {
            tracing::warn!(%error, "{VARIABLE} is `{wanted}`, which cannot be read; expected a level such as info");
        }
    });
}
