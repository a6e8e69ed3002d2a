//! Unpacks files that may be compressed by gzip.
//!
//! Owns: the check of a file's first bytes, and the limits on unpacked content. `read.rs` recognizes the formats.

use std::borrow::Cow;
use std::io::{BufRead, BufReader, Cursor, ErrorKind, Read};

use flate2::bufread::MultiGzDecoder;

use crate::compact;
use crate::error::{Place, TraceError};
use crate::memory::Memory;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The length of the longest magic number.
const HEAD: usize = compact::MAGIC.len();

/// The most bytes that are read of a format whose whole content is held in memory. Snapshots with stack traces have
/// hundreds of megabytes.
pub(crate) const MAX_WHOLE: u64 = 1 << 30;

/// The unpacked bytes in each read of a gzip stream.
pub(crate) const BUFFER: usize = 1 << 16;

/// Returns the content of a snapshot, unpacked if it is gzip, and the count of the host memory that it takes.
pub(crate) fn read_whole<'a>(file: &str, bytes: &'a [u8]) -> Result<(Cow<'a, [u8]>, Memory), TraceError> {
    let opened = Opened::new(file, bytes)?;
    if opened.is_gzip() {
        let (unpacked, memory) = read_to_limit(file, opened.unpacked(), MAX_WHOLE)?;
        return Ok((unpacked.into(), memory));
    }
    limited(file, bytes.len() as u64, MAX_WHOLE)?;
    Ok((bytes.into(), Memory::of(bytes.len() as u64)))
}

/// Reads a stream to its end. Returns an error if it has more than `limit` bytes.
pub(crate) fn read_to_limit(file: &str, mut reader: impl BufRead, limit: u64) -> Result<(Vec<u8>, Memory), TraceError> {
    let mut bytes = Vec::new();
    let mut memory = Memory::of(0);
    loop {
        let piece = match reader.fill_buf() {
            Ok([]) => return Ok((bytes, memory)),
            Ok(piece) => piece,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(TraceError::read(file, Place::Whole, error)),
        };
        let length = piece.len();
        limited(file, (bytes.len() as u64).saturating_add(length as u64), limit)?;
        memory.unpacked(length as u64);
        memory.extend(&mut bytes, piece).map_err(|error| TraceError::memory(file, error))?;
        reader.consume(length);
    }
}

/// Reads a text that may be compressed by gzip, up to 1 GiB of it.
///
/// # Errors
/// The system's error if the file cannot be read, or an error for content that is not text.
pub fn unpacked_text(file: impl Read) -> std::io::Result<String> {
    let mut file = BufReader::new(file);
    let mut text = String::new();
    if file.fill_buf()?.starts_with(&GZIP_MAGIC) {
        MultiGzDecoder::new(file).take(MAX_WHOLE).read_to_string(&mut text)?;
    } else {
        file.take(MAX_WHOLE).read_to_string(&mut text)?;
    }
    Ok(text)
}

fn limited(file: &str, found: u64, limit: u64) -> Result<(), TraceError> {
    if found > limit {
        return Err(TraceError::TooLarge { file: file.to_owned(), limit, unit: "unpacked bytes" });
    }
    Ok(())
}

/// A file whose first bytes have been read.
pub(crate) struct Opened<R> {
    pub(crate) head: Vec<u8>,
    /// The whole file, including its first bytes.
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
