//! The bounds that are published of DTR, and those that follow from arithmetic.

use seamalloc_evict::generate::linear;
use seamalloc_evict::memory::Counted;
use seamalloc_evict::{Below, Outcome, SchemeKind, Stop, judge, peak, run};

/// A chain of `layers` operators forward and as many back, each of one byte and one unit of time.
fn chain(layers: usize, bytes: u64, scheme: SchemeKind) -> Outcome {
    let graph = linear(layers, 1).unwrap();
    run(&graph, &mut Counted::new(bytes), scheme.scheme().as_mut()).unwrap()
}

/// Kirisame and others, theorem 3.1: with memory for the order of the square root of N tensors a chain of N operators takes O(N)
/// operations by the heuristic that counts the evicted neighbourhood. Their figures have it at twice the square root
/// (`simrd/simrd_experiments/bounds.py`). The factor must not grow with N.
#[test]
fn a_chain_takes_linear_time_in_memory_for_the_square_root_of_its_length() {
    for scheme in [SchemeKind::Dtr, SchemeKind::DtrEq, SchemeKind::Stitched] {
        for layers in [16usize, 64, 256, 1024, 2048] {
            let root = (layers as f64).sqrt().ceil() as u64;
            let outcome = chain(layers, 2 * root + 2, scheme);
            assert_eq!(outcome.failure, None, "{scheme} at {layers}");
            let factor = outcome.operators_run as f64 / (2 * layers) as f64;
            assert!((1.0..3.0).contains(&factor), "{scheme} at {layers}: {factor}");
        }
    }
}

/// A scheme that counts no neighbourhood thrashes on the same chain: the test above could fail.
#[test]
fn without_the_neighbourhood_the_same_chain_takes_far_longer() {
    let outcome = chain(1024, 66, SchemeKind::Size);
    assert_eq!(outcome.failure, Some(Stop::Thrashing));
    let exact = chain(1024, 66, SchemeKind::Dtr).operators_run;
    assert!(exact < 2 * 2048 * 3, "{exact}");
}

#[test]
fn with_the_peak_nothing_is_evicted_and_with_a_byte_less_something_is() {
    let graph = linear(10, 1).unwrap();
    // All ten activations, the first gradient, and the second beside it once the last activation is gone.
    let most = peak(&graph).unwrap();
    assert_eq!(most, 11);
    for scheme in SchemeKind::ALL {
        let whole = chain(10, most, scheme);
        assert_eq!((whole.operators_run, whole.evictions, whole.refusals, whole.peak_live), (20, 0, 0, 11), "{scheme}");
        let less = chain(10, most - 1, scheme);
        assert!(less.failure.is_none() && less.evictions > 0 && less.peak_live <= 10, "{scheme}: {less:?}");
    }
}

/// A step back reads two tensors and makes one.
#[test]
fn three_tensors_are_the_least_and_two_are_too_few() {
    for scheme in SchemeKind::ALL {
        assert_eq!(chain(3, 3, scheme).failure, None, "{scheme}");
        let failed = chain(3, 2, scheme).failure;
        assert!(matches!(failed, Some(Stop::OutOfMemory { bytes: 1, unused: 0 })), "{scheme}: {failed:?}");
    }
}

/// Tensors of one size leave no holes: what is computed is the same over all that has room for as many. (Expandable segments grow by
/// 20 MiB, and have room for fewer.)
#[test]
fn tensors_of_one_size_need_nothing_of_an_allocator() {
    let graph = linear(64, 4 << 20).unwrap();
    let most = peak(&graph).unwrap();
    let strategies = ["stitch", Below::ARENA, Below::COUNTED];
    let memories = strategies.map(|name| Below::named(name, &seamalloc::Config::default()).unwrap().remove(0));
    for scheme in [SchemeKind::Dtr, SchemeKind::Msps, SchemeKind::Stitched] {
        let runs = memories.each_ref().map(|below| judge(&graph, most, 0.4, scheme, below).unwrap());
        for run in &runs {
            assert_eq!(run.outcome.fragmented_refusals, 0, "{run:?}");
            assert_eq!(run.overhead(), runs[2].overhead(), "{scheme} over {}", run.below);
        }
        assert!(runs[0].overhead() > Some(1.0));
    }
}
