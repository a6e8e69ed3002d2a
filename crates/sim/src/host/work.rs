//! The kinds of work for a stream: kernels that fill, read or copy words, and pauses.
//!
//! Owns: the kinds of work, and the execution of a step. A step is short, so that streams interleave and the memory's
//! lock is held for a short time. Before each step the memory is checked again. Work on memory that was unmapped in the
//! meantime is a fault, as on a GPU, and does not end the process.

use std::fmt;
use std::sync::Arc;

use super::chunk::HostMemory;
use super::words::{self, WORD};
use crate::bookkeeping::{Answer, Fault, Range, refuse};
use seamalloc_driver::Status;
use seamalloc_driver::StreamId;

/// The bytes of a step.
const STEP: u64 = 256 << 10;
/// The words that are read or written at a time, so that they stay in the CPU's cache.
const BATCH: usize = 512;

/// A function that writes words into the slice: the words of a range from the given index on.
pub type MakeWords = dyn Fn(u64, &mut [u64]) + Send + Sync;
/// A function that gets words: the words of a range from the given index on.
pub type LookAtWords = dyn Fn(u64, &[u64]) + Send + Sync;

/// Work for a stream of a [`HostDriver`](super::HostDriver). The work reads and writes whole words of 8 bytes, as
/// relaxed atomics. Addresses and sizes are multiples of 8, except for [`Self::Set`] and [`Self::Use`].
#[derive(Clone)]
pub enum HostWork {
    /// Writes a range. The function makes some hundred words at a time, in order.
    Fill {
        /// The range that is written.
        to: Range,
        /// The function that makes the words.
        words: Arc<MakeWords>,
    },
    /// Reads a range. The function gets some hundred words at a time, in order.
    Look {
        /// The range that is read.
        at: Range,
        /// The function that gets the words.
        see: Arc<LookAtWords>,
    },
    /// Copies a range to another address. Source and target do not overlap.
    Copy {
        /// The range that is read.
        from: Range,
        /// The first address that is written.
        to: u64,
    },
    /// Sets every byte of a range with any address and size.
    Set {
        /// The range that is written.
        to: Range,
        /// The byte value that is written.
        value: u8,
    },
    /// Counts a range as used, without reading its words, until the stream reaches this work. Unmapping the memory
    /// before that is a fault.
    Use {
        /// The range that is used.
        range: Range,
    },
    /// Waits for this many nanoseconds.
    Pause {
        /// The length of the pause in nanoseconds.
        ns: u64,
    },
}

/// The progress of a piece of work after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The number of bytes that are done.
    Bytes(u64),
    Done,
}

impl HostWork {
    /// Returns the ranges that the work reads and writes.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range> {
        let (first, second) = match *self {
            Self::Fill { to: range, .. }
            | Self::Look { at: range, .. }
            | Self::Set { to: range, .. }
            | Self::Use { range } => (Some(range), None),
            Self::Copy { from, to } => (Some(from), Some(Range { address: to, size: from.size })),
            Self::Pause { .. } => (None, None),
        };
        first.into_iter().chain(second)
    }

    /// Refuses ranges that are not whole words, for work that reads or writes words.
    pub(super) fn check_words(&self) -> Answer<()> {
        if matches!(self, Self::Set { .. } | Self::Use { .. }) {
            return Ok(());
        }
        let not_words = |range: &Range| !range.address.is_multiple_of(WORD) || !range.size.is_multiple_of(WORD);
        match self.ranges().find(not_words) {
            Some(range) => Err(refuse(Status::INVALID_VALUE, format!("{range}: not whole words of {WORD} bytes"))),
            None => Ok(()),
        }
    }

    /// Carries out a step under the memory's lock, beginning at byte `done`.
    pub(super) fn step(&self, done: u64, memory: &HostMemory, stream: StreamId) -> Result<Progress, Fault> {
        let whole = self.ranges().next().map_or(0, |range| range.size);
        let step = (whole - done.min(whole)).min(STEP);
        for range in self.ranges() {
            memory.check_use(Range { address: range.address + done, size: step }, stream)?;
        }
        let mut buffer = [0; BATCH];
        let (mut at, end) = (done, done + step);
        if let Self::Set { to, value } = *self {
            // SAFETY: the step's range was just checked to be mapped with access, and the caller has the lock, without
            // which no memory is unmapped.
            unsafe { words::set_bytes(to.address + at, step, value) };
            at = end;
        }
        while at < end {
            let count = ((end - at) / WORD).min(BATCH as u64);
            let Some(batch) = buffer.get_mut(..count as usize) else { break };
            self.batch(at, batch);
            at += count * WORD;
        }
        Ok(if end >= whole { Progress::Done } else { Progress::Bytes(end) })
    }

    /// Carries out a part of a step.
    fn batch(&self, at: u64, batch: &mut [u64]) {
        let from = |address: u64, batch: &mut [u64]| {
            // SAFETY: the caller has checked that the step's range is mapped with access, and has the lock, without
            // which no memory is unmapped. Addresses and sizes are whole words, by check_words.
            unsafe { words::read(address + at, batch) }
        };
        let to = |address: u64, batch: &[u64]| {
            // SAFETY: as above.
            unsafe { words::write(address + at, batch) }
        };
        match self {
            Self::Fill { to: range, words } => {
                words(at / WORD, batch);
                to(range.address, batch);
            }
            Self::Look { at: range, see } => {
                from(range.address, batch);
                see(at / WORD, batch);
            }
            Self::Copy { from: range, to: address } => {
                from(range.address, batch);
                to(*address, batch);
            }
            Self::Set { .. } | Self::Use { .. } | Self::Pause { .. } => {}
        }
    }
}

/// Copies bytes, under the memory's lock. Refuses addresses that the device may not use.
pub(super) fn read_bytes(memory: &HostMemory, address: u64, bytes: &mut [u8]) -> Answer<()> {
    memory.check_usable(Range { address, size: bytes.len() as u64 }, StreamId::DEFAULT)?;
    // SAFETY: the range was just checked to be mapped with access, and the lock keeps it mapped.
    unsafe { words::read_bytes(address, bytes) };
    Ok(())
}

/// Sets bytes, under the memory's lock. Refuses addresses that the device may not use.
pub(super) fn write_bytes(memory: &HostMemory, address: u64, bytes: &[u8]) -> Answer<()> {
    memory.check_usable(Range { address, size: bytes.len() as u64 }, StreamId::DEFAULT)?;
    // SAFETY: the range was just checked to be mapped with access, and the lock keeps it mapped.
    unsafe { words::write_bytes(address, bytes) };
    Ok(())
}

/// Copies words, under the memory's lock. Refuses addresses that the device may not use.
pub(super) fn copy_words(memory: &HostMemory, from: Range, to: u64) -> Answer<()> {
    memory.check_copy(from, Range { address: to, size: from.size })?;
    let (copy, mut done) = (HostWork::Copy { from, to }, 0);
    let unusable = |fault: Fault| refuse(Status::INVALID_VALUE, fault.to_string());
    while let Progress::Bytes(so_far) = copy.step(done, memory, StreamId::DEFAULT).map_err(unusable)? {
        done = so_far;
    }
    Ok(())
}

impl fmt::Debug for HostWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fill { to, .. } => write!(f, "fill of {to}"),
            Self::Look { at, .. } => write!(f, "look at {at}"),
            Self::Copy { from, to } => write!(f, "copy of {from} to {to:#x}"),
            Self::Set { to, value } => write!(f, "set of {to} to {value:#04x}"),
            Self::Use { range } => write!(f, "use of {range}"),
            Self::Pause { ns } => write!(f, "pause of {ns} ns"),
        }
    }
}
