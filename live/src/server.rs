//! The thread that answers.
//!
//! Owns: the socket, which goes with the server, and how long a client may keep others waiting. A client is served alone, for a
//! second at most, or ten where it takes a dump; what it sends beyond a question is not read.

use crate::error::LiveError;
use crate::place::{folder, prepare, socket_of};
use crate::protocol::{Answer, Asked, MAX_QUESTION, Question};
use crate::source::{Source, flight_of, samples_of};
use crate::talk::{Bounded, admit};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, Mode, chmodat};
use seamalloc_trace::write_flight_pickle;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// For a question and the answer to it.
const PATIENCE: Duration = Duration::from_secs(1);
/// For a dump.
const PATIENCE_OF_DUMPS: Duration = Duration::from_secs(10);
/// After a connection could not be taken, probably because of too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers the questions of other processes of this user, in a thread of its own, until it is dropped. The socket is removed then.
pub struct Server {
    path: PathBuf,
    /// The socket's device and inode, so that nothing else is removed in its place.
    inode: (u64, u64),
    /// The process that made it: a forked child has a copy.
    owner: u32,
    /// Closed to end the thread.
    stop: Mutex<Option<UnixStream>>,
}

impl Server {
    /// Starts to answer at the process's own socket, where `seamalloc top` looks: `PID.sock` in [`folder`].
    ///
    /// # Errors
    /// [`LiveError::Folder`] if the folder is not this user's alone, [`LiveError::Listen`].
    pub fn start(source: impl Source) -> Result<Self, LiveError> {
        let folder = folder();
        prepare(&folder)?;
        let path = socket_of(std::process::id());
        // Of a process that had the same number.
        let _ = fs::remove_file(&path);
        Self::start_at(path, source)
    }

    /// Starts to answer at a socket of this name, which must not exist. Its folder should be one of this user alone; others are
    /// refused an answer in any case.
    ///
    /// # Errors
    /// [`LiveError::Listen`].
    pub fn start_at(path: PathBuf, source: impl Source) -> Result<Self, LiveError> {
        let server = listen(&path, source);
        server.map_err(|error| LiveError::Listen { path, error })
    }

    /// Returns the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends it, as dropping it does. The thread ends after the question that it is answering.
    pub fn stop(&self) {
        if self.owner != std::process::id() || self.stop.lock().take().is_none() {
            return;
        }
        let is_ours = fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.inode);
        if is_ours {
            // The folder may be gone already.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn listen(path: &Path, source: impl Source) -> io::Result<Server> {
    if path.as_os_str().is_empty() {
        // The system would choose a name of its own.
        return Err(ErrorKind::InvalidInput.into());
    }
    let listener = UnixListener::bind(path)?;
    let started = serve_at(&listener, path).and_then(|(inode, stop, stopped)| {
        let run = move || serve(&listener, &stopped, &source);
        thread::Builder::new().name("seamalloc-live".to_owned()).spawn(run)?;
        Ok(Server { path: path.to_owned(), inode, owner: std::process::id(), stop: Mutex::new(Some(stop)) })
    });
    started.inspect_err(|_| drop(fs::remove_file(path)))
}

type Prepared = ((u64, u64), UnixStream, UnixStream);

fn serve_at(listener: &UnixListener, path: &Path) -> io::Result<Prepared> {
    chmodat(CWD, path, Mode::RUSR | Mode::WUSR, rustix::fs::AtFlags::empty())?;
    listener.set_nonblocking(true)?;
    let found = fs::symlink_metadata(path)?;
    let (stop, stopped) = UnixStream::pair()?;
    Ok(((found.dev(), found.ino()), stop, stopped))
}

fn serve(listener: &UnixListener, stopped: &UnixStream, source: &dyn Source) {
    loop {
        let mut polled = [PollFd::new(listener, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        if let Err(error) = poll(&mut polled, None)
            && error != rustix::io::Errno::INTR
        {
            tracing::warn!(%error, "nobody can be waited for; statistics are offered no more");
            return;
        }
        let [connected, ended] = polled.map(|polled| !polled.revents().is_empty());
        if ended {
            return;
        }
        if !connected {
            continue;
        }
        match listener.accept() {
            Ok((stream, _)) => attend(&stream, source),
            // The client may be gone already.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => {
                tracing::warn!(%error, "a process that asked for statistics was not served");
                thread::sleep(PAUSE);
            }
        }
    }
}

/// Answers one client. What fails concerns it alone.
fn attend(stream: &UnixStream, source: &dyn Source) {
    // A source is the program's code, and may panic.
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
    admit(stream)?;
    stream.set_nonblocking(false)?;
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
