//! Who asks other processes for memory.
//!
//! Owns: the trait that a crate outside of the core writes, and what others said last. `allocator/borrowing.rs` asks.

use crate::report::lending::{Lending, Lent, Shortage};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// In bytes: what is asked for beyond what is missing, for each time that it did not suffice. The driver was seen to refuse some
/// memory that it calls free.
const MORE_EACH_TIME: u64 = 32 << 20;
/// At least this part (1/n) of what is held is asked for. A process that grows asks every now and then so, and not for each block: before
/// it asks, its own memory has gone back, and the CPU has waited for the GPU.
const AHEAD: u64 = 8;
/// So often more is asked for.
const TIMES_MORE: u64 = 8;

/// Asks other processes on the same device to give free memory back, where the device has too little for a request.
/// `seamalloc_broker::Membership` is one; [`DeviceLending::set_lender`](crate::operations::DeviceLending::set_lender) takes it.
pub trait Lender: Send + Sync {
    /// Asks others for memory. It is called by the thread that makes the request, without any lock of the allocator, after
    /// everything that this process has free was given back. Several threads may be in it at once. The request is tried again
    /// whatever the answer; if it finds too little once more, and the answer says so, it asks again.
    ///
    /// It must return in bounded time, and may not allocate from the allocator.
    fn ask(&self, shortage: &Shortage) -> Lent;
}

/// What an allocator has to do with others on its device.
#[derive(Default)]
pub(crate) struct Borrowing {
    /// Who asks other processes for memory, if they may be asked.
    pub(crate) lender: Option<Arc<dyn Lender>>,
    /// What they said of the request that is being refused.
    pub(crate) told: Option<Lending>,
}

/// The questions of one request, and their bound: what is asked after each answer is tried once more, and the last answer is the
/// one that says so, or that comes when the time is over which a request may wait for others.
pub(crate) struct Asking {
    since: Instant,
    told: Option<Lending>,
    over: bool,
}

impl Asking {
    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), told: None, over: false }
    }

    /// Returns whether the last answer has come.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Returns what is asked for where so much is missing and so much is held.
    pub(crate) fn shortage(&mut self, missing: u64, held: u64) -> Shortage {
        let told = self.told.get_or_insert(Lending { missing, ..Lending::default() });
        let more = MORE_EACH_TIME.saturating_mul(u64::from(told.rounds).min(TIMES_MORE));
        let wanted = missing.saturating_add(more).max(held / AHEAD);
        Shortage { missing, wanted, held, since: self.since }
    }

    /// Notes an answer. Returns it, and whether it is to be asked again within so long.
    pub(crate) fn note(&mut self, lent: &Lent, longest: Duration) -> Lent {
        if let Some(told) = &mut self.told {
            told.add(lent, self.since);
        }
        let again = lent.again && self.since.elapsed() < longest;
        self.over = !again;
        Lent { again, ..*lent }
    }

    /// Returns what is to be said of it in a report.
    pub(crate) fn told(self) -> Option<Lending> {
        self.told
    }
}

/// Calls the program's lender. One that panics has given nothing.
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
