//! The sources of page-locked memory: pages of the system that the driver locks, or memory of the driver's own.
//!
//! Owns: the order of the two sources, how memory is given back if a source fails, and when the first source is no
//! longer tried.
//!
//! ```text
//! host_pages.rs -> cuMemHostRegister     0.147 s a GiB, 0.018 to give it back
//!        | refused, with a warning; if the system lacks memory, this is the end: cuMemHostAlloc would need as much
//! cuMemHostAlloc                         0.355 s a GiB, 0.1 to give it back
//! ```
//! The times are of an H100's machine (docs/measurements/2026-11-25-page-locking). There cuMemHostAlloc pins shared
//! small pages of the system. Memory of either source counts against the limit of the process's control group.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::Ordering;

use super::api::CudaApi;
use super::device::CudaDriver;
use super::error::MissingEntryPoint;
use super::ffi;
use super::host_pages::{NoPages, Pages};
use super::locked_buffer::Origin;
use crate::Status;

/// The reason why pages of the system were not locked. All of the pages were given back.
#[derive(Debug, thiserror::Error)]
enum NotRegistered {
    #[error("{0}")]
    Missing(#[from] MissingEntryPoint),
    #[error("{0}")]
    NoPages(#[from] NoPages),
    #[error("cuMemHostRegister: {0}")]
    Refused(Status),
}

impl NotRegistered {
    fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::NoPages(why) if why.is_out_of_memory())
    }

    /// Returns whether the driver would refuse to lock later pages too.
    fn is_for_good(&self) -> bool {
        match self {
            Self::Missing(_) => true,
            Self::NoPages(why) => why.is_for_good(),
            Self::Refused(status) => matches!(*status, Status::NOT_SUPPORTED | Status::NOT_PERMITTED),
        }
    }
}

impl CudaDriver {
    /// Page-locks `bytes` bytes of the host, for all contexts. Returns the driver's error if no memory could be locked.
    pub(super) fn lock_memory(
        &self,
        api: &CudaApi,
        bytes: usize,
    ) -> Result<Result<(*mut c_void, Origin), Status>, MissingEntryPoint> {
        let short = |why: &dyn std::fmt::Display| {
            tracing::warn!(%why, bytes, "the host has too little memory for what is to be page-locked");
            Ok(Err(Status::OUT_OF_MEMORY))
        };
        if let Err(why) = self.host_pages.has_room(bytes) {
            return short(&why);
        }
        if self.registers_pages.load(Ordering::Relaxed) {
            match self.register_pages(api, bytes) {
                Ok(pages) => return Ok(Ok((pages.pointer(), Origin::System(pages)))),
                Err(why) if why.is_out_of_memory() => return short(&why),
                Err(why) => {
                    let for_good = why.is_for_good();
                    if for_good {
                        self.registers_pages.store(false, Ordering::Relaxed);
                    }
                    tracing::warn!(%why, bytes, for_good, "memory is page-locked by cuMemHostAlloc, which takes longer");
                }
            }
        }
        let mut pointer = ptr::null_mut();
        // SAFETY: the pointer is to a live pointer.
        let made = unsafe { api.mem_host_alloc(&mut pointer, bytes, ffi::HOST_ALLOC_PORTABLE) }?;
        Ok(if made == Status::SUCCESS { Ok((pointer, Origin::Driver)) } else { Err(made) })
    }

    /// Gives memory back that [`Self::lock_memory`] has locked. If the driver refuses, the memory stays locked.
    ///
    /// # Safety
    /// Nobody uses the memory, now or later, unless the call fails.
    pub(super) unsafe fn unlock_memory(
        &self,
        api: &CudaApi,
        (pointer, origin): (*mut c_void, Origin),
    ) -> Result<Status, MissingEntryPoint> {
        match origin {
            Origin::System(pages) => {
                // SAFETY: these pages were registered, and nobody uses them.
                let done = unsafe { api.mem_host_unregister(pointer) }?;
                if done == Status::SUCCESS {
                    self.host_pages.give_back(pages);
                }
                Ok(done)
            }
            // SAFETY: the memory came from cuMemHostAlloc, and nobody uses it.
            Origin::Driver => unsafe { api.mem_free_host(pointer) },
        }
    }

    fn register_pages(&self, api: &CudaApi, bytes: usize) -> Result<Pages, NotRegistered> {
        // Memory is not registered if the driver could not unregister it later.
        api.need("cuMemHostRegister_v2")?;
        api.need("cuMemHostUnregister")?;
        let pages = self.host_pages.take(bytes)?;
        // SAFETY: the pages have `bytes` bytes, and stay until they are unregistered.
        let answer = unsafe { api.mem_host_register(pages.pointer(), bytes, ffi::HOST_REGISTER_PORTABLE) };
        if answer == Ok(Status::SUCCESS) {
            return Ok(pages);
        }
        self.host_pages.give_back(pages);
        Err(NotRegistered::Refused(answer?))
    }
}
