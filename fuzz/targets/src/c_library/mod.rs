//! Calls of the C library: every function, with arguments that are right, stale, NULL, of another allocator, or nothing at all.
//!
//! What the header asks of a caller is kept: pointers are NULL or lead to as much memory as is said, texts end. All else may be
//! wrong. Whatever is called, no function answers that a rule of the library is broken, an error comes with its text, and at the
//! end every allocator passes its own check.
//!
//! ```text
//! attack       several threads at once, callbacks that call back, and every option
//! arguments    what a call is given, made of an input's bytes
//! callbacks    the program's functions that the library calls
//! calls        the functions there are
//! check        the check of every answer
//! process      the library before the first call and after the last
//! ```

#![allow(unsafe_code, reason = "the functions are C's")]

mod arguments;
mod attack;
mod callbacks;
mod calls;
mod check;
mod process;

pub use attack::{Reached, attack};

use arbitrary::Unstructured;
use arguments::Arguments;
use check::check;
use process::{begin, end};

/// Calls of an input at most.
const MAX_CALLS: usize = 200;

/// Makes the calls.
///
/// # Panics
/// An answer is wrong.
pub fn run(data: &[u8]) {
    let _alone = begin();
    let mut arguments = Arguments::new(Unstructured::new(data));
    arguments.create();
    for _ in 0..MAX_CALLS {
        let Some((name, answer)) = calls::make(&mut arguments) else { break };
        if let Some(status) = answer {
            check(name, status);
        }
        arguments.learn();
    }
    end(arguments);
}
