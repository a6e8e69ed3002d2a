//! Compares strategies over the workloads that each of them ran. The result is the verdict below the tables of
//! `stress`.

use crate::output::without_breaks;
use seamalloc::StrategyKind;
use seamalloc_trace::columns::gib;
use seamalloc_trace::replay::PassReport;

/// The bytes of device memory that a strategy held, and its time in the driver.
#[derive(Clone, Copy, Debug)]
struct Cost {
    reserved: u64,
    driver_ns: u64,
}

/// The costs of each strategy on each workload, in its first pass.
#[derive(Debug)]
pub(crate) struct Comparison {
    strategies: Vec<StrategyKind>,
    /// The kind of each workload ("recorded jobs"), and the costs in the order of the strategies; `None` if memory ran
    /// out.
    workloads: Vec<(&'static str, Vec<Option<Cost>>)>,
}

impl Comparison {
    pub(crate) fn new(strategies: Vec<StrategyKind>) -> Self {
        Self { strategies, workloads: Vec::new() }
    }

    /// Begins a workload of this kind. `kind` is a plural, such as "recorded jobs".
    pub(crate) fn begin(&mut self, kind: &'static str) {
        self.workloads.push((kind, Vec::new()));
    }

    /// Adds the passes of the next strategy over the workload that was begun last.
    pub(crate) fn add(&mut self, passes: &[PassReport]) {
        let ran = passes.iter().all(|pass| pass.oom.is_none());
        let first = passes.first().filter(|_| ran);
        let cost = first.map(|pass| Cost { reserved: pass.peak_reserved, driver_ns: pass.driver.total_ns() });
        if let Some((_, costs)) = self.workloads.last_mut() {
            costs.push(cost);
        }
    }

    /// Returns the verdict in two sentences: how much memory a strategy saves compared with another, and how much time
    /// the strategy takes in the driver. Returns `None` for a single strategy.
    pub(crate) fn in_words(&self) -> Option<String> {
        let [first, _, ..] = self.strategies.as_slice() else { return None };
        let asked = |kind: &StrategyKind| self.strategies.contains(kind);
        let ours = [StrategyKind::Stitch, StrategyKind::Expandable].into_iter().find(asked).unwrap_or(*first);
        let known = [StrategyKind::Expandable, StrategyKind::Caching].into_iter().filter(asked);
        let theirs = known.chain(self.strategies.iter().copied()).find(|kind| *kind != ours)?;
        let memory = self.memory(ours, theirs)?;
        let gmlake = Some(StrategyKind::Gmlake).filter(|kind| asked(kind) && *kind != ours).unwrap_or(theirs);
        Some(format!("{memory} {}", self.price(ours, gmlake)?))
    }

    /// Returns the costs of two strategies on each workload that both ran, with the kind of the workload.
    fn both(&self, ours: StrategyKind, theirs: StrategyKind) -> Vec<(&'static str, Cost, Cost)> {
        let place = |kind| self.strategies.iter().position(|asked| *asked == kind);
        let (Some(ours), Some(theirs)) = (place(ours), place(theirs)) else { return Vec::new() };
        let cost = |costs: &[Option<Cost>], place: usize| costs.get(place).copied().flatten();
        let both =
            self.workloads.iter().filter_map(|(kind, costs)| Some((*kind, cost(costs, ours)?, cost(costs, theirs)?)));
        both.collect()
    }

    /// Returns a sentence that says on how many workloads a strategy holds less memory than another, and how much less.
    fn memory(&self, ours: StrategyKind, theirs: StrategyKind) -> Option<String> {
        let both = self.both(ours, theirs);
        let of_kind = |kind: &'static str| {
            let less = both.iter().filter(|(of, own, other)| *of == kind && own.reserved < other.reserved).count();
            match both.iter().filter(|(of, ..)| *of == kind).count() {
                1 => format!("{less} of 1 {}", kind.trim_end_matches('s')),
                all => format!("{less} of {all} {kind}"),
            }
        };
        let counts = listed(&kinds(&both).into_iter().map(of_kind).collect::<Vec<_>>())?;
        let saved = both.iter().filter_map(|(_, own, other)| other.reserved.checked_sub(own.reserved));
        let lost = both.iter().filter_map(|(_, own, other)| own.reserved.checked_sub(other.reserved));
        let mut text = format!("`{ours}` holds less than `{theirs}` on {counts}");
        if let Some(range) = range(saved) {
            text.push_str(&format!(", by {range}"));
        }
        if let Some(range) = range(lost) {
            let more = both.iter().filter(|(_, own, other)| own.reserved > other.reserved).count();
            text.push_str(&format!("; on {more} it holds {range} more"));
        }
        Some(text + ".")
    }

    /// Returns a sentence that says how much `theirs` holds compared with `ours`, and how many times as long `theirs`
    /// spends in the driver.
    fn price(&self, ours: StrategyKind, theirs: StrategyKind) -> Option<String> {
        let both = self.both(ours, theirs);
        let beside = |kind: &'static str| {
            let of_kind = both.iter().filter(|(of, ..)| *of == kind);
            let (own, other) =
                of_kind.fold((0_u64, 0_u64), |sum, (_, own, other)| (sum.0 + own.reserved, sum.1 + other.reserved));
            let more = (other as f64 / own.max(1) as f64 - 1.0) * 100.0;
            match format!("{:.1}", more.abs()) {
                percent if percent == "0.0" => format!("as much on {kind}"),
                percent if more < 0.0 => format!("{percent}% less on {kind}"),
                percent => format!("{percent}% more on {kind}"),
            }
        };
        let held = listed(&kinds(&both).into_iter().map(beside).collect::<Vec<_>>())?;
        let (own, other) =
            both.iter().fold((0_u64, 0_u64), |sum, (_, own, other)| (sum.0 + own.driver_ns, sum.1 + other.driver_ns));
        let times = other as f64 / own.max(1) as f64;
        let seconds = |ns: u64| without_breaks(&format!("{:.2} s", ns as f64 / 1e9));
        Some(format!(
            "Beside `{ours}`, `{theirs}` holds {held}, and spends {times:.1} times as long in the driver ({} against {}).",
            seconds(other),
            seconds(own)
        ))
    }
}

/// Returns the kinds of workloads, in order.
fn kinds(both: &[(&'static str, Cost, Cost)]) -> Vec<&'static str> {
    let mut kinds: Vec<_> = both.iter().map(|(kind, ..)| *kind).collect();
    kinds.dedup();
    kinds
}

/// Returns words as a list, such as "a, b and c".
fn listed(words: &[String]) -> Option<String> {
    let (last, others) = words.split_last()?;
    Some(if others.is_empty() { last.clone() } else { format!("{} and {last}", others.join(", ")) })
}

/// Returns the range of the byte counts that are not 0, such as "0.02 to 4.60 GiB".
fn range(bytes: impl Iterator<Item = u64>) -> Option<String> {
    let bytes: Vec<_> = bytes.filter(|bytes| *bytes > 0).collect();
    let (least, most) = (gib(*bytes.iter().min()?), gib(*bytes.iter().max()?));
    let text = if least == most { format!("{most} GiB") } else { format!("{least} to {most} GiB") };
    Some(without_breaks(&text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use StrategyKind::{Caching, Expandable, Gmlake, Stitch};

    const GIB: u64 = 1 << 30;

    /// A kind of workload, and each strategy's GiB and seconds in the driver.
    type Row = (&'static str, &'static [Option<(u64, u64)>]);

    fn compared(strategies: &[StrategyKind], workloads: &[Row]) -> Option<String> {
        let cost = |of: &Option<(u64, u64)>| {
            of.map(|(held, seconds)| Cost { reserved: held * GIB, driver_ns: seconds * 1_000_000_000 })
        };
        let workloads = workloads.iter().map(|(kind, costs)| (*kind, costs.iter().map(cost).collect())).collect();
        let text = Comparison { strategies: strategies.to_vec(), workloads }.in_words();
        text.map(|text| text.replace('\u{a0}', " "))
    }

    #[test]
    fn the_verdict_follows_from_the_rows() {
        let rows: &[Row] = &[
            ("jobs", &[Some((20, 1)), Some((12, 2)), Some((10, 30)), Some((10, 3))]),
            ("jobs", &[Some((20, 1)), Some((16, 2)), Some((10, 30)), Some((12, 3))]),
            ("patterns", &[Some((20, 1)), Some((10, 2)), None, Some((11, 3))]),
            ("patterns", &[Some((20, 1)), None, Some((10, 6)), Some((10, 3))]),
        ];
        let found = compared(&[Caching, Expandable, Gmlake, Stitch], rows).unwrap();
        assert_eq!(
            found,
            "`stitch` holds less than `expandable` on 2 of 2 jobs and 0 of 1 pattern, by 2.00 to 4.00 GiB; on 1 it holds \
             1.00 GiB more. Beside `stitch`, `gmlake` holds 9.1% less on jobs and as much on patterns, and spends 7.3 times \
             as long in the driver (66.00 s against 9.00 s)."
        );
    }

    /// Without `stitch`, expandable segments are compared. Without `gmlake`, the sentence on time in the driver is
    /// about the other compared strategy.
    #[test]
    fn any_two_strategies_are_compared() {
        let rows: &[Row] = &[("jobs", &[Some((10, 1)), Some((10, 2))])];
        assert_eq!(
            compared(&[Caching, Expandable], rows).unwrap(),
            "`expandable` holds less than `caching` on 0 of 1 job. Beside `expandable`, `caching` holds as much on jobs, \
             and spends 0.5 times as long in the driver (1.00 s against 2.00 s)."
        );
        assert!(compared(&[Gmlake, Stitch], rows).unwrap().starts_with("`stitch` holds less than `gmlake` on 0 of 1"));
        assert_eq!(compared(&[Stitch, Caching], &[("jobs", &[None, Some((1, 1))])]), None, "none that both ran");
        assert_eq!(compared(&[Stitch], rows), None, "nothing to compare");
    }
}
