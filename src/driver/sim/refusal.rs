//! Why a part of the simulated GPU refuses a call.
//!
//! Owns: the status and the text, until the call is added and they become an error.

use crate::driver::{Call, DriverError, Status};

/// Why a call is refused.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: Status,
    detail: String,
}

/// The answer of a part of the device to a call.
pub(super) type Answer<T> = Result<T, Refusal>;

pub(super) fn refuse(status: Status, detail: String) -> Refusal {
    Refusal { status, detail }
}

impl Refusal {
    /// Returns the error of the call that is refused.
    pub(super) fn into_error(self, call: Call) -> DriverError {
        DriverError::new(call, self.status, self.detail)
    }
}
