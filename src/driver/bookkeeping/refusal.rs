//! Why a part of a device refuses a call.
//!
//! Owns: the status and the text, until the call is added and they become an error.

use crate::driver::{Call, DriverError, Status};

/// Why a call is refused.
#[derive(Debug)]
pub(in crate::driver) struct Refusal {
    pub(in crate::driver) status: Status,
    detail: String,
}

/// The answer of a part of the device to a call.
pub(in crate::driver) type Answer<T> = Result<T, Refusal>;

pub(in crate::driver) fn refuse(status: Status, detail: String) -> Refusal {
    Refusal { status, detail }
}

impl Refusal {
    /// Returns the error of the call that is refused.
    pub(in crate::driver) fn into_error(self, call: Call) -> DriverError {
        DriverError::new(call, self.status, self.detail)
    }
}
