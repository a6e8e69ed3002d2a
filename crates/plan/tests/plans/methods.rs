//! Problems of a known least peak, larger than those that can be judged by trying all: rectangles that fill a strip.

use seamalloc_plan::{Buffer, Limits, Method, PlanError, Problem, plan};
use std::time::{Duration, Instant};

/// Cuts a rectangle of moments and bytes into `count` by guillotine cuts, each at a place that `next` names.
fn cut(count: usize, moments: i64, bytes: u64, mut next: impl FnMut(u64) -> u64) -> Vec<Buffer> {
    let mut parts = vec![(0, moments, bytes)];
    while parts.len() < count {
        // The largest is cut, across the longer of its sides for the most part.
        let area = |(lower, upper, size): &(i64, i64, u64)| (upper - lower) as u64 * size;
        let index = (0..parts.len()).max_by_key(|index| area(&parts[*index])).unwrap();
        let (lower, upper, size) = parts.swap_remove(index);
        let length = (upper - lower) as u64;
        if next(2) == 0 {
            let at = lower + 1 + next(length - 1) as i64;
            parts.extend([(lower, at, size), (at, upper, size)]);
        } else {
            let at = 1 + next(size - 1);
            parts.extend([(lower, upper, at), (lower, upper, size - at)]);
        }
    }
    parts.iter().enumerate().map(|(id, part)| Buffer::new(id.to_string(), part.0, part.1, part.2)).collect()
}

fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

/// Every byte is in use at every moment, so that the least peak is the peak load, and only some plans have it.
#[test]
fn strips_without_waste_are_packed_again() {
    for seed in 0..6 {
        let problem = Problem::new("strip", cut(60, 100_000, 1 << 20, random(seed))).unwrap();
        let limits = Limits { time: Duration::from_secs(120), ..Limits::default() };
        for method in [Method::Exact, Method::Portfolio] {
            let outcome = plan(&problem, method, &limits, &mut |_| {}).unwrap();
            assert_eq!((outcome.plan.peak, outcome.bound, outcome.is_optimal), (1 << 20, 1 << 20, true), "{seed}");
        }
    }
}

#[test]
fn annealing_takes_the_same_steps_from_the_same_seed() {
    let problem = Problem::new("strip", cut(40, 1000, 1 << 16, random(1))).unwrap();
    // What is reached within a time is not said; what is good enough is found by the same steps.
    let least = plan(&problem, Method::DecreasingSize, &Limits::default(), &mut |_| {}).unwrap().plan.peak;
    let limits = Limits { time: Duration::from_secs(120), capacity: Some(least - 1), seed: 7 };
    let runs = [0, 1].map(|_| plan(&problem, Method::Annealing, &limits, &mut |_| {}).unwrap().plan);
    assert!(runs[0].peak < least);
    assert_eq!(runs[0], runs[1]);
}

#[test]
fn a_time_limit_is_kept_and_progress_is_told() {
    let problem = Problem::new("strip", cut(400, 1_000_000, 1 << 30, random(3))).unwrap();
    let limits = Limits { time: Duration::from_millis(500), ..Limits::default() };
    for method in [Method::Annealing, Method::Exact, Method::Portfolio] {
        let (start, mut told) = (Instant::now(), Vec::new());
        let outcome = plan(&problem, method, &limits, &mut |progress| told.push(progress)).unwrap();
        assert!(start.elapsed() < Duration::from_secs(10), "{method}");
        outcome.plan.check(&problem).unwrap();
        if !outcome.is_optimal {
            assert!(told.iter().any(|progress| progress.peak.is_some() && progress.lower == outcome.bound), "{told:?}");
        }
    }
    let none = Limits { time: Duration::ZERO, ..limits };
    for method in Method::ALL {
        let error = plan(&problem, method, &none, &mut |_| {}).unwrap_err();
        assert!(matches!(error, PlanError::NoTime { method: said, .. } if said == method), "{error}");
    }
}

#[test]
fn a_capacity_below_the_peak_load_is_refused() {
    let problem = Problem::new("strip", cut(10, 100, 1000, random(3))).unwrap();
    let limits = Limits { capacity: Some(999), ..Limits::default() };
    let error = plan(&problem, Method::Portfolio, &limits, &mut |_| {}).unwrap_err();
    assert!(matches!(error, PlanError::Capacity { capacity: 999, bound: 1000 }), "{error}");
    let empty = Problem::new("empty", Vec::new()).unwrap();
    for method in Method::ALL {
        let outcome = plan(&empty, method, &Limits::default(), &mut |_| {}).unwrap();
        assert!(outcome.plan.peak == 0 && outcome.is_optimal);
    }
}

#[test]
fn names_are_read_back() {
    for method in Method::ALL {
        assert_eq!(method.name().parse(), Ok(method));
    }
    assert!("worst-fit".parse::<Method>().unwrap_err().to_string().contains("expected first-fit, decreasing-size"));
}
