//! A substitute for [`HostPages`] on systems other than Linux, where no driver is loaded.
//!
//! Owns: the answer that there are no pages.

use std::ffi::c_void;
use std::ptr;

/// Pages of this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pages;

impl Pages {
    pub(super) fn pointer(self) -> *mut c_void {
        ptr::null_mut()
    }
}

/// The reason why there are no pages.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("only Linux has pages for it")]
pub(super) struct NoPages;

impl NoPages {
    pub(super) fn is_out_of_memory(self) -> bool {
        false
    }

    pub(super) fn is_for_good(self) -> bool {
        true
    }
}

/// The system's pages.
#[derive(Debug, Default)]
pub(super) struct HostPages;

impl HostPages {
    pub(super) fn has_room(&self, _: usize) -> Result<(), NoPages> {
        Ok(())
    }

    pub(super) fn take(&self, _: usize) -> Result<Pages, NoPages> {
        Err(NoPages)
    }

    pub(super) fn give_back(&self, _: Pages) {}
}
