//! The check of every answer of the C library.

use seamalloc_c_library::status::{Status, seam_last_error, seam_last_error_text};
use std::ffi::CStr;

/// An answer is no broken rule, and an error is told.
pub(super) fn check(name: &str, status: Status) {
    assert!(status != Status::Internal, "{name}: {}", last_text());
    if status != Status::Ok {
        assert!(
            seam_last_error() == status,
            "{name} answers {status:?}, and the last error is {:?}",
            seam_last_error()
        );
        assert!(!last_text().is_empty(), "{name} fails with {status:?} and says nothing");
    }
}

fn last_text() -> String {
    // SAFETY: the text is the library's, and valid until the next call that fails.
    unsafe { CStr::from_ptr(seam_last_error_text()) }.to_string_lossy().into_owned()
}
