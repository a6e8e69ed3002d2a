//! Namespaces of processes. Process numbers are comparable only within one namespace.

/// Returns the inode of this process's namespace of processes. `None` if the system does not report it.
pub(crate) fn namespace() -> Option<u64> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata("/proc/self/ns/pid").ok().map(|found| found.ino())
    }
    #[cfg(not(unix))]
    None
}
