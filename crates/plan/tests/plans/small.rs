//! Small problems, judged by trying every offset: what is found is valid, and what is said to be the least is.

use crate::length::rounds;
use proptest::prelude::*;
use seamalloc_plan::{Buffer, Gap, Limits, Method, Outcome, PlanError, Problem, plan};
use std::time::Duration;

/// More than any of these takes.
const LONG: Duration = Duration::from_secs(60);
/// How long what never knows that it is done may search.
const SHORT: Duration = Duration::from_millis(20);

/// Moments are small numbers, so that all of them can be looked at.
const MOMENTS: i64 = 8;

/// Whether the buffer needs its memory at that moment.
fn is_live(buffer: &Buffer, moment: i64) -> bool {
    let is_gap = buffer.gaps.iter().any(|gap| (gap.lower..gap.upper).contains(&moment));
    (buffer.lower..buffer.upper).contains(&moment) && !is_gap
}

/// Whether there are offsets for the buffers from `next` on, beside those that have theirs, up to `peak`.
fn fits(buffers: &[Buffer], offsets: &mut Vec<u64>, peak: u64) -> bool {
    let Some(buffer) = buffers.get(offsets.len()) else { return true };
    let last = peak.checked_sub(buffer.size);
    let tried = last
        .into_iter()
        .flat_map(|last| 0..=last)
        .filter(|offset| offset.is_multiple_of(buffer.alignment) && buffer.fixed.is_none_or(|fixed| fixed == *offset));
    for offset in tried.collect::<Vec<_>>() {
        let is_free = buffers.iter().zip(&*offsets).all(|(other, at)| {
            let apart = offset + buffer.size <= *at || at + other.size <= offset;
            apart || (0..MOMENTS).all(|moment| !is_live(buffer, moment) || !is_live(other, moment))
        });
        if is_free {
            offsets.push(offset);
            if fits(buffers, offsets, peak) {
                return true;
            }
            offsets.pop();
        }
    }
    false
}

/// The least peak.
fn least_peak(problem: &Problem) -> u64 {
    (0..).find(|peak| fits(problem.buffers(), &mut Vec::new(), *peak)).unwrap()
}

fn load(problem: &Problem) -> u64 {
    let at = |moment| problem.buffers().iter().filter(|buffer| is_live(buffer, moment)).map(|buffer| buffer.size).sum();
    (0..MOMENTS).map(at).max().unwrap_or(0)
}

fn lifetime() -> impl Strategy<Value = (i64, i64)> {
    (0..MOMENTS, 0..MOMENTS).prop_map(|(a, b)| (a.min(b), a.max(b) + 1)).prop_filter("ends", |(_, end)| *end <= MOMENTS)
}

prop_compose! {
    fn solid()((lower, upper) in lifetime(), size in 1..6_u64) -> Buffer {
        Buffer::new("", lower, upper, size)
    }
}

prop_compose! {
    fn any_buffer()(
        buffer in solid(),
        alignment in prop_oneof![4 => Just(1_u64), 1 => 2..5_u64],
        gap in prop::option::weighted(0.4, lifetime()),
        fixed in prop::option::weighted(0.1, 0..4_u64),
    ) -> Buffer {
        let gap = gap.filter(|(lower, upper)| buffer.lower <= *lower && *upper <= buffer.upper);
        let gap = gap.filter(|gap| *gap != (buffer.lower, buffer.upper));
        let gaps = gap.into_iter().map(|(lower, upper)| Gap { lower, upper, window: None }).collect();
        Buffer { alignment, gaps, fixed: fixed.map(|fixed| fixed * alignment), ..buffer }
    }
}

fn problem(buffers: Vec<Buffer>) -> Problem {
    let named = buffers.into_iter().enumerate().map(|(id, buffer)| Buffer { id: id.to_string(), ..buffer });
    Problem::new("small", named.collect()).unwrap()
}

fn run(problem: &Problem, method: Method, time: Duration) -> Outcome {
    let mut found = plan(problem, method, &Limits { time, ..Limits::default() }, &mut |_| {});
    if matches!(found, Err(PlanError::NoTime { .. })) {
        // On a machine with much else to do a short time may be over before the thread runs.
        found = plan(problem, method, &Limits { time: time * 50, ..Limits::default() }, &mut |_| {});
    }
    let outcome = found.unwrap();
    outcome.plan.check(problem).unwrap();
    assert!(outcome.bound <= outcome.plan.peak);
    assert_eq!(outcome.method, method);
    outcome
}

/// Checks the rules that every method has to keep, where the least peak is known.
fn judge(problem: &Problem, least: u64) {
    for method in Method::ALL {
        let time = if method == Method::Annealing { SHORT } else { LONG };
        let outcome = run(problem, method, time);
        assert!(outcome.plan.peak >= least, "{method}");
        assert!(!outcome.is_optimal || outcome.plan.peak == least, "{method}");
        if matches!(method, Method::Exact | Method::Portfolio) {
            assert!(outcome.is_optimal && outcome.plan.peak == least, "{method}: {outcome:?}, {least}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(70, 200)))]

    #[test]
    fn exact_finds_the_least_peak(buffers in prop::collection::vec(solid(), 1..8)) {
        let problem = problem(buffers);
        let least = least_peak(&problem);
        prop_assert!(load(&problem) <= least);
        prop_assert_eq!(run(&problem, Method::FirstFit, LONG).bound, load(&problem));
        judge(&problem, least);
    }

    #[test]
    fn gaps_alignments_and_fixed_offsets_too(buffers in prop::collection::vec(any_buffer(), 1..6)) {
        let problem = problem(buffers);
        // Fixed offsets may be in each other's way.
        let fixed: Vec<_> = problem.buffers().iter().filter(|buffer| buffer.fixed.is_some()).cloned().collect();
        if !fits(&fixed, &mut Vec::new(), 100) {
            let refused = plan(&problem, Method::Exact, &Limits::default(), &mut |_| {});
            prop_assert!(refused.is_err());
            return Ok(());
        }
        judge(&problem, least_peak(&problem));
    }

    /// Windows may let two buffers interlock, which is searched in part: the least is not claimed, but plans are valid.
    #[test]
    fn windows_are_heeded(
        buffers in prop::collection::vec((any_buffer(), 0..3_u64, 1..3_u64), 1..8),
    ) {
        let with_window = |(buffer, low, length): (Buffer, u64, u64)| {
            let high = (low + length).min(buffer.size);
            let window = (low < high).then_some((low, high));
            let gaps = buffer.gaps.iter().map(|gap| Gap { window, ..*gap }).collect();
            Buffer { gaps, fixed: None, ..buffer }
        };
        let problem = problem(buffers.into_iter().map(with_window).collect());
        for method in Method::ALL {
            run(&problem, method, SHORT);
        }
    }

    /// A capacity that is known to suffice is reached, and one less is not.
    #[test]
    fn a_capacity_is_reached_or_proven_too_small(buffers in prop::collection::vec(solid(), 1..8)) {
        let problem = problem(buffers);
        let least = least_peak(&problem);
        let with = |capacity| Limits { time: LONG, capacity: Some(capacity), seed: 1 };
        for method in [Method::Exact, Method::Portfolio] {
            let reached = plan(&problem, method, &with(least), &mut |_| {}).unwrap();
            prop_assert!(reached.plan.peak <= least);
            match plan(&problem, method, &with(least - 1), &mut |_| {}) {
                Ok(outcome) => prop_assert!(outcome.plan.peak >= least && least > outcome.bound),
                Err(error) => prop_assert!(least - 1 < load(&problem), "{}", error),
            }
        }
    }
}
