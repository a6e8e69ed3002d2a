//! Every order in which threads may use, close and fill a slot of the table of handles, and every value that weakly ordered
//! memory may show them, tried by loom.
//!
//! `src/slots.rs` is compiled here with loom's atomics in place of those of the standard library; and once more with atomics
//! that ignore the order they are asked for, to show that what must not happen would be noticed.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a panic fails the test")]
#![allow(dead_code, unreachable_pub, clippy::duplicate_mod, reason = "a file of the library is compiled here twice")]

#[path = "schedules/models.rs"]
mod models;
#[path = "schedules/relaxed.rs"]
mod relaxed;
#[path = "schedules/sound.rs"]
mod sound;
#[path = "schedules/weakened.rs"]
mod weakened;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// At most so many times is a thread interrupted where it could go on, in models that are too large for every schedule. Most
/// faults of this kind need two (Musuvathi and Qadeer, "Iterative Context Bounding", PLDI 2007).
const INTERRUPTIONS: usize = 3;

/// Tries a model in every schedule, within a bound on interruptions if there is one. Prints and returns how many there were.
fn try_all(name: &str, bound: Option<usize>, model: fn()) -> usize {
    let tried = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tried);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = bound;
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let tried = tried.load(Ordering::Relaxed);
    println!("{name}: {tried} schedules");
    tried
}

/// The models, and the bound of each.
macro_rules! each_model {
    ($do:ident) => {
        $do!(one_uses_while_another_closes, None);
        $do!(two_close, None);
        $do!(a_stale_user_sees_nothing_of_the_next_value, Some(INTERRUPTIONS));
        $do!(two_use_while_a_third_closes, Some(INTERRUPTIONS));
        $do!(two_fill_while_a_third_closes, Some(INTERRUPTIONS));
    };
}

macro_rules! holds {
    ($model:ident, $bound:expr) => {
        #[test]
        fn $model() {
            // A model without a choice would prove nothing.
            assert!(try_all(stringify!($model), $bound, sound::$model) > 10);
        }
    };
}

each_model!(holds);

#[test]
fn a_fault_is_noticed() {
    let model = || try_all("relaxed", None, weakened::one_uses_while_another_closes);
    std::panic::catch_unwind(model).expect_err("relaxed atomics let a value be dropped in use");
    let model = || try_all("relaxed", None, weakened::a_stale_user_sees_nothing_of_the_next_value);
    std::panic::catch_unwind(model).expect_err("relaxed atomics show a value before it is written");
}
