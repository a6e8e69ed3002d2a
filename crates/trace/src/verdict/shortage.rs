//! The figures of a job that neither PyTorch's allocators nor `stitch` run: the memory that it needs, and the options
//! with which it nevertheless runs.
//!
//! Owns: the searches, and the list of seamalloc's options that are tried.

use super::figures::{Choice, Figures, Need, Options, Shortage};
use crate::fit::{STEP, fit};
use crate::replay::ReplayError;
use crate::whatif::{Growing, Replays};
use seamalloc::{Config, Split, StrategyKind};

/// The bytes of a GiB. Memory to spill is offered in GiB.
const GIB: u64 = 1 << 30;
/// Two allocators need equally small batches if the reductions of the batch differ by at most this many percentage
/// points.
const SAME_PERCENT: u64 = 2;
/// The most memory to spill with which a job is tried, as a multiple of the bytes by which live memory exceeds the
/// device.
const MOST_SPILLED: u64 = 4;

impl Choice {
    /// Returns seamalloc's strategy with the algorithm of this allocator.
    const fn strategy(self) -> StrategyKind {
        match self {
            Self::Native => StrategyKind::Caching,
            Self::Expandable => StrategyKind::Expandable,
            Self::Seamalloc => StrategyKind::Stitch,
        }
    }
}

impl Replays<'_> {
    /// Returns the needs of native, expandable segments and `stitch`.
    pub(super) fn three(&mut self) -> Result<[Need; 3], ReplayError> {
        let [native, expandable, stitch] = Choice::ALL.map(Choice::strategy);
        Ok([self.of(native)?.need, self.of(expandable)?.need, self.of(stitch)?.need])
    }

    /// Returns the options of the replays in the form in which a user sets them.
    pub(super) fn options_in_words(&self) -> Options {
        let all = self.options(StrategyKind::default()).config;
        let native = Config {
            large_segment_size: all.large_segment_size,
            max_split_size: all.max_split_size,
            max_non_split_rounding: all.max_non_split_rounding,
            roundup_power2_divisions: all.roundup_power2_divisions,
            garbage_collection_threshold: all.garbage_collection_threshold,
            memory_fraction: all.memory_fraction,
            ..Config::default()
        };
        // Options that only native has, or only PyTorch's two allocators, keep their defaults for the allocators
        // without them.
        let Config { garbage_collection_threshold, max_split_size, max_non_split_rounding, .. } = Config::default();
        let expandable = Config { garbage_collection_threshold, ..native.clone() };
        let seamalloc = Config {
            strategy_named: false,
            garbage_collection_threshold,
            max_split_size,
            max_non_split_rounding,
            ..all
        };
        Options { native: native.to_string(), expandable: expandable.to_string(), seamalloc: seamalloc.to_string() }
    }

    /// Searches for means with which the job runs, if none of the three allocators runs it on `figures.capacity`: the
    /// whole device, other options, or less live memory.
    pub(super) fn seek(&mut self, figures: &mut Figures) -> Result<(), ReplayError> {
        let Some(room) = figures.capacity else { return Ok(()) };
        let mut on_device = None;
        if let Some(device) = figures.device.filter(|device| *device > room && self.limit().is_none()) {
            let needs = if Some(device) == self.capacity() { self.three()? } else { self.on(device).three()? };
            if needs.iter().any(|need| need.reserved.is_some()) {
                on_device = Some(needs);
                // If a table of the strategies is printed for the same device, it shows the figures of these replays.
                if Some(device) == self.capacity() {
                    [figures.native, figures.expandable, figures.stitch] = needs;
                }
            } else {
                figures.capacity = Some(device);
            }
        }
        let capacity = figures.capacity.unwrap_or(room);
        let runs_on_device = on_device.is_some();
        let [native, expandable, stitch] = match on_device {
            Some(needs) => needs,
            None => self.on_plenty().three()?,
        };
        let is_expandable_set = figures.is_expandable_set;
        let tight = Figures { native, expandable, stitch, is_expandable_set, ..Figures::default() };
        let mut choice = tight.recommended().unwrap_or(Choice::Native);
        let within = self.on(capacity);
        let is_limited = runs_on_device && figures.free_beyond_limit.is_some();
        let remedy = if runs_on_device { None } else { self.remedy(&within)? };
        let mut smaller = None;
        if remedy.is_none() && !is_limited {
            let growing = Growing::of(self.job());
            let mut each = Vec::new();
            // If an allocator runs the job on the device, only this allocator is considered.
            for by in tight.by_effort().into_iter().filter(|by| !runs_on_device || *by == choice) {
                let found = growing.sought(None, &within.options(by.strategy()), &mut |_, _| {})?;
                let percent = |part: f64| 100_u64.saturating_sub((part * 100.0).round() as u64).max(1);
                each.extend(found.largest_step.map(|part| (by, percent(part))));
            }
            let least = each.iter().map(|(_, percent)| *percent).min().unwrap_or(0);
            if let Some((by, percent)) = each.into_iter().find(|(_, percent)| *percent <= least + SAME_PERCENT) {
                (choice, smaller) = (by, Some(percent));
            }
        }
        let needs = fit(self.job(), &within.options(choice.strategy()), &mut |_, _| {})?;
        let spill = if remedy.is_some() || runs_on_device { None } else { spill(&within, figures.live, capacity)? };
        figures.shortage = Some(Shortage {
            runs_on_device,
            choice,
            enough: [native, expandable, stitch].map(|need| need.reserved),
            // The job does not run with `capacity` bytes. If the search finds a smaller capacity with which the job
            // happens to run, the value is one step above `capacity`.
            needs: needs.map_or(0, |found| found.capacity.max(capacity.saturating_add(STEP))),
            remedy,
            smaller,
            spill,
        });
        Ok(())
    }

    /// Returns options with which seamalloc runs the job on a device where it does not run without them: split chunks,
    /// or the algorithm of another strategy that is known to run the job. `None` if there are none.
    fn remedy(&self, within: &Replays<'_>) -> Result<Option<String>, ReplayError> {
        let config = within.options(StrategyKind::Stitch).config;
        let splits = Config { split: Split::LastResort, ..config.clone() };
        if config.split == Split::Off && within.runs(splits)? {
            return Ok(Some(format!("split:{}", Split::LastResort.name())));
        }
        let known = self.known_to_run().filter(|_| within.capacity() == self.capacity());
        for kind in known.chain([StrategyKind::Gmlake]) {
            if within.runs(config.clone().of_strategy(kind))? {
                return Ok(Some(format!("strategy:{kind}")));
            }
        }
        Ok(None)
    }
}

/// Returns options with which seamalloc runs a job by spilling; `None` if there are none.
fn spill(within: &Replays<'_>, live: u64, capacity: u64) -> Result<Option<String>, ReplayError> {
    let config = within.options(StrategyKind::Stitch).config;
    if config.spill.is_some() {
        return Ok(None);
    }
    let least = live.saturating_sub(capacity).div_ceil(GIB).max(1);
    let mut gib = least;
    while gib <= least.saturating_mul(MOST_SPILLED) {
        if within.runs(Config { spill: Some(gib.saturating_mul(GIB)), ..config.clone() })? {
            return Ok(Some(format!("spill:host={gib}GiB")));
        }
        gib = gib.saturating_mul(2);
    }
    Ok(None)
}
