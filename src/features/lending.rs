//! Who asks other processes for memory.
//!
//! Owns: the trait that a crate outside of the core writes, and what others said last. `allocator/borrowing.rs` asks.

use crate::report::lending::{Lending, Lent, Shortage};
use std::sync::Arc;

/// Asks other processes on the same device to give free memory back, where the device has too little for a request.
/// `seamalloc_broker::Membership` is one; [`Allocator::set_lender`](crate::Allocator::set_lender) takes it.
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
