//! The thread that answers requests.
//!
//! Owns: the socket, which is removed with the server, and the time that a client may take. One client is served at a
//! time, for at most one second, or ten seconds for a dump (the history of a flight recorder). Bytes after a question
//! are not read.

use crate::place::{listen, socket_of};
use crate::protocol::{Answer, Asked, MAX_QUESTION, Question};
use crate::source::{Source, flight_of, samples_of};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use seamalloc_socket::{Bounded, Listener, Owner, SocketError, SocketFile, Stop, Stopped, folder, prepare};
use seamalloc_trace::write_flight_pickle;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// The time limit for a question and its answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time limit for a dump.
const PATIENCE_OF_DUMPS: Duration = Duration::from_secs(10);
/// A server that answers the questions of other processes of this user in a thread of its own. Dropping the server ends
/// the thread and removes the socket.
pub struct Server {
    path: PathBuf,
    owner: Owner,
    /// The socket's file and the end of the thread. Dropping them ends the thread.
    running: Mutex<Option<(SocketFile, Stop)>>,
}

impl Server {
    /// Starts to answer at the process's own socket, which `seamalloc top` finds: `NAMESPACE-PID.sock` in [`folder`].
    /// NAMESPACE is the inode of the process's namespace of processes, which may be a container's.
    ///
    /// # Errors
    /// [`SocketError::Folder`] if other users may access the folder, [`SocketError::Listen`], also if the process
    /// serves there already.
    pub fn start(source: impl Source) -> Result<Self, SocketError> {
        let folder = folder();
        prepare(&folder)?;
        let path = socket_of(std::process::id());
        Self::listening(&path, listen(&path), source)
    }

    /// Starts to answer at a socket with this name, which must not exist. The socket's folder should be accessible to
    /// this user alone. Processes of other users get no answer in any case.
    ///
    /// # Errors
    /// [`SocketError::Listen`].
    pub fn start_at(path: PathBuf, source: impl Source) -> Result<Self, SocketError> {
        Self::listening(&path, Listener::bind(&path), source)
    }

    fn listening(
        path: &Path,
        bound: io::Result<(Listener, SocketFile)>,
        source: impl Source,
    ) -> Result<Self, SocketError> {
        let running = bound.and_then(|(listener, file)| {
            let (stop, stopped) = Stop::new()?;
            let run = move || serve(&listener, &stopped, &source);
            thread::Builder::new().name("seamalloc-live".to_owned()).spawn(run)?;
            Ok((file, stop))
        });
        match running {
            Ok(running) => Ok(Self { path: path.to_owned(), owner: Owner::here(), running: Mutex::new(Some(running)) }),
            Err(error) => Err(SocketError::Listen { path: path.to_owned(), error }),
        }
    }

    /// Returns the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends the server, as dropping it does. The thread ends after it has answered its present question.
    pub fn stop(&self) {
        // Another thread may have held the lock when this process was forked.
        if self.owner.is_here() {
            drop(self.running.lock().take());
        }
    }
}

fn serve(listener: &Listener, stopped: &Stopped, source: &dyn Source) {
    loop {
        let mut polled = [PollFd::new(listener, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        if let Err(error) = retry_on_intr(|| poll(&mut polled, None)) {
            tracing::warn!(%error, "nobody can be waited for; statistics are offered no more");
            return;
        }
        let [connected, ended] = polled.map(|polled| !polled.revents().is_empty());
        if ended {
            return;
        }
        if connected && let Some(stream) = listener.take() {
            attend(&stream, source);
        }
    }
}

/// Answers one client. Errors affect this client alone.
fn attend(stream: &UnixStream, source: &dyn Source) {
    // A source is code of the program, and may panic.
    match catch_unwind(AssertUnwindSafe(|| answer(stream, source))) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a process that asked for statistics was not served"),
        Err(panic) => {
            tracing::error!("a panic while a process was told of statistics");
            drop(catch_unwind(AssertUnwindSafe(|| drop(panic))));
        }
    }
}

fn answer(stream: &UnixStream, source: &dyn Source) -> io::Result<()> {
    let (line, _) = Bounded::new(stream, PATIENCE).line(MAX_QUESTION)?;
    let refused = |why: String| (Answer::Refused(why), Vec::new());
    let (answer, bytes) = match serde_json::from_slice::<Asked>(&line) {
        Err(error) => refused(format!("this is no question: {error}")),
        Ok(Asked { ask: Question::Samples }) => (Answer::Process(samples_of(source)), Vec::new()),
        Ok(Asked { ask: Question::Flight { allocator } }) => {
            let dump = flight_of(source, allocator).and_then(|flight| {
                let mut bytes = Vec::new();
                write_flight_pickle(&flight, &mut bytes).map_err(|error| error.to_string())?;
                Ok(bytes)
            });
            dump.map_or_else(refused, |bytes| (Answer::Flight { bytes: bytes.len() as u64 }, bytes))
        }
    };
    let mut line = serde_json::to_vec(&answer)?;
    line.push(b'\n');
    let mut talk = Bounded::new(stream, if bytes.is_empty() { PATIENCE } else { PATIENCE_OF_DUMPS });
    talk.write_all(&line)?;
    talk.write_all(&bytes)
}
