//! What the live blocks of a private pool hold while it sleeps.
//!
//! Owns: the copies, in memory of the host or in a file, and how they are written and read. `backing/sleep.rs` gets the bytes
//! from the device and puts them back.

use crate::error::{Error, Result};
use crate::fallible::{TryPush, filled, text};
use crate::span::Span;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::PathBuf;

/// Bytes that are copied to a file, or from it, at a time.
const STEP: usize = 16 << 20;

/// What becomes of the contents of a private pool that sleeps ([`Allocator::sleep`](crate::Allocator::sleep)).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backup {
    /// They are kept in memory of the host: as many bytes as live blocks have. It is not page-locked.
    Host,
    /// They are lost: after waking, live blocks keep their addresses and hold anything.
    Discard,
    /// They are kept in a file of this name, which must not exist. Where the system allows it, the name is gone again as soon
    /// as the file is open, so that its space is free once the pool is awake or gone, even if the process is killed.
    File(PathBuf),
}

/// The copies of all live bytes of a private pool.
#[derive(Debug)]
pub(crate) struct Saved {
    /// Spans of home, in the order in which they were saved.
    spans: Vec<Span>,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Nowhere,
    /// One list for each span.
    Host(Vec<Vec<u8>>),
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
    /// Makes a place for contents.
    ///
    /// # Errors
    /// [`Error::Backup`] if the file cannot be made; [`Error::HostMemory`].
    pub(crate) fn new(backup: &Backup) -> Result<Self> {
        let bytes = match backup {
            Backup::Host => Bytes::Host(Vec::new()),
            Backup::Discard => Bytes::Nowhere,
            Backup::File(path) => {
                let mut copy = PathBuf::new();
                copy.try_reserve_exact(path.as_os_str().len())?;
                copy.push(path);
                let opened = OpenOptions::new().read(true).write(true).create_new(true).open(path);
                let file = opened.map_err(|error| failed(path.clone(), &error))?;
                // The open file lives on without a name.
                let named = std::fs::remove_file(path).is_err();
                Bytes::File(Kept { file, path: copy, named })
            }
        };
        Ok(Self { spans: Vec::new(), bytes })
    }

    /// Returns whether anything is to be kept.
    pub(crate) fn keeps(&self) -> bool {
        !matches!(self.bytes, Bytes::Nowhere)
    }

    /// Keeps what `read` gives of a span: it is called with offsets in the span, and buffers for the bytes from there on.
    pub(crate) fn keep(&mut self, span: Span, mut read: impl FnMut(u64, &mut [u8]) -> Result<()>) -> Result<()> {
        self.spans.try_reserve(1)?;
        match &mut self.bytes {
            Bytes::Nowhere => return Ok(()),
            Bytes::Host(kept) => {
                let mut bytes = filled(0, host_size(span)?)?;
                read(0, &mut bytes)?;
                kept.try_push(bytes)?;
            }
            Bytes::File(kept) => {
                let mut buffer = filled(0, host_size(span)?.min(STEP))?;
                for part in steps(span, buffer.len()) {
                    let Some(bytes) = buffer.get_mut(..part.size as usize) else { break };
                    read(part.start, bytes)?;
                    kept.file.write_all(bytes).map_err(|error| kept.failed(&error))?;
                }
            }
        }
        self.spans.push(span);
        Ok(())
    }

    /// Gives all that is kept to `write`, in its order: the span, an offset in it, and the bytes from there on.
    pub(crate) fn restore(&self, mut write: impl FnMut(Span, u64, &[u8]) -> Result<()>) -> Result<()> {
        match &self.bytes {
            Bytes::Nowhere => Ok(()),
            Bytes::Host(kept) => self.spans.iter().zip(kept).try_for_each(|(span, bytes)| write(*span, 0, bytes)),
            Bytes::File(kept) => {
                let mut file = &kept.file;
                file.rewind().map_err(|error| kept.failed(&error))?;
                let longest = self.spans.iter().map(|span| span.size).max().unwrap_or(0);
                let mut buffer = filled(0, host_size(Span::new(0, longest))?.min(STEP))?;
                for span in &self.spans {
                    for part in steps(*span, buffer.len()) {
                        let Some(bytes) = buffer.get_mut(..part.size as usize) else { break };
                        file.read_exact(bytes).map_err(|error| kept.failed(&error))?;
                        write(*span, part.start, bytes)?;
                    }
                }
                Ok(())
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

/// Returns the parts of a span, by their offsets in it, of at most so many bytes.
fn steps(span: Span, most: usize) -> impl Iterator<Item = Span> {
    let most = (most as u64).max(1);
    (0..span.size.div_ceil(most)).map(move |step| Span::new(step * most, most.min(span.size - step * most)))
}

fn host_size(span: Span) -> Result<usize> {
    usize::try_from(span.size).map_err(|_| Error::HostMemory)
}

fn failed(path: PathBuf, error: &std::io::Error) -> Error {
    Error::Backup { path, detail: text(format_args!("{error}")) }
}
