//! What the live blocks of a private pool hold while it sleeps.
//!
//! Owns: the copies, in memory of the host or in a file, and how they are written and read. `backing/sleep.rs` gets the bytes
//! from the device and puts them back.

use super::bulk_copy::{self, PART};
use crate::error::{Error, Result};
use crate::fallible::{Grown, text};
use crate::ids::HostBuffer;
use crate::span::Span;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

/// What becomes of the contents of a private pool that sleeps ([`Tags::sleep`](crate::operations::Tags::sleep)).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backup {
    /// They are kept in memory of the host: as many bytes as live blocks have. It is not page-locked, but for 128 MiB through
    /// which the copies go, and which are kept for the next one.
    Host,
    /// They are kept in page-locked memory of the host, which is copied to and from at the speed of the link. It takes the host
    /// seven times as long to have such memory as to copy to it, so it is kept once the pool is awake, for the next one that sleeps
    /// ([`Tags::release_backups`](crate::operations::Tags::release_backups) gives it back).
    Pinned,
    /// They are lost: after waking, live blocks keep their addresses and hold anything.
    Discard,
    /// They are kept in a file of this name, which must not exist, for its user alone (mode 0600). Where the system allows it, the name is gone again as soon
    /// as the file is open, so that its space is free once the pool is awake or gone, even if the process is killed.
    File(PathBuf),
}

/// Page-locked memory of the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Locked {
    pub(crate) buffer: HostBuffer,
    pub(crate) size: u64,
}

/// Page-locked memory that serves no backup at present. There is always room for all that serves one.
#[derive(Debug, Default)]
pub(crate) struct Stock {
    free: Vec<Locked>,
    /// How many buffers serve.
    serving: usize,
    /// The bytes of all.
    bytes: u64,
}

impl Stock {
    /// Returns the bytes of all page-locked memory, whether it serves or not.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bytes of what serves no backup at present.
    pub(crate) fn cached(&self) -> u64 {
        self.free.iter().map(|locked| locked.size).sum()
    }

    /// Takes a buffer of at least so many bytes, the smallest.
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

    /// Notes a buffer that was made, which serves.
    pub(crate) fn made(&mut self, locked: Locked) {
        self.serving += 1;
        self.bytes += locked.size;
    }

    /// Notes that a buffer serves no more.
    pub(crate) fn put(&mut self, locked: Locked) {
        self.serving = self.serving.saturating_sub(1);
        self.free.push(locked);
    }

    /// Takes all page-locked memory of a backup that is not needed any more.
    pub(crate) fn take_from(&mut self, mut saved: Saved) {
        saved.locked_mut().into_iter().flat_map(|locked| locked.drain(..)).for_each(|locked| self.put(locked));
    }

    /// Notes that a buffer that was taken is gone.
    pub(crate) fn gone(&mut self, locked: Locked) {
        self.serving = self.serving.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(locked.size);
    }
}

/// The copies of all live bytes of a private pool: one stream of bytes, the spans one behind the other.
#[derive(Debug)]
pub(crate) struct Saved {
    /// Spans of home, in the order in which they were saved.
    spans: Vec<Span>,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Nowhere,
    /// In parts of one size.
    Host(Vec<Vec<u8>>),
    Locked(Vec<Locked>),
    File(Kept),
}

/// A file, which is removed in the end if its name is still there.
#[derive(Debug)]
struct Kept {
    file: File,
    path: PathBuf,
    named: bool,
}

impl Saved {
    /// Makes a place for the contents of spans.
    ///
    /// # Errors
    /// [`Error::Backup`] if the file cannot be made; [`Error::HostMemory`].
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
                // Others may read nothing of it, not even until its name is gone.
                #[cfg(unix)]
                std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
                let file = options.open(path).map_err(|error| failed(path.clone(), &error))?;
                // The open file lives on without a name.
                let named = std::fs::remove_file(path).is_err();
                Bytes::File(Kept { file, path: copy, named })
            }
        };
        Ok(Self { spans, bytes })
    }

    /// Returns whether anything is to be kept.
    pub(crate) fn keeps(&self) -> bool {
        !matches!(self.bytes, Bytes::Nowhere)
    }

    /// Returns the spans.
    pub(crate) fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Returns the page-locked memory in which all is kept, if it is such; for all other backups `None`.
    pub(crate) fn locked(&self) -> Option<&[Locked]> {
        if let Bytes::Locked(locked) = &self.bytes { Some(locked) } else { None }
    }

    /// Returns the list of page-locked memory, to add to it or to empty it.
    pub(crate) fn locked_mut(&mut self) -> Option<&mut Vec<Locked>> {
        if let Bytes::Locked(locked) = &mut self.bytes { Some(locked) } else { None }
    }

    /// Keeps bytes behind those that are kept already; a multiple of 4 MiB, but for the last ones.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.bytes {
            Bytes::Nowhere | Bytes::Locked(_) => Ok(()),
            Bytes::Host(parts) => Ok(bulk_copy::append(parts, bytes)?),
            Bytes::File(kept) => kept.file.write_all(bytes).map_err(|error| kept.failed(&error)),
        }
    }

    /// Copies what is kept from a place on, which is a multiple of 4 MiB.
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
