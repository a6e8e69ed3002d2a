//! The functions of the C library, each with arguments of its kinds. tests/functions.rs compares the list with the header.
//!
//! Owns: the list, and what is noted of a call that did what it was asked.

#![allow(clippy::undocumented_unsafe_blocks, reason = "what all calls keep is said once, above the list")]

use super::arguments::Arguments;
use super::callbacks::{ALLOC, END, FILTER, FREE, HANDLER, OBSERVER, PRESSURE, SLEEP, VISITOR};
use seamalloc_c_library::allocator::*;
use seamalloc_c_library::figures::*;
use seamalloc_c_library::growing::*;
use seamalloc_c_library::guard::*;
use seamalloc_c_library::hooks::*;
use seamalloc_c_library::live::*;
use seamalloc_c_library::observing::seam_observe;
use seamalloc_c_library::pluggable::*;
use seamalloc_c_library::pools::*;
use seamalloc_c_library::recording::*;
use seamalloc_c_library::segments::seam_visit_segments;
use seamalloc_c_library::shared_memory::*;
use seamalloc_c_library::sleep::*;
use seamalloc_c_library::sources::*;
use seamalloc_c_library::spill::*;
use seamalloc_c_library::status::*;
use seamalloc_c_library::{seam_abi_version, seam_version};
use std::ffi::c_void;
use std::ptr::{self, from_mut};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Blocks that a process shares at most: the descriptors that it sends stay open.
const MAX_SHARED: u32 = 50;
static SHARED: AtomicU32 = AtomicU32::new(0);

/// Makes one call. Returns the function's name and its answer, or `None` at the end of the input.
pub(super) fn make(a: &mut Arguments<'_>) -> Option<(&'static str, Option<Status>)> {
    let function = FUNCTIONS[a.function(FUNCTIONS.len())?];
    Some((function.0, (function.1)(a)))
}

/// Makes a call of the function with this name.
pub(super) fn make_named(a: &mut Arguments<'_>, name: &str) -> Option<(&'static str, Option<Status>)> {
    let function = FUNCTIONS.iter().find(|function| function.0 == name)?;
    Some((function.0, (function.1)(a)))
}

type Function = (&'static str, fn(&mut Arguments<'_>) -> Option<Status>);

/// Lists functions by name, each with its call.
macro_rules! functions {
    ($($name:ident $call:expr;)*) => {
        const FUNCTIONS: &[Function] = &[$((stringify!($name), $call)),*];
    };
}

// SAFETY of all calls: pointers are NULL or lead to `MEMORY` bytes that no other argument of the call has, of which as many may be
// used as is said; texts end; callbacks do not unwind.
functions! {
    seam_abi_version |_| { seam_abi_version(); None };
    seam_version |_| { seam_version(); None };
    seam_create |a| {
        let (device, options, wanted) = (a.device(), a.options(), a.flag());
        if !a.may_create() { return None }
        let place = if wanted { from_mut(&mut a.handle) } else { ptr::null_mut() };
        Some(unsafe { seam_create(device, options, place) })
    };
    seam_read_options |a| {
        let (options, buffer, capacity, length) = (a.options(), a.memory(), a.capacity(1), a.memory());
        Some(unsafe { seam_read_options(options, buffer, capacity, length) })
    };
    seam_destroy |a| {
        // Seldom, else there would be little to call.
        if a.small() > 0 || a.flag() { return None }
        let allocator = a.allocator();
        let done = seam_destroy(allocator);
        if done == Status::Ok { a.destroyed.push(allocator) }
        Some(done)
    };
    seam_malloc |a| {
        let (allocator, size, stream, wanted) = (a.allocator(), a.size(), a.stream(), a.small() > 0);
        let place = if wanted { from_mut(&mut a.address) } else { ptr::null_mut() };
        Some(unsafe { seam_malloc(allocator, size, stream, place) })
    };
    seam_free |a| {
        let (allocator, block) = (a.allocator(), a.block());
        freed(a, allocator, block, seam_free(allocator, block))
    };
    seam_free_on |a| {
        let (allocator, block, stream) = (a.allocator(), a.block(), a.stream());
        freed(a, allocator, block, seam_free_on(allocator, block, stream))
    };
    seam_free_under |a| {
        let (allocator, block, stream) = (a.allocator(), a.block(), a.stream());
        freed(a, allocator, block, seam_free_under(allocator, block, stream))
    };
    seam_record_stream |a| Some(seam_record_stream(a.allocator(), a.block(), a.stream()));
    seam_forget_stream |a| Some(seam_forget_stream(a.allocator(), a.stream()));
    seam_announce_stream |a| Some(seam_announce_stream(a.allocator(), a.stream()));
    seam_set_borrowed |a| Some(seam_set_borrowed(a.allocator(), a.stream()));
    seam_enable_peer_access |a| Some(seam_enable_peer_access(a.allocator(), a.small()));
    seam_size_of |a| Some(unsafe { seam_size_of(a.allocator(), a.block(), a.memory()) });
    seam_empty_cache |a| Some(unsafe { seam_empty_cache(a.allocator(), a.memory()) });
    seam_keep_headroom |a| Some(unsafe { seam_keep_headroom(a.allocator(), a.memory()) });
    seam_trim |a| Some(unsafe { seam_trim(a.allocator(), a.number(), a.memory()) });
    seam_set_memory_limit |a| Some(seam_set_memory_limit(a.allocator(), a.limit()));
    seam_set_memory_fraction |a| Some(seam_set_memory_fraction(a.allocator(), a.fraction()));
    seam_get_memory_fraction |a| Some(unsafe { seam_get_memory_fraction(a.allocator(), a.memory()) });
    seam_check |a| Some(seam_check(a.allocator()));
    seam_on_memory_pressure |a| {
        let (allocator, callback, user) = (a.allocator(), a.flag().then_some(PRESSURE).flatten(), user(a));
        Some(unsafe { seam_on_memory_pressure(allocator, callback, user, from_mut(&mut a.callback)) })
    };
    seam_remove_memory_callback |a| {
        let (allocator, callback) = (a.allocator(), a.callbacks.pop().unwrap_or(7));
        Some(seam_remove_memory_callback(allocator, callback))
    };
    seam_get_stats |a| Some(unsafe { seam_get_stats(a.allocator(), a.memory()) });
    seam_reset_peak_stats |a| Some(seam_reset_peak_stats(a.allocator()));
    seam_reset_accumulated_stats |a| Some(seam_reset_accumulated_stats(a.allocator()));
    seam_stats_json |a| Some(unsafe { seam_stats_json(a.allocator(), a.memory(), a.capacity(1), a.memory()) });
    seam_largest_free |a| Some(unsafe { seam_largest_free(a.allocator(), a.memory()) });
    seam_largest_request |a| Some(unsafe { seam_largest_request(a.allocator(), a.memory()) });
    seam_memory_info |a| Some(unsafe { seam_memory_info(a.allocator(), a.memory(), a.memory()) });
    seam_fragmentation_json |a| {
        Some(unsafe { seam_fragmentation_json(a.allocator(), a.memory(), a.capacity(1), a.memory()) })
    };
    seam_observe |a| {
        let allocator = a.allocator();
        let observer = a.flag().then_some(OBSERVER).flatten();
        Some(seam_observe(allocator, observer, ptr::without_provenance_mut(allocator as usize)))
    };
    seam_plugged |a| Some(unsafe { seam_plugged(a.int(), a.memory()) });
    seam_plugged_defaults |a| Some(unsafe { seam_plugged_defaults(a.options()) });
    seam_plugged_owner |a| {
        let (kind, at) = (a.flag(), a.block());
        let address = a.plugged.last().filter(|_| kind).map_or(at, |block| block.1);
        Some(unsafe { seam_plugged_owner(address, a.memory()) })
    };
    seam_plugged_memory_fraction |a| Some(unsafe { seam_plugged_memory_fraction(a.memory()) });
    seam_plugged_devices |a| Some(unsafe { seam_plugged_devices(a.memory()) });
    seam_set_message_handler |a| {
        // Without one, messages go to standard error.
        Some(seam_set_message_handler(HANDLER, user(a)))
    };
    seam_pool_create |a| {
        let (allocator, wanted) = (a.allocator(), a.small() > 0);
        let place = if wanted { from_mut(&mut a.pool_made) } else { ptr::null_mut() };
        Some(unsafe { seam_pool_create(allocator, place) })
    };
    seam_pool_open |a| Some(seam_pool_open(a.allocator(), a.pool()));
    seam_pool_retain |a| Some(seam_pool_retain(a.allocator(), a.pool()));
    seam_pool_release |a| Some(seam_pool_release(a.allocator(), a.pool()));
    seam_pool_malloc |a| {
        let (allocator, pool, size, stream) = (a.allocator(), a.pool(), a.size(), a.stream());
        Some(unsafe { seam_pool_malloc(allocator, pool, size, stream, from_mut(&mut a.address)) })
    };
    seam_pool_malloc_held |a| {
        let (allocator, pool, size, stream) = (a.allocator(), a.pool(), a.size(), a.stream());
        Some(unsafe { seam_pool_malloc_held(allocator, pool, size, stream, from_mut(&mut a.address)) })
    };
    seam_pool_begin_streams |a| {
        let (allocator, pool, streams, count) = (a.allocator(), a.pool(), a.memory(), a.capacity(size_of::<usize>()));
        Some(unsafe { seam_pool_begin_streams(allocator, pool, streams, count, a.small()) })
    };
    seam_pool_begin_thread |a| Some(seam_pool_begin_thread(a.allocator(), a.pool(), a.small()));
    seam_pool_begin_filter |a| {
        let (allocator, pool, filter) = (a.allocator(), a.pool(), a.flag().then_some(FILTER).flatten());
        Some(seam_pool_begin_filter(allocator, pool, filter, user(a), a.small()))
    };
    seam_pool_end |a| Some(seam_pool_end(a.allocator(), a.pool()));
    seam_pool_blocks |a| {
        let (allocator, pool, blocks, capacity) = (a.allocator(), a.pool(), a.memory(), a.capacity(size_of::<PoolBlock>()));
        Some(unsafe { seam_pool_blocks(allocator, pool, blocks, capacity, a.memory()) })
    };
    seam_pool_restore |a| {
        let (allocator, pool, blocks, count) = (a.allocator(), a.pool(), a.memory(), a.capacity(size_of::<PoolBlock>()));
        let done = unsafe { seam_pool_restore(allocator, pool, blocks, count) };
        // Blocks of the pool may be gone.
        a.blocks.retain(|(of, _)| *of != allocator);
        Some(done)
    };
    seam_pool_get_stats |a| Some(unsafe { seam_pool_get_stats(a.allocator(), a.pool(), a.memory()) });
    seam_pool_open_with |a| {
        let (allocator, pool, of_c, kind) = (a.allocator(), a.pool(), a.flag(), a.small());
        let (alloc, free) = if of_c { (ALLOC, FREE) } else { (ALLOC.filter(|_| kind == 1), FREE.filter(|_| kind == 2)) };
        Some(seam_pool_open_with(allocator, pool, alloc, free, END.filter(|_| kind < 2), user(a), a.small()))
    };
    seam_pool_create_tag |a| {
        let (allocator, wanted) = (a.allocator(), a.small() > 0);
        let place = if wanted { from_mut(&mut a.pool_made) } else { ptr::null_mut() };
        Some(unsafe { seam_pool_create_tag(allocator, place) })
    };
    seam_pool_open_tag |a| Some(seam_pool_open_tag(a.allocator(), a.pool()));
    seam_pool_sleep |a| {
        // No file of an input's own choice is made.
        let (allocator, pool, backup) = (a.allocator(), a.pool(), a.small());
        Some(unsafe { seam_pool_sleep(allocator, pool, backup, ptr::null(), a.memory()) })
    };
    seam_pool_wake |a| Some(unsafe { seam_pool_wake(a.allocator(), a.pool(), a.memory()) });
    seam_on_sleep |a| {
        let (allocator, callback, user) = (a.allocator(), a.flag().then_some(SLEEP).flatten(), user(a));
        Some(unsafe { seam_on_sleep(allocator, callback, user, from_mut(&mut a.callback)) })
    };
    seam_remove_sleep_callback |a| {
        let (allocator, callback) = (a.allocator(), a.callbacks.pop().unwrap_or(7));
        Some(seam_remove_sleep_callback(allocator, callback))
    };
    seam_release_backups |a| Some(unsafe { seam_release_backups(a.allocator(), a.memory()) });
    seam_pool_begin_other_threads |a| Some(seam_pool_begin_other_threads(a.allocator(), a.pool()));
    seam_advise |a| {
        let (allocator, block, advice) = (a.allocator(), a.block(), a.small());
        Some(seam_advise(allocator, block, advice))
    };
    seam_unspill |a| Some(unsafe { seam_unspill(a.allocator(), a.memory()) });
    seam_pool_set_unsplit |a| Some(seam_pool_set_unsplit(a.allocator(), a.pool()));
    seam_pool_empty |a| Some(unsafe { seam_pool_empty(a.allocator(), a.pool(), a.memory()) });
    seam_snapshot |a| Some(unsafe { seam_snapshot(a.allocator(), a.path()) });
    seam_record_start |a| {
        let (allocator, entries) = (a.allocator(), a.number());
        Some(seam_record_start(allocator, entries as usize))
    };
    seam_record_new |a| Some(seam_record_new(a.number() as usize));
    seam_record_stop |a| Some(seam_record_stop(a.allocator()));
    seam_record_write |a| Some(unsafe { seam_record_write(a.allocator(), a.path()) });
    seam_flight_write |a| Some(unsafe { seam_flight_write(a.allocator(), a.path()) });
    seam_serve |a| Some(unsafe { seam_serve(a.path()) });
    seam_serve_stop |_| Some(seam_serve_stop());
    seam_metrics |a| Some(unsafe { seam_metrics(a.memory(), a.capacity(1), a.memory()) });
    seam_explain |a| {
        Some(unsafe { seam_explain(a.allocator(), a.block(), a.memory(), a.capacity(1), a.memory()) })
    };
    seam_findings_json |a| Some(unsafe { seam_findings_json(a.allocator(), a.memory(), a.capacity(1), a.memory()) });
    seam_check_guards |a| Some(unsafe { seam_check_guards(a.allocator(), a.memory()) });
    seam_note_uses |a| {
        Some(unsafe { seam_note_uses(a.allocator(), a.memory(), a.capacity(size_of::<*const c_void>()), a.stream()) })
    };
    seam_note_event |a| Some(seam_note_event(a.allocator(), a.number(), a.stream()));
    seam_note_wait |a| Some(seam_note_wait(a.allocator(), a.stream(), a.number()));
    seam_log_summary |a| Some(seam_log_summary(a.allocator()));
    seam_whatif_json |a| {
        let (path, device, options) = (a.path(), a.device(), a.options());
        Some(unsafe { seam_whatif_json(path, device, options, a.memory(), a.capacity(1), a.memory()) })
    };
    seam_visit_segments |a| {
        let (allocator, visitor) = (a.allocator(), a.small() > 0);
        Some(seam_visit_segments(allocator, VISITOR.filter(|_| visitor), user(a)))
    };
    seam_share |a| {
        let (allocator, block) = (a.allocator(), a.block());
        if SHARED.fetch_add(1, Relaxed) >= MAX_SHARED { return None }
        Some(unsafe { seam_share(allocator, block, a.memory(), a.capacity(1), a.memory(), a.memory()) })
    };
    seam_open_shared |a| {
        let (allocator, handle, length) = (a.allocator(), a.memory(), a.capacity(1));
        // What is opened is closed at once, since it is no block.
        let mut address = ptr::null_mut();
        let done = unsafe { seam_open_shared(allocator, handle, length, &mut address) };
        if done == Status::Ok { seam_close_shared(allocator, address); }
        Some(done)
    };
    seam_close_shared |a| Some(seam_close_shared(a.allocator(), a.block()));
    seam_last_error |_| { seam_last_error(); None };
    seam_last_error_text |_| { seam_last_error_text(); None };
    seam_last_driver_status |_| { seam_last_driver_status(); None };
    seam_clear_last_error |_| { seam_clear_last_error(); assert!(seam_last_error() == Status::Ok); None };
    seam_status_name |a| { assert!(!seam_status_name(a.number() as i32).is_null()); None };
    seamalloc_malloc |a| {
        let device = a.int();
        let address = seamalloc_malloc(a.size(), device, a.stream());
        if !address.is_null() { a.plugged.push((device, address)) }
        None
    };
    seamalloc_free |a| {
        let wrong = (a.int(), a.block());
        let (device, address) = if a.small() > 0 { a.plugged.pop().unwrap_or(wrong) } else { wrong };
        seamalloc_free(address, a.size(), device, a.stream());
        None
    };
    seamalloc_record_stream |a| {
        let address = a.plugged.last().map_or(ptr::null_mut(), |block| block.1);
        seamalloc_record_stream(address, a.stream());
        None
    };
    seamalloc_empty_cache |_| { seamalloc_empty_cache(); None };
    seamalloc_set_memory_fraction |a| { seamalloc_set_memory_fraction(a.fraction(), a.int()); None };
    seamalloc_begin_pool |a| {
        seamalloc_begin_pool(a.int(), 0, 1 + u64::from(a.small()), ptr::null());
        None
    };
    seamalloc_end_pool |a| { seamalloc_end_pool(a.int(), 0, 1 + u64::from(a.small())); None };
    seamalloc_release_pool |a| { seamalloc_release_pool(a.int(), 0, 1 + u64::from(a.small())); None };
    // Functions that came later, so that stored inputs mean what they did.
    seam_fix_memory |a| Some(seam_fix_memory(a.allocator(), a.block()));
    seam_host_malloc |a| {
        let (allocator, size, wanted) = (a.allocator(), a.size(), a.small() > 0);
        let place = if wanted { from_mut(&mut a.address) } else { ptr::null_mut() };
        Some(unsafe { seam_host_malloc(allocator, size, place) })
    };
    seam_reserve |a| {
        let (allocator, capacity, stream, wanted) = (a.allocator(), a.size(), a.stream(), a.small() > 0);
        let place = if wanted { from_mut(&mut a.address) } else { ptr::null_mut() };
        Some(unsafe { seam_reserve(allocator, capacity, stream, place) })
    };
    seam_pool_reserve |a| {
        let (allocator, pool, capacity, stream) = (a.allocator(), a.pool(), a.size(), a.stream());
        Some(unsafe { seam_pool_reserve(allocator, pool, capacity, stream, from_mut(&mut a.address)) })
    };
    seam_grow |a| Some(seam_grow(a.allocator(), a.growing(), a.size()));
    seam_shrink |a| Some(seam_shrink(a.allocator(), a.growing(), a.size()));
    seam_resize |a| Some(seam_resize(a.allocator(), a.growing(), a.size()));
    seam_extent |a| Some(unsafe { seam_extent(a.allocator(), a.growing(), a.memory(), a.memory(), a.memory()) });
}

fn freed(a: &mut Arguments<'_>, allocator: u64, block: *mut c_void, done: Status) -> Option<Status> {
    if done == Status::Ok {
        a.freed(allocator, block);
    }
    Some(done)
}

fn user(a: &mut Arguments<'_>) -> *mut c_void {
    ptr::without_provenance_mut(a.small() as usize + 4 * a.small() as usize)
}
