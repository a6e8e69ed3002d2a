//! Unpacks files that may be gzip.
//!
//! Owns: the first look at a file's bytes, and the limits on what is unpacked. `read.rs` tells the formats apart.

use std::io::{BufRead, BufReader, Cursor, Read};

use flate2::bufread::MultiGzDecoder;

use crate::compact;
use crate::error::{Place, TraceError};

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// As many bytes as the longest magic number has.
const HEAD: usize = compact::MAGIC.len();

/// The most that is read of a format that is held in memory whole, in bytes. Snapshots with stack traces reach
/// hundreds of megabytes.
const MAX_WHOLE: u64 = 1 << 30;

/// Unpacked bytes per read of a gzip stream.
pub(crate) const BUFFER: usize = 1 << 16;

/// Reads a whole file, unpacked where it is gzip.
pub(crate) fn read_whole(file: &str, bytes: &[u8]) -> Result<Vec<u8>, TraceError> {
    let opened = Opened::new(file, bytes)?;
    if opened.is_gzip() { read_to_limit(file, opened.unpacked()) } else { read_to_limit(file, opened.content) }
}

/// Reads a stream to its end, which must come before the limit.
pub(crate) fn read_to_limit(file: &str, reader: impl Read) -> Result<Vec<u8>, TraceError> {
    let mut bytes = Vec::new();
    let limit = MAX_WHOLE.saturating_add(1);
    reader.take(limit).read_to_end(&mut bytes).map_err(|error| TraceError::read(file, Place::Whole, error))?;
    if bytes.len() as u64 > MAX_WHOLE {
        return Err(TraceError::TooLarge { file: file.to_owned(), limit: MAX_WHOLE, unit: "unpacked bytes" });
    }
    Ok(bytes)
}

/// A file whose first bytes have been looked at.
pub(crate) struct Opened<R> {
    pub(crate) head: Vec<u8>,
    /// The whole file, its first bytes included.
    pub(crate) content: std::io::Chain<Cursor<Vec<u8>>, R>,
}

impl<R: BufRead> Opened<R> {
    pub(crate) fn new(file: &str, mut reader: R) -> Result<Self, TraceError> {
        let mut head = Vec::with_capacity(HEAD);
        let first = (&mut reader).take(HEAD as u64).read_to_end(&mut head);
        first.map_err(|error| TraceError::read(file, Place::Whole, error))?;
        Ok(Self { content: Cursor::new(head.clone()).chain(reader), head })
    }

    pub(crate) fn is_gzip(&self) -> bool {
        self.head.starts_with(&GZIP_MAGIC)
    }

    pub(crate) fn unpacked(self) -> impl BufRead {
        BufReader::with_capacity(BUFFER, MultiGzDecoder::new(self.content))
    }
}
