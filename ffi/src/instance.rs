//! The object behind a handle: an allocator, its device, and its recorder.

use crate::boundary::pointer;
use crate::log;
use crate::status::Outcome;
use parking_lot::Mutex;
use seamalloc::driver::{Device, StreamId};
use seamalloc::observer::ObserverId;
use seamalloc::units::format_bytes;
use seamalloc::{Allocator, Config};
#[cfg(unix)]
use seamalloc_broker::Membership;
use seamalloc_trace::{FlightDump, Recorder};
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many events the recorders of new allocators keep; 0 if they have no recorder.
static RECORDED: AtomicUsize = AtomicUsize::new(0);

/// A stream without work, for devices on which streams need not be made. No program has a stream with this handle.
const WITHOUT_WORK: StreamId = StreamId(u64::MAX - 1);

/// An allocator and its parts.
pub(crate) struct Instance {
    pub(crate) allocator: Allocator,
    /// The device's number in snapshots: 1 for `cuda:1`, 0 for a simulated one.
    pub(crate) ordinal: u32,
    /// The device's name, as it was given.
    pub(crate) device: String,
    /// The allocator's membership at a broker, while free memory is lent between processes. The membership ends before
    /// the allocator.
    #[cfg(unix)]
    pub(crate) membership: Mutex<Option<Membership>>,
    /// Writes the flight recorder when a request is refused.
    pub(crate) dump: FlightDump,
    /// Records events, if requested.
    pub(crate) recorder: Mutex<Option<Recorder>>,
    /// The observer that is a callback of the C program, if one is set. The recorder is the allocator's first observer.
    pub(crate) callback: Mutex<Option<ObserverId>>,
    /// The stream without work for which `seam_host_malloc` allocates; `None` for a GPU's memory.
    pub(crate) own: Option<StreamId>,
    /// Whether the memory is page-locked, so that it belongs to no single stream.
    pub(crate) is_pinned: bool,
    /// Whether the allocator cannot be destroyed.
    pub(crate) is_permanent: bool,
}

impl Instance {
    /// Opens an allocator on a device: `sim:h200,capacity=80GiB`, `host:4GiB`, `cuda:0`.
    pub(crate) fn open(device: &str, options: &str) -> Outcome<Box<Self>> {
        log::start(Config::parse(options).is_ok_and(|config| config.guard.is_on()));
        // Options are read first, so that a misspelt one opens no device.
        let config = Config::parse(options)?;
        let named = Device::parse(device)?;
        let (ordinal, is_pinned) = (named.ordinal(), named.is_pinned());
        let config = if is_pinned { config.for_host_pool()? } else { config };
        // SAFETY: the header requires that the program vouches for its streams.
        let opened = unsafe { named.open_trusting() }?;
        let own = match named {
            Device::Sim(_) | Device::Host(_) => config.check_for_host_pool().is_ok().then_some(WITHOUT_WORK),
            _ => opened.own_stream,
        };
        let allocator = Allocator::new(opened.driver, config)?;
        tracing::info!(device, options = allocator.config().to_string(), "an allocator is open");
        let recorder = match RECORDED.load(Ordering::Relaxed) {
            0 => None,
            max_entries => {
                let (reader, observer) = Recorder::new(max_entries);
                drop(allocator.reports().set_observer(Some(observer)));
                Some(reader)
            }
        };
        let dump = FlightDump::of(&allocator.config(), ordinal);
        Ok(Box::new(Self {
            allocator,
            ordinal,
            device: device.to_owned(),
            #[cfg(unix)]
            membership: Mutex::new(None),
            dump,
            recorder: Mutex::new(recorder),
            callback: Mutex::new(None),
            own,
            is_pinned,
            is_permanent: false,
        }))
    }

    /// Makes allocators that are opened later record from their beginning.
    pub(crate) fn record_new(max_entries: usize) {
        RECORDED.store(max_entries, Ordering::Relaxed);
    }

    /// Gives the device another number.
    pub(crate) fn set_ordinal(&mut self, ordinal: u32) {
        self.ordinal = ordinal;
        self.dump = FlightDump::of(&self.allocator.config(), ordinal);
    }

    /// Returns a result unchanged. After a refused request, writes the flight recorder's history if the option
    /// `flight_dump` is set.
    #[inline]
    pub(crate) fn served<T>(&self, result: seamalloc::Result<T>) -> seamalloc::Result<T> {
        result.inspect_err(|error| self.dump.refused(&self.allocator, error))
    }

    /// Returns the address of an allocation to C.
    #[inline]
    pub(crate) fn served_at(&self, result: seamalloc::Result<u64>) -> Outcome<*mut c_void> {
        Ok(pointer(self.served(result)?))
    }

    /// Logs the allocator's figures so far.
    pub(crate) fn log_summary(&self) {
        let stats = self.allocator.stats();
        tracing::info!(
            device = %self.allocator.driver().properties().name,
            ordinal = self.ordinal,
            peak_in_use = format_bytes(stats.allocated_bytes.all.peak),
            peak_held = format_bytes(stats.reserved_bytes.all.peak),
            requests = stats.allocation.all.allocated,
            failed = stats.num_ooms,
            driver_ms = stats.stalls.total_ns / 1_000_000,
            "an allocator in sum"
        );
    }
}
