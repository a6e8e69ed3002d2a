//! Orders of operators that need little memory, and their memory layouts.
//!
//! ```text
//! graph, read        the operators, and their file format
//! load               judges every order: the live bytes at each step
//! instance           the input of the methods
//! reach              which operators must run before others, and a lower bound of the peak
//! listing            methods that look one operator ahead
//! exact              a search over sets of operators
//! roam, branches     subgraphs in sequence; independent parts of a subgraph
//! solver, model      the integer program, with the feature `highs`
//! layout             addresses for an order
//! ```
//!
//! ```
//! use seamalloc_order::{Limits, Method, order, read_text};
//!
//! // Two large tensors, each with a small result. The program makes both before it reads one.
//! let graph = read_text("two", "two.json", r#"{
//!     "tensors": [{"name": "a", "bytes": 100}, {"name": "b", "bytes": 100},
//!                 {"name": "x", "bytes": 10}, {"name": "y", "bytes": 10}],
//!     "operators": [{"name": "make", "inputs": [], "outputs": ["a"]}, {"name": "make", "inputs": [], "outputs": ["b"]},
//!                   {"name": "read", "inputs": ["a"], "outputs": ["x"]}, {"name": "read", "inputs": ["b"], "outputs": ["y"]}],
//!     "outputs": ["x", "y"]}"#)?;
//! let limits = Limits::default();
//! assert_eq!(order(&graph, Method::Program, &limits)?.load.peak, 210);
//! let best = order(&graph, Method::Exact, &limits)?;
//! assert_eq!((best.load.peak, best.bound, best.is_optimal()), (120, 120, true));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]

mod branches;
mod exact;
mod graph;
mod instance;
mod layout;
mod listing;
mod load;
mod method;
#[cfg(feature = "highs")]
mod model;
mod reach;
mod read;
mod report;
mod roam;
mod solver;

pub use graph::{
    Graph, GraphError, GraphSpec, MAX_BYTES, MAX_OPERATORS, Memory, Operator, OperatorSpec, Source, TensorSpec,
};
pub use layout::{Layout, LayoutError, Planner, UnknownPlanner, layout};
pub use load::{Load, LoadError};
pub use method::{Limits, Method, OrderError, Outcome, UnknownMethod, order};
pub use read::{ReadError, read_path, read_text};
pub use report::OrderReport;
