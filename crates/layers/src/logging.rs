//! A layer that writes a line for each request and free, as RMM does.
//!
//! Owns: the format and the order of lines. The format is that of RMM's `logging_resource_adaptor`
//! (`logging_resource_adaptor_impl.cpp` lines 16 to 79: the header, the columns, `allocate`, `allocate failure` and
//! `free`; `format.hpp` `format_stream`), so that RMM's replay benchmark (`cpp/benchmarks/replay`) reads the lines, and
//! `seamalloc replay` reads them as RMM's own.
//!
//! ```text
//! Thread,Time,Action,Pointer,Size,Stream
//! 1,13:05:59.000214,allocate,0x7f2c40000000,1048576,0
//! 1,13:05:59.000391,free,0x7f2c40000000,1048576,0
//! ```
//! The time of day is UTC. Threads are numbered from 1. RMM's replay accepts only the default stream.

use crate::contract::{Layer, MemoryResource};
use crate::error::Result;
use parking_lot::{Mutex, MutexGuard};
use seamalloc::RawBlock;
use seamalloc::StreamId;
use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The first line of a log.
pub const LOG_HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream";

/// Writes a line for each request and free, in RMM's format.
///
/// A line that cannot be written does not fail the operation: the line is lost, and counted.
pub struct Logging<R, W> {
    upstream: R,
    log: Mutex<Log<W>>,
}

struct Log<W> {
    out: W,
    lost: u64,
}

impl<R: MemoryResource, W: Write + Send> Logging<R, W> {
    /// Makes a layer that writes to `out`, and writes the header. A file should be buffered ([`std::io::BufWriter`]).
    ///
    /// The layer calls `out` under its lock: `out` must not use the layer.
    ///
    /// # Errors
    /// The writer's error if the header could not be written.
    pub fn new(upstream: R, mut out: W) -> io::Result<Self> {
        writeln!(out, "{LOG_HEADER}")?;
        Ok(Self { upstream, log: Mutex::new(Log { out, lost: 0 }) })
    }

    /// Writes the buffered lines.
    ///
    /// # Errors
    /// The writer's error.
    pub fn flush(&self) -> io::Result<()> {
        self.log.lock().out.flush()
    }

    /// Returns how many lines could not be written.
    pub fn lost(&self) -> u64 {
        self.log.lock().lost
    }

    /// Calls `look` with the writer, under the lock.
    pub fn with_writer<T>(&self, look: impl FnOnce(&mut W) -> T) -> T {
        look(&mut self.log.lock().out)
    }
}

impl<R: fmt::Debug, W> fmt::Debug for Logging<R, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logging").field("upstream", &self.upstream).finish_non_exhaustive()
    }
}

/// Returns the number of the calling thread.
fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    // A thread that is ending has no number any more, and counts as 0.
    NUMBER.try_with(|number| *number).unwrap_or(0)
}

/// Prints a pointer as C's `%p` does.
struct Pointer(u64);

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { f.write_str("(nil)") } else { write!(f, "{:#x}", self.0) }
    }
}

/// Prints a stream as C++'s `<<` does.
struct Stream(StreamId);

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == StreamId::DEFAULT { f.write_str("0") } else { write!(f, "{}", self.0) }
    }
}

/// Prints the time of day.
struct Time(u128);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (micros, seconds) = (self.0 % 1_000_000, self.0 / 1_000_000 % 86_400);
        write!(f, "{:02}:{:02}:{:02}.{micros:06}", seconds / 3600, seconds / 60 % 60, seconds % 60)
    }
}

impl<W: Write> Log<W> {
    fn line(&mut self, action: &str, address: u64, size: u64, stream: StreamId) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let (thread, time) = (thread_number(), Time(now));
        let written = writeln!(self.out, "{thread},{time},{action},{},{size},{}", Pointer(address), Stream(stream));
        if let Err(error) = written {
            if self.lost == 0 {
                tracing::warn!(%error, "a line of an allocation log could not be written");
            }
            self.lost += 1;
        }
    }
}

impl<R: MemoryResource, W: Write + Send> Layer for Logging<R, W> {
    type Upstream = R;

    fn upstream(&self) -> &R {
        &self.upstream
    }

    fn name(&self) -> &str {
        "logging"
    }

    fn allocate(&self, size: u64, stream: StreamId) -> Result<RawBlock> {
        // The request may wait below for a free by another thread, so the lock is not held meanwhile. No other thread
        // knows the block before its line is written.
        let allocated = self.upstream.allocate(size, stream);
        let mut log = self.log.lock();
        match &allocated {
            Ok(block) => log.line("allocate", block.address, size, stream),
            Err(_) => log.line("allocate failure", 0, size, stream),
        }
        allocated
    }

    fn deallocate(&self, block: RawBlock, stream: StreamId) -> Result<()> {
        // The lock is held from the free until the line is written: another thread that gets the memory writes its line
        // after this line.
        let mut log: MutexGuard<'_, _> = self.log.lock();
        self.upstream.deallocate(block, stream)?;
        log.line("free", block.address, block.size, stream);
        Ok(())
    }
}
