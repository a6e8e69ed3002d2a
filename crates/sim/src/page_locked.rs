//! Page-locked host memory beside a simulated GPU, and the engine that copies from and to it.
//!
//! Owns: the calls for this memory. Copies run one after the other at the speed of the link, in parallel with all other
//! work. The call itself changes the bytes, before the copy's simulated time has passed. Simulated kernels change bytes
//! in the same way.

use super::gpu::SimGpu;
use crate::bookkeeping::{Piece, Range};
use seamalloc_driver::{Call, DriverResult, HostBuffer, PageLocked, StreamId};

/// From this number on, numbers of physical memory stand for page-locked buffers of the host.
const NUMBERS: u64 = 1 << 63;

/// Returns the bytes of a buffer as a piece of memory.
fn piece(buffer: HostBuffer, offset: u64, size: u64) -> Piece {
    Piece { memory: NUMBERS + buffer.0, offset, size }
}

impl SimGpu {
    /// Makes a copy between the device and a buffer. `move_bytes` copies the contents.
    fn copy_of_host(
        &self,
        call: Call,
        (buffer, offset): (HostBuffer, u64),
        range: Range,
        move_bytes: impl FnOnce(&mut super::contents::Contents, Vec<Piece>, Vec<Piece>),
    ) -> DriverResult<()> {
        self.call(call, range.size, |state| {
            state.captures.refuse_unsafe()?;
            state.copies.buffers.check(buffer, offset, range.size)?;
            state.memory.check_usable(range, StreamId::DEFAULT)?;
            let ends = state.copies.ends.max(state.timeline.now());
            state.copies.ends = ends.saturating_add(self.config.profile.link(range.size));
            *state.copies.buffers.copying(buffer, offset, range.size)? = state.copies.ends;
            let host = vec![piece(buffer, offset, range.size)];
            move_bytes(&mut state.contents, state.memory.physical_at(range), host);
            Ok(())
        })
    }
}

impl PageLocked for SimGpu {
    fn host_malloc(&self, size: u64) -> DriverResult<HostBuffer> {
        self.call(Call::HostMalloc, size, |state| {
            state.captures.refuse_unsafe()?;
            state.copies.buffers.add(size, |_| Ok(0))
        })
    }

    fn host_free(&self, buffer: HostBuffer) -> DriverResult<()> {
        self.charged(Call::HostFree, 0, |state| {
            state.captures.refuse_unsafe()?;
            let (size, ends) = state.copies.buffers.remove(buffer)?;
            state.timeline.advance(ends.saturating_sub(state.timeline.now()));
            state.contents.forget(NUMBERS + buffer.0);
            Ok(((), self.config.profile.cost(Call::HostFree, size)))
        })
    }

    fn copy_out(&self, from: u64, buffer: HostBuffer, offset: u64, size: u64) -> DriverResult<()> {
        let from = Range { address: from, size };
        self.copy_of_host(Call::CopyOut, (buffer, offset), from, |contents, device, host| {
            contents.copy_pieces(device, host);
        })
    }

    fn copy_in(&self, buffer: HostBuffer, offset: u64, to: u64, size: u64) -> DriverResult<()> {
        let to = Range { address: to, size };
        self.copy_of_host(Call::CopyIn, (buffer, offset), to, |contents, device, host| {
            contents.copy_pieces(host, device);
        })
    }

    fn host_wait(&self, buffer: HostBuffer) -> DriverResult<()> {
        self.call(Call::HostWait, 0, |state| {
            state.captures.refuse_unsafe()?;
            let ends = *state.copies.buffers.waited(buffer)?;
            state.timeline.advance(ends.saturating_sub(state.timeline.now()));
            Ok(())
        })
    }

    fn host_bytes(
        &self,
        buffer: HostBuffer,
        offset: u64,
        size: u64,
        with: &mut dyn FnMut(&mut [u8]),
    ) -> DriverResult<()> {
        let refused = |refusal: crate::bookkeeping::Refusal| refusal.into_error(Call::HostWait);
        let whole = piece(buffer, offset, size);
        let mut bytes = {
            let state = &mut *self.state.lock();
            state.copies.buffers.bytes(buffer, offset, size).map_err(refused)?;
            let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
            state.contents.read(whole, &mut bytes);
            bytes
        };
        let before = bytes.clone();
        with(&mut bytes);
        if bytes != before {
            self.state.lock().contents.write(whole, &bytes);
        }
        Ok(())
    }
}
