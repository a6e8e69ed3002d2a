//! Statistics of a running program's allocators for other processes of the same user: figures over a Unix socket,
//! metrics in Prometheus' text format, and the flight recorder.
//!
//! A program opts in with [`Server::start`]; `seamalloc top` is a client. The C library and the Python package opt in
//! by a function or by the environment (docs/live.md). Without opting in, no socket is opened.
//!
//! ```
//! use seamalloc::{Allocator, Config, driver::{StreamId, sim::{SimConfig, SimGpu}}};
//! use seamalloc_live::{Served, Server, ask, samples_of};
//! use std::sync::Arc;
//!
//! let folder = tempfile::tempdir()?;
//! let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200")?)?);
//! let allocator = Arc::new(Allocator::new(gpu, Config::default())?);
//! let served = Served::new([("sim:h200", &allocator)]);
//! let server = Server::start_at(folder.path().join("job.sock"), served)?;
//!
//! allocator.allocate(3 << 20, StreamId::DEFAULT)?;
//! let told = ask::samples(server.path())?;
//! assert_eq!(told.allocators[0].live_bytes, 3 << 20);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

#[cfg(unix)]
pub mod ask;
mod metrics;
mod namespace;
#[cfg(unix)]
mod place;
#[cfg(unix)]
mod protocol;
mod sample;
#[cfg(unix)]
mod server;
mod source;

pub use metrics::prometheus;
#[cfg(unix)]
pub use place::listed;
pub use sample::{METRICS, Metric, Process, Sample};
pub use seamalloc_socket::SocketError;
#[cfg(unix)]
pub use seamalloc_socket::folder;
#[cfg(unix)]
pub use server::Server;
pub use source::{Served, Source, samples_of};
