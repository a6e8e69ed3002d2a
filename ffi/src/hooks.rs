//! The optional hooks of PyTorch's pluggable allocator, beside `seamalloc_malloc` and `seamalloc_free`.
//!
//! The hooks return nothing: a failure sets the last error of the thread, and sends a message.

use crate::boundary::{self, call};
use crate::ids::{Pool, Stream};
use crate::pluggable::{opened, plugged, report};
use crate::status::{Outcome, Status};
use seamalloc::{Error, Route};
use std::ffi::{c_int, c_void};

/// Runs a hook. Messages name `device`.
fn hook(device: c_int, body: impl FnOnce() -> Outcome<()>) {
    let status = call(body);
    if status != Status::Ok {
        report(status, device);
    }
}

/// For `set_record_stream_fn`: work on `stream` uses an allocation of `seamalloc_malloc`, of whichever device.
#[unsafe(no_mangle)]
pub extern "C" fn seamalloc_record_stream(address: *mut c_void, stream: Stream) {
    hook(0, || {
        let (address, stream) = (address.addr() as u64, boundary::stream(stream)?);
        if address == 0 {
            return Ok(());
        }
        let mut result = Err(Error::InvalidAddress { address });
        for instance in opened() {
            result = instance.allocator.record_stream(address, stream);
            if !matches!(result, Err(Error::InvalidAddress { .. })) {
                break;
            }
        }
        Ok(result?)
    });
}

/// For `set_reset_fn`, which `torch.cuda.empty_cache` calls: gives back all free memory of every device, as
/// `seam_empty_cache`.
#[unsafe(no_mangle)]
pub extern "C" fn seamalloc_empty_cache() {
    hook(0, || Ok(opened().try_for_each(|instance| instance.allocator.empty_cache().map(|_| ()))?));
}

/// For `set_memory_fraction_fn`: as `seam_set_memory_fraction`.
#[unsafe(no_mangle)]
pub extern "C" fn seamalloc_set_memory_fraction(fraction: f64, device: c_int) {
    hook(device, || Ok(plugged(device)?.1.allocator.limits().set_fraction(fraction)?));
}

/// For `set_begin_allocate_to_pool`: all requests for the device go to the private pool, in every thread, as if a
/// stream were captured, until `seamalloc_end_pool`. PyTorch passes the pool as a pair, which arrives as two numbers,
/// and then a `std::function`, which is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn seamalloc_begin_pool(device: c_int, first: u64, second: u64, filter: *const c_void) {
    let _ = filter;
    hook(device, || {
        let (allocator, pool) = (&plugged(device)?.1.allocator, Pool { first, second }.id());
        allocator.pools().open(pool)?;
        if let Err(error) = allocator.pools().begin(pool, Route::when(|_| true).capturing()) {
            allocator.pools().release(pool)?;
            return Err(error.into());
        }
        Ok(())
    });
}

/// For `set_end_allocate_to_pool_fn`: requests no longer go to the private pool of `seamalloc_begin_pool`.
#[unsafe(no_mangle)]
pub extern "C" fn seamalloc_end_pool(device: c_int, first: u64, second: u64) {
    hook(device, || Ok(plugged(device)?.1.allocator.pools().end(Pool { first, second }.id())?));
}

/// For `set_release_pool`: ends one use of the private pool, as `seam_pool_release`.
#[unsafe(no_mangle)]
pub extern "C" fn seamalloc_release_pool(device: c_int, first: u64, second: u64) {
    hook(device, || Ok(plugged(device)?.1.allocator.pools().release(Pool { first, second }.id())?));
}
