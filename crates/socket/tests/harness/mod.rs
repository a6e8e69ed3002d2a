//! The harness of tests of sockets: a speaker by hand, this program again as another process, and as another user.

#![allow(dead_code, reason = "every test program uses a part")]

use std::ffi::OsStr;
use std::fs::{Permissions, set_permissions};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// The time after which something counts as hung, on a machine that does other things.
pub(crate) const LONG: Duration = Duration::from_secs(20);
/// The socket that this program asks as another user.
const ASKS: &str = "SEAMALLOC_TEST_ASKS";
const NOBODY: u32 = 65534;

/// A connection of somebody who speaks by hand.
pub(crate) struct Raw(BufReader<UnixStream>);

impl Raw {
    pub(crate) fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        Self(BufReader::new(stream))
    }

    pub(crate) fn say(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    pub(crate) fn hang_up(&mut self) {
        self.0.get_mut().shutdown(Shutdown::Both).unwrap();
    }
}

/// Sends bytes, and returns what is answered until the connection ends.
fn exchange(mut stream: UnixStream, bytes: &[u8]) -> Vec<u8> {
    // The other side may have closed the connection before all was sent.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// Connects, sends bytes, and returns what is answered until the connection ends or nothing comes for long.
pub(crate) fn answer(socket: &Path, bytes: &[u8]) -> Vec<u8> {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    exchange(stream, bytes)
}

/// Asks where this program was started by [`ask_as_another_user`], and must be told nothing. Returns whether it was.
pub(crate) fn was_another_user(question: &[u8]) -> bool {
    let Some(socket) = std::env::var_os(ASKS) else { return false };
    assert_eq!(exchange(UnixStream::connect(socket).unwrap(), question), b"", "it was told");
    true
}

/// Runs that test of this program once more as another user, where the test may become one. The socket lies in `folder`.
pub(crate) fn ask_as_another_user(test: &str, folder: &Path, socket: &Path) {
    // Else the socket's own mode would keep it out.
    set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    set_permissions(socket, Permissions::from_mode(0o666)).unwrap();
    let program = folder.join("asks");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut asks = Command::new(&program);
    asks.args([test, "--exact"]).env(ASKS, socket).current_dir("/").uid(NOBODY);
    match asks.output() {
        Ok(done) => {
            let said = String::from_utf8_lossy(&done.stdout);
            assert!(done.status.success() && said.contains("1 passed"), "{said}");
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::PermissionDenied, "only root can become another user"),
    }
}

/// This program again: one of its tests does what its standard input says, and answers in lines that begin with `ready`, `done` or `failed`.
pub(crate) struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    pub(crate) fn start(test: &str, environment: [(&str, &OsStr); 2]) -> Self {
        Self::of(Command::new(std::env::current_exe().unwrap()), test, environment)
    }

    /// Starts one with the number 1 of a new namespace of processes. Returns `None` where the system lets nobody make one.
    pub(crate) fn start_in_namespace(test: &str, environment: [(&str, &OsStr); 2]) -> Option<Self> {
        let all: [&[&str]; 2] = [&["-p", "-f", "--kill-child"], &["-U", "-r", "-p", "-f", "--kill-child"]];
        let may = |args: &&[&str]| {
            let tried = Command::new("unshare").args(*args).arg("true").stderr(Stdio::null()).status();
            tried.is_ok_and(|status| status.success())
        };
        let args = all.into_iter().find(may)?;
        let mut command = Command::new("unshare");
        command.args(args).arg(std::env::current_exe().unwrap());
        Some(Self::of(command, test, environment))
    }

    fn of(mut command: Command, test: &str, environment: [(&str, &OsStr); 2]) -> Self {
        command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
        command.envs(environment).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { input: child.stdin.take(), child, output }
    }

    /// Starts one, and waits for its `ready`.
    pub(crate) fn ready(test: &str, environment: [(&str, &OsStr); 2]) -> Self {
        let mut process = Self::start(test, environment);
        assert_eq!(process.next(), "ready");
        process
    }

    /// Returns the next line that is one of ours.
    pub(crate) fn next(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the process has ended");
            let line = line.trim();
            if ["ready", "done", "failed"].iter().any(|word| line.starts_with(word)) {
                return line.to_owned();
            }
        }
    }

    pub(crate) fn begin(&mut self, what: &str) {
        writeln!(self.input.as_mut().unwrap(), "{what}").unwrap();
    }

    pub(crate) fn does(&mut self, what: &str) -> String {
        self.begin(what);
        self.next()
    }

    /// Ends it by SIGKILL.
    pub(crate) fn kill(self) {
        drop(self);
    }

    /// Lets it come to its end, which must be a good one.
    pub(crate) fn end(mut self) {
        drop(self.input.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
    }
}

impl Drop for Process {
    /// Ends by SIGKILL one that its test gives up.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
