//! The log on standard error.
//!
//! Owns: the subscriber. A command makes many allocators with the same options, so a line about options is written once.

use crate::outside;
use std::collections::HashSet;
use std::fmt::{Debug, Write as _};
use std::sync::Mutex;
use tracing::field::Field;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Without SEAMALLOC_LOG: failures, and options that have no effect.
const LOGGED: &str = "error,seamalloc::config=warn";

/// Lines on standard error for what `SEAMALLOC_LOG` asks for (`debug`, or `seamalloc::config=warn,error`).
pub(crate) fn start() {
    // Plain, since --color is not known before the command line is read.
    let lines = tracing_subscriber::fmt::layer().with_writer(|| outside::Log).with_ansi(false).without_time();
    tracing_subscriber::registry().with(lines).with(OncePerText::default()).with(logged()).init();
}

/// Returns the directives of SEAMALLOC_LOG, or the usual ones where the variable is not set or cannot be read.
fn logged() -> Targets {
    let named = std::env::var("SEAMALLOC_LOG").ok();
    // An empty part would be read as `error`.
    let named = named.map(|text| text.split(',').filter(|part| !part.is_empty()).collect::<Vec<_>>().join(","));
    named.and_then(|text| text.parse().ok()).or_else(|| LOGGED.parse().ok()).unwrap_or_default()
}

/// Lets each line about options pass once.
#[derive(Default)]
struct OncePerText(Mutex<HashSet<String>>);

impl<S: Subscriber> Layer<S> for OncePerText {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        if !event.metadata().target().starts_with("seamalloc::config") {
            return true;
        }
        let mut text = String::new();
        event.record(&mut |field: &Field, value: &dyn Debug| {
            let _ = write!(text, "{field}={value:?} ");
        });
        self.0.lock().is_ok_and(|mut told| told.insert(text))
    }
}
