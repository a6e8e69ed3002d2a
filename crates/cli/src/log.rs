//! The log on standard error.
//!
//! Owns: the subscriber. A command makes many allocators with the same options, so a line about options is written
//! once. If strategies ignore an option, one line at the end names all of them.

use crate::{output, outside};
use std::collections::{BTreeMap, HashSet};
use std::fmt::{Debug, Write as _};
use std::sync::Mutex;
use tracing::field::Field;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// The default log: failures, and options that have no effect.
const LOGGED: &str = "error,seamalloc::config=warn";

/// Starts the log on standard error, with the directives of `SEAMALLOC_LOG` (`debug`, or
/// `seamalloc::config=warn,error`).
pub(crate) fn start() {
    // The lines have no colours, since the option --color is read later.
    let lines = tracing_subscriber::fmt::layer().with_writer(|| outside::Log).with_ansi(false).without_time();
    tracing_subscriber::registry().with(lines).with(OncePerText::default()).with(logged()).init();
}

/// Returns the directives of SEAMALLOC_LOG. Returns the default directives if the variable is not set or invalid.
fn logged() -> Targets {
    let named = std::env::var("SEAMALLOC_LOG").ok();
    // The parser would read an empty part as `error`.
    let named = named.map(|text| text.split(',').filter(|part| !part.is_empty()).collect::<Vec<_>>().join(","));
    named.and_then(|text| text.parse().ok()).or_else(|| LOGGED.parse().ok()).unwrap_or_default()
}

/// The options that some strategies ignore, each with the strategies that ignore it, and a text that names those that
/// use it.
static UNHEEDED: Mutex<BTreeMap<String, (Vec<String>, String)>> = Mutex::new(BTreeMap::new());

/// Writes a line for each option that strategies of the command ignored, after the command's output.
pub(crate) fn finish() {
    let unheeded = UNHEEDED.lock().map(|mut unheeded| std::mem::take(&mut *unheeded)).unwrap_or_default();
    for (option, (strategies, heeding)) in unheeded {
        output::note(&format!(
            "the option `{option}` has no effect with {}; it has with {heeding}",
            strategies.join(", ")
        ));
    }
}

/// A filter that passes each line about options once. The filter keeps the lines about ignored options for [`finish`].
#[derive(Default)]
struct OncePerText(Mutex<HashSet<String>>);

impl<S: Subscriber> Layer<S> for OncePerText {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        if !event.metadata().target().starts_with("seamalloc::config") {
            return true;
        }
        let mut text = String::new();
        event.record(&mut |_: &Field, value: &dyn Debug| {
            let _ = write!(text, "{value:?}");
        });
        let is_new = self.0.lock().is_ok_and(|mut told| told.insert(text.clone()));
        is_new && !keep_unheeded(&text)
    }
}

/// Keeps a line about a strategy that ignores an option. Returns whether the line is such a line.
fn keep_unheeded(text: &str) -> bool {
    let parts = text.strip_prefix("the option `").and_then(|text| {
        let (option, text) = text.split_once("` has no effect: the strategy ")?;
        let (strategy, heeding) = text.split_once(" does not heed it, but ")?;
        Some((option, strategy, heeding))
    });
    let Some((option, strategy, heeding)) = parts else { return false };
    UNHEEDED.lock().is_ok_and(|mut unheeded| {
        let (strategies, all) = unheeded.entry(option.to_owned()).or_default();
        strategies.push(strategy.to_owned());
        heeding.clone_into(all);
        true
    })
}
