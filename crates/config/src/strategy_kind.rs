//! The strategies by name, and the families to which they belong.
//!
//! Owns: [`StrategyKind`]. `src/strategy/mod.rs` makes the strategy of each, `strategy_names.rs` reads their names.

use std::fmt;

/// Makes the enum and the lists of the strategies from one table, which has the name of each family and the names of
/// its strategies.
macro_rules! kinds {
    ($($(#[$about:meta])* $family:ident[$count:literal] { $($(#[$doc:meta])* $kind:ident = $name:literal,)* })*) => {
        /// The strategy by which an allocator serves requests that no free block fits, and keeps free memory.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum StrategyKind {
            $($($(#[$doc])* $kind,)*)*
        }

        impl StrategyKind {
            /// Every strategy.
            pub const ALL: [Self; 0 $(+ $count)*] = [$($(Self::$kind,)*)*];
            $($(#[$about])* pub const $family: [Self; $count] = [$(Self::$kind,)*];)*

            /// Returns the name, as on the command line.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $($(Self::$kind => $name,)*)*
                }
            }
        }
    };
}

kinds! {
    /// The strategies that are compared by default: this project's, and those with which it competes.
    MAIN[4] {
        /// A new segment by plain `cudaMalloc`: PyTorch's native allocator.
        Caching = "caching",
        /// The stream's segment grows at its end: PyTorch's expandable segments.
        Expandable = "expandable",
        /// GMLake's algorithm (ASPLOS 2024): 2 MiB chunks, in blocks that are split, and stitched for larger requests.
        Gmlake = "gmlake",
        /// Stitches free memory together, wherever it lies.
        #[default]
        Stitch = "stitch",
    }
    /// The simple allocators of textbooks and tutorials.
    CLASSIC[4] {
        /// A list of free blocks for each size, cut from large buffers and never merged.
        Exact = "exact",
        /// The buddy system: blocks of powers of two, halved and merged.
        Buddy = "buddy",
        /// Slabs of pages of 2 MiB, each for objects of one size.
        Slab = "slab",
        /// TinyTorch's allocator: the core of PyTorch's, without its options.
        Tiny = "tiny",
    }
    /// The allocators of Paddle.
    PADDLE[4] {
        /// Paddle's `auto_growth` (`AutoGrowthBestFitAllocator`): chunks as large as requests; a later request gets the
        /// end of a free block.
        PaddleAutoGrowth = "paddle-auto-growth",
        /// Paddle's `naive_best_fit` (`BuddyAllocator`, yet no buddy system): nearly the whole device as one chunk.
        PaddleNaiveBestFit = "paddle-naive-best-fit",
        /// Paddle's `thread_local`: a `naive_best_fit` allocator for each thread. An `Allocator` has one for each
        /// stream; a `Facade` of `seamalloc-layers` has one for each thread.
        PaddleThreadLocal = "paddle-thread-local",
        /// Paddle's allocator over virtual memory (`VMMAutoGrowthBestFitAllocatorV2`): an address range grows at its
        /// end, and free memory is moved together before a request is refused.
        PaddleVmm = "paddle-vmm",
    }
    /// The allocators of the driver itself.
    DRIVER[1] {
        /// The driver's stream-ordered allocator (`cudaMallocAsync`), as PyTorch's backend `cudaMallocAsync` uses it.
        MallocAsync = "malloc-async",
    }
}

impl StrategyKind {
    /// Families of strategies by name, which a command takes instead of a list of names.
    pub const FAMILIES: [(&'static str, &'static [Self]); 5] = [
        ("main", &Self::MAIN),
        ("classic", &Self::CLASSIC),
        ("paddle", &Self::PADDLE),
        ("driver", &Self::DRIVER),
        ("all", &Self::ALL),
    ];

    /// Returns whether the strategy makes virtual-memory calls, which old devices and drivers do not have.
    #[must_use]
    pub const fn needs_virtual_memory(self) -> bool {
        matches!(self, Self::Expandable | Self::Gmlake | Self::Stitch | Self::PaddleVmm)
    }

    /// Returns whether the strategy takes memory of the driver's pools, which drivers before CUDA 11.2 do not have.
    #[must_use]
    pub const fn needs_memory_pools(self) -> bool {
        matches!(self, Self::MallocAsync)
    }
}

/// Serializes the name.
#[cfg(feature = "serde")]
impl serde::Serialize for StrategyKind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl fmt::Display for StrategyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
