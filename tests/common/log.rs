//! The events that the library sends to `tracing` in this thread.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = event.metadata().level().to_string();
        event.record(&mut |field: &Field, value: &dyn Debug| line += &format!(" {field}={value:?}"));
        self.0.lock().unwrap().push(line);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The errors that `run` causes in the log.
pub(crate) fn errors(run: impl FnOnce()) -> Vec<String> {
    lines(run).into_iter().filter(|line| line.starts_with("ERROR")).collect()
}

/// The warnings that `run` causes in the log.
pub(crate) fn warnings(run: impl FnOnce()) -> Vec<String> {
    lines(run).into_iter().filter(|line| line.starts_with("WARN")).collect()
}

fn lines(run: impl FnOnce()) -> Vec<String> {
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), run);
    std::mem::take(&mut *lines.0.lock().unwrap())
}
