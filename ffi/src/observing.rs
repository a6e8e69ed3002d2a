//! A callback of C's that is called for each event of an allocator.

use crate::boundary::{User, call};
use crate::ids::AllocatorId;
use crate::observers::{Callback, ObserverCallback};
use crate::registry::borrow;
use crate::status::Status;
use std::ffi::c_void;

/// From now on `observer` receives every event, in addition to the recorder; NULL ends this. Once the function has
/// returned, the previous observer is not called any more.
#[unsafe(no_mangle)]
pub extern "C" fn seam_observe(allocator: AllocatorId, observer: ObserverCallback, user: *mut c_void) -> Status {
    call(|| {
        let instance = borrow(allocator)?;
        // Other threads that change the callback wait.
        let mut known = instance.callback.lock();
        let user = User::new(user);
        let added = match observer {
            Some(function) => Some(instance.allocator.reports().add_observer(Box::new(Callback { function, user }))?),
            None => None,
        };
        if let Some(before) = std::mem::replace(&mut *known, added) {
            drop(instance.allocator.reports().remove_observer(before));
        }
        Ok(())
    })
}
