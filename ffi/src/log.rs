//! The log on standard error, as the environment variable SEAMALLOC_LOG requests it.
//!
//! Owns: the subscriber, which is installed with the first allocator. Without the variable the library logs little:
//! mistakes found in guard mode, a device that does not support the default strategy, options that have no effect,
//! waits that stay pending, and requests for which no chunk was split because other threads' streams could not be held.

use std::env;
use std::io;
use std::sync::Once;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The variable with directives as the command `seamalloc` reads them: `info`, or `seamalloc::config=warn,error`.
const VARIABLE: &str = "SEAMALLOC_LOG";

/// The default log without guard mode: the strategy `caching` in the place of the default, options that have no effect,
/// waits that stay pending, splits that were not made, and parts of split chunks that stay in host memory.
const USUAL: &str =
    "seamalloc::fallback=warn,seamalloc::config=warn,seamalloc::waits=warn,seamalloc::backing::gate=warn";

/// The targets that the default log has in addition in guard mode: the findings of guard mode.
const FINDINGS: &str = "seamalloc::guard=error";

/// Starts the log with the directives of the variable, or else the default ones.
pub(crate) fn start(guards: bool) {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let asked = env::var_os(VARIABLE).filter(|text| !text.is_empty());
        let usual = || if guards { format!("{USUAL},{FINDINGS}") } else { USUAL.to_owned() };
        let wanted = asked.unwrap_or_else(|| usual().into());
        let wanted = wanted.to_string_lossy();
        // An empty part would be read as `error`.
        let parts: Vec<_> = wanted.split(',').filter(|part| !part.trim().is_empty()).collect();
        let found = parts.join(",").parse::<Targets>();
        let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false).without_time();
        let filter = found.as_ref().cloned().unwrap_or_else(|_| Targets::new().with_default(tracing::Level::WARN));
        // If the library is linked into a Rust program that uses the same copy of `tracing`, the program may have
        // installed a subscriber already. That subscriber is then used.
        let _ = tracing_subscriber::registry().with(lines).with(filter).try_init();
        if let Err(error) = found {
            tracing::warn!(%error, "{VARIABLE} is `{wanted}`, which cannot be read; expected a level such as info");
        }
    });
}
