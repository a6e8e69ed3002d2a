//! Page-locked memory: the bytes of it that PyTorch's cache holds for a trace, and the bytes that a host pool holds.
//!
//! Owns: a model of PyTorch's cache, which uses none of this crate's allocators, and the figures of PyTorch's cache and
//! of host pools.

use crate::columns::{Cell, Column, gib, line, ms, round_to, us};
use crate::replay::{PassReport, ReplayError, ReplayOptions, replay, replay_on_pinned};
use crate::trace::{Trace, TraceEvent};
use seamalloc::driver::Call;
use seamalloc::{Config, HostPool};
use serde_json::Value;

/// The value of [`PinnedReport::cache`] for PyTorch's cache. For a host pool the value is the strategy's name.
pub const PYTORCH: &str = "pytorch";
/// The number of lists of free blocks, one for each power of two.
const LISTS: usize = u64::BITS as usize;

type Figure = Column<PinnedReport>;

/// The figures of a cache of page-locked memory on a trace. Sizes are bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct PinnedReport {
    /// The trace's name.
    pub trace: String,
    /// [`PYTORCH`], or the strategy of a host pool.
    pub cache: &'static str,
    /// The device's name. PyTorch's cache is modelled without a device.
    pub device: String,
    /// The most bytes that were requested and not freed.
    pub peak_live: u64,
    /// The most bytes held in any pass.
    pub peak_reserved: u64,
    /// The number of allocations from the machine, in all passes.
    pub taken: u64,
    /// The time in the driver, in all passes: simulated, or real on a real device. `None` for PyTorch's cache.
    pub driver_ns: Option<u64>,
    /// Whether memory ran out.
    pub out_of_memory: bool,
}

impl PinnedReport {
    /// The figures of the report.
    pub const COLUMNS: &'static [Figure] = &[
        Figure::run("trace", |of| of.trace.as_str().into()).text("trace", |of| of.trace.as_str().into()),
        Figure::run("cache", |of| of.cache.into()).text("cache", |of| of.cache.into()).legend(
            "cache",
            "pytorch: its CachingHostAllocator, powers of two that are neither split nor merged, counted; else a host \
             pool of that strategy",
        ),
        Figure::run("device", |of| of.device.as_str().into()),
        Figure::result("peak_live", |of| of.peak_live.into()).figure("requested\nGiB", |of| gib(of.peak_live).into()),
        Figure::result("peak_reserved", |of| of.peak_reserved.into())
            .figure("held\nGiB", |of| gib(of.peak_reserved).into()),
        Figure::result("above_live", |of| round_to(of.above_live(), 6).into())
            .figure("times\nrequested", |of| match of.out_of_memory {
                true => Cell::Failed("out of memory".to_owned()),
                false => format!("{:.3}", of.above_live()).into(),
            })
            .legend("times requested", "the most bytes held / the most bytes requested and not freed"),
        Figure::result("taken", |of| of.taken.into())
            .figure("taken", |of| of.taken.to_string().into())
            .legend("taken", "how often memory was taken of the machine"),
        Figure::result("oom", |of| of.out_of_memory.into()),
        Figure::time("driver_time_us", |of| of.driver_ns.map(us).into())
            .figure("driver\nms", |of| of.driver_ns.map(ms).unwrap_or_default().into()),
    ];

    /// Returns the peak of the held bytes divided by the peak of the live bytes.
    #[must_use]
    pub fn above_live(&self) -> f64 {
        if self.peak_live == 0 { 1.0 } else { self.peak_reserved as f64 / self.peak_live as f64 }
    }

    /// Returns the line that `--json` prints.
    #[must_use]
    pub fn to_json(&self) -> Value {
        line(Self::COLUMNS, self).into()
    }
}

/// Returns the figures of PyTorch's cache of page-locked memory on a trace, replayed `passes` times.
///
/// The rules are those of `CachingHostAllocatorImpl` (`ATen/core/CachingHostAllocator.h` of PyTorch 2.11). A request is
/// rounded up to a power of two (`allocate`), and takes a free block of exactly this size or a new block from the
/// machine (`get_free_block`). A freed block is free once the GPU has passed the events of the block's streams
/// (`process_events`). Blocks are never split, merged or given back. The model favours PyTorch: a block is reused as
/// soon as its free has completed in the trace, while PyTorch checks the oldest event first, and checks no further
/// event if the GPU has not passed the oldest.
#[must_use]
pub fn pytorch(trace: &Trace, passes: u32) -> PinnedReport {
    let mut free = [0u64; LISTS];
    let (mut reserved, mut taken) = (0u64, 0u64);
    for _ in 0..passes {
        let mut lists: Vec<Option<usize>> = Vec::new();
        for event in &trace.events {
            match *event {
                TraceEvent::Alloc { size, .. } => {
                    let rounded = size.next_power_of_two();
                    let list = rounded.trailing_zeros() as usize;
                    if free[list] > 0 {
                        free[list] -= 1;
                    } else {
                        reserved = reserved.saturating_add(rounded);
                        taken += 1;
                    }
                    lists.push(Some(list));
                }
                TraceEvent::FreeRequested { .. } => {}
                TraceEvent::FreeCompleted { block } => {
                    if let Some(list) = lists.get_mut(block as usize).and_then(Option::take) {
                        free[list] += 1;
                    }
                }
            }
        }
        // Blocks that are live at the end of a pass are freed before the next pass.
        for list in lists.into_iter().flatten() {
            free[list] += 1;
        }
    }
    PinnedReport {
        trace: trace.name.clone(),
        cache: PYTORCH,
        device: String::new(),
        peak_live: trace.summary().peak_live,
        // No memory is given back.
        peak_reserved: reserved,
        taken,
        driver_ns: None,
        out_of_memory: false,
    }
}

/// Returns the figures of a host pool on a trace, on a simulated device.
///
/// # Errors
/// The errors of [`replay`], and those for options that a host pool refuses.
pub fn host_pool(trace: &Trace, options: &ReplayOptions) -> Result<PinnedReport, ReplayError> {
    let options = ReplayOptions { config: HostPool::config(options.config.clone())?, ..options.clone() };
    Ok(report(trace, &replay(&trace.on_one_stream(), &options, &mut |_, _| {})?))
}

/// Returns the figures of a host pool of a real machine's page-locked memory on a trace. The pool is for the device
/// with that ordinal, on the given NUMA node or the node nearest to the device.
///
/// # Errors
/// The errors of [`replay_on_pinned`].
pub fn host_pool_on_pinned(
    trace: &Trace,
    ordinal: u32,
    node: Option<u32>,
    config: &Config,
    passes: u32,
) -> Result<PinnedReport, ReplayError> {
    Ok(report(trace, &replay_on_pinned(trace, ordinal, node, config.clone(), passes, &mut |_, _| {})?))
}

fn report(trace: &Trace, passes: &[PassReport]) -> PinnedReport {
    let calls = |pass: &PassReport| pass.driver.get(Call::Create).count + pass.driver.get(Call::Malloc).count;
    PinnedReport {
        trace: trace.name.clone(),
        cache: passes.first().map_or("", |pass| pass.strategy),
        device: passes.first().map(|pass| pass.device.clone()).unwrap_or_default(),
        peak_live: trace.summary().peak_live,
        peak_reserved: passes.iter().map(|pass| pass.peak_reserved).max().unwrap_or(0),
        taken: passes.iter().map(calls).sum(),
        driver_ns: Some(passes.iter().map(|pass| pass.driver.total_ns()).sum()),
        out_of_memory: passes.iter().any(|pass| pass.oom.is_some()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seamalloc::StrategyKind;
    use seamalloc::driver::StreamId;
    use seamalloc::driver::sim::{Profile, SimConfig};

    const MIB: u64 = 1 << 20;

    fn alloc(size: u64) -> TraceEvent {
        TraceEvent::Alloc { size, stream: 0 }
    }

    fn requested(block: u32) -> TraceEvent {
        TraceEvent::FreeRequested { block }
    }

    fn completed(block: u32) -> TraceEvent {
        TraceEvent::FreeCompleted { block }
    }

    fn trace(events: &[TraceEvent]) -> Trace {
        Trace { streams: vec![StreamId::DEFAULT], events: events.to_vec(), ..Trace::default() }
    }

    fn options() -> ReplayOptions {
        ReplayOptions::new(Config::with_strategy(StrategyKind::Stitch), SimConfig::new(Profile::H200))
    }

    #[test]
    fn powers_of_two_serve_requests_of_their_size_alone() {
        let steps =
            [alloc(5 * MIB), requested(0), completed(0), alloc(7 * MIB), requested(1), completed(1), alloc(3 * MIB)];
        let found = pytorch(&trace(&steps), 1);
        assert_eq!((found.peak_reserved, found.taken, found.peak_live), (12 * MIB, 2, 7 * MIB));
        let ours = host_pool(&trace(&steps), &options()).unwrap();
        assert_eq!((ours.peak_reserved, ours.peak_live, ours.out_of_memory), (8 * MIB, 7 * MIB, false));
    }

    #[test]
    fn a_block_serves_once_its_free_has_completed() {
        let steps = [alloc(4 * MIB), requested(0), alloc(4 * MIB), completed(0), alloc(4 * MIB)];
        assert_eq!((pytorch(&trace(&steps), 1).peak_reserved, pytorch(&trace(&steps), 1).taken), (8 * MIB, 2));
        let ours = host_pool(&trace(&steps), &options()).unwrap();
        assert_eq!(ours.peak_reserved, 8 * MIB);
    }

    #[test]
    fn a_second_pass_takes_nothing() {
        let steps = [alloc(MIB), alloc(3 * MIB), alloc(100)];
        let (once, twice) = (pytorch(&trace(&steps), 1), pytorch(&trace(&steps), 2));
        assert_eq!((once.peak_reserved, once.taken), (5 * MIB + 128, 3));
        assert_eq!((twice.peak_reserved, twice.taken), (once.peak_reserved, once.taken));
    }

    #[test]
    fn streams_share_what_is_the_cpus() {
        let mut steps = trace(&[alloc(4 * MIB), requested(0), completed(0)]);
        steps.streams.push(StreamId(7));
        steps.events.push(TraceEvent::Alloc { size: 4 * MIB, stream: 1 });
        assert_eq!(host_pool(&steps, &options()).unwrap().peak_reserved, 4 * MIB);
        assert_eq!(pytorch(&steps, 1).peak_reserved, 4 * MIB);
    }

    #[test]
    fn options_that_look_at_contents_are_refused() {
        let options = ReplayOptions { config: Config::parse("split:ungated").unwrap(), ..options() };
        assert!(matches!(host_pool(&trace(&[alloc(MIB)]), &options), Err(ReplayError::Config(_))));
    }
}
