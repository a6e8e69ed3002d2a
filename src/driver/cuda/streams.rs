//! Streams of a program's own, for programs that have none: a replay.
//!
//! Owns: which streams were made here; none else is ever destroyed. These are no calls of an allocator, and are not
//! counted.

use std::ptr;

use super::CudaOpenError;
use super::api::CudaApi;
use super::context::ContextError;
use super::device::{CudaDriver, failed, succeeded};
use super::error::MissingEntryPoint;
use super::ffi;
use crate::driver::{Status, StreamId};

impl CudaDriver {
    /// `cuStreamCreate`: a stream that does not wait for the default stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn create_stream(&self) -> Result<StreamId, CudaOpenError> {
        let mut stream = ptr::null_mut();
        // SAFETY: the pointer is to a live pointer.
        self.make("cuStreamCreate", |api| unsafe { api.stream_create(&mut stream, ffi::STREAM_NON_BLOCKING) })?;
        let stream = StreamId(stream.expose_provenance() as u64);
        self.streams.lock().insert(stream);
        Ok(stream)
    }

    /// `cuStreamDestroy`, for a stream of [`Self::create_stream`]. No allocator may still know it.
    ///
    /// # Errors
    /// [`Status::INVALID_HANDLE`] for any other stream; the driver's.
    pub fn destroy_stream(&self, stream: StreamId) -> Result<(), CudaOpenError> {
        const CALL: &str = "cuStreamDestroy";
        if !self.streams.lock().remove(&stream) {
            return Err(failed(self.api(), CALL, Status::INVALID_HANDLE));
        }
        // SAFETY: it came from cuStreamCreate and is destroyed for the first time.
        self.make(CALL, |api| unsafe { api.stream_destroy(ptr::with_exposed_provenance_mut(stream.0 as usize)) })
    }

    fn make(
        &self,
        call: &'static str,
        issue: impl FnOnce(&CudaApi) -> Result<Status, MissingEntryPoint>,
    ) -> Result<(), CudaOpenError> {
        match self.context.while_current(self.api(), || issue(self.api())) {
            Ok(status) => succeeded(self.api(), call, status),
            Err(ContextError::Missing(missing)) => Err(missing.into()),
            Err(ContextError::Refused(status)) => Err(failed(self.api(), "cuCtxPushCurrent", status)),
        }
    }
}
