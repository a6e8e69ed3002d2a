//! The figures of an allocator at one moment, as they go over the socket.
//!
//! Owns: their names and units. What a reader does not know it passes over, and what a writer does not know yet is 0.

use seamalloc::Allocator;
use serde::{Deserialize, Serialize};

/// The figures of one allocator. Those that end in `_bytes` are bytes, in `_ns` nanoseconds; those that end in `_total` have grown
/// since the allocator was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// Its number in the process.
    pub allocator: u32,
    /// The device as it was named when it was opened: `cuda:0`.
    pub device: String,
    /// The strategy.
    pub strategy: String,
    /// When this was, in microseconds since 1970.
    pub time_us: u64,
    /// Held from the driver.
    pub reserved_bytes: u64,
    /// The most of that since the last reset of peaks.
    pub reserved_peak_bytes: u64,
    /// In blocks that the program has not freed, rounding included.
    pub live_bytes: u64,
    /// The most of that since the last reset of peaks.
    pub live_peak_bytes: u64,
    /// Lost to rounding.
    pub rounding_bytes: u64,
    /// Freed by the program, and still used by other streams.
    pub pending_bytes: u64,
    /// Free, for any owner.
    pub free_bytes: u64,
    /// Of what is free: what lies with a stream or private pool, and other streams cannot take at present.
    pub stranded_bytes: u64,
    /// The largest request of more than 1 MiB that some stream could be given without new memory.
    pub largest_request_bytes: u64,
    /// The most that may be held; 0 where there is no limit.
    pub limit_bytes: u64,
    /// The tables of the allocator, in memory of the host.
    pub host_bytes: u64,
    /// What waking all tags that sleep takes.
    pub asleep_bytes: u64,
    /// Page-locked memory of the host for backups of tags.
    pub page_locked_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// Views that exist.
    pub views: u64,
    /// Requests that were served.
    pub allocations_total: u64,
    /// Frees.
    pub frees_total: u64,
    /// Operations that called the driver.
    pub stalls_total: u64,
    /// The time that they spent there.
    pub stall_ns_total: u64,
    /// GPU-side waits of a stream for work of another on freed memory.
    pub waits_total: u64,
    /// The bytes that these passed on.
    pub wait_bytes_total: u64,
    /// Waits of the CPU for freed memory before a refusal.
    pub cpu_waits_total: u64,
    /// The time of these.
    pub cpu_wait_ns_total: u64,
    /// How often memory was taken from the driver.
    pub driver_allocations_total: u64,
    /// How often it was given back.
    pub driver_frees_total: u64,
    /// Requests for which all cached memory was given back.
    pub retries_total: u64,
    /// Requests that were refused.
    pub refusals_total: u64,
    /// How often memory went back because too little of the device was free for others (`headroom`).
    pub yields_total: u64,
    /// The bytes that went back then.
    pub yielded_bytes_total: u64,
    /// Live memory that lies in the machine's (`spill:host=SIZE`). It is a part of `live_bytes`, and none of `reserved_bytes`.
    pub spilled_bytes: u64,
    /// Pieces of memory that were spilled.
    pub spills_total: u64,
    /// Pieces that came back.
    pub spill_returns_total: u64,
    /// The time in the driver that both took.
    pub spill_ns_total: u64,
}

/// A process and its allocators.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// The inode of the namespace in which it has that number, 0 if it is unknown.
    pub pid_namespace: u64,
    /// Its command line, cut off after 200 bytes.
    pub command: String,
    /// The version of the library that it uses.
    pub version: String,
    /// Its allocators.
    pub allocators: Vec<Sample>,
}

impl Sample {
    /// Reads the figures of an allocator: two looks under its lock. How memory is divided up takes a walk over its free ranges.
    #[must_use]
    pub fn of(number: u32, device: &str, allocator: &Allocator) -> Self {
        let (stats, memory, config) = (allocator.stats(), allocator.reports().fragmentation(), allocator.config());
        let total = allocator.driver().properties().total_memory;
        let by_fraction = config.memory_fraction.map(|part| (part * total as f64) as u64);
        Self {
            allocator: number,
            device: device.to_owned(),
            strategy: config.strategy.name().to_owned(),
            time_us: now_us(),
            reserved_bytes: memory.reserved,
            reserved_peak_bytes: stats.reserved_bytes.all.peak,
            live_bytes: memory.allocated,
            live_peak_bytes: stats.allocated_bytes.all.peak,
            rounding_bytes: memory.rounding_loss(),
            pending_bytes: memory.pending,
            free_bytes: memory.free,
            stranded_bytes: memory.stranded(),
            largest_request_bytes: memory.largest_reachable(),
            limit_bytes: config.memory_limit.into_iter().chain(by_fraction).min().unwrap_or(0),
            host_bytes: stats.host_bytes,
            asleep_bytes: stats.sleep.asleep_bytes,
            page_locked_bytes: stats.sleep.page_locked_bytes,
            live_blocks: stats.allocation.all.current,
            views: stats.views,
            allocations_total: stats.allocation.all.allocated,
            frees_total: stats.allocation.all.freed,
            stalls_total: stats.stalls.count,
            stall_ns_total: stats.stalls.total_ns,
            waits_total: stats.stream_waits,
            wait_bytes_total: stats.waits.bytes + stats.waits.recorded_bytes,
            cpu_waits_total: stats.pending_waits.requests,
            cpu_wait_ns_total: stats.pending_waits.total_ns,
            driver_allocations_total: stats.num_device_alloc,
            driver_frees_total: stats.num_device_free,
            retries_total: stats.num_alloc_retries,
            refusals_total: stats.num_ooms,
            yields_total: stats.headroom.yields,
            yielded_bytes_total: stats.headroom.yielded_bytes,
            spilled_bytes: memory.spilled,
            spills_total: stats.spills.chunks,
            spill_returns_total: stats.spills.returned_chunks,
            spill_ns_total: stats.spills.total_ns,
        }
    }

    /// Returns how much a figure that grows has grown by in a second, since an earlier sample of the same allocator. `None` if no
    /// time has passed.
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

    /// Of two limits the lower one.
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
