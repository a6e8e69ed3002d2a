//! Options whose value is one of some names.
//!
//! Owns: [`StreamSharing`] and [`Split`].

/// When memory freed on one stream may serve requests of another stream. Only the strategy `stitch` shares memory
/// between streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum StreamSharing {
    /// Never, as in PyTorch.
    Never,
    /// When the GPU has completed the work before the free.
    Completed,
    /// Immediately. On the GPU, the other stream first waits for the free and for the streams that `record_stream`
    /// named. Programs run far ahead of the GPU, so `completed` gains little.
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
/// request, with the strategy `stitch`. The parts in use get other physical memory under the same addresses, with the
/// same contents: an exchange.
///
/// # All streams must be known
/// Before an exchange the CPU waits for the device. A gate then holds every stream that the allocator knows
/// ([`DeviceProperties::stream_gates`](seamalloc_driver::DeviceProperties::stream_gates)): work that other threads
/// launch meanwhile runs after the exchange. The allocator knows the default stream, thereby all streams that wait for
/// the default stream, and every stream that was named in a request, a free or `record_stream`. A program in which a
/// thread may launch work, during another thread's request, on any other stream that uses memory of the allocator, must
/// announce that stream (`Streams::announce`), or set [`Self::Off`].
///
/// Memory that other processes were given is never exchanged. No memory is exchanged during captures, in guard mode,
/// once another device has access, or while a stream is marked external. If a network card (RDMA) or a disk (cuFile)
/// reaches physical memory directly, the program must name this memory to `Sharing::pin_physical`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Split {
    /// Never.
    Off,
    /// Before a request is refused, while a gate holds all streams that the allocator knows. Never on a device without
    /// gates.
    #[default]
    LastResort,
    /// Before a request is refused, behind a gate if one can be closed, otherwise without: the program promises that
    /// until the allocation returns no other thread launches work that uses memory of the allocator.
    Ungated,
}

impl Split {
    /// Every choice.
    pub const ALL: [Self; 3] = [Self::Off, Self::LastResort, Self::Ungated];

    /// Returns the name, as in options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::LastResort => "last_resort",
            Self::Ungated => "ungated",
        }
    }
}
