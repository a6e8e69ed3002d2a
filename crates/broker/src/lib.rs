//! Free memory of a GPU, lent between the processes of one user.
//!
//! Allocators keep the memory that they have freed, and other processes on the device may run out of memory meanwhile.
//! Processes that opted in join a broker. When one of them is short of memory, the broker asks the other processes how
//! much they could spare. These give memory back to the driver, from which the process that asked allocates it.
//! docs/broker.md is the page for users; the command `seamalloc broker` runs [`Broker`].
//!
//! ```text
//! protocol     the messages: lines of JSON
//! place        the path of the socket
//! division     the bytes that each process gives
//! state        the broker without its sockets: the members, and the course of a demand
//! server       the broker's sockets, and its loop
//! membership   a member: the thread that answers, and the lender that asks
//! status       the members and their memory, as the broker knows them
//! ```
//!
//! ```
//! use seamalloc::{Allocator, Config, driver::{StreamId, sim::{SimConfig, SimGpu}}};
//! use seamalloc_broker::{Broker, Membership, Terms};
//! use std::sync::Arc;
//!
//! let folder = tempfile::tempdir()?;
//! let broker = Broker::start(&folder.path().join("broker.sock"))?;
//! // Two processes would have one allocator each, on one device.
//! let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=1GiB")?)?);
//! let allocators = [(); 2].map(|()| Allocator::new(gpu.clone(), Config::default()).map(Arc::new));
//! let [one, two] = allocators;
//! let (one, two) = (one?, two?);
//! let memberships = [&one, &two].map(|allocator| {
//!     let terms = Terms::new("the one device", broker.path());
//!     Membership::start(terms, Arc::downgrade(allocator)).map(|membership| {
//!         allocator.lending().set_lender(Some(membership.lender()));
//!         membership
//!     })
//! });
//! # for membership in &memberships { assert!(membership.as_ref().is_ok_and(|m| m.wait_joined(std::time::Duration::from_secs(10)))); }
//! one.free(one.allocate(700 << 20, StreamId::DEFAULT)?)?;
//! // Free memory of `one` goes to `two`.
//! two.free(two.allocate(700 << 20, StreamId::DEFAULT)?)?;
//! one.free(one.allocate(700 << 20, StreamId::DEFAULT)?)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod division;
mod error;
#[cfg(unix)]
mod membership;
#[cfg(unix)]
mod place;
mod protocol;
#[cfg(unix)]
mod server;
#[cfg(unix)]
pub mod state;
#[cfg(unix)]
pub mod status;

pub use error::BrokerError;
#[cfg(unix)]
pub use membership::{Lent, Member, Membership, Terms};
#[cfg(unix)]
pub use place::default_socket;
pub use protocol::{MAX_LINE, MemberStatus, VERSION};
pub use seamalloc_socket::SocketError;
#[cfg(unix)]
pub use server::{Broker, Running};
#[cfg(unix)]
pub use state::{Event, GivenBy};
