//! Which streams reach libcuda, and how programs without streams of their own, such as a replay, make streams.
//!
//! Owns: the calls of [`Streams`], and which streams this driver created: only these streams can be destroyed. Creating
//! and destroying streams are not calls of an allocator, and are not counted.

use std::ptr;
use std::sync::atomic::Ordering;

use super::api::CudaApi;
use super::context::ContextError;
use super::device::{CudaDriver, stream_text};
use super::error::{CudaOpenError, MissingEntryPoint};
use super::ffi::{self, CUstream};
use crate::{Call, DriverError, DriverResult, Status, StreamId, Streams};

impl Streams for CudaDriver {
    fn canonical_stream(&self, stream: StreamId) -> DriverResult<StreamId> {
        match stream.0 {
            ffi::STREAM_LEGACY => Ok(StreamId::DEFAULT),
            ffi::STREAM_PER_THREAD => {
                let detail = "the per-thread default stream is a different one in each thread: memory cannot be reused \
                              in its order; name a stream that was created";
                Err(DriverError::new(Call::StreamNumber, Status::INVALID_HANDLE, detail))
            }
            _ => Ok(stream),
        }
    }

    fn stream_number(&self, stream: StreamId) -> DriverResult<Option<u64>> {
        // This check comes first, so that a stream for which the program does not vouch is refused with old drivers
        // too.
        let raw = self.raw_stream(Call::StreamNumber, stream)?;
        if raw.is_null() || !self.tells_streams_apart() {
            return Ok(None);
        }
        let mut number = 0;
        // SAFETY: the pointer is to a live integer, and the stream is alive (`raw_stream`).
        self.demand(Call::StreamNumber, || stream_text(stream), |api| unsafe { api.stream_get_id(raw, &mut number) })?;
        Ok(Some(number))
    }

    fn stream_synchronize(&self, stream: StreamId) -> DriverResult<()> {
        let raw = self.raw_stream(Call::StreamSynchronize, stream)?;
        // SAFETY: the stream is alive (`raw_stream`).
        self.demand(Call::StreamSynchronize, || stream_text(stream), |api| unsafe { api.stream_synchronize(raw) })
    }
}

impl CudaDriver {
    /// Creates a stream by `cuStreamCreate`, which does not wait for the default stream.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn create_stream(&self) -> Result<StreamId, CudaOpenError> {
        let mut stream = ptr::null_mut();
        // SAFETY: the pointer is to a live pointer.
        self.make("cuStreamCreate", |api| unsafe { api.stream_create(&mut stream, ffi::STREAM_NON_BLOCKING) })?;
        let stream = StreamId(stream.expose_provenance() as u64);
        self.streams.lock().insert(stream);
        Ok(stream)
    }

    /// Accepts every stream's handle from now on, whoever made the stream.
    ///
    /// # Safety
    /// The program vouches for every [`StreamId`] that reaches this driver from now on, through an allocator or
    /// directly, except the default stream and streams of [`Self::create_stream`]: each is the handle of a stream of
    /// this device's primary context, and the stream lives until the last call that names it has returned. An allocator
    /// may name a stream until `allocator.streams().forget`, or until it is dropped.
    pub unsafe fn trust_streams(&self) {
        self.trusts_streams.store(true, Ordering::Relaxed);
    }

    /// Returns the handle for libcuda, if the stream is the default stream, a live stream made here, or a stream for
    /// which the program vouches.
    pub(super) fn raw_stream(&self, call: Call, stream: StreamId) -> DriverResult<CUstream> {
        let canonical = self.canonical_stream(stream)?;
        let known = canonical == StreamId::DEFAULT
            || self.trusts_streams.load(Ordering::Relaxed)
            || self.streams.lock().contains(&canonical);
        if !known {
            let detail = format!("nobody vouches for stream {stream}, which was not made here, or was destroyed");
            return Err(DriverError::new(call, Status::INVALID_HANDLE, detail));
        }
        Ok(ptr::with_exposed_provenance_mut(canonical.0 as usize))
    }

    /// Returns whether the driver numbers streams. If the driver does not number them, this is logged once.
    fn tells_streams_apart(&self) -> bool {
        let Err(missing) = self.api.need("cuStreamGetId") else { return true };
        if self.tells_streams_apart.swap(false, Ordering::Relaxed) {
            tracing::warn!(
                %missing,
                "a stream at the address of a destroyed one will be taken for it, unless that one was forgotten"
            );
        }
        false
    }

    /// Destroys a stream of [`Self::create_stream`] by `cuStreamDestroy`. An allocator that knows the stream must
    /// forget it before (`allocator.streams().forget`).
    ///
    /// # Errors
    /// [`Status::INVALID_HANDLE`] for any other stream; the driver's error.
    pub fn destroy_stream(&self, stream: StreamId) -> Result<(), CudaOpenError> {
        const CALL: &str = "cuStreamDestroy";
        if !self.streams.lock().remove(&stream) {
            return Err(self.api().failed(CALL, Status::INVALID_HANDLE));
        }
        // SAFETY: the stream came from cuStreamCreate and is destroyed for the first time.
        self.make(CALL, |api| unsafe { api.stream_destroy(ptr::with_exposed_provenance_mut(stream.0 as usize)) })
    }

    /// Makes a driver call for the program, such as destroying a stream. The call is not counted, since only an
    /// allocator's calls are.
    pub(super) fn make(
        &self,
        call: &'static str,
        issue: impl FnOnce(&CudaApi) -> Result<Status, MissingEntryPoint>,
    ) -> Result<(), CudaOpenError> {
        match self.context.while_current(self.api(), || issue(self.api())) {
            Ok(status) => self.api().check(call, status),
            Err(ContextError::Missing(missing)) => Err(missing.into()),
            Err(ContextError::Refused(status)) => Err(self.api().failed("cuCtxPushCurrent", status)),
        }
    }
}
