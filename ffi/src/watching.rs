//! Who is told of what happens in an allocator: its recorder, and a callback of C's.
//!
//! Owns: that both hear of every event, since an allocator has one observer.

use crate::allocator::User;
use crate::boundary::call;
use crate::fork::in_callback;
use crate::instance::Instance;
use crate::pools::Pool;
use crate::registry::enter;
use crate::status::Status;
use crate::{AllocatorId, Stream};
use parking_lot::Mutex;
use seamalloc::observer::{Action as What, Event as Happened, Observer};
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// What happened. Names and meanings are those of PyTorch's memory snapshots.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// A block was handed out; bytes as requested.
    Alloc = 0,
    /// The program freed a block; bytes as requested.
    FreeRequested = 1,
    /// Every stream has finished with a freed block; bytes as requested.
    FreeCompleted = 2,
    /// A segment was taken from the driver.
    SegmentAlloc = 3,
    /// A segment was given back to the driver.
    SegmentFree = 4,
    /// Physical memory was mapped into a segment.
    SegmentMap = 5,
    /// Physical memory was unmapped from a segment and given back.
    SegmentUnmap = 6,
    /// A request could not be met. The address holds the device's free bytes.
    Oom = 7,
    /// Memory left a segment for another, of which the next `SEAM_ACTION_SEGMENT_JOINED` tell: a stitched block, which is a
    /// segment of its own as long as it is live, took it or gave it back, or it serves other requests. To the driver
    /// nothing changed; PyTorch's snapshots call it `segment_unmap`.
    SegmentLeft = 8,
    /// Memory that had left other segments is part of this one; PyTorch's snapshots call it `segment_map`.
    SegmentJoined = 9,
}

impl From<What> for Action {
    fn from(action: What) -> Self {
        match action {
            What::Alloc => Self::Alloc,
            What::FreeRequested => Self::FreeRequested,
            What::FreeCompleted => Self::FreeCompleted,
            What::SegmentAlloc => Self::SegmentAlloc,
            What::SegmentFree => Self::SegmentFree,
            What::SegmentMap => Self::SegmentMap,
            What::SegmentUnmap => Self::SegmentUnmap,
            What::SegmentLeft => Self::SegmentLeft,
            What::SegmentJoined => Self::SegmentJoined,
            What::Oom => Self::Oom,
        }
    }
}

/// One thing that happened in an allocator.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Of this struct, in the library: fields beyond it are not there.
    pub size: usize,
    /// What.
    pub action: Action,
    /// Where.
    pub address: u64,
    /// How many bytes.
    pub bytes: u64,
    /// On which stream.
    pub stream: Stream,
    /// Of which private pool; both 0 of none.
    pub pool: Pool,
}

/// Is told what happens. Called under the allocator's lock, by the thread whose call it is: it must be quick, call nothing
/// of this library (`SEAM_STATUS_REENTRANT`), and return (no exception, no longjmp).
pub type ObserverCallback = Option<unsafe extern "C" fn(event: *const Event, user: *mut c_void)>;

/// From now on `observer` is told of everything that changes, beside the recorder; NULL ends that. Once this returns, the
/// observer before is called no more.
#[unsafe(no_mangle)]
pub extern "C" fn seam_observe(allocator: AllocatorId, observer: ObserverCallback, user: *mut c_void) -> Status {
    call(|| {
        let instance = enter(allocator)?;
        // Whoever starts or stops the recorder waits.
        let _changing = instance.recorder.lock();
        let user = User::new(user);
        watch(&instance, |watchers| watchers.callback = observer.map(|callback| Callback { callback, user }));
        Ok(())
    })
}

struct Callback {
    callback: unsafe extern "C" fn(event: *const Event, user: *mut c_void),
    user: User,
}

/// All who are told.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) recorder: Option<Box<dyn Observer>>,
    callback: Option<Callback>,
}

/// All who are told, as the allocator's observer shares them.
#[derive(Default)]
pub(crate) struct Watchers(Mutex<Told>);

struct Fan(Arc<Watchers>);

impl Observer for Fan {
    fn event(&mut self, event: &Happened) {
        let mut told = self.0.0.lock();
        if let Some(recorder) = &mut told.recorder {
            recorder.event(event);
        }
        if let Some(Callback { callback, user }) = &told.callback {
            let event = Event {
                size: size_of::<Event>(),
                action: event.action.into(),
                address: event.address,
                bytes: event.size,
                stream: ptr::with_exposed_provenance_mut(event.stream.0 as usize),
                pool: Pool { first: event.pool.0, second: event.pool.1 },
            };
            // SAFETY: the caller of `seam_observe` promised that it may be called like this until it is replaced.
            in_callback(|| unsafe { callback(&raw const event, user.get()) });
        }
    }
}

/// Changes who is told. The caller holds the lock of the recorder, so that one changes it at a time.
pub(crate) fn watch(instance: &Instance, change: impl FnOnce(&mut Told)) {
    let mut told = instance.watchers.0.lock();
    change(&mut told);
    let anyone = told.recorder.is_some() || told.callback.is_some();
    // An event takes the allocator's lock first.
    drop(told);
    let observer = anyone.then(|| Box::new(Fan(Arc::clone(&instance.watchers))) as Box<dyn Observer>);
    drop(instance.allocator.observe(observer));
}
