//! Static memory plans: offsets for buffers whose sizes and lifetimes are known (dynamic storage allocation).
//!
//! ```text
//! problem, csv          the buffers, and MiniMalloc's file format
//! method, search        a run of one method, or of several on threads; their shared state
//! orders, chainer       methods of one pass
//! fit, taken            the lowest place for a buffer, and an index of the taken addresses
//! annealing, exact      methods that search
//! reorder               a search for many buffers
//! check                 judges every plan
//! sections, neighbours  time in sections, and the pairs of buffers that are live together
//! ```
//!
//! ```
//! use seamalloc_plan::{Buffer, Limits, Method, Problem, plan};
//!
//! let buffers = vec![
//!     Buffer::new("weights", 0, 9, 4096),
//!     Buffer::new("first", 0, 5, 1024),
//!     Buffer::new("second", 5, 9, 1024),
//! ];
//! let problem = Problem::new("layer", buffers)?;
//! let outcome = plan(&problem, Method::Portfolio, &Limits::default(), &mut |_| {})?;
//! assert_eq!(outcome.plan.peak, 5120);
//! assert!(outcome.is_optimal);
//! assert_eq!(outcome.plan.offsets[1], outcome.plan.offsets[2]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]

mod annealing;
mod chainer;
mod check;
pub mod csv;
mod exact;
mod fit;
mod method;
mod neighbours;
mod orders;
mod problem;
mod random;
mod reorder;
mod search;
mod sections;
mod taken;

pub use check::{CheckError, Plan};
pub use csv::{CsvError, read_csv, write_csv};
pub use method::{Limits, Method, Outcome, PlanError, Progress, UnknownMethod, plan};
pub use problem::{Buffer, BufferError, Gap, MAX_BUFFERS, Piece, Problem, ProblemError};

/// Runs the page's examples as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/planning.md")]
struct PlanningPage;
