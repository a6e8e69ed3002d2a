//! Unix sockets between processes of one user.
//!
//! The broker and the server of statistics both listen at a socket and exchange lines. A slow peer must not block the
//! broker or the server, and another user must not answer in their place. The broker and the server define the
//! messages; this crate has the common parts.
//!
//! ```text
//! folder     where sockets are: a folder of this user alone
//! listener   a socket that listens, its file, and the lock that reserves a name for one process
//! talk       who may talk, and until when
//! lines      bytes that become lines, with a bound
//! stop       how a thread is ended, and which process owns an object
//! command    the command line by which a process identifies itself
//! error      the reasons why a process cannot serve or ask
//! ```
//!
//! # Note: forked children
//!
//! A child that was forked without `exec` has a copy of every descriptor, but no threads. Therefore three rules hold
//! here:
//! - only the process that made a socket removes its file;
//! - a thread is ended by shutting its connection down, since closing it has no effect while a child has a copy;
//! - code of this crate takes no lock that another thread may have held at the fork.
//!
//! ```
//! # #[cfg(unix)] {
//! use seamalloc_socket::{Bounded, Listener, connect};
//! use std::io::Write;
//! use std::time::Duration;
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("echo.sock");
//! let (listener, file) = Listener::bind(&path)?;
//! let second = Duration::from_secs(1);
//! let asking = connect(&path, second)?;
//! Bounded::new(&asking, second).write_all(b"who is there?\nmore")?;
//! let answering = listener.take().ok_or("nobody came")?;
//! let (line, rest) = Bounded::new(&answering, second).line(100)?;
//! assert_eq!((line.as_slice(), rest.as_slice()), (&b"who is there?"[..], &b"more"[..]));
//! drop(file);
//! assert!(!path.exists());
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod command;
mod error;
#[cfg(unix)]
mod folder;
mod lines;
#[cfg(unix)]
mod listener;
#[cfg(unix)]
mod stop;
#[cfg(unix)]
mod talk;

pub use command::command_line;
pub use error::SocketError;
#[cfg(unix)]
pub use folder::{FolderError, check_private, folder, prepare};
pub use lines::{Lines, TooLong};
#[cfg(unix)]
pub use listener::{Listener, Lock, SocketFile};
#[cfg(unix)]
pub use stop::{Owner, Stop, Stopped};
#[cfg(unix)]
pub use talk::{Bounded, admit, connect, receive_now, send_now};
