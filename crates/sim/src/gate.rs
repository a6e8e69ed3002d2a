//! The gate for streams of a simulated GPU.
//!
//! Owns: the calls that a thread may not make while the gate is closed. On a real GPU a call that waits for a held
//! stream never returns. Here every call of the thread that closed the gate is refused, unless it belongs to virtual
//! memory management, and every call of another thread waits until the gate opens. `stream_gate.rs` has the calls.

use std::thread::{self, ThreadId};

use crate::bookkeeping::{Answer, refuse};
use seamalloc_driver::{Call, Status};

/// A gate, which may be closed.
#[derive(Debug, Default)]
pub(super) struct Gate {
    closed_by: Option<ThreadId>,
}

impl Gate {
    /// Closes the gate, or opens it.
    pub(super) fn set_closed(&mut self, closed: bool) {
        self.closed_by = closed.then(|| thread::current().id());
    }

    pub(super) fn is_closed_by_another(&self) -> bool {
        self.closed_by.is_some_and(|thread| thread != thread::current().id())
    }

    /// Refuses a call of the thread that closed the gate, unless the call belongs to virtual memory management.
    pub(super) fn refuse(&self, call: Call) -> Answer<()> {
        if self.closed_by.is_none() || call.is_of_virtual_memory() {
            return Ok(());
        }
        Err(refuse(Status::NOT_PERMITTED, "the call waits for streams that the gate holds, for ever".to_owned()))
    }
}
