//! Eviction schemes of dynamic tensor rematerialisation, judged together with the allocator below them.
//!
//! A program whose tensors do not fit evicts some tensors, and recomputes them when they are read. A scheme chooses the
//! tensors to evict. Some schemes of the literature count bytes, as if any free bytes could serve any request. Other
//! schemes look for tensors that are neighbours in memory, since only contiguous bytes can serve a request. Here a
//! scheme runs against an allocator: a tensor is evicted when the allocator refuses a request, and the eviction helps
//! if the allocator then serves the request.
//!
//! ```text
//! graph, read, generate   programs with costs: checked, from files, generated
//! memory                  the placement of blocks: allocators on a simulated GPU, Coop's arena, plain counting
//! state, scheme           the state of the tensors; the choice of the tensor to evict
//! runtime                 runs a program, evicts tensors, recomputes them
//! judge                   a program, a budget, a scheme and a memory; the figures of a run
//! ```

#![deny(unsafe_code)]

pub mod generate;
pub mod graph;
mod judge;
pub mod memory;
pub mod read;
mod runtime;
mod scheme;
mod state;

pub use judge::{Below, BudgetError, EvictReport, JudgeError, UnknownBelow, budget, judge, peak};
pub use runtime::{MAX_OVERHEAD, Outcome, RunError, Stop, run};
pub use scheme::{Ask, Scheme, SchemeKind, UnknownScheme};
pub use state::State;
