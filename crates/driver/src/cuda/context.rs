//! The primary context of one device: retained once, and made current around each call.
//!
//! Owns: the switch of the calling thread to this context for a call, and back to the thread's own context after the
//! call.

use std::ptr;

use super::api::CudaApi;
use super::error::MissingEntryPoint;
use super::ffi::{CUcontext, CUdevice};
use crate::Status;

/// The primary context, which every library of the process shares. [`PrimaryContext::release`] releases the context.
#[derive(Debug)]
pub(super) struct PrimaryContext {
    context: CUcontext,
    device: CUdevice,
}

// SAFETY: a context is not bound to the thread that retained it; libcuda locks for itself.
unsafe impl Send for PrimaryContext {}
// SAFETY: as above; no field is written after `retain`.
unsafe impl Sync for PrimaryContext {}

impl PrimaryContext {
    /// Retains the context by `cuDevicePrimaryCtxRetain`. `device` must come from `cuDeviceGet`.
    pub(super) fn retain(api: &CudaApi, device: CUdevice) -> Result<Result<Self, Status>, MissingEntryPoint> {
        let mut context = ptr::null_mut();
        // SAFETY: the pointer is to a live pointer; a device is an integer, which the driver checks.
        let status = unsafe { api.device_primary_ctx_retain(&mut context, device) }?;
        Ok(if status == Status::SUCCESS { Ok(Self { context, device }) } else { Err(status) })
    }

    /// Returns the raw context, which is live until [`Self::release`].
    pub(super) fn raw(&self) -> CUcontext {
        self.context
    }

    /// Runs `calls` with this context current on the calling thread.
    pub(super) fn while_current<T>(
        &self,
        api: &CudaApi,
        calls: impl FnOnce() -> Result<T, MissingEntryPoint>,
    ) -> Result<T, ContextError> {
        let _current = self.enter(api)?;
        Ok(calls()?)
    }

    fn enter<'a>(&self, api: &'a CudaApi) -> Result<Option<Entered<'a>>, ContextError> {
        let mut current = ptr::null_mut();
        // SAFETY: the pointer is to a live pointer.
        let answer = unsafe { api.ctx_get_current(&mut current) }?;
        // This is the common case: on a framework's threads the primary context is current already.
        if answer == Status::SUCCESS && current == self.context {
            return Ok(None);
        }
        // SAFETY: the context is retained until `release`.
        match unsafe { api.ctx_push_current(self.context) }? {
            Status::SUCCESS => Ok(Some(Entered { api })),
            status => Err(ContextError::Refused(status)),
        }
    }

    /// Releases the context by `cuDevicePrimaryCtxRelease`. The context must not be used afterwards.
    pub(super) fn release(&self, api: &CudaApi) {
        let release = if api.has("cuDevicePrimaryCtxRelease_v2") {
            CudaApi::device_primary_ctx_release_v2
        } else {
            CudaApi::device_primary_ctx_release
        };
        // SAFETY: the context was retained once, and is released only here.
        let answer = unsafe { release(api, self.device) };
        if answer != Ok(Status::SUCCESS) {
            tracing::debug!(?answer, device = self.device, "the primary context was not released");
        }
    }
}

/// The reason why a call could not be made.
#[derive(Debug)]
pub(super) enum ContextError {
    /// The driver is too old.
    Missing(MissingEntryPoint),
    /// The context could not be made current.
    Refused(Status),
}

impl From<MissingEntryPoint> for ContextError {
    fn from(missing: MissingEntryPoint) -> Self {
        Self::Missing(missing)
    }
}

/// Restores the thread's own context when dropped.
struct Entered<'a> {
    api: &'a CudaApi,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut ours = ptr::null_mut();
        // SAFETY: the pointer is to a live pointer; the popped context is the one that `enter` pushed.
        let answer = unsafe { self.api.ctx_pop_current(&mut ours) };
        if answer != Ok(Status::SUCCESS) {
            tracing::warn!(?answer, "the thread's own CUDA context was not restored");
        }
    }
}
