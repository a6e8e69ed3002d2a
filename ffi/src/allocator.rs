//! The functions of C that create and destroy an allocator, allocate and free memory, give free memory back, set
//! limits, and add callbacks for a lack of memory.

use crate::answers::{bytes_of, removed};
use crate::boundary::{self, User, call, optional_out, out_param, text, write_text};
use crate::idle;
use crate::ids::{AllocatorId, Stream};
use crate::instance::Instance;
use crate::registry::{self, borrow};
use crate::status::{Failure, Outcome, Status};
use seamalloc::{Allocator, Config, MemoryPressure as Pressure};
use std::ffi::{c_char, c_void};
use std::ptr;

/// The value of a memory limit that stands for no limit.
pub const NO_LIMIT: u64 = u64::MAX;

/// Creates an allocator, which holds no memory yet.
///
/// `device` is "cuda:0", "host:4GiB" for host memory (Linux; without a size, a quarter of the available memory), or a
/// simulated device that has no memory behind its addresses: "sim:h200,capacity=80GiB". "pinned:0" is page-locked host
/// memory for `seam_host_malloc`, on the NUMA node nearest to device 0 or on another node ("pinned:0,node=1").
/// `options` is a list in the syntax of PYTORCH_CUDA_ALLOC_CONF, "strategy:stitch,memory_limit:80GiB"; NULL and "" are
/// the defaults. After a failure `*allocator` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_create(
    device: *const c_char,
    options: *const c_char,
    allocator: *mut AllocatorId,
) -> Status {
    let create = || {
        // SAFETY: as for every function (see the top of `seamalloc.h`).
        let device = unsafe { text(device, "device") }?;
        // SAFETY: as above.
        let options = if options.is_null() { "" } else { unsafe { text(options, "options") }? };
        idle::add(Instance::open(device, options)?)
    };
    // SAFETY: as above.
    unsafe { out_param(allocator, 0, "allocator", create) }
}

/// Writes options, given as `seam_create` takes them, in a uniform form: each option that differs from its default,
/// once, or "" if none differs. Returns `SEAM_STATUS_OPTIONS` if the options cannot be read. The call creates no
/// allocator, so a process may read options before it forks. The buffer is as in `seam_stats_json`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_read_options(
    options: *const c_char,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    let read = || Ok(Config::parse(unsafe { text(options, "options") }?)?.to_string());
    // SAFETY: as above.
    unsafe { write_text(buffer, capacity, length, read) }
}

/// Destroys an allocator. Its handle is refused from now on. Free memory goes back to the device, after a wait for the
/// streams that still use some of it. Live blocks stay valid; the device gets their memory back only when the process
/// ends. If other threads are in a call with the allocator, or a callback of the allocator calls this function, the
/// allocator is destroyed when the last of these calls ends.
#[unsafe(no_mangle)]
pub extern "C" fn seam_destroy(allocator: AllocatorId) -> Status {
    call(|| registry::remove(allocator))
}

/// Allocates `size` bytes for work on `stream`, at an address that is a multiple of 512. For 0 bytes `*address` is
/// NULL, which is no error. After a failure `*address` is NULL too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_malloc(
    allocator: AllocatorId,
    size: usize,
    stream: Stream,
    address: *mut *mut c_void,
) -> Status {
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { out_param(address, ptr::null_mut(), "address", || allocate(&*borrow(allocator)?, size, stream)) }
}

/// Allocates `size` bytes that the CPU uses too, at an address that is a multiple of 512. The allocator must be of
/// "pinned:0", "host:4GiB", or a simulated device. Work on a stream may use the memory once `seam_record_stream` has
/// named the stream. Memory that `seam_free` freed is reused only when each stream that was named has passed all work
/// that it was given before the free, since no stream orders what the CPU does. For 0 bytes `*address` is NULL, which
/// is no error. After a failure `*address` is NULL too. Returns `SEAM_STATUS_INVALID_ARGUMENT` for memory of a GPU, and
/// with options that look at contents (`guard`, `spill`, `split:ungated`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_host_malloc(allocator: AllocatorId, size: usize, address: *mut *mut c_void) -> Status {
    let allocate = || {
        let instance = borrow(allocator)?;
        let own = instance.own.ok_or_else(|| {
            Failure::argument(
                "the CPU cannot use the memory of this allocator; expected one of pinned:0, without guard and split",
            )
        })?;
        instance.served_at(instance.allocator.allocate(size as u64, own))
    };
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { out_param(address, ptr::null_mut(), "address", allocate) }
}

#[inline]
pub(crate) fn allocate(instance: &Instance, size: usize, handle: Stream) -> Outcome<*mut c_void> {
    instance.served_at(instance.allocator.allocate(size as u64, boundary::stream(handle)?))
}

/// Frees an allocation, in the order of the stream that it was allocated for: later requests of this stream may get the
/// memory at once. NULL is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn seam_free(allocator: AllocatorId, address: *mut c_void) -> Status {
    call(|| Ok(borrow(allocator)?.allocator.free(address.addr() as u64)?))
}

/// Frees as `seam_free` does, for a program that names the stream of the last use. If the memory was allocated for
/// another stream, it is reused only after both streams have passed all work that they were given so far.
#[unsafe(no_mangle)]
pub extern "C" fn seam_free_on(allocator: AllocatorId, address: *mut c_void, stream: Stream) -> Status {
    call(|| free_on(&*borrow(allocator)?, address, stream))
}

/// Frees as `seam_free` does, for a program that has a current stream, as PyTorch has: work on the current stream may
/// use the memory although no `seam_record_stream` named the stream. The stream that the memory was allocated for may
/// get the memory at once. Other streams and the device get it once `stream` too has passed all work that it was given
/// so far.
#[unsafe(no_mangle)]
pub extern "C" fn seam_free_under(allocator: AllocatorId, address: *mut c_void, stream: Stream) -> Status {
    call(|| {
        let instance = borrow(allocator)?;
        if instance.is_pinned {
            // If the memory were free at once, the CPU would get it while work on `stream` still uses it.
            return free_on(&instance, address, stream);
        }
        Ok(instance.allocator.free_with_current_stream(address.addr() as u64, boundary::stream(stream)?)?)
    })
}

#[inline]
pub(crate) fn free_on(instance: &Instance, address: *mut c_void, handle: Stream) -> Outcome<()> {
    Ok(instance.allocator.free_on(address.addr() as u64, boundary::stream(handle)?)?)
}

/// Says that work on `stream` uses an allocation: after the free, its memory waits for this stream too. NULL is
/// ignored.
#[unsafe(no_mangle)]
pub extern "C" fn seam_record_stream(allocator: AllocatorId, address: *mut c_void, stream: Stream) -> Status {
    call(|| {
        let instance = borrow(allocator)?;
        Ok(instance.allocator.record_stream(address.addr() as u64, boundary::stream(stream)?)?)
    })
}

/// Says that the program is about to destroy `stream`. The call waits for the stream's work, and the allocator never
/// names the stream to the device again. Free memory of the stream serves other streams. Blocks that were allocated for
/// the stream stay valid and belong to no stream: if other streams continue to use them, say so with
/// `seam_record_stream`. The same handle later means a new stream. The call is refused while a stream is being
/// captured.
#[unsafe(no_mangle)]
pub extern "C" fn seam_forget_stream(allocator: AllocatorId, stream: Stream) -> Status {
    call(|| Ok(borrow(allocator)?.allocator.streams().forget(boundary::stream(stream)?)?))
}

/// Tells the allocator of a stream that may use the allocator's memory although no request, free or
/// `seam_record_stream` names the stream. While chunks are split under live addresses (the option `split`), the stream
/// stands still. Call `seam_forget_stream` before the stream is destroyed.
#[unsafe(no_mangle)]
pub extern "C" fn seam_announce_stream(allocator: AllocatorId, stream: Stream) -> Status {
    call(|| Ok(borrow(allocator)?.allocator.streams().announce(boundary::stream(stream)?)?))
}

/// Says that the owner of `stream` may destroy it without telling the allocator. From now on the allocator names the
/// stream to the device only in calls that name the stream, which must be live then: a request for the stream,
/// `seam_free_under` with the stream as the current one, and the free of an allocation for which `seam_record_stream`
/// named the stream. Memory that is freed in another call, or while the stream is being captured, serves other streams
/// only after a wait for the device. `seam_forget_stream` ends this.
#[unsafe(no_mangle)]
pub extern "C" fn seam_set_borrowed(allocator: AllocatorId, stream: Stream) -> Status {
    call(|| Ok(borrow(allocator)?.allocator.streams().mark_external(boundary::stream(stream)?)?))
}

/// Lets the device with this ordinal read and write all memory that the allocator holds and will hold.
#[unsafe(no_mangle)]
pub extern "C" fn seam_enable_peer_access(allocator: AllocatorId, ordinal: u32) -> Status {
    call(|| Ok(borrow(allocator)?.allocator.sharing().enable_peer_access(ordinal)?))
}

/// Returns how many bytes of the allocation that starts at `address` may be used: the requested bytes, rounded up
/// except in guard mode.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_size_of(allocator: AllocatorId, address: *mut c_void, size: *mut usize) -> Status {
    let look = || Ok(borrow(allocator)?.allocator.reports().size_of(address.addr() as u64)? as usize);
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { out_param(size, 0, "size", look) }
}

/// Gives back to the device all free memory that can go back, after a wait for the streams that still use some of it.
/// `given` gets the number of bytes given back; it may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_empty_cache(allocator: AllocatorId, given: *mut u64) -> Status {
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { bytes_of(allocator, given, Allocator::empty_cache) }
}

/// Gives free memory back to the device until `bytes` were given back, and hardly more. The call waits for streams only
/// if that is needed. `given` gets the number of bytes given back, which is less than `bytes` only if less is free; it
/// may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_trim(allocator: AllocatorId, bytes: u64, given: *mut u64) -> Status {
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { bytes_of(allocator, given, |allocator| allocator.trim(bytes)) }
}

/// Gives free memory back to the device until the bytes of the option `headroom` (1 GiB by default) are free again, or
/// until no more can go back without a wait. `given` gets the number of bytes given back; it may be NULL. Requests that
/// find no free block do this too, from time to time. A program without such requests calls this function before other
/// programs need memory. With `headroom:0B`, and during a stream capture, the call does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_keep_headroom(allocator: AllocatorId, given: *mut u64) -> Status {
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { optional_out(given, 0, || Ok(borrow(allocator)?.allocator.lending().enforce_headroom()?)) }
}

/// Limits the physical bytes that the allocator may hold at any moment; `SEAM_NO_LIMIT` lifts the limit. Free memory
/// beyond the limit is given back at once.
#[unsafe(no_mangle)]
pub extern "C" fn seam_set_memory_limit(allocator: AllocatorId, bytes: u64) -> Status {
    call(|| Ok(borrow(allocator)?.allocator.limits().set_bytes((bytes != NO_LIMIT).then_some(bytes))?))
}

/// Limits the memory that the allocator may hold to a fraction (0 to 1) of the device's memory, counted as PyTorch
/// counts it; 1 lifts the limit.
#[unsafe(no_mangle)]
pub extern "C" fn seam_set_memory_fraction(allocator: AllocatorId, fraction: f64) -> Status {
    call(|| Ok(borrow(allocator)?.allocator.limits().set_fraction(fraction)?))
}

/// Returns the largest fraction of the device's memory that the allocator may hold, as `seam_set_memory_fraction` or
/// the options have set it; 1 is no limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_get_memory_fraction(allocator: AllocatorId, fraction: *mut f64) -> Status {
    let look = || Ok(borrow(allocator)?.allocator.config().memory_fraction.unwrap_or(1.0));
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { out_param(fraction, 0.0, "fraction", look) }
}

/// Walks every table of the allocator and checks every rule that always holds. The call is slow and meant for tests.
/// Returns `SEAM_STATUS_INTERNAL` if a rule is broken.
#[unsafe(no_mangle)]
pub extern "C" fn seam_check(allocator: AllocatorId) -> Status {
    call(|| borrow(allocator)?.allocator.reports().check().map_err(|broken| Failure::new(Status::Internal, broken)))
}

/// The description of a request for which there is too little memory, which a callback gets. Sizes are in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemoryPressure {
    /// The size of this struct in the library: fields beyond this size do not exist.
    pub size: usize,
    /// The bytes that the program asked for.
    pub requested: u64,
    /// The stream of the request.
    pub stream: Stream,
    /// The bytes that the allocator holds of the device.
    pub reserved: u64,
    /// The part of `reserved` in blocks that the program has not freed.
    pub allocated: u64,
    /// The most bytes that the allocator may hold, or `SEAM_NO_LIMIT`.
    pub limit: u64,
}

/// Frees memory that the program can do without, and returns whether it freed some. The thread that makes the request
/// calls this function without a lock of the library, so the function may call every function of the library. Several
/// threads may call this function at once. The function must return (no exception, no longjmp).
pub type PressureCallback = Option<unsafe extern "C" fn(pressure: *const MemoryPressure, user: *mut c_void) -> bool>;

/// From now on `callback` is called when a request finds too little memory, before cached memory is given back for the
/// request. If the callback returns true, the request is tried again. Callbacks are called in the order in which they
/// were added. `id` gets a number by which the callback can be removed; it may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_on_memory_pressure(
    allocator: AllocatorId,
    callback: PressureCallback,
    user: *mut c_void,
    id: *mut u64,
) -> Status {
    let add = || {
        let callback = callback.ok_or_else(|| Failure::argument("callback is NULL"))?;
        let user = User::new(user);
        let callback = move |pressure: &Pressure| {
            let pressure = MemoryPressure {
                size: size_of::<MemoryPressure>(),
                requested: pressure.requested,
                stream: boundary::handle(pressure.stream),
                reserved: pressure.reserved,
                allocated: pressure.allocated,
                limit: pressure.limit.unwrap_or(NO_LIMIT),
            };
            // SAFETY: the caller promised that this call is allowed until the callback is removed.
            unsafe { callback(&raw const pressure, user.get()) }
        };
        Ok(borrow(allocator)?.allocator.limits().on_pressure(callback).number())
    };
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { optional_out(id, 0, add) }
}

/// Removes a callback. Another thread may still be in the callback. Returns `SEAM_STATUS_INVALID_ARGUMENT` if no
/// callback has this number.
#[unsafe(no_mangle)]
pub extern "C" fn seam_remove_memory_callback(allocator: AllocatorId, id: u64) -> Status {
    removed(allocator, id, |allocator, id| allocator.limits().remove_callback(id))
}
