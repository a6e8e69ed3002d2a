//! Who asks other processes for memory.
//!
//! Owns: the trait that a crate outside of the core writes.

use crate::report::lending::{Lent, Shortage};

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
