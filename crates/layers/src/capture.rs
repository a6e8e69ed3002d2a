//! A layer that gives each CUDA graph a private pool.
//!
//! Owns: the pool of each graph, and the number of the pool's uses. The rules are those of Paddle's facade
//! (`allocator_facade.cc`, commit 05a90fc):
//! - `PrepareMemoryPoolForCUDAGraph` makes a pool for a graph, or adds a use to the graph's pool; each
//!   `RemoveMemoryPoolOfCUDAGraph` ends a use, and the last such call ends the pool;
//! - `AllocatorFacade::GetPrivate`: requests of a capture go to the graph's pool, which must have been prepared;
//! - `StreamSafeCUDAAllocator::ReleaseImpl` (`stream_safe_cuda_allocator.cc`): no memory is released during a capture.
//!
//! The allocator defines private pools and what is legal in a capture
//! (docs/decisions/0020-private-pools-and-captures.md). In Paddle, requests of the capturing thread go to the pool, and
//! each pool is a facade of its own. In this layer the program names the stream whose requests go to the pool, and all
//! pools share the device's memory.

use crate::contract::{Layer, PrivatePools};
use crate::error::{ResourceError, Result};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use seamalloc::RawBlock;
use seamalloc::{PoolId, StreamId};
use seamalloc_driver::fallible::try_insert;

#[derive(Debug)]
struct Prepared {
    pool: PoolId,
    /// The number of uses of the pool: prepares without a remove.
    uses: u64,
    capturing: bool,
}

/// Gives each CUDA graph a private pool, and releases no memory while a graph is captured.
///
/// ```
/// use seamalloc::driver::{StreamId, sim::{CaptureMode, SimConfig, SimGpu}};
/// use seamalloc_layers::{Capture, MemoryResource};
/// use seamalloc::{Allocator, Config};
/// use std::sync::Arc;
///
/// let gpu = Arc::new(SimGpu::new(SimConfig::default())?);
/// let allocator = Arc::new(Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::default())?);
/// let memory = Capture::new(Arc::clone(&allocator));
/// let (graph, stream) = (1, StreamId(7));
/// memory.prepare(graph)?;
/// memory.begin(graph, stream)?;
/// gpu.begin_capture(stream, CaptureMode::Global)?;
/// let block = memory.allocate(10 << 20, stream)?;
/// assert_eq!(memory.release()?, 0);
/// gpu.end_capture(stream)?;
/// memory.end(graph)?;
/// memory.deallocate(block, stream)?;
/// // The graph may be launched until here.
/// memory.remove(graph)?;
/// assert_eq!(memory.release()?, 10 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Capture<R> {
    upstream: R,
    graphs: Mutex<FxHashMap<u64, Prepared>>,
}

impl<R: PrivatePools> Capture<R> {
    /// Makes a layer that has prepared no graphs.
    pub fn new(upstream: R) -> Self {
        Self { upstream, graphs: Mutex::default() }
    }

    /// Prepares a private pool for the captures of a graph, or adds one use to the graph's pool. Graphs that share
    /// memory are prepared under one number. Returns the pool.
    ///
    /// # Errors
    /// [`Error::HostMemory`](seamalloc::Error::HostMemory).
    pub fn prepare(&self, graph: u64) -> Result<PoolId> {
        let graphs = &mut *self.graphs.lock();
        if let Some(prepared) = graphs.get_mut(&graph) {
            prepared.uses += 1;
            return Ok(prepared.pool);
        }
        graphs.try_reserve(1)?;
        let pool = self.upstream.create_pool()?;
        try_insert(graphs, graph, Prepared { pool, uses: 1, capturing: false })?;
        Ok(pool)
    }

    /// Ends one use of a graph's pool. After the last use the graph may not be launched any more, and the pool's memory
    /// serves other requests.
    ///
    /// # Errors
    /// [`ResourceError::UnknownGraph`]; [`ResourceError::GraphCapturing`]; an error of the resource below, after which
    /// the graph still has this use.
    pub fn remove(&self, graph: u64) -> Result<()> {
        let graphs = &mut *self.graphs.lock();
        let prepared = found(graphs, graph)?;
        if prepared.uses > 1 {
            prepared.uses -= 1;
            return Ok(());
        }
        if prepared.capturing {
            return Err(ResourceError::GraphCapturing { graph });
        }
        self.upstream.release_pool(prepared.pool)?;
        graphs.remove(&graph);
        Ok(())
    }

    /// Routes requests for `stream` to the graph's pool, until [`Self::end`]. Call this before the stream's capture
    /// begins.
    ///
    /// # Errors
    /// [`ResourceError::UnknownGraph`]; [`ResourceError::GraphCapturing`]; an error of the resource below.
    pub fn begin(&self, graph: u64, stream: StreamId) -> Result<()> {
        let graphs = &mut *self.graphs.lock();
        let prepared = found(graphs, graph)?;
        if prepared.capturing {
            return Err(ResourceError::GraphCapturing { graph });
        }
        self.upstream.begin_capture(prepared.pool, stream)?;
        prepared.capturing = true;
        Ok(())
    }

    /// Ends the route that [`Self::begin`] began. Call this after the stream's capture has ended.
    ///
    /// # Errors
    /// [`ResourceError::UnknownGraph`]; [`ResourceError::GraphNotCapturing`]; an error of the resource below.
    pub fn end(&self, graph: u64) -> Result<()> {
        let graphs = &mut *self.graphs.lock();
        let prepared = found(graphs, graph)?;
        if !prepared.capturing {
            return Err(ResourceError::GraphNotCapturing { graph });
        }
        self.upstream.end_capture(prepared.pool)?;
        prepared.capturing = false;
        Ok(())
    }

    /// Returns the pool that is prepared for a graph, or `None`.
    pub fn pool(&self, graph: u64) -> Option<PoolId> {
        self.graphs.lock().get(&graph).map(|prepared| prepared.pool)
    }

    /// Returns whether a capture is under way.
    pub fn any_capturing(&self) -> bool {
        self.graphs.lock().values().any(|prepared| prepared.capturing)
    }
}

fn found(graphs: &mut FxHashMap<u64, Prepared>, graph: u64) -> Result<&mut Prepared> {
    graphs.get_mut(&graph).ok_or(ResourceError::UnknownGraph { graph })
}

impl<R: PrivatePools> Layer for Capture<R> {
    type Upstream = R;

    fn upstream(&self) -> &R {
        &self.upstream
    }

    fn name(&self) -> &str {
        "capture"
    }

    fn allocate(&self, size: u64, stream: StreamId) -> Result<RawBlock> {
        self.upstream.allocate(size, stream)
    }

    fn release(&self) -> Result<u64> {
        if self.any_capturing() { Ok(0) } else { self.upstream.release() }
    }
}
