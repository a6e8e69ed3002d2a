//! Every order in which threads may find, form, recall and use arenas, and every value that weakly ordered memory may show them,
//! tried by loom.
//!
//! `src/allocator/arenas/table.rs` is compiled here with loom's atomics and locks in place of those of the library. Heaps are
//! sets of blocks; the steps that `formation.rs`, `serving.rs` and `free.rs` take are taken in their order.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a panic fails the test")]
#![allow(dead_code, unreachable_pub, reason = "a file of the library is compiled here, which uses more of it")]

#[path = "arena_schedules/heaps.rs"]
mod heaps;
#[path = "arena_schedules/primitive.rs"]
mod primitive;
#[path = "../src/allocator/arenas/table.rs"]
mod table;

/// What `table.rs` has of the rest of the library.
mod error {
    pub(crate) type Result<T> = std::result::Result<T, std::collections::TryReserveError>;
}
mod fallible {
    pub(crate) fn with_room<T>(capacity: usize) -> crate::error::Result<Vec<T>> {
        Ok(Vec::with_capacity(capacity))
    }
}
mod heap {
    pub(crate) const GRANULE: u64 = 2 << 20;
}
mod ids {
    pub(crate) use seamalloc::driver::StreamId;
}
mod span {
    #[derive(Clone, Copy)]
    pub(crate) struct Span {
        pub(crate) start: u64,
        pub(crate) size: u64,
    }
}

use heap::GRANULE;
use heaps::{A, Allocator, B, Checks, HOME};
use loom::sync::Arc;
use loom::thread::{JoinHandle, spawn};
use std::sync::atomic::{AtomicUsize, Ordering};

/// At most so many times is a thread interrupted where it could go on, in a model that is too large for every schedule. Most
/// faults of this kind need two (Musuvathi and Qadeer, "Iterative Context Bounding", PLDI 2007).
const INTERRUPTIONS: usize = 3;

/// Tries a model in every schedule, within a bound on interruptions if there is one. Returns how many there were.
fn try_all(name: &str, bound: Option<usize>, model: impl Fn() + Send + Sync + 'static) -> usize {
    let tried = std::sync::Arc::new(AtomicUsize::new(0));
    let count = std::sync::Arc::clone(&tried);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = bound;
    // The tables have some hundred atomics.
    builder.max_branches = 20_000;
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let tried = tried.load(Ordering::Relaxed);
    println!("{name}: {tried} schedules");
    tried
}

fn with(allocator: &Arc<Allocator>, step: impl FnOnce(&Allocator) + Send + 'static) -> JoinHandle<()> {
    let allocator = Arc::clone(allocator);
    spawn(move || step(&allocator))
}

/// Two threads free blocks, which go to whichever heap has them, while an arena gives its memory back and gets some again.
fn frees_beside_a_recall(checks: Checks) {
    let allocator = Arc::new(Allocator::new(checks));
    allocator.core.lock().live.extend([HOME, HOME + 512, HOME + GRANULE]);
    allocator.form(A, 2);
    let frees = [HOME, HOME + GRANULE].map(|block| with(&allocator, move |allocator| allocator.free(block)));
    allocator.recall_all();
    allocator.form(B, 1);
    allocator.free(HOME + 512);
    frees.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(allocator.live().is_empty(), "each block was freed once: {:?}", allocator.live());
}

/// A lane goes from a stream to another one while threads of both allocate.
fn a_lane_changes_hands(checks: Checks) {
    let allocator = Arc::new(Allocator::new(checks));
    allocator.form(A, 1);
    let allocate = |stream| {
        with(&allocator, move |allocator| {
            for _ in 0..2 {
                let served = allocator.allocate(stream);
                assert!(served == stream, "served by memory of stream {served}");
            }
        })
    };
    let threads = [A, B].map(allocate);
    allocator.recall_all();
    allocator.form(B, 1);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Two streams come to arenas at the same time, free each other's blocks, and a third thread takes all back.
fn two_form_and_free_crosswise() {
    let allocator = Arc::new(Allocator::new(Checks::All));
    allocator.core.lock().live.extend([HOME, HOME + GRANULE]);
    let threads = [(A, HOME + GRANULE), (B, HOME)].map(|(stream, block)| {
        with(&allocator, move |allocator| {
            allocator.form(stream, 1);
            allocator.free(block);
        })
    });
    allocator.recall_all();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(allocator.live().is_empty());
}

#[test]
fn frees_find_their_heap() {
    assert!(try_all("frees beside a recall", Some(INTERRUPTIONS), || frees_beside_a_recall(Checks::All)) > 100);
    assert!(try_all("two form", Some(INTERRUPTIONS), two_form_and_free_crosswise) > 100);
}

#[test]
fn a_stream_is_served_by_its_own_memory() {
    assert!(try_all("a lane changes hands", None, || a_lane_changes_hands(Checks::All)) > 100);
}

#[test]
fn a_fault_is_noticed() {
    let noticed = |model: fn(Checks), without| {
        let tried =
            std::panic::catch_unwind(move || try_all("with a fault", Some(INTERRUPTIONS), move || model(without)));
        tried.expect_err("a step was left out");
    };
    // Whoever has the lane's lock does not look whose it is.
    noticed(a_lane_changes_hands, Checks::NotTheStream);
    // Nor does who frees look again once the allocator's lock is taken.
    noticed(frees_beside_a_recall, Checks::NotUnderTheLock);
}
