//! The allocators whose statistics are served.

use crate::namespace::namespace;
use crate::sample::{Process, Sample};
use seamalloc::{Allocator, Flight};
use seamalloc_socket::command_line;
use std::sync::{Arc, Weak};

/// The longest command line in an answer, in bytes.
const COMMAND: usize = 200;

/// The source of a process's allocators. Allocators that have ended are skipped.
pub trait Source: Send + Sync + 'static {
    /// Calls `look` for each allocator, with its number in the process and the name of its device.
    fn each(&self, look: &mut dyn FnMut(u32, &str, &Allocator));
}

/// The allocators of a Rust program. An allocator ends when the program drops it.
#[derive(Default)]
pub struct Served {
    allocators: Vec<(String, Weak<Allocator>)>,
}

impl Served {
    /// Makes a source of these allocators, each with the name of its device. The allocators are numbered from 0.
    pub fn new<'a>(allocators: impl IntoIterator<Item = (&'a str, &'a Arc<Allocator>)>) -> Self {
        let allocators =
            allocators.into_iter().map(|(device, allocator)| (device.to_owned(), Arc::downgrade(allocator)));
        Self { allocators: allocators.collect() }
    }
}

impl Source for Served {
    fn each(&self, look: &mut dyn FnMut(u32, &str, &Allocator)) {
        for (number, (device, allocator)) in (0..).zip(&self.allocators) {
            if let Some(allocator) = allocator.upgrade() {
                look(number, device, &allocator);
            }
        }
    }
}

/// Returns the sample of this process.
#[must_use]
pub fn samples_of(source: &dyn Source) -> Process {
    let mut allocators = Vec::new();
    source.each(&mut |number, device, allocator| allocators.push(Sample::of(number, device, allocator)));
    Process {
        pid: std::process::id(),
        pid_namespace: namespace().unwrap_or(0),
        command: command_line(COMMAND),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        allocators,
    }
}

/// Returns the history of one allocator's flight recorder. The error is a text for the client.
pub(crate) fn flight_of(source: &dyn Source, wanted: u32) -> Result<Flight, String> {
    let mut found = Err(format!("this process has no allocator {wanted}"));
    source.each(&mut |number, _, allocator| {
        if number == wanted {
            found = allocator.reports().flight().map_err(|error| error.to_string());
        }
    });
    found
}
