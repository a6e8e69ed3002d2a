//! The figures of an allocator at one moment, in the form in which they are sent over the socket.
//!
//! Owns: the figures and their metrics. A reader ignores unknown figures. Figures that the writer does not have are 0.

use seamalloc::{Allocator, Fragmentation, Stats};
use serde::{Deserialize, Serialize};

/// A metric: a figure in Prometheus' form.
#[derive(Debug)]
pub struct Metric {
    /// The metric's name.
    pub name: &'static str,
    /// Whether the metric is a counter, which only grows while the process lives. Other metrics are gauges.
    pub grows: bool,
    /// The metric's description.
    pub help: &'static str,
    pub(crate) value: fn(&Sample) -> f64,
}

/// The source of a sample's figures.
struct Look {
    stats: Stats,
    memory: Fragmentation,
    /// The largest number of bytes that the allocator may hold; 0 if there is no limit.
    limit: u64,
}

/// Makes the struct [`Sample`], which is filled in from a [`Look`], and [`METRICS`].
macro_rules! figures {
    ($( $figure:ident: $kind:ident, $(in_seconds $seconds:literal,)? $help:literal, $of:expr; )*) => {
        /// The figures of one allocator. Figures that end in `_bytes` are in bytes, figures that end in `_ns` in
        /// nanoseconds. Figures that end in `_total` have counted since the allocator was made.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Sample {
            /// The allocator's number in the process.
            pub allocator: u32,
            /// The name by which the device was opened, such as `cuda:0`.
            pub device: String,
            /// The strategy.
            pub strategy: String,
            /// The time of the sample, in microseconds since 1970.
            pub time_us: u64,
            $( #[doc = $help] pub $figure: u64, )*
        }

        impl Sample {
            fn figures(look: &Look) -> Self {
                fn of(look: &Look, figure: impl Fn(&Look) -> u64) -> u64 {
                    figure(look)
                }
                Self { $( $figure: of(look, $of), )* ..Self::default() }
            }
        }

        /// Every metric.
        pub const METRICS: &[Metric] = &[ $( Metric {
            name: figures!(@first $($seconds)? concat!("seamalloc_", stringify!($figure))),
            grows: figures!(@grows $kind),
            help: $help,
            value: |sample| sample.$figure as f64 $( / figures!(@per_second $seconds) )?,
        }, )* ];
    };
    (@first $seconds:literal $name:expr) => { $seconds };
    (@first $name:expr) => { $name };
    (@grows counter) => { true };
    (@grows gauge) => { false };
    (@per_second $seconds:literal) => { 1e9 };
}

// A figure added here appears in samples and metrics. The figure's row must be added to `docs/metrics.md`. Times of
// metrics are in seconds.
figures! {
    reserved_bytes: gauge, "Memory held from the driver.", |look| look.memory.reserved;
    reserved_peak_bytes: gauge, "The most memory held since the last reset of peaks.",
        |look| look.stats.reserved_bytes.all.peak;
    live_bytes: gauge, "Memory in blocks that the program has not freed, rounding included.",
        |look| look.memory.allocated;
    live_peak_bytes: gauge, "The most memory in live blocks since the last reset of peaks.",
        |look| look.stats.allocated_bytes.all.peak;
    rounding_bytes: gauge, "Memory lost to rounding.", |look| look.memory.rounding_loss();
    pending_bytes: gauge, "Memory that was freed and that other streams still use.", |look| look.memory.pending;
    free_bytes: gauge, "Memory held and free.", |look| look.memory.free;
    stranded_bytes: gauge, "Free memory of a stream or private pool that other streams of the program cannot take at present.",
        |look| look.memory.stranded();
    largest_request_bytes: gauge, "The largest request above 1 MiB that some stream could be given without new memory.",
        |look| look.memory.largest_reachable();
    limit_bytes: gauge, "The most memory that may be held; 0 is no limit.", |look| look.limit;
    host_bytes: gauge, "Host memory for the allocator's tables.", |look| look.stats.host_bytes;
    asleep_bytes: gauge, "Memory that waking all tags that sleep takes.", |look| look.stats.sleep.asleep_bytes;
    page_locked_bytes: gauge, "Page-locked host memory for backups of tags that sleep.",
        |look| look.stats.sleep.page_locked_bytes;
    live_blocks: gauge, "Live blocks.", |look| look.stats.allocation.all.current;
    views: gauge, "Stitched views that exist.", |look| look.stats.views;
    allocations_total: counter, "Requests that were served.", |look| look.stats.allocation.all.allocated;
    frees_total: counter, "Frees.", |look| look.stats.allocation.all.freed;
    stalls_total: counter, "Operations that called the driver.", |look| look.stats.stalls.count;
    stall_ns_total: counter, in_seconds "seamalloc_stall_seconds_total", "Time that operations spent in the driver.",
        |look| look.stats.stalls.total_ns;
    waits_total: counter, "GPU-side waits of a stream for work of another on freed memory.",
        |look| look.stats.stream_waits;
    wait_bytes_total: counter, "Memory that such waits passed on.",
        |look| look.stats.waits.bytes + look.stats.waits.recorded_bytes;
    cpu_waits_total: counter, "Waits of the CPU for freed memory before a refusal.",
        |look| look.stats.pending_waits.requests;
    cpu_wait_ns_total: counter, in_seconds "seamalloc_cpu_wait_seconds_total", "Time of such waits.",
        |look| look.stats.pending_waits.total_ns;
    driver_allocations_total: counter, "How often memory was taken from the driver.",
        |look| look.stats.num_device_alloc;
    driver_frees_total: counter, "How often memory was given back to the driver.", |look| look.stats.num_device_free;
    retries_total: counter, "Requests for which all cached memory was given back.", |look| look.stats.num_alloc_retries;
    refusals_total: counter, "Requests that were refused for want of memory.", |look| look.stats.num_ooms;
    yields_total: counter, "Times that memory went back for others, with a headroom.",
        |look| look.stats.headroom.yields;
    yielded_bytes_total: counter, "Memory that went back then.", |look| look.stats.headroom.yielded_bytes;
    spilled_bytes: gauge, "Live memory that lies in host memory, and is not held of the device.",
        |look| look.memory.spilled;
    spills_total: counter, "Pieces of live memory that were spilled to the machine's.", |look| look.stats.spills.chunks;
    spill_returns_total: counter, "Spilled pieces that came back to the device.",
        |look| look.stats.spills.returned_chunks;
    spill_ns_total: counter, in_seconds "seamalloc_spill_seconds_total", "Time in the driver that both took.",
        |look| look.stats.spills.total_ns;
}

/// A process and its allocators.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    /// The process number.
    pub pid: u32,
    /// The inode of the PID namespace in which the process has the number `pid`; 0 if the inode is unknown.
    pub pid_namespace: u64,
    /// The command line, cut off after 200 bytes.
    pub command: String,
    /// The version of the library in use.
    pub version: String,
    /// The process's allocators.
    pub allocators: Vec<Sample>,
}

impl Sample {
    /// Reads the figures of an allocator. The call takes the allocator's lock twice, and walks over all free ranges to
    /// measure the fragmentation.
    #[must_use]
    pub fn of(number: u32, device: &str, allocator: &Allocator) -> Self {
        let config = allocator.config();
        let total = allocator.driver().properties().total_memory;
        let limit = config.limit_on(total).unwrap_or(0);
        Self {
            allocator: number,
            device: device.to_owned(),
            strategy: config.strategy.name().to_owned(),
            time_us: now_us(),
            ..Self::figures(&Look { stats: allocator.stats(), memory: allocator.reports().fragmentation(), limit })
        }
    }

    /// Returns the growth of a counter per second since an earlier sample of the same allocator. `None` if no time has
    /// passed.
    #[must_use]
    pub fn per_second(&self, earlier: &Self, figure: fn(&Self) -> u64) -> Option<f64> {
        let us = self.time_us.checked_sub(earlier.time_us).filter(|us| *us > 0)?;
        Some(figure(self).saturating_sub(figure(earlier)) as f64 * 1e6 / us as f64)
    }
}

fn now_us() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_time_between() {
        let sample = |time_us, stalls_total| Sample { time_us, stalls_total, ..Sample::default() };
        let (earlier, later) = (sample(1_000_000, 10), sample(3_500_000, 15));
        assert_eq!(later.per_second(&earlier, |sample| sample.stalls_total), Some(2.0));
        assert_eq!(earlier.per_second(&earlier, |sample| sample.stalls_total), None);
        assert_eq!(earlier.per_second(&later, |sample| sample.stalls_total), None, "the clock was set back");
    }

    /// Of two limits, the lower one applies.
    #[test]
    fn a_fraction_of_the_device_is_a_limit_in_bytes() {
        for (options, limit) in [
            ("", 0),
            ("per_process_memory_fraction:0.25", 256 << 20),
            ("per_process_memory_fraction:0.25,memory_limit:100MiB", 100 << 20),
            ("per_process_memory_fraction:0.25,memory_limit:300MiB", 256 << 20),
        ] {
            let allocator = Allocator::open("sim:h200,capacity=1GiB", options).unwrap();
            assert_eq!(Sample::of(0, "sim", &allocator).limit_bytes, limit, "{options}");
        }
    }

    #[test]
    fn what_another_version_says_is_read_as_far_as_it_is_known() {
        let read: Sample =
            serde_json::from_str(r#"{"device": "cuda:1", "reserved_bytes": 7, "new_bytes": 9}"#).unwrap();
        assert_eq!(read, Sample { device: "cuda:1".into(), reserved_bytes: 7, ..Sample::default() });
    }
}
