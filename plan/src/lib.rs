//! Static plans of memory: offsets for buffers whose sizes and lifetimes are known.
mod annealing;
mod chainer;
mod check;
mod csv;
mod exact;
mod fit;
mod method;
mod neighbours;
mod period;
mod problem;
mod search;
mod sections;
pub use check::{CheckError, Plan};
pub use csv::*;
pub use method::*;
pub use problem::*;
