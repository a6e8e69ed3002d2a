//! Which numbers of processes are comparable: those of one namespace.

/// Returns the inode of this process's namespace of processes. `None` where the system tells none.
pub(crate) fn namespace() -> Option<u64> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata("/proc/self/ns/pid").ok().map(|found| found.ino())
    }
    #[cfg(not(unix))]
    None
}
