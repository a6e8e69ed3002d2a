//! The reason why a part of a device (its memory, its captures …) refuses a call.
//!
//! Owns: the status and the text of a refusal. A refusal together with its call becomes an error.

use seamalloc_driver::{Call, DriverError, Status};

/// The reason why a call is refused.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: Status,
    detail: String,
}

/// The answer of a part of the device, such as its memory, to a call.
pub(crate) type Answer<T> = Result<T, Refusal>;

pub(crate) fn refuse(status: Status, detail: String) -> Refusal {
    Refusal { status, detail }
}

impl Refusal {
    /// Returns the error of the call that is refused.
    pub(crate) fn into_error(self, call: Call) -> DriverError {
        DriverError::new(call, self.status, self.detail)
    }
}
