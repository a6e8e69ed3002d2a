//! Options whose value is one of some names.
//!
//! Owns: [`StreamSharing`] and [`Split`].

/// When memory freed on one stream may serve another. Only the strategy `stitch` shares memory between streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum StreamSharing {
    /// Never, as in PyTorch.
    Never,
    /// When the GPU has completed the work before the free.
    Completed,
    /// At once, behind a GPU-side wait for the free, and for the streams that `record_stream` named. Programs run far ahead of the GPU,
    /// so that waiting for completion alone gains nothing.
    #[default]
    Wait,
}

impl StreamSharing {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::Never, Self::Completed, Self::Wait];

    /// Returns the name, as in options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Completed => "completed",
            Self::Wait => "wait",
        }
    }
}

/// Whether chunks of physical memory that are partly in use are split, so that free memory inside them serves any
/// request, with the strategy `stitch`. The parts in use get other physical memory under the same addresses, contents
/// kept.
///
/// # No work may use the memory meanwhile
/// Before an exchange the CPU waits for the device. Until the allocation returns, no thread may give the device work
/// that uses memory of the allocator: its addresses have no memory for some microseconds. A program whose threads take
/// turns obeys this rule by itself, as PyTorch does with one training loop. A program whose threads launch kernels
/// concurrently does not. Memory of private pools (CUDA graphs) is exchanged too, so no graph may be launched
/// meanwhile.
///
/// Memory that other processes were given is never exchanged; no memory is, during captures, in guard mode, or once
/// another device has access. Memory that is registered elsewhere (NCCL, RDMA) must be named to
/// [`Sharing::pin_physical`](crate::operations::Sharing::pin_physical).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Split {
    /// Never.
    #[default]
    Off,
    /// Before a request is refused.
    LastResort,
}

impl Split {
    /// Every choice.
    pub const ALL: [Self; 2] = [Self::Off, Self::LastResort];

    /// Returns the name, as in options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::LastResort => "last_resort",
        }
    }
}
