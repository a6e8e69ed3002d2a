//! A callback of C's that is called for each event of an allocator.

use crate::boundary::{User, call};
use crate::ids::AllocatorId;
use crate::instance::Instance;
use crate::observers::{Callback, ObserverCallback, Observers};
use crate::registry::borrow;
use crate::status::Status;
use std::ffi::c_void;

/// From now on `observer` is told of everything that changes, beside the recorder; NULL ends that. Once this returns, the
/// observer before is called no more.
#[unsafe(no_mangle)]
pub extern "C" fn seam_observe(allocator: AllocatorId, observer: ObserverCallback, user: *mut c_void) -> Status {
    call(|| {
        let instance = borrow(allocator)?;
        // Whoever starts or stops the recorder waits.
        let _changing = instance.recorder.lock();
        let user = User::new(user);
        update_observers(&instance, |observers| {
            observers.callback = observer.map(|function| Callback { function, user });
        });
        Ok(())
    })
}

/// Changes the observers of an allocator. The caller holds the lock of the recorder, so that one changes them at a time.
pub(crate) fn update_observers(instance: &Instance, change: impl FnOnce(&mut Observers)) {
    // Not under the lock of the observers: an event takes the allocator's lock first.
    let observer = instance.observers.change(change);
    drop(instance.allocator.observe(observer));
}
