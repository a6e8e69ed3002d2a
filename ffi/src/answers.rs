//! Functions that make one call of an allocator and return its result to C.
//!
//! Owns: how a number of bytes and the number of a callback reach C, and the removal of a callback.

use crate::boundary::{call, optional_out};
use crate::ids::AllocatorId;
use crate::registry::borrow;
use crate::status::{Failure, Status};
use seamalloc::{Allocator, CallbackId, Result};
use std::ffi::c_void;

/// Makes a call that moves memory, and returns how many bytes it moved.
///
/// # Safety
/// `bytes` is NULL, or may be written to, and by nobody else during the call.
pub(crate) unsafe fn bytes_of(
    allocator: AllocatorId,
    bytes: *mut u64,
    ask: impl FnOnce(&Allocator) -> Result<u64>,
) -> Status {
    // SAFETY: the caller's promise.
    unsafe { optional_out(bytes, 0, || Ok(ask(&borrow(allocator)?.allocator)?)) }
}

/// Changes the size of an allocation.
pub(crate) fn resized(
    allocator: AllocatorId,
    address: *mut c_void,
    size: usize,
    resize: fn(&Allocator, u64, u64) -> Result<()>,
) -> Status {
    call(|| {
        let instance = borrow(allocator)?;
        Ok(instance.served(resize(&instance.allocator, address.addr() as u64, size as u64))?)
    })
}

/// Removes a callback by its number.
pub(crate) fn removed(allocator: AllocatorId, id: u64, remove: fn(&Allocator, CallbackId) -> bool) -> Status {
    call(|| match remove(&borrow(allocator)?.allocator, CallbackId::from_number(id)) {
        true => Ok(()),
        false => Err(Failure::argument(format_args!("there is no callback {id}"))),
    })
}
