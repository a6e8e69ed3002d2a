//! Page-locked memory of the host device: ordinary memory of the process. A copy is done when its call returns.
//!
//! Owns: the part of the device that each call for such memory uses.

use super::device::HostDriver;
use super::state::State;
use super::work::{read_bytes, write_bytes};
use crate::bookkeeping::{Answer, refuse};
use seamalloc_driver::{Call, DriverResult, HostBuffer, PageLocked, Status};

impl PageLocked for HostDriver {
    fn host_malloc(&self, size: u64) -> DriverResult<HostBuffer> {
        self.locked(Call::HostMalloc, |state| {
            state.captures.refuse_unsafe()?;
            state.buffers.add(size, |_| bytes_of(size))
        })
    }

    fn host_free(&self, buffer: HostBuffer) -> DriverResult<()> {
        self.locked(Call::HostFree, |state| {
            state.captures.refuse_unsafe()?;
            state.buffers.remove(buffer).map(drop)
        })
    }

    fn copy_out(&self, from: u64, buffer: HostBuffer, offset: u64, size: u64) -> DriverResult<()> {
        self.locked(Call::CopyOut, |state| {
            let State { memory, captures, buffers, .. } = state;
            captures.refuse_unsafe()?;
            buffers.check(buffer, offset, size)?;
            // A refused copy makes no buffer busy.
            memory.check_usable(crate::bookkeeping::Range { address: from, size }, Default::default())?;
            let bytes = part(buffers.copying(buffer, offset, size)?, offset, size)?;
            read_bytes(memory, from, bytes)
        })
    }

    fn copy_in(&self, buffer: HostBuffer, offset: u64, to: u64, size: u64) -> DriverResult<()> {
        self.locked(Call::CopyIn, |state| {
            let State { memory, captures, buffers, .. } = state;
            captures.refuse_unsafe()?;
            buffers.check(buffer, offset, size)?;
            memory.check_usable(crate::bookkeeping::Range { address: to, size }, Default::default())?;
            let bytes = part(buffers.copying(buffer, offset, size)?, offset, size)?;
            write_bytes(memory, to, bytes)
        })
    }

    fn host_wait(&self, buffer: HostBuffer) -> DriverResult<()> {
        self.locked(Call::HostWait, |state| {
            state.captures.refuse_unsafe()?;
            state.buffers.waited(buffer).map(|_| ())
        })
    }

    fn host_bytes(
        &self,
        buffer: HostBuffer,
        offset: u64,
        size: u64,
        with: &mut dyn FnMut(&mut [u8]),
    ) -> DriverResult<()> {
        let mut state = self.shared.state.write();
        let bytes = state.buffers.bytes(buffer, offset, size).and_then(|bytes| part(bytes, offset, size));
        with(bytes.map_err(|refusal| refusal.into_error(Call::HostWait))?);
        Ok(())
    }
}

fn bytes_of(size: u64) -> Answer<Vec<u8>> {
    let short = || refuse(Status::OUT_OF_MEMORY, format!("{size} bytes of the host"));
    let size = usize::try_from(size).map_err(|_| short())?;
    seamalloc_driver::fallible::zeros(size).map_err(|_| short())
}

/// Returns a part of a buffer. The caller has checked the part.
fn part(bytes: &mut [u8], offset: u64, size: u64) -> Answer<&mut [u8]> {
    let (from, to) = (offset as usize, offset.saturating_add(size) as usize);
    bytes.get_mut(from..to).ok_or_else(|| refuse(Status::INVALID_VALUE, format!("{size} bytes from {offset} on")))
}
