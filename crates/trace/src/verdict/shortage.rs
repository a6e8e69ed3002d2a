//! The figures of a job that neither PyTorch's allocators nor `stitch` run: the memory it needs, and the options with
//! which it still runs.
//!
//! Owns: the searches, and which options of seamalloc are tried.

use super::figures::{Choice, Figures, Need, Options, Shortage};
use crate::fit::{STEP, fit};
use crate::replay::ReplayError;
use crate::whatif::{Growing, Replays};
use seamalloc::{Config, Split, StrategyKind};

/// Bytes of a GiB, in which memory to spill is offered.
const GIB: u64 = 1 << 30;
/// The most spilled memory that is tried, as a multiple of the least amount.
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
        let mut need = |choice: Choice| self.of(choice.strategy()).map(|replayed| replayed.need);
        Ok([need(Choice::Native)?, need(Choice::Expandable)?, need(Choice::Seamalloc)?])
    }

    /// Returns the options of the replays as a user sets them.
    pub(super) fn options_in_words(&self) -> Options {
        let all = self.options(StrategyKind::default()).config;
        let defaults = Config::default();
        let pytorch = Config {
            large_segment_size: all.large_segment_size,
            max_split_size: all.max_split_size,
            max_non_split_rounding: all.max_non_split_rounding,
            roundup_power2_divisions: all.roundup_power2_divisions,
            garbage_collection_threshold: all.garbage_collection_threshold,
            memory_fraction: all.memory_fraction,
            ..defaults
        };
        Options { pytorch: pytorch.to_string(), seamalloc: Config { strategy_named: false, ..all }.to_string() }
    }

    /// Searches for ways to run the job, if none of the three allocators runs it on `figures.capacity`: the rest of the
    /// device, other options, smaller steps.
    pub(super) fn seek(&mut self, figures: &mut Figures) -> Result<(), ReplayError> {
        let Some(room) = figures.capacity else { return Ok(()) };
        let mut on_device = None;
        if let Some(device) = figures.device.filter(|device| *device > room && self.limit().is_none()) {
            let needs = if Some(device) == self.capacity() { self.three()? } else { self.on(device).three()? };
            if needs.iter().any(|need| need.reserved.is_some()) {
                on_device = Some(needs);
                // The device is as in a table of this device.
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
        let choice = tight.recommended().unwrap_or(Choice::Native);
        let within = self.on(capacity);
        let needs = fit(self.job(), &within.options(choice.strategy()), &mut |_, _| {})?;
        let is_limited = runs_on_device && figures.free_beyond_limit.is_some();
        let remedy = if runs_on_device { None } else { self.remedy(&within)? };
        let mut smaller = None;
        if remedy.is_none() && !is_limited {
            let growing = Growing::of(self.job());
            let found = growing.sought(None, &within.options(choice.strategy()), &mut |_, _| {})?;
            smaller = found.largest_step.map(|part| 100_u64.saturating_sub((part * 100.0).round() as u64).max(1));
        }
        let spill = if remedy.is_some() || runs_on_device { None } else { spill(&within, figures.live, capacity)? };
        figures.shortage = Some(Shortage {
            runs_on_device,
            choice,
            enough: [native, expandable, stitch].map(|need| need.reserved),
            // A search may find any of several limits.
            needs: needs.map_or(0, |found| found.capacity.max(capacity.saturating_add(STEP))),
            remedy,
            smaller,
            spill,
        });
        Ok(())
    }

    /// Returns options with which seamalloc runs the job on a device that is too small without them: chunks that are
    /// split, or the algorithm of another strategy, if it is known to run the job.
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
