//! Tests that need a process to themselves: they count what the whole process has open.

use rustix::process::{Resource, getrlimit, setrlimit};
use std::process::Command;
use std::time::{Duration, Instant};

/// Set in the processes that [`alone`] starts.
const ALONE: &str = "SEAMALLOC_TEST_ALONE";

/// Runs a test in a process of its own, where this is not one yet.
pub(crate) fn alone(name: &str, test: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return test();
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    let done = child.args(["--exact", name, "--nocapture"]).env(ALONE, "").output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
    assert!(said.contains("1 passed"), "no test has the name {name}");
}

/// The open descriptors of the process. The one that reads them is closed again.
pub(crate) fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count() - 1
}

/// Waits until so many files are open: the thread that serves closes its end of a connection when it gets to it.
pub(crate) fn settles_at(files: usize) {
    let start = Instant::now();
    while open_files() != files && start.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(open_files(), files);
}

/// Does something while the process may open `more` files, and no others.
pub(crate) fn with_files<T>(more: u64, step: impl FnOnce() -> T) -> T {
    let limit = getrlimit(Resource::Nofile);
    let is_free = |number: &u64| std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_err();
    let mut few = limit;
    few.current = (0..).filter(is_free).nth(more as usize);
    setrlimit(Resource::Nofile, few).unwrap();
    let done = step();
    setrlimit(Resource::Nofile, limit).unwrap();
    done
}
