//! The pair of functions that PyTorch and others load: `torch.cuda.memory.CUDAPluggableAllocator("libseamalloc.so",
//! "seamalloc_malloc", "seamalloc_free")`.
//!
//! Owns: one allocator for each device, made from the environment on the first use, and the messages for callers that
//! receive no status.

use crate::allocator::{allocate, free_on};
use crate::boundary::{User, call, out_param, text};
use crate::fork;
use crate::idle;
use crate::ids::{AllocatorId, Stream};
use crate::instance::Instance;
use crate::registry::borrow_forever;
use crate::status::{Failure, Outcome, Status, seam_last_error_text};
use parking_lot::Mutex;
use seamalloc::Config;
use std::cell::Cell;
use std::env;
use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::io::{self, Write};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most devices, more than any machine has.
const MAX_DEVICES: usize = 64;
/// The variable with the allocators' options.
const OPTIONS_VARIABLE: &str = "SEAMALLOC_CONF";
/// The variable with the value of the option `guard`, such as 1 to switch guard mode on. Further options may follow the
/// value.
const GUARD_VARIABLE: &str = "SEAMALLOC_GUARD";
/// The variable with a simulated device, in place of CUDA's.
const DEVICE_VARIABLE: &str = "SEAMALLOC_DEVICE";

/// The allocator of one device.
type Plugged = (AllocatorId, &'static Instance);

/// A device's allocator, once it was used.
struct Device {
    opened: OnceLock<Plugged>,
    /// A lock that is held while the allocator is opened. It has the error of invalid options, which is permanent.
    /// Other failures may be temporary, for example while others use up the device's memory.
    refused: Mutex<Option<(Status, String)>>,
    reported: AtomicBool,
}

/// The default options, which stand in front of the options of SEAMALLOC_CONF.
static DEFAULTS: Mutex<String> = Mutex::new(String::new());

static DEVICES: [Device; MAX_DEVICES] =
    [const { Device { opened: OnceLock::new(), refused: Mutex::new(None), reported: AtomicBool::new(false) } };
        MAX_DEVICES];

/// Allocates `size` bytes of a CUDA device for work on `stream`: the allocating half of PyTorch's pluggable signature.
///
/// Each device has an allocator of its own, created on first use with the options in the environment variable
/// SEAMALLOC_CONF (SEAMALLOC_GUARD=1 is short for `guard:on` there), and kept until the process ends; `seam_plugged`
/// returns its handle. With SEAMALLOC_DEVICE=sim:h200 (or another simulated device, or host:4GiB) all devices are of
/// this kind.
///
/// Returns NULL for 0 bytes, and after a failure. The last error of the thread says why the call failed, and so does a
/// message (`seam_set_message_handler`). If the allocator cannot be created at all, for example because the options
/// cannot be read, every call fails, but only one message is sent. In a forked child every call fails without a
/// message.
#[unsafe(no_mangle)]
pub extern "C" fn seamalloc_malloc(size: usize, device: c_int, stream: Stream) -> *mut c_void {
    let mut address = ptr::null_mut();
    let status = call(|| {
        address = allocate(plugged(device)?.1, size, stream)?;
        Ok(())
    });
    if status != Status::Ok {
        report(status, device);
    }
    address
}

/// Frees memory that `seamalloc_malloc` allocated for the same device: the freeing half of PyTorch's pluggable
/// signature. `size` is ignored. If the memory was allocated for a stream other than `stream`, it is reused only after
/// both streams have passed all work that they were given so far. NULL is ignored.
///
/// A call that fails (for memory that is freed twice, or is of another device or allocator) changes nothing, sets the
/// last error of the thread, and sends a message. In a forked child, which holds copies of its parent's pointers, the
/// call does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn seamalloc_free(address: *mut c_void, size: usize, device: c_int, stream: Stream) {
    let _ = size;
    if address.is_null() {
        return;
    }
    let status = call(|| free_on(plugged(device)?.1, address, stream));
    if status != Status::Ok {
        report(status, device);
    }
}

/// Returns the allocator behind `seamalloc_malloc` for a device, created now if it does not exist yet: for statistics,
/// limits, pools. This allocator cannot be destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_plugged(device: c_int, allocator: *mut AllocatorId) -> Status {
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { out_param(allocator, 0, "allocator", || Ok(plugged(device)?.0)) }
}

/// Sets options for the allocators behind `seamalloc_malloc` that apply where SEAMALLOC_CONF does not say otherwise.
/// Options of an earlier call are forgotten. Pass "sharing:never" for a program that calls `seamalloc_free` and uses an
/// allocation on other streams without naming them, as PyTorch's users do. The call is refused once an allocator was
/// requested.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_plugged_defaults(options: *const c_char) -> Status {
    call(|| {
        // SAFETY: as for every function (see the top of `seamalloc.h`).
        let options = unsafe { text(options, "options") }?;
        Config::parse(options)?;
        // The devices' locks are taken before the lock of the defaults, as in `open_first`.
        let refused = DEVICES.iter().any(|device| device.refused.lock().is_some());
        let mut defaults = DEFAULTS.lock();
        if refused || DEVICES.iter().any(|device| device.opened.get().is_some()) {
            return Err(Failure::argument("an allocator was made already, with the defaults of before"));
        }
        options.clone_into(&mut defaults);
        Ok(())
    })
}

/// Returns the allocators that were made so far.
pub(crate) fn opened() -> impl Iterator<Item = &'static Instance> {
    DEVICES.iter().filter_map(|device| device.opened.get()).map(|plugged| plugged.1)
}

#[inline]
pub(crate) fn plugged(device: c_int) -> Outcome<Plugged> {
    let slot = usize::try_from(device).ok().and_then(|index| DEVICES.get(index)).ok_or_else(|| no_device(device))?;
    match slot.opened.get() {
        Some(opened) => Ok(*opened),
        None => open_first(slot, device),
    }
}

#[cold]
fn open_first(slot: &Device, device: c_int) -> Outcome<Plugged> {
    // The library begins to notice forks before the lock is taken, so that every call fails in a child that is forked
    // while another thread holds the lock.
    fork::notice_forks()?;
    let mut refused = slot.refused.lock();
    if let Some(opened) = slot.opened.get() {
        return Ok(*opened);
    }
    if let Some((status, text)) = &*refused {
        return Err(Failure::new(*status, text.as_str()));
    }
    match open(device) {
        Ok(opened) => Ok(*slot.opened.get_or_init(|| opened)),
        Err(failure) => {
            if failure.status == Status::Options {
                *refused = Some((failure.status, failure.text.clone()));
            }
            Err(failure)
        }
    }
}

#[cold]
fn no_device(device: c_int) -> Failure {
    Failure::argument(format_args!("{device} is no device; expected 0 to {}", MAX_DEVICES - 1))
}

/// Returns the options of every device: the program's options, then the options of the environment.
fn options() -> Outcome<String> {
    let guard = variable(GUARD_VARIABLE)?.map(|value| format!("guard:{value}"));
    let parts = [Some(DEFAULTS.lock().clone()), guard, variable(OPTIONS_VARIABLE)?];
    let given: Vec<String> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
    Ok(given.join(","))
}

/// Returns whether a name is that of a device that needs no GPU.
fn is_no_gpu(name: &str) -> bool {
    name.starts_with("sim") || name.starts_with("host")
}

#[cold]
fn open(device: c_int) -> Outcome<Plugged> {
    let options = options()?;
    let name = match variable(DEVICE_VARIABLE)? {
        None => format!("cuda:{device}"),
        Some(name) if is_no_gpu(&name) => name,
        Some(name) => {
            return Err(Failure::new(
                Status::Device,
                format_args!(
                    "{DEVICE_VARIABLE} is `{name}`; expected a simulated device such as sim:h200, host:4GiB, or nothing"
                ),
            ));
        }
    };
    let mut instance = Instance::open(&name, &options).map_err(|failure| match failure.status {
        Status::Options => failure.prefix(format_args!("{OPTIONS_VARIABLE}: ")),
        _ => failure,
    })?;
    instance.is_permanent = true;
    if is_no_gpu(&name) {
        instance.set_ordinal(u32::try_from(device).unwrap_or_default());
    }
    borrow_forever(idle::add(instance)?)
}

/// Returns an environment variable; an empty one counts as none.
fn variable(name: &str) -> Outcome<Option<String>> {
    let text = env::var_os(name).map(OsString::into_string).transpose();
    let text = text.map_err(|_| Failure::new(Status::Options, format_args!("{name} is not UTF-8")))?;
    Ok(text.filter(|text| !text.is_empty()))
}

/// Returns the device whose allocator, among those of `seamalloc_malloc`, has the live allocation that starts at
/// `address`; -1 if none has. The function opens no device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_plugged_owner(address: *const c_void, device: *mut c_int) -> Status {
    let address = address.addr() as u64;
    let owns = |slot: &Device| slot.opened.get().is_some_and(|plugged| plugged.1.allocator.reports().owns(address));
    let find = || Ok(DEVICES.iter().position(owns).and_then(|index| c_int::try_from(index).ok()).unwrap_or(-1));
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { out_param(device, -1, "device", find) }
}

/// Returns the fraction of a device's memory that an allocator of `seamalloc_malloc` may hold once it is created, by
/// the options; 1 is no limit. The function opens no device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_plugged_memory_fraction(fraction: *mut f64) -> Status {
    let read = || Ok(Config::parse(&options()?)?.memory_fraction.unwrap_or(1.0));
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { out_param(fraction, 0.0, "fraction", read) }
}

/// Returns which devices have an allocator behind `seamalloc_malloc`: bit `n` is device `n`. Unlike `seam_plugged`, the
/// function creates none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_plugged_devices(devices: *mut u64) -> Status {
    let found = || Ok(opened().fold(0, |bits, instance| bits | 1 << (instance.ordinal & 63)));
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { out_param(devices, 0, "devices", found) }
}

/// Receives the message of a failed `seamalloc_malloc` or `seamalloc_free`. The text is valid during the call only. The
/// thread whose call failed calls this function, without a lock of the allocators. The function must return (no
/// exception, no longjmp).
pub type MessageHandler = Option<unsafe extern "C" fn(status: Status, text: *const c_char, user: *mut c_void)>;

static HANDLER: Mutex<(MessageHandler, User)> = Mutex::new((None, User::new(ptr::null_mut())));

/// From now on messages go to `handler` instead of a line on standard error; NULL restores the line. Another thread may
/// still be in the previous handler.
#[unsafe(no_mangle)]
pub extern "C" fn seam_set_message_handler(handler: MessageHandler, user: *mut c_void) -> Status {
    call(|| {
        *HANDLER.lock() = (handler, User::new(user));
        Ok(())
    })
}

/// Reports the last error of the thread. The error that a device has no allocator is reported only once.
#[cold]
pub(crate) fn report(status: Status, device: c_int) {
    thread_local! {
        static REPORTING: Cell<bool> = const { Cell::new(false) };
    }
    // A thread that does not exist in the child may have held the locks of standard error.
    if fork::is_child() {
        return;
    }
    let slot = usize::try_from(device).ok().and_then(|index| DEVICES.get(index));
    if let Some(slot) = slot
        && slot.opened.get().is_none()
        && slot.reported.swap(true, Ordering::Relaxed)
    {
        return;
    }
    // A handler that calls the failing functions again would be called without end.
    if REPORTING.try_with(|reporting| reporting.replace(true)).unwrap_or(true) {
        return;
    }
    let handler = {
        let held = HANDLER.lock();
        held.0.map(|handler| (handler, held.1.get()))
    };
    match handler {
        Some((handler, user)) => {
            // The handler's own calls may replace the last error.
            let text: CString = last_text();
            // SAFETY: the caller of `seam_set_message_handler` promised that this call is allowed.
            unsafe { handler(status, text.as_ptr(), user) };
        }
        // A closed standard error is ignored.
        None => drop(writeln!(io::stderr(), "seamalloc, device {device}: {}", last_text().to_string_lossy())),
    }
    let _ = REPORTING.try_with(|reporting| reporting.set(false));
}

fn last_text() -> CString {
    // SAFETY: the text is never NULL, ends in a NUL, and this thread has not failed since.
    unsafe { CStr::from_ptr(seam_last_error_text()) }.to_owned()
}
