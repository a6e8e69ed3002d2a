//! The figures of a job that neither PyTorch's allocators nor `stitch` run: what it needs, and with what it runs all the same.
//!
//! Owns: the searches, and which options of seamalloc are tried.

use super::figures::{Choice, Figures, Need, Options, Shortage};
use crate::fit::{STEP, fit};
use crate::replay::ReplayError;
use crate::whatif::{Growing, Replays};
use seamalloc::{Config, Split, StrategyKind};

/// Bytes of a GiB, in which memory to spill is offered.
const GIB: u64 = 1 << 30;
/// Batches are as small as each other within this part, in percent.
const SAME_PERCENT: u64 = 2;
/// A job is tried with so many times the least amount of spilled memory at most.
const MOST_SPILLED: u64 = 4;

impl Choice {
    /// Returns the strategy of the same algorithm.
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

    /// Returns the options of the replays as a user sets them.
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
        // Options of native alone, and of PyTorch's allocators alone.
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

    /// Seeks with what the job runs, where none of the three allocators does on `figures.capacity`: the rest of the device, other
    /// options, less that is live.
    pub(super) fn seek(&mut self, figures: &mut Figures) -> Result<(), ReplayError> {
        let Some(room) = figures.capacity else { return Ok(()) };
        let mut on_device = None;
        if let Some(device) = figures.device.filter(|device| *device > room && self.limit().is_none()) {
            let needs = if Some(device) == self.capacity() { self.three()? } else { self.on(device).three()? };
            if needs.iter().any(|need| need.reserved.is_some()) {
                on_device = Some(needs);
                // As in a table of that device.
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
            // What runs the job on the device is the one to take there.
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
            // A search finds one of several limits, where there are several.
            needs: needs.map_or(0, |found| found.capacity.max(capacity.saturating_add(STEP))),
            remedy,
            smaller,
            spill,
        });
        Ok(())
    }

    /// Returns options with which seamalloc runs the job on a device on which it does not without: chunks that are split, or the
    /// algorithm of another strategy, if it is known to.
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

/// Returns options with which seamalloc runs a job by spilling.
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
