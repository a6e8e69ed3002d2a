//! The bytes of a real GPU's memory.
//!
//! Owns: the calls of [`Contents`], and the stream that copies to the CPU run on. Work of other streams does not hold
//! them up, and they hold up none.

use super::api::CudaApi;
use super::calls::{host_size, range_text};
use super::device::CudaDriver;
use super::error::CudaOpenError;
use crate::driver::{Call, Contents, DriverError, DriverResult, Status, StreamId};

impl Contents for CudaDriver {
    fn fill(&self, address: u64, size: u64, value: u8, stream: StreamId) -> DriverResult<()> {
        let bytes = host_size(Call::Fill, size)?;
        let raw = self.raw_stream(Call::Fill, stream)?;
        let arguments = || format!("{} on stream {stream}", range_text(address, size));
        // SAFETY: an address is an integer to the driver, which checks it; the stream is alive (`raw_stream`).
        self.demand(Call::Fill, arguments, |api| unsafe { api.memset_d8_async(address, value, bytes, raw) })
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> DriverResult<()> {
        let raw = self.raw_stream(Call::Read, self.reader()?)?;
        let size = bytes.len();
        let arguments = || range_text(address, size as u64);
        let copy = |api: &CudaApi| {
            // SAFETY: the buffer is live and has so many bytes; the driver checks the address; the stream is alive.
            let copied = unsafe { api.memcpy_dtoh_async(bytes.as_mut_ptr().cast(), address, size, raw) }?;
            // Whatever became of the copy, nothing writes to the buffer afterwards.
            // SAFETY: the stream is alive.
            let waited = unsafe { api.stream_synchronize(raw) }?;
            Ok(if copied == Status::SUCCESS { waited } else { copied })
        };
        self.demand(Call::Read, arguments, copy)
    }
}

impl CudaDriver {
    /// Returns the stream for copies to the CPU, which is made when it is first needed.
    fn reader(&self) -> DriverResult<StreamId> {
        let mut reader = self.reader.lock();
        if let Some(stream) = *reader {
            return Ok(stream);
        }
        let stream = self.create_stream().map_err(|error| {
            let status = if let CudaOpenError::Call { status, .. } = &error { *status } else { Status::UNKNOWN };
            DriverError::new(Call::Read, status, error.to_string())
        })?;
        *reader = Some(stream);
        Ok(stream)
    }
}
