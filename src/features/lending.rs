//! Requests to other processes for memory.
//!
//! Owns: the trait that a crate outside of the core implements, and the last answers of other processes.
//! `allocator/borrowing.rs` asks.

use crate::report::lending::{Lending, Lent, Shortage};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The bytes to ask for in addition to the missing bytes, for each earlier answer after which the request failed again.
/// The driver sometimes refuses memory that it reports as free.
const MORE_EACH_TIME: u64 = 32 << 20;
/// The least amount to ask other processes for, as a part (1/n) of the memory held. A growing process then asks seldom,
/// which saves time: before each question, it gives back its own free memory and the CPU waits for the GPU.
const AHEAD: u64 = 8;
/// The number of answers after which the bytes to ask for grow no more by [`MORE_EACH_TIME`].
const TIMES_MORE: u64 = 8;

/// Asks other processes on the same device to give free memory back if the device has too little for a request.
/// `seamalloc_broker::Membership` provides a lender, which
/// [`DeviceLending::set_lender`](crate::operations::DeviceLending::set_lender) takes.
pub trait Lender: Send + Sync {
    /// Asks other processes for memory. The thread that makes the request calls this method without a lock of the
    /// allocator, after all free memory of this process was given back. Several threads may call the method at the same
    /// time. The request is tried again after every answer. If it fails again and the answer has [`Lent::again`], the
    /// thread asks again.
    ///
    /// The call must return in bounded time, and must not allocate from the allocator.
    fn ask(&self, shortage: &Shortage) -> Lent;
}

/// The state of an allocator toward other processes on its device.
#[derive(Default)]
pub(crate) struct Borrowing {
    /// The lender that asks other processes for memory, if any.
    pub(crate) lender: Option<Arc<dyn Lender>>,
    /// The answers of other processes to the request that is being refused.
    pub(crate) told: Option<Lending>,
}

/// The questions of one request to other processes, and their time limit. The request is tried again after each answer.
/// The questions end with an answer whose `again` (ask again) is false, or with the first answer after the time limit.
pub(crate) struct Asking {
    since: Instant,
    told: Option<Lending>,
    over: bool,
}

impl Asking {
    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), told: None, over: false }
    }

    /// Returns whether the questions have ended.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Returns the shortage to report to other processes if `missing` bytes are missing and `held` bytes are held.
    pub(crate) fn shortage(&mut self, missing: u64, held: u64) -> Shortage {
        let told = self.told.get_or_insert_with(|| {
            let mut told = Lending::default();
            told.missing = missing;
            told
        });
        let more = MORE_EACH_TIME.saturating_mul(u64::from(told.rounds).min(TIMES_MORE));
        let mut shortage = Shortage::new(missing, held);
        shortage.wanted = missing.saturating_add(more).max(held / AHEAD);
        shortage.since = self.since;
        shortage
    }

    /// Notes an answer. Returns the answer, with `again` cleared once `longest` has passed.
    pub(crate) fn note(&mut self, lent: &Lent, longest: Duration) -> Lent {
        if let Some(told) = &mut self.told {
            told.rounds = told.rounds.saturating_add(1);
            told.processes = lent.processes;
            told.given = told.given.saturating_add(lent.given);
            (told.held, told.live, told.guaranteed) = (lent.held, lent.live, lent.guaranteed);
            told.waited_ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        }
        let again = lent.again && self.since.elapsed() < longest;
        self.over = !again;
        Lent { again, ..*lent }
    }

    /// Returns the questions and answers for a report.
    pub(crate) fn told(self) -> Option<Lending> {
        self.told
    }
}

/// Calls the program's lender. A lender that panics has given nothing.
pub(crate) fn call(lender: Arc<dyn Lender>, shortage: &Shortage) -> Lent {
    let answer = catch_unwind(AssertUnwindSafe(|| {
        let answer = lender.ask(shortage);
        drop(lender);
        answer
    }));
    answer.unwrap_or_else(|_| {
        tracing::error!("a panic while other processes were asked for memory");
        Lent::default()
    })
}
