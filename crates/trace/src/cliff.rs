//! The runs of a trace on devices with hardly enough memory.
//!
//! Owns: the sizes of the devices, and the report for each device.

use crate::columns::{Cell, Column, gib, line, ms, round_to, us};
use crate::fit::STEP;
use crate::price::Price;
use crate::replay::{ReplayError, ReplayOptions, replay};
use crate::trace::Trace;
use seamalloc::driver::sim::{MAX_CAPACITY, SimConfig};
use serde_json::Value;

/// The default sizes of devices, as multiples of the peak of live bytes.
pub const TIMES_LIVE: [f64; 8] = [1.0, 1.005, 1.01, 1.02, 1.05, 1.1, 1.2, 2.0];

type Figure = Column<CliffReport>;

/// The run of a trace on a device of one size.
#[derive(Clone, Debug, PartialEq)]
pub struct CliffReport {
    /// The trace's name.
    pub trace: String,
    /// The strategy's name.
    pub strategy: &'static str,
    /// The most bytes that were requested and not freed.
    pub peak_live: u64,
    /// The device's memory as a multiple of `peak_live`.
    pub times_live: f64,
    /// The device's memory in bytes, a multiple of 2 MiB.
    pub capacity: u64,
    /// The most bytes of the device that the allocator held in any pass.
    pub peak_reserved: u64,
    /// The number of passes that ran to their end.
    pub passes: u32,
    /// The cost of the passes that ran to their end; `None` if memory ran out.
    pub price: Option<Price>,
}

impl CliffReport {
    /// The figures of the report.
    pub const COLUMNS: &'static [Figure] = &[
        Figure::run("trace", |at| at.trace.as_str().into()).text("trace", |at| at.trace.as_str().into()),
        Figure::run("times_live", |at| at.times_live.into())
            .figure("times\nlive", |at| at.times_live.to_string().into())
            .legend("times live", "the device's memory, as a multiple of the most bytes requested and not freed"),
        Figure::run("strategy", |at| at.strategy.into()).text("strategy", |at| at.strategy.into()),
        Figure::result("peak_live", |at| at.peak_live.into()),
        Figure::result("capacity", |at| at.capacity.into())
            .figure("device\nGiB", |at| gib(at.capacity).into())
            .spare(1),
        Figure::result("runs", |at| at.price.is_some().into()),
        Figure::result("passes_run", |at| at.passes.into()),
        Figure::result("peak_reserved", |at| at.peak_reserved.into())
            .figure("reserved\nGiB", |at| gib(at.peak_reserved).into())
            .spare(2),
        Figure::time("driver_time_us_first", |at| at.price.map(|price| us(price.first_ns)).into())
            .figure("first pass\ndriver ms", |at| match at.price {
                Some(price) => ms(price.first_ns).into(),
                None => Cell::Failed(format!("out of memory in pass {}", at.passes + 1)),
            })
            .legend("driver ms", "in the driver, in the first pass and in the last"),
        Figure::time("driver_time_us_last", |at| at.price.map(|price| us(price.last_ns)).into())
            .figure("last pass\ndriver ms", |at| cell(at, |price| ms(price.last_ns))),
        Figure::result("cpu_syncs_last", |at| at.price.map(|price| price.cpu_syncs).into())
            .figure("CPU\nwaits", |at| cell(at, |price| price.cpu_syncs.to_string()))
            .legend("CPU waits", "how often the CPU waited for the GPU in the last pass"),
        Figure::time("worst_stall_us_last", |at| at.price.map(|price| us(price.worst_ns)).into())
            .figure("worst\nms", |at| cell(at, |price| ms(price.worst_ns)))
            .legend("worst", "the longest allocation or free of the last pass that called the driver"),
    ];

    /// Returns the line that `--json` prints: the values of all columns by their keys.
    #[must_use]
    pub fn to_json(&self) -> Value {
        line(Self::COLUMNS, self).into()
    }
}

fn cell(at: &CliffReport, figure: fn(Price) -> String) -> Cell {
    at.price.map(figure).unwrap_or_default().into()
}

/// Replays a trace on one simulated device for each number in `times_live`. The device's memory is the trace's peak of
/// live bytes times this number. The options' own capacity is not used. `progress` gets the number of devices done, and
/// the number of all devices.
///
/// # Errors
/// The errors of [`replay`].
pub fn cliff(
    trace: &Trace,
    options: &ReplayOptions,
    times_live: &[f64],
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<CliffReport>, ReplayError> {
    let peak_live = trace.summary().peak_live;
    let mut found = Vec::with_capacity(times_live.len());
    for &times in times_live {
        let bytes = (peak_live as f64 * times).ceil().max(1.0);
        let capacity = (bytes as u64).min(MAX_CAPACITY).next_multiple_of(STEP);
        let device = SimConfig { capacity, ..options.device.clone() };
        let passes = replay(trace, &ReplayOptions { device, ..options.clone() }, &mut |_, _| {})?;
        let Some(strategy) = passes.last().map(|pass| pass.strategy) else { continue };
        found.push(CliffReport {
            trace: trace.name.clone(),
            strategy,
            peak_live,
            times_live: round_to(times, 6),
            capacity,
            peak_reserved: passes.iter().map(|pass| pass.peak_reserved).max().unwrap_or(0),
            passes: passes.iter().filter(|pass| pass.oom.is_none()).count() as u32,
            price: Price::of(&passes),
        });
        progress(found.len(), times_live.len());
    }
    Ok(found)
}
