//! The boundary to C: the first and last steps of every function.
//!
//! Owns: that no panic leaves the library, that no call is admitted at a forbidden moment, and that values from C are
//! checked before they are used.

use crate::fork;
use crate::ids::Stream;
use crate::status::{Failure, Outcome, Status, remember};
use seamalloc::driver::StreamId;
use std::any::Any;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr;

/// `cudaStreamLegacy`: the default stream by another name.
const STREAM_LEGACY: usize = 1;
/// `cudaStreamPerThread`: a different stream in each thread.
const STREAM_PER_THREAD: usize = 2;

/// The largest size that a struct of this library can have. If a struct says more, the caller has not set its size.
const MAX_STRUCT: usize = 64 << 10;

/// Runs the body of a function. An error of the body becomes the thread's last error.
#[inline]
pub(crate) fn call(body: impl FnOnce() -> Outcome<()>) -> Status {
    match catch_unwind(AssertUnwindSafe(|| fork::admit().and_then(|()| body()))) {
        Ok(Ok(())) => Status::Ok,
        Ok(Err(failure)) => remember(failure),
        Err(panic) => remember(panicked(panic)),
    }
}

/// Returns a panic as an error. The payload of the panic is dropped with care, because its destructor may panic too.
#[cold]
pub(crate) fn panicked(panic: Box<dyn Any + Send>) -> Failure {
    let said = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    drop(catch_unwind(AssertUnwindSafe(|| drop(panic))));
    Failure::new(Status::Internal, format_args!("internal error in seamalloc: a panic: {said}"))
}

/// Returns a text from C. `what` names the text in errors.
///
/// # Safety
/// `text` is NULL or ends in a NUL, and stays unchanged for `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Outcome<&'a str> {
    if text.is_null() {
        return Err(Failure::argument(format_args!("{what} is NULL")));
    }
    // SAFETY: it is not NULL; the rest is the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::argument(format_args!("{what} is not UTF-8: {}", text.to_string_lossy())))
}

/// Returns the name of a file from C, which need not be UTF-8.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn file<'a>(path: *const c_char) -> Outcome<&'a Path> {
    #[cfg(unix)]
    {
        use std::ffi::{CStr, OsStr};
        use std::os::unix::ffi::OsStrExt;
        if !path.is_null() {
            // SAFETY: it is not NULL; the rest is the caller's promise.
            return Ok(Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes())));
        }
    }
    // SAFETY: the caller's promise.
    Ok(Path::new(unsafe { text(path, "path") }?))
}

/// Runs the body of a function that returns a result to C at `place`. After any failure the result is `none`.
///
/// # Safety
/// `place` is NULL, or may be written to, and by nobody else during the call.
#[inline]
pub(crate) unsafe fn out_param<T: Copy>(
    place: *mut T,
    none: T,
    what: &str,
    body: impl FnOnce() -> Outcome<T>,
) -> Status {
    // SAFETY: the caller's promise.
    let place = unsafe { place.as_mut() };
    let Some(place) = place else {
        return call(|| Err(Failure::argument(format_args!("{what} is NULL"))));
    };
    *place = none;
    call(|| {
        *place = body()?;
        Ok(())
    })
}

/// Runs a body as [`out_param`] does, with an optional result: `place` may be NULL.
///
/// # Safety
/// As [`out_param`].
pub(crate) unsafe fn optional_out<T: Copy>(place: *mut T, none: T, body: impl FnOnce() -> Outcome<T>) -> Status {
    let mut unwanted = none;
    // SAFETY: the caller's promise.
    let place = unsafe { place.as_mut() }.unwrap_or(&mut unwanted);
    // SAFETY: `place` was made of a reference.
    unsafe { out_param(place, none, "", body) }
}

/// Returns whether `flags` has this flag, the only valid one.
pub(crate) fn has_flag(flags: u32, flag: u32, name: &str) -> Outcome<bool> {
    match flags {
        0 => Ok(false),
        _ if flags == flag => Ok(true),
        _ => Err(Failure::argument(format_args!("flags is {flags:#x}; expected 0 or {name}"))),
    }
}

/// Writes a text to a buffer of C's.
///
/// # Safety
/// `buffer` is NULL or may be written to for `capacity` bytes, `length` is NULL or may be written to.
pub(crate) unsafe fn write_text(
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
    text: impl FnOnce() -> Outcome<String>,
) -> Status {
    call(|| {
        let text = text()?;
        // SAFETY: the caller's promise.
        if let Some(length) = unsafe { length.as_mut() } {
            *length = text.len();
        }
        if capacity <= text.len() {
            let needed = text.len() + 1;
            return Err(Failure::new(
                Status::BufferTooSmall,
                format_args!("{needed} bytes are needed, with the NUL at the end; the buffer has {capacity}"),
            ));
        }
        if buffer.is_null() {
            return Err(Failure::argument("buffer is NULL"));
        }
        // SAFETY: the buffer is larger than the text.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, text.len());
            *buffer.add(text.len()) = 0;
        }
        Ok(())
    })
}

/// Fills in the fields of a struct that its caller knows.
///
/// # Safety
/// `to` is NULL, or a struct of C's begins there with its size in bytes, all of which may be written to. `T` is
/// `repr(C)`, begins with its size too, and has no padding.
pub(crate) unsafe fn fill<T>(to: *mut T, look: impl FnOnce() -> Outcome<T>) -> Status {
    call(|| {
        if to.is_null() {
            return Err(Failure::argument("stats is NULL"));
        }
        let known = size_of::<T>();
        // SAFETY: the caller's promise.
        let size = unsafe { *to.cast::<usize>() };
        // No struct has grown since its first version, so no caller has a smaller struct.
        if !(known..=MAX_STRUCT).contains(&size) {
            return Err(Failure::argument(format_args!(
                "the struct's size is {size}; set it to its sizeof ({known} in this library)"
            )));
        }
        let full = look()?;
        // SAFETY: both structs have `known` bytes, and the caller's has `size` bytes.
        unsafe {
            ptr::copy_nonoverlapping((&raw const full).cast::<u8>(), to.cast(), known);
            ptr::write_bytes(to.cast::<u8>().add(known), 0, size - known);
        }
        Ok(())
    })
}

/// Returns a device address as a pointer of C.
#[inline]
pub(crate) fn pointer(address: u64) -> *mut c_void {
    ptr::without_provenance_mut(address as usize)
}

/// Returns an allocator's stream as a handle of C.
pub(crate) fn handle(stream: StreamId) -> Stream {
    ptr::with_exposed_provenance_mut(stream.0 as usize)
}

/// Returns C's stream as the allocator's.
#[inline]
pub(crate) fn stream(handle: Stream) -> Outcome<StreamId> {
    match handle.addr() {
        STREAM_LEGACY => Ok(StreamId::DEFAULT),
        STREAM_PER_THREAD => Err(per_thread()),
        // The provenance of the handle is exposed, because the driver converts the number back to a pointer.
        _ => Ok(StreamId(handle.expose_provenance() as u64)),
    }
}

#[cold]
fn per_thread() -> Failure {
    let text = "cudaStreamPerThread is a different stream in each thread: memory cannot be reused in its order; name a \
                stream that was created";
    Failure::new(Status::InvalidStream, text)
}

/// The user pointer of C's callbacks.
pub(crate) struct User(*mut c_void);

// SAFETY: the library does not dereference the pointer; `seamalloc.h` says that any thread calls callbacks.
unsafe impl Send for User {}
// SAFETY: as above.
unsafe impl Sync for User {}

impl User {
    pub(crate) const fn new(user: *mut c_void) -> Self {
        Self(user)
    }

    pub(crate) fn get(&self) -> *mut c_void {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{seam_clear_last_error, seam_last_error, seam_last_error_text};

    fn last_text() -> String {
        // SAFETY: the text is never NULL and ends in a NUL.
        unsafe { CStr::from_ptr(seam_last_error_text()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_is_an_error() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("and again");
            }
        }
        assert_eq!(call(|| panic!("something {}", "broke")), Status::Internal);
        assert_eq!(seam_last_error(), Status::Internal);
        assert!(last_text().contains("something broke"), "{}", last_text());
        assert_eq!(call(|| std::panic::panic_any(Bomb)), Status::Internal);
        assert_eq!(call(|| Ok(())), Status::Ok);
        assert_eq!(seam_last_error(), Status::Internal, "success leaves the last error");
        seam_clear_last_error();
        assert_eq!((seam_last_error(), last_text()), (Status::Ok, String::new()));
    }

    #[test]
    fn a_text_with_a_nul_is_kept_without_it() {
        assert_eq!(call(|| Err(Failure::argument("a\0b"))), Status::InvalidArgument);
        assert_eq!(last_text(), "ab");
    }

    #[test]
    fn results_are_none_where_a_call_fails() {
        let mut place = 5;
        // SAFETY: the place is a live integer, or NULL.
        unsafe {
            assert_eq!(out_param(&raw mut place, 0, "place", || Ok(7)), Status::Ok);
            assert_eq!(place, 7);
            assert_eq!(out_param(&raw mut place, 0, "place", || Err(Failure::argument("no"))), Status::InvalidArgument);
            assert_eq!(place, 0);
            assert_eq!(
                out_param(ptr::null_mut(), 0, "place", || -> Outcome<i32> { panic!("not called") }),
                Status::InvalidArgument
            );
            assert!(last_text().contains("place is NULL"));
            assert_eq!(optional_out(ptr::null_mut(), 0, || Ok(7)), Status::Ok);
        }
    }
}
