//! The bytes of a real GPU's memory.
//!
//! Owns: the calls of [`Contents`], and the stream that copies run on. Copies do not wait for work of other streams,
//! and no other stream waits for copies.

use super::api::CudaApi;
use super::device::{CudaDriver, host_size, range_text};
use super::error::CudaOpenError;
use crate::{Call, Contents, DriverError, DriverResult, Status, StreamId};

impl Contents for CudaDriver {
    fn fill(&self, address: u64, size: u64, value: u8, stream: StreamId) -> DriverResult<()> {
        let bytes = host_size(Call::Fill, size)?;
        let raw = self.raw_stream(Call::Fill, stream)?;
        let arguments = || format!("{} on stream {stream}", range_text(address, size));
        // SAFETY: an address is an integer to the driver, which checks it; the stream is alive (`raw_stream`).
        self.demand(Call::Fill, arguments, |api| unsafe { api.memset_d8_async(address, value, bytes, raw) })
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> DriverResult<()> {
        let raw = self.raw_stream(Call::Read, self.own_stream(Call::Read)?)?;
        let size = bytes.len();
        let arguments = || range_text(address, size as u64);
        let copy = |api: &CudaApi| {
            // SAFETY: the buffer is live and has `size` bytes; the driver checks the address; the stream is alive.
            let copied = unsafe { api.memcpy_dtoh_async(bytes.as_mut_ptr().cast(), address, size, raw) }?;
            // After the wait no copy writes to the buffer, whether the copy succeeded or not. SAFETY: the stream is
            // alive.
            let waited = unsafe { api.stream_synchronize(raw) }?;
            Ok(if copied == Status::SUCCESS { waited } else { copied })
        };
        self.demand(Call::Read, arguments, copy)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> DriverResult<()> {
        let raw = self.raw_stream(Call::Write, self.own_stream(Call::Write)?)?;
        let size = bytes.len();
        let arguments = || range_text(address, size as u64);
        let copy = |api: &CudaApi| {
            // SAFETY: the buffer is live and has `size` bytes; the driver checks the address; the stream is alive.
            let copied = unsafe { api.memcpy_htod_async(address, bytes.as_ptr().cast(), size, raw) }?;
            // After the wait no copy reads the buffer, whether the copy succeeded or not. SAFETY: the stream is alive.
            let waited = unsafe { api.stream_synchronize(raw) }?;
            Ok(if copied == Status::SUCCESS { waited } else { copied })
        };
        self.demand(Call::Write, arguments, copy)
    }

    fn copy(&self, from: u64, to: u64, size: u64) -> DriverResult<()> {
        let raw = self.raw_stream(Call::Copy, self.own_stream(Call::Copy)?)?;
        let bytes = host_size(Call::Copy, size)?;
        let arguments = || format!("{} to {to:#x}", range_text(from, size));
        let copy = |api: &CudaApi| {
            // SAFETY: addresses are integers to the driver, which checks them; the stream is alive.
            let copied = unsafe { api.memcpy_async(to, from, bytes, raw) }?;
            // SAFETY: the stream is alive.
            let waited = unsafe { api.stream_synchronize(raw) }?;
            Ok(if copied == Status::SUCCESS { waited } else { copied })
        };
        self.demand(Call::Copy, arguments, copy)
    }
}

impl CudaDriver {
    /// Returns the stream for copies, and makes the stream at the first use. `call` is the call that errors name.
    pub(super) fn own_stream(&self, call: Call) -> DriverResult<StreamId> {
        let mut own = self.own_stream.lock();
        if let Some(stream) = *own {
            return Ok(stream);
        }
        let stream = self.create_stream().map_err(|error| {
            let status = if let CudaOpenError::Call { status, .. } = &error { *status } else { Status::UNKNOWN };
            DriverError::new(call, status, error.to_string())
        })?;
        *own = Some(stream);
        Ok(stream)
    }
}
