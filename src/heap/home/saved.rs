//! The saved contents of a private pool's live blocks while the pool sleeps.
//!
//! Owns: the copies, in host memory or in a file, and how they are written and read. `backing/backup.rs` copies the
//! bytes from the device and back.

use super::bulk_copy::{self, PART};
use crate::error::{Error, Result};
use crate::fallible::{Grown, text};
use crate::ids::HostBuffer;
use crate::span::Span;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

/// The ways to keep the contents of a private pool while the pool sleeps
/// ([`Tags::sleep`](crate::operations::Tags::sleep)).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backup {
    /// The contents are kept in host memory, as many bytes as live blocks have. This memory is not page-locked. The
    /// copies go through 128 MiB of page-locked memory, which is kept for the next backup.
    Host,
    /// The contents are kept in page-locked host memory, and are copied at the speed of the link. Page-locking takes
    /// seven times as long as the copy. So the memory is kept once the pool is awake, for the next pool that sleeps.
    /// [`Tags::release_backups`](crate::operations::Tags::release_backups) gives the memory back.
    Pinned,
    /// The contents are lost. After waking, live blocks keep their addresses and have arbitrary contents.
    Discard,
    /// The contents are kept in a file of this name, which must not exist yet. Only the user can read the file (mode
    /// 0600). If the system allows it, the name is removed as soon as the file is open. The file's space is then freed
    /// once the pool is awake or has ended, even if the process is killed.
    File(PathBuf),
}

/// Page-locked host memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Locked {
    pub(crate) buffer: HostBuffer,
    pub(crate) size: u64,
}

/// The page-locked memory of backups. The list `free` of unused buffers always has room for the buffers in use.
#[derive(Debug, Default)]
pub(crate) struct Stock {
    free: Vec<Locked>,
    /// The number of buffers in use: for a backup, or for copies to ordinary memory or a file.
    serving: usize,
    /// The bytes of all buffers, used and unused.
    bytes: u64,
}

impl Stock {
    /// Returns the bytes of all page-locked memory, used and unused.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bytes of unused page-locked memory.
    pub(crate) fn cached(&self) -> u64 {
        self.free.iter().map(|locked| locked.size).sum()
    }

    /// Takes the smallest unused buffer of at least `at_least` bytes, or returns `None`.
    pub(crate) fn take(&mut self, at_least: u64) -> Option<Locked> {
        let fitting = self.free.iter().enumerate().filter(|(_, locked)| locked.size >= at_least);
        let (at, _) = fitting.min_by_key(|(_, locked)| locked.size)?;
        self.serving += 1;
        Some(self.free.swap_remove(at))
    }

    /// Makes room for one more buffer.
    pub(crate) fn reserve(&mut self) -> Grown<()> {
        self.free.try_reserve(self.serving + 1)
    }

    /// Notes a new buffer, which is in use.
    pub(crate) fn made(&mut self, locked: Locked) {
        self.serving += 1;
        self.bytes += locked.size;
    }

    /// Puts back a buffer that is no longer in use.
    pub(crate) fn put(&mut self, locked: Locked) {
        self.serving = self.serving.saturating_sub(1);
        self.free.push(locked);
    }

    /// Puts back all page-locked memory of a backup that is not needed any more.
    pub(crate) fn take_from(&mut self, mut saved: Saved) {
        saved.locked_mut().into_iter().flat_map(|locked| locked.drain(..)).for_each(|locked| self.put(locked));
    }

    /// Notes that a taken buffer was given back to the host.
    pub(crate) fn gone(&mut self, locked: Locked) {
        self.serving = self.serving.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(locked.size);
    }
}

/// The copies of all live bytes of a private pool: one sequence of bytes, in the order of the spans.
#[derive(Debug)]
pub(crate) struct Saved {
    /// The saved spans of home, in the order of their saved bytes.
    spans: Vec<Span>,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Nowhere,
    /// Host memory, in parts of one size.
    Host(Vec<Vec<u8>>),
    Locked(Vec<Locked>),
    File(Kept),
}

/// A file, which is removed when dropped if its name still exists.
#[derive(Debug)]
struct Kept {
    file: File,
    path: PathBuf,
    named: bool,
}

impl Saved {
    /// Prepares a backup for the contents of these spans.
    ///
    /// # Errors
    /// [`Error::Backup`] if the file cannot be created. [`Error::HostMemory`] if the host has no memory.
    pub(crate) fn new(backup: &Backup, spans: Vec<Span>) -> Result<Self> {
        let bytes = match backup {
            Backup::Host => Bytes::Host(Vec::new()),
            Backup::Pinned => Bytes::Locked(Vec::new()),
            Backup::Discard => Bytes::Nowhere,
            Backup::File(path) => {
                let mut copy = PathBuf::new();
                copy.try_reserve_exact(path.as_os_str().len())?;
                copy.push(path);
                let mut options = OpenOptions::new();
                options.read(true).write(true).create_new(true);
                // Other users may never read the file, not even before its name is removed.
                #[cfg(unix)]
                std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
                let file = options.open(path).map_err(|error| failed(path.clone(), &error))?;
                // The open file stays usable without a name.
                let named = std::fs::remove_file(path).is_err();
                Bytes::File(Kept { file, path: copy, named })
            }
        };
        Ok(Self { spans, bytes })
    }

    /// Returns whether the backup keeps any contents.
    pub(crate) fn keeps(&self) -> bool {
        !matches!(self.bytes, Bytes::Nowhere)
    }

    /// Returns the spans of home whose contents are saved.
    pub(crate) fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Returns the page-locked memory of a pinned backup; `None` for all other backups.
    pub(crate) fn locked(&self) -> Option<&[Locked]> {
        if let Bytes::Locked(locked) = &self.bytes { Some(locked) } else { None }
    }

    /// Returns the list of page-locked memory of a pinned backup, for changes; `None` for all other backups.
    pub(crate) fn locked_mut(&mut self) -> Option<&mut Vec<Locked>> {
        if let Bytes::Locked(locked) = &mut self.bytes { Some(locked) } else { None }
    }

    /// Appends `bytes` to the kept bytes. All lengths but the last are multiples of 4 MiB.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.bytes {
            Bytes::Nowhere | Bytes::Locked(_) => Ok(()),
            Bytes::Host(parts) => Ok(bulk_copy::append(parts, bytes)?),
            Bytes::File(kept) => kept.file.write_all(bytes).map_err(|error| kept.failed(&error)),
        }
    }

    /// Fills `bytes` with kept bytes, beginning at the offset `at`, a multiple of 4 MiB.
    pub(crate) fn get(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        match &self.bytes {
            Bytes::Nowhere | Bytes::Locked(_) => Ok(()),
            Bytes::Host(parts) => {
                const FEWER: Error = Error::Internal("fewer bytes were kept of a pool that sleeps than it has");
                let first = usize::try_from(at).map_err(|_| FEWER)? / PART;
                let parts = parts.get(first..first + bytes.len().div_ceil(PART)).ok_or(FEWER)?;
                if bulk_copy::copy(parts, bytes)? { Ok(()) } else { Err(FEWER) }
            }
            Bytes::File(kept) => {
                let mut file = &kept.file;
                let read = file.seek(SeekFrom::Start(at)).and_then(|_| file.read_exact(bytes));
                read.map_err(|error| kept.failed(&error))
            }
        }
    }
}

impl Kept {
    fn failed(&self, error: &std::io::Error) -> Error {
        failed(self.path.clone(), error)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.named
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(%error, path = ?self.path, "the file of a private pool that slept could not be removed");
        }
    }
}

fn failed(path: PathBuf, error: &std::io::Error) -> Error {
    Error::Backup { path, detail: text(format_args!("{error}")) }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_is_its_users_alone() {
        let path = std::env::temp_dir().join(format!("seamalloc-saved-{}", std::process::id()));
        let saved = Saved::new(&Backup::File(path.clone()), Vec::new()).unwrap();
        let Bytes::File(kept) = &saved.bytes else { panic!("{saved:?}") };
        assert_eq!(kept.file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        drop(saved);
        assert!(!path.exists());
    }
}
