//! Writes the history of an allocator's flight recorder to files, for the command `seamalloc`, the Python package and
//! PyTorch's viewer.
//!
//! Owns: the two forms of such a file, and the file that is written after a refused request if the option `flight_dump`
//! names one.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Map, Value};

use crate::error::{Place, TraceError};
use crate::history::trace_of_history;
use crate::memory::Memory;
use crate::pytorch::write_flight_pickle;
use crate::trace::Trace;
use crate::write::{can_write, put, write_path};
use seamalloc::flight::Flight;
use seamalloc::{Allocator, Config, Error};

/// The shortest time between dumps. A program that retries smaller requests after a refusal writes at most one dump a
/// second.
const BETWEEN_DUMPS: Duration = Duration::from_secs(1);

/// Returns the history of the flight recorder as a trace. Blocks from before the kept history are allocated at the
/// start of the trace. The trace's `meta` has the number of all `operations`, the number of those that were
/// `overwritten`, and the recorder's `capacity`.
///
/// # Errors
/// [`TraceError::Rule`] with the index of the event, if events contradict each other.
pub fn flight_trace(flight: &Flight, name: &str) -> Result<Trace, TraceError> {
    let mut meta = Map::new();
    let figures =
        [("operations", flight.operations), ("overwritten", flight.overwritten), ("capacity", flight.capacity)];
    meta.insert("source".to_owned(), "seamalloc flight recorder".into());
    meta.insert("device".to_owned(), flight.snapshot.device.into());
    meta.extend(figures.map(|(key, figure)| (key.to_owned(), Value::from(figure))));
    let events = flight.events.iter().map(|timed| Some(timed.event));
    trace_of_history(name, meta, events, Some(&flight.snapshot), Memory::default())
        .map_err(|(index, rule)| TraceError::rule(name, Place::Event(index), rule))
}

/// Writes the history that the flight recorder has kept. A name that ends in `.seam`, `.csv` or `.csv.gz` gives a
/// trace. Any other name gives a pickle that PyTorch's viewer opens and that seamalloc's readers accept as a trace. The
/// file appears only when it is complete.
///
/// # Errors
/// The errors of [`write_path`] and [`write_flight_pickle`].
pub fn write_flight(flight: &Flight, path: &Path) -> Result<(), TraceError> {
    if can_write(path) {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        return write_path(&flight_trace(flight, &name)?, path);
    }
    let mut bytes = Vec::new();
    write_flight_pickle(flight, &mut bytes)?;
    put(path, &bytes).map_err(|error| TraceError::io(&path.display().to_string(), error))
}

/// Writes the history of an allocator's flight recorder to a file when a request is refused.
///
/// ```
/// use seamalloc::{Allocator, Config, driver::{StreamId, sim::{SimConfig, SimGpu}}};
/// use seamalloc_trace::{FlightDump, read_path};
/// use std::sync::Arc;
///
/// let folder = tempfile::tempdir()?;
/// let options = format!("flight_dump:{}/refused-{{device}}.pickle", folder.path().display());
/// let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=1GiB")?)?);
/// let allocator = Allocator::new(gpu, Config::parse(&options)?)?;
/// let dump = FlightDump::of(&allocator.config(), 0);
///
/// let held = allocator.allocate(600 << 20, StreamId::DEFAULT)?;
/// if let Err(error) = allocator.allocate(600 << 20, StreamId::DEFAULT) {
///     dump.refused(&allocator, &error);
/// }
/// assert_eq!(read_path(&folder.path().join("refused-0.pickle"))?[0].events.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct FlightDump {
    path: Option<PathBuf>,
    device: u32,
    last: Mutex<Option<Instant>>,
}

impl FlightDump {
    /// Makes the dump for these options ([`Config::flight_dump`]) and the device with this ordinal.
    #[must_use]
    pub fn of(config: &Config, device: u32) -> Self {
        let path = config.flight_dump.as_ref().map(|name| {
            let name = name.replace("{pid}", &std::process::id().to_string());
            PathBuf::from(name.replace("{device}", &device.to_string()))
        });
        Self { path, device, last: Mutex::new(None) }
    }

    /// Returns the file, if the options name one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Writes the file over the previous one after a request was refused for lack of memory, at most once a second.
    /// Does nothing after any other error. A failed write is only logged, so that the program gets the error of the
    /// request.
    #[cold]
    pub fn refused(&self, allocator: &Allocator, error: &Error) {
        let (Error::OutOfMemory(_), Some(path)) = (error, &self.path) else { return };
        // Another thread whose request was refused at the same moment writes the same history.
        let Some(mut last) = self.last.try_lock() else { return };
        if last.is_some_and(|last| last.elapsed() < BETWEEN_DUMPS) {
            return;
        }
        match self.write(allocator, path) {
            Ok(()) => tracing::info!(path = %path.display(), "the last operations before the refusal are written"),
            Err(error) => tracing::warn!(%error, "the last operations before the refusal could not be written"),
        }
        *last = Some(Instant::now());
    }

    /// Writes the flight recorder to the given file at any time.
    ///
    /// # Errors
    /// The errors of [`write_flight`]; [`TraceError::Io`] if the host has no memory to read the recorder.
    pub fn write(&self, allocator: &Allocator, path: &Path) -> Result<(), TraceError> {
        let told = |error: Error| TraceError::io(&path.display().to_string(), std::io::Error::other(error.to_string()));
        let mut flight = allocator.reports().flight().map_err(told)?;
        flight.snapshot.device = self.device;
        write_flight(&flight, path)
    }
}

impl fmt::Debug for FlightDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlightDump").field("path", &self.path).finish()
    }
}
