//! Reports the statistics of the process's allocators to other processes of the same user, and as metrics, and writes
//! the flight recorder's history to files.
//!
//! Owns: the one server of the process, and the meaning of the environment variable SEAMALLOC_SERVE.

use crate::boundary::{call, file, write_text};
use crate::ids::AllocatorId;
use crate::registry;
use crate::status::{Failure, Outcome, Status};
use seamalloc::Allocator;
#[cfg(unix)]
use seamalloc_live::Server;
use seamalloc_live::{Source, prometheus, samples_of};
use std::ffi::c_char;

/// The environment variable with the socket for statistics: `1` stands for the process's own, `0` for none; any other
/// value is a socket's name.
#[cfg(unix)]
const VARIABLE: &str = "SEAMALLOC_SERVE";

/// All allocators with a handle, by the lower half of the handle.
struct Handles;

impl Source for Handles {
    fn each(&self, look: &mut dyn FnMut(u32, &str, &Allocator)) {
        registry::each(|number, instance| look(number, &instance.device, &instance.allocator));
    }
}

/// Reports the allocators of this process, including those that are created later, to other processes of the same user
/// from now on: a thread of the library answers at a Unix socket, where `seamalloc top` asks. `path` is the socket's
/// name, which must not exist. If `path` is NULL, the name is NAMESPACE-PID.sock (NAMESPACE: the inode of the process's
/// PID namespace) in $XDG_RUNTIME_DIR/seamalloc or /tmp/seamalloc-UID, where `seamalloc top` finds it. The socket is
/// removed when the process ends by exit. The environment variable SEAMALLOC_SERVE (1, or a socket's name) has the same
/// effect when the first allocator is created. The function does nothing if such a thread runs already. Returns
/// `SEAM_STATUS_FILE` if the socket cannot be made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_serve(path: *const c_char) -> Status {
    call(|| {
        // SAFETY: as for every function (see the top of `seamalloc.h`).
        let path = if path.is_null() { None } else { Some(unsafe { file(path) }?) };
        serve(path)
    })
}

/// Ends the thread that `seam_serve` started, and removes its socket. Does nothing if no such thread runs.
#[unsafe(no_mangle)]
pub extern "C" fn seam_serve_stop() -> Status {
    call(|| {
        #[cfg(unix)]
        drop(SERVER.lock().take());
        Ok(())
    })
}

/// Writes the metrics of all allocators of the process, as the text that Prometheus reads (docs/metrics.md). The
/// function works without `seam_serve`. The buffer is as in `seam_stats_json`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_metrics(buffer: *mut c_char, capacity: usize, length: *mut usize) -> Status {
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { write_text(buffer, capacity, length, || Ok(prometheus(&[samples_of(&Handles)]))) }
}

/// Writes the last operations of the allocator, which its flight recorder has kept (the option `flight_recorder`), and
/// the memory that the allocator holds. The file is a trace if its name ends in .seam, .csv or .csv.gz, else a pickle
/// that PyTorch's viewer opens and `seamalloc replay` reads. The file says how many operations were overwritten. With
/// the option `flight_dump`, the same is written when a request is refused. The file appears only when it is complete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_flight_write(allocator: AllocatorId, path: *const c_char) -> Status {
    call(|| {
        // SAFETY: as for every function (see the top of `seamalloc.h`).
        let path = unsafe { file(path) }?;
        let instance = registry::borrow(allocator)?;
        Ok(instance.dump.write(&instance.allocator, path)?)
    })
}

/// The server of this process, if it was started.
#[cfg(unix)]
static SERVER: parking_lot::Mutex<Option<Server>> = parking_lot::Mutex::new(None);

#[cfg(unix)]
fn serve(path: Option<&std::path::Path>) -> Outcome<()> {
    // The library begins to notice forks before it makes the socket, so that calls of a child that is forked meanwhile
    // fail, and the child does not remove the socket.
    crate::fork::notice_forks()?;
    let mut server = SERVER.lock();
    if server.is_none() {
        let started = match path {
            Some(path) => Server::start_at(path.to_owned(), Handles),
            None => Server::start(Handles),
        };
        *server = Some(started.map_err(|error| Failure::new(Status::File, error))?);
        remove_at_exit();
    }
    Ok(())
}

#[cfg(not(unix))]
fn serve(_: Option<&std::path::Path>) -> Outcome<()> {
    Err(Failure::new(Status::File, "statistics are served over Unix sockets, which this system has not"))
}

/// Registers the removal of the socket at the process's end.
#[cfg(unix)]
fn remove_at_exit() {
    extern "C" fn stop() {
        // If another thread holds the lock at this moment, the socket stays: `seamalloc top` removes it.
        if let Some(mut server) = SERVER.try_lock() {
            drop(server.take());
        }
    }
    static REGISTERED: std::sync::Once = std::sync::Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the function lives as long as the library, which is never unloaded, and does not unwind.
        let _ = unsafe { libc::atexit(stop) };
    });
}

/// Starts the server if the environment variable asks for it. A failure is a line on standard error, for the user who
/// set the variable.
pub(crate) fn serve_if_asked() {
    #[cfg(unix)]
    {
        use std::io::Write;
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            let asked = std::env::var_os(VARIABLE).filter(|value| !value.is_empty() && value != "0");
            let Some(asked) = asked else { return };
            let path = (asked != "1").then(|| std::path::Path::new(&asked));
            if let Err(failure) = serve(path) {
                // A closed standard error is ignored.
                drop(writeln!(std::io::stderr(), "seamalloc: {VARIABLE}: {}", failure.text));
            }
        });
    }
}
