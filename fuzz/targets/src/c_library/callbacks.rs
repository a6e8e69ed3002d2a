//! The program's functions that the library calls.
//!
//! Owns: what they do: little, and now and then a call of the library, which is refused where the library says so.

use parking_lot::Mutex;
use seamalloc_c_library::allocator::{MemoryPressure, PressureCallback, seam_check};
use seamalloc_c_library::observers::{Event, ObserverCallback};
use seamalloc_c_library::pluggable::{MessageHandler, seam_set_message_handler};
use seamalloc_c_library::pools::PoolFilter;
use seamalloc_c_library::segments::{Block, Segment, SegmentVisitor};
use seamalloc_c_library::sleep::{SLEEP_AWAKE, SleepCallback, SleepNotice};
use seamalloc_c_library::sources::{SegmentAlloc, SegmentFree, SourceEnd};
use seamalloc_c_library::status::Status;
use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Addresses that no simulated device hands out.
const FIRST_OWN: usize = 0x1000_0000_0000;
static NEXT_OWN: AtomicUsize = AtomicUsize::new(FIRST_OWN);

pub(super) const PRESSURE: PressureCallback = Some(pressure);
pub(super) const SLEEP: SleepCallback = Some(sleep);
pub(super) const OBSERVER: ObserverCallback = Some(observer);
pub(super) const FILTER: PoolFilter = Some(filter);
pub(super) const VISITOR: SegmentVisitor = Some(visitor);
pub(super) const HANDLER: MessageHandler = Some(handler);
pub(super) const ALLOC: SegmentAlloc = Some(alloc);
pub(super) const FREE: SegmentFree = Some(free);
pub(super) const END: SourceEnd = Some(end);

/// The calls that callbacks make during an attack.
#[derive(Clone, Copy)]
pub(super) struct Attack {
    /// Calls the library.
    pub(super) call_back: fn(u64),
    /// Calls the library where it has to refuse.
    pub(super) is_refused: fn(),
}

pub(super) static ATTACK: Mutex<Option<Attack>> = Mutex::new(None);

fn call_back(user: *mut c_void) {
    let attack = *ATTACK.lock();
    if let Some(Attack { call_back, .. }) = attack {
        call_back(user.addr() as u64);
    }
}

fn is_refused() {
    let attack = *ATTACK.lock();
    if let Some(Attack { is_refused, .. }) = attack {
        is_refused();
    }
}

unsafe extern "C" fn pressure(_: *const MemoryPressure, user: *mut c_void) -> bool {
    call_back(user);
    user.addr() % 2 == 1
}

unsafe extern "C" fn sleep(notice: *const SleepNotice, user: *mut c_void) -> bool {
    // SAFETY: the library passes a live notice.
    let notice = unsafe { &*notice };
    assert!(notice.size == size_of::<SleepNotice>() && notice.stage <= SLEEP_AWAKE);
    call_back(user);
    user.addr() % 2 == 1
}

/// The observer is called under the allocator's lock, so that what it calls is refused.
unsafe extern "C" fn observer(_: *const Event, user: *mut c_void) {
    assert!(seam_check(user.addr() as u64) != Status::Ok, "an observer may not call the library");
}

unsafe extern "C" fn filter(stream: *mut c_void, user: *mut c_void) -> bool {
    is_refused();
    (stream.addr() ^ user.addr()).is_multiple_of(128)
}

unsafe extern "C" fn visitor(_: *const Segment, blocks: *const Block, count: usize, user: *mut c_void) {
    assert!(count == 0 || !blocks.is_null());
    call_back(user);
}

unsafe extern "C" fn handler(_: Status, text: *const c_char, _: *mut c_void) {
    assert!(!text.is_null());
}

/// Gives addresses that nothing lies behind: the library only counts them. Some requests fail, and some answers are wrong.
unsafe extern "C" fn alloc(bytes: usize, address: *mut *mut c_void, user: *mut c_void) -> i32 {
    is_refused();
    let given = match user.addr() % 8 {
        0 => return 2,
        1 => return 1,
        2 => 0,
        3 => 77,
        _ => NEXT_OWN.fetch_add(bytes.next_multiple_of(2 << 20), Relaxed),
    };
    // SAFETY: the library gives a place to write to.
    unsafe { *address = ptr::without_provenance_mut(given) };
    0
}

unsafe extern "C" fn free(_: *mut c_void, _: usize, user: *mut c_void) -> i32 {
    i32::from(user.addr() % 8 == 7)
}

unsafe extern "C" fn end(_: *mut c_void) {}

/// Messages go to a handler and not to standard error.
pub(super) fn take_messages() {
    assert!(seam_set_message_handler(HANDLER, ptr::null_mut()) == Status::Ok);
}
