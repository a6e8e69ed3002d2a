//! Errors of a layer, typed by what the caller can do about them.
//!
//! Owns: [`ResourceError`].

use seamalloc::ConfigError;
use seamalloc::Error;
use seamalloc::driver::DriverError;
use std::collections::TryReserveError;

/// The result of a resource's operation.
pub type Result<T> = std::result::Result<T, ResourceError>;

/// The reason why an operation of a resource failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ResourceError {
    /// The allocator below failed.
    #[error(transparent)]
    Allocator(#[from] Error),
    /// A [`Limit`](crate::Limit) does not allow the request. Free some memory and try again.
    #[error("{requested} bytes more than the {allocated} allocated would exceed the limit of {limit} bytes")]
    LimitExceeded {
        /// Bytes asked for, rounded up as the limit counts them.
        requested: u64,
        /// Bytes allocated through the layer.
        allocated: u64,
        /// The most bytes that may be allocated.
        limit: u64,
    },
    /// A block is freed that the layer has not handed out, or that was freed already.
    #[error("{address:#x} was not allocated through this layer, or was freed already")]
    UnknownBlock {
        /// The block's address.
        address: u64,
    },
    /// A block is freed with another size than it was allocated with.
    #[error("the block at {address:#x} has {allocated} bytes, but is freed with {freed}")]
    SizeMismatch {
        /// The block's address.
        address: u64,
        /// The bytes that were allocated.
        allocated: u64,
        /// The bytes named at the free.
        freed: u64,
    },
    /// No private pool was prepared for the graph, or the pool was removed.
    #[error("no memory pool is prepared for graph {graph}")]
    UnknownGraph {
        /// The graph.
        graph: u64,
    },
    /// A capture for the graph is under way, and must end first.
    #[error("graph {graph} is being captured")]
    GraphCapturing {
        /// The graph.
        graph: u64,
    },
    /// No capture for the graph is under way.
    #[error("graph {graph} is not being captured")]
    GraphNotCapturing {
        /// The graph.
        graph: u64,
    },
    /// Counters are popped, but no pushed counters are left.
    #[error("the outermost counters cannot be popped")]
    NothingPushed,
}

impl ResourceError {
    /// Returns whether freeing memory and trying again may help.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Allocator(error) => error.is_out_of_memory(),
            Self::LimitExceeded { .. } => true,
            _ => false,
        }
    }
}

impl From<TryReserveError> for ResourceError {
    fn from(error: TryReserveError) -> Self {
        Self::Allocator(error.into())
    }
}

impl From<DriverError> for ResourceError {
    fn from(error: DriverError) -> Self {
        Self::Allocator(error.into())
    }
}

impl From<ConfigError> for ResourceError {
    fn from(error: ConfigError) -> Self {
        Self::Allocator(error.into())
    }
}
