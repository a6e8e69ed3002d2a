//! The smallest device on which a trace still runs.
//!
//! Owns: the bisection over the capacity of the simulated device.

use crate::columns::{Column, gib, line, ms, round_to, us};
use crate::price::Price;
use crate::replay::{PassReport, ReplayError, ReplayOptions, replay};
use crate::trace::Trace;
use seamalloc::driver::sim::SimConfig;
use serde_json::Value;

/// The step of the search, in bytes: the granularity of physical memory.
pub(crate) const STEP: u64 = 2 << 20;
/// The memory of the first device that is tried, as a multiple of the live bytes. The memory is plenty but limited,
/// since some strategies reserve addresses for all of the memory on every stream.
const PLENTY: u64 = 16;
/// The factor by which the next large device exceeds the previous one, as long as the trace does not run.
const MORE: u64 = 4;
/// The largest device that is tried, in bytes.
pub const LARGEST: u64 = seamalloc::driver::sim::MAX_CAPACITY;

type Figure = Column<FitReport>;

/// The smallest capacity with which a trace runs.
#[derive(Clone, Debug, PartialEq)]
pub struct FitReport {
    /// The trace's name.
    pub trace: String,
    /// The strategy's name.
    pub strategy: &'static str,
    /// The device's name, without its capacity.
    pub device: String,
    /// The smallest capacity in bytes, a multiple of 2 MiB, on which every pass ran.
    pub capacity: u64,
    /// The most bytes that were requested and not freed. No strategy can run with less memory.
    pub peak_live: u64,
    /// The peak of the bytes that the strategy reserved on the first, large device.
    pub peak_reserved: u64,
    /// The cost of running on the smallest device.
    pub price: Price,
    /// The number of devices that were tried.
    pub tries: u32,
}

impl FitReport {
    /// Returns the needed memory beyond the live bytes, as a part of the live bytes: 0.015 is 1.5%.
    #[must_use]
    pub fn overhead(&self) -> f64 {
        if self.peak_live == 0 { 0.0 } else { self.capacity as f64 / self.peak_live as f64 - 1.0 }
    }

    /// The figures of the report.
    pub const COLUMNS: &'static [Figure] = &[
        Figure::run("trace", |fit| fit.trace.as_str().into()).text("trace", |fit| fit.trace.as_str().into()),
        Figure::run("strategy", |fit| fit.strategy.into()).text("strategy", |fit| fit.strategy.into()),
        Figure::run("device", |fit| fit.device.as_str().into()),
        Figure::result("peak_live", |fit| fit.peak_live.into())
            .figure("live\nGiB", |fit| gib(fit.peak_live).into())
            .legend("live", "the most bytes requested and not freed: no strategy can do with less"),
        Figure::result("capacity", |fit| fit.capacity.into())
            .figure("smallest\nGiB", |fit| gib(fit.capacity).into())
            .legend(
                "smallest",
                "the least GPU memory on which every pass still runs, to 2 MiB; how fast on larger \
                 devices, --times-live shows",
            ),
        Figure::result("overhead", |fit| round_to(fit.overhead(), 6).into())
            .figure("above\nlive", |fit| format!("+{:.1}%", fit.overhead() * 100.0).into())
            .legend("above live", "how much more that is than live"),
        Figure::result("peak_reserved", |fit| fit.peak_reserved.into())
            .figure("reserved GiB\nwhere plenty", |fit| gib(fit.peak_reserved).into())
            .legend("reserved GiB where plenty", "the most bytes held where memory is plenty"),
        Figure::time("driver_time_us_first", |fit| us(fit.price.first_ns).into())
            .figure("first pass\ndriver ms", |fit| ms(fit.price.first_ns).into())
            .spare(3)
            .legend("driver ms", "in the driver on the smallest, in the first pass and in the last"),
        Figure::time("driver_time_us_last", |fit| us(fit.price.last_ns).into())
            .figure("last pass\ndriver ms", |fit| ms(fit.price.last_ns).into())
            .spare(2),
        Figure::result("cpu_syncs_last", |fit| fit.price.cpu_syncs.into())
            .figure("CPU\nwaits", |fit| fit.price.cpu_syncs.into())
            .spare(2)
            .legend("CPU waits", "how often the CPU waited for the GPU there, in the last pass"),
        Figure::time("worst_stall_us_last", |fit| us(fit.price.worst_ns).into()),
        Figure::result("tries", |fit| fit.tries.into())
            .figure("tries", |fit| fit.tries.into())
            .spare(1)
            .legend("tries", "replays that the search took"),
    ];

    /// Returns the line that `--json` prints: the values of all columns by their keys.
    #[must_use]
    pub fn to_json(&self) -> Value {
        line(Self::COLUMNS, self).into()
    }
}

/// Finds the smallest capacity by bisection, between the live peak and the bytes that the strategy reserves on a large
/// device. The options' own capacity is not used. Bisection assumes that more memory never hurts. If more memory
/// sometimes does hurt a strategy, there are several capacities with which the trace runs although it does not run with
/// 2 MiB less, and the result is one of them. The capacity is no measure of speed: near the smallest capacity, a
/// strategy often gives memory back and waits for the GPU.
///
/// Returns `None` if the trace does not run on 16 TiB. `progress` gets the number of tries done, and their approximate
/// total.
///
/// # Errors
/// The errors of [`replay`].
pub fn fit(
    trace: &Trace,
    options: &ReplayOptions,
    progress: &mut dyn FnMut(u32, u32),
) -> Result<Option<FitReport>, ReplayError> {
    let mut tries = 0;
    let limited = options.config.memory_fraction.is_some() || options.config.memory_limit.is_some();
    let mut run = |capacity: u64, expected: u32, progress: &mut dyn FnMut(u32, u32)| {
        let device = SimConfig { capacity, ..options.device.clone() };
        let passes = replay(trace, &ReplayOptions { device, ..options.clone() }, &mut |_, _| {})?;
        tries += 1;
        progress(tries, expected.max(tries));
        Ok::<_, ReplayError>(passes)
    };
    let ran = |passes: &[PassReport]| Price::of(passes).is_some();
    let peak_live = trace.summary().peak_live;
    let mut capacity = peak_live.max(STEP).saturating_mul(PLENTY).min(LARGEST).next_multiple_of(STEP);
    let plenty = loop {
        let passes = run(capacity, 18, progress)?;
        match capacity {
            _ if ran(&passes) => break passes,
            LARGEST => return Ok(None),
            _ => capacity = capacity.saturating_mul(MORE).min(LARGEST),
        }
    };
    let Some(strategy) = plenty.last().map(|pass| pass.strategy) else { return Ok(None) };
    let peak_reserved = plenty.iter().map(|pass| pass.peak_reserved).max().unwrap_or(0);
    // The bounds are in steps. A device with `low` steps is too small, and one with `high` steps is large enough.
    let mut low = (peak_live / STEP).saturating_sub(1);
    let mut high = peak_reserved.div_ceil(STEP).max(low + 1);
    // A device with the bytes that were reserved is large enough, unless the options let only a part of a device be
    // reserved.
    let enough = capacity / STEP;
    while limited && high < enough && !ran(&run(high * STEP, 18, progress)?) {
        low = high;
        high = high.saturating_mul(2).min(enough);
    }
    let expected = 2 + (high - low).max(1).ilog2();
    let mut price = None;
    let mut stride = 1;
    let price = loop {
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match Price::of(&run(middle * STEP, expected, progress)?) {
                Some(there) => (high, price) = (middle, Some(there)),
                None => low = middle,
            }
        }
        // No run has had a device of the size that was reserved on the large device. That size may be too small: on a
        // smaller device an expandable segment reserves fewer addresses, and once it is full, a second one is needed.
        while price.is_none() && high < enough {
            price = Price::of(&run(high * STEP, expected, progress)?);
            if price.is_none() {
                (low, high) = (high, high.saturating_add(stride).min(enough));
                stride *= 2;
            }
        }
        // If no smaller device was enough, the price of the large one counts.
        price = price.or_else(|| Price::of(&plenty));
        if high - low <= 1 {
            break price.unwrap_or_default();
        }
    };
    Ok(Some(FitReport {
        trace: trace.name.clone(),
        strategy,
        device: SimConfig { capacity: options.device.profile.memory(), ..options.device.clone() }.to_string(),
        capacity: high * STEP,
        peak_live,
        peak_reserved,
        price,
        tries,
    }))
}
