//! Reads the compact format.
//!
//! Untrusted bytes cannot make it allocate more than they unpack to.

use std::io::Read;

use super::layout::{
    ALLOC, FREE, FREE_COMPLETED, FREE_REQUESTED, HEADER, MAGIC, MAX_BODY, MAX_META, VERSION, WINDOW_LOG, checksum,
    limited, unzigzag,
};
use crate::builder::TraceBuilder;
use crate::error::{Place, TraceError, excerpt};
use crate::trace::Trace;
use seamalloc::driver::StreamId;

/// Reads a trace from the bytes of a file; `file` stands in errors.
///
/// # Errors
/// The bytes are not of this format, of a later version, cut off, damaged, or tell what cannot have happened. Bytes in
/// errors count from the start of the unpacked body.
pub fn read_compact(file: &str, bytes: &[u8]) -> Result<Trace, TraceError> {
    let body = unpack(file, bytes)?;
    let mut body = Column { file, bytes: &body, at: 0 };
    let name = text(&mut body, "a name")?;
    let mut builder = TraceBuilder::new(name);
    let meta = body.part("the description of the job")?;
    limited(file, meta.bytes.len() as u64, MAX_META, "bytes that describe the job")?;
    let meta = serde_json::from_slice(meta.bytes).map_err(|error| {
        TraceError::malformed(file, Place::Byte(meta.at), format!("{} ({error})", excerpt(meta.bytes)), "a JSON object")
    })?;
    builder.set_meta(meta);
    for _ in 0..body.number("the number of streams")? {
        let at = body.at;
        let stream = StreamId(body.number("a stream")?);
        builder.push_stream(stream).map_err(|rule| TraceError::rule(file, Place::Byte(at), rule))?;
    }
    let mut dictionary = Vec::new();
    for _ in 0..body.number("the number of sizes")? {
        dictionary.push(body.number("a size")?);
    }
    let mut operations = body.part("the operations")?;
    let mut sizes = body.part("the sizes")?;
    let mut streams = body.part("the streams")?;
    let mut blocks = body.part("the blocks")?;
    body.end("the end of the body")?;

    let mut named = 0u32;
    while let Some(operation) = operations.byte() {
        let at = Place::Byte(operations.at.saturating_sub(1));
        let done = if operation == ALLOC {
            let at = sizes.at;
            let number = sizes.number("a size")?;
            let size = usize::try_from(number).ok().and_then(|number| dictionary.get(number)).ok_or_else(|| {
                let expected = format!("less than {}, the number of sizes", dictionary.len());
                TraceError::malformed(file, Place::Byte(at), format!("size number {number}"), expected)
            })?;
            let stream = u32::try_from(streams.number("a stream")?).unwrap_or(u32::MAX);
            builder.alloc(builder.blocks().into(), *size, stream).map(drop)
        } else {
            named = blocks.block(named)?;
            let id = named.into();
            match operation {
                FREE => builder.free_requested(id).and_then(|()| builder.free_completed(id)),
                FREE_REQUESTED => builder.free_requested(id),
                FREE_COMPLETED => builder.free_completed(id),
                _ => return Err(TraceError::malformed(file, at, format!("operation {operation}"), "0, 1, 2 or 3")),
            }
        };
        done.map_err(|rule| TraceError::rule(file, at, rule))?;
    }
    sizes.end("one size for each allocation")?;
    streams.end("one stream for each allocation")?;
    blocks.end("one block for each free")?;
    Ok(builder.finish())
}

/// Checks the header and unpacks the body.
fn unpack(file: &str, bytes: &[u8]) -> Result<Vec<u8>, TraceError> {
    let malformed =
        |at: usize, found: String, expected: &str| TraceError::malformed(file, Place::Byte(at as u64), found, expected);
    let magic = bytes.get(..MAGIC.len()).unwrap_or(bytes);
    if magic != MAGIC {
        return Err(malformed(0, excerpt(magic), &format!("the compact format's {}", excerpt(&MAGIC))));
    }
    let short = || malformed(bytes.len(), "the end of the file".to_owned(), "a header of 24 bytes");
    let header = bytes.first_chunk::<HEADER>().ok_or_else(short)?;
    let [.., v0, v1, v2, v3, c0, c1, c2, c3, l0, l1, l2, l3, l4, l5, l6, l7] = *header;
    let version = u32::from_le_bytes([v0, v1, v2, v3]);
    let expected = u32::from_le_bytes([c0, c1, c2, c3]);
    let length = u64::from_le_bytes([l0, l1, l2, l3, l4, l5, l6, l7]);
    if version > VERSION {
        return Err(TraceError::NewerVersion { file: file.to_owned(), found: version, supported: VERSION });
    }
    if version == 0 {
        return Err(malformed(MAGIC.len(), "version 0".to_owned(), "1 or more"));
    }
    limited(file, length, MAX_BODY, "bytes of columns")?;
    let packed = bytes.get(HEADER..).unwrap_or_default();
    let damaged = |error: std::io::Error| {
        malformed(HEADER, format!("a zstd stream that is damaged or ends early ({error})"), "a whole one")
    };
    let mut decoder = zstd::Decoder::with_buffer(packed).map_err(damaged)?.single_frame();
    decoder.window_log_max(WINDOW_LOG).map_err(damaged)?;
    let mut body = Vec::new();
    (&mut decoder).take(length.saturating_add(1)).read_to_end(&mut body).map_err(damaged)?;
    if body.len() as u64 != length {
        let found = if body.len() as u64 > length { "more".to_owned() } else { format!("{} bytes", body.len()) };
        return Err(malformed(HEADER, found, &format!("{length} bytes once unpacked, as the header says")));
    }
    let left = decoder.finish().len();
    if left > 0 {
        return Err(malformed(bytes.len().saturating_sub(left), format!("{left} more bytes"), "the end of the file"));
    }
    let found = checksum(&body);
    if found != expected {
        return Err(TraceError::Checksum { file: file.to_owned(), found, expected });
    }
    Ok(body)
}

fn text(body: &mut Column<'_>, what: &str) -> Result<String, TraceError> {
    let part = body.part(what)?;
    let text = std::str::from_utf8(part.bytes)
        .map_err(|_| TraceError::malformed(part.file, Place::Byte(part.at), excerpt(part.bytes), "UTF-8"))?;
    Ok(text.to_owned())
}

/// What is left of a part of the body, and where in the body that begins.
#[derive(Clone, Copy)]
struct Column<'a> {
    file: &'a str,
    bytes: &'a [u8],
    at: u64,
}

impl<'a> Column<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        self.at = self.at.saturating_add(1);
        Some(first)
    }

    fn number(&mut self, what: &str) -> Result<u64, TraceError> {
        let start = self.at;
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte().ok_or_else(|| self.malformed(start, "the end of the column", what))?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(self.malformed(start, "a number of more than 64 bits", what))
    }

    fn block(&mut self, named: u32) -> Result<u32, TraceError> {
        let start = self.at;
        let distance = unzigzag(self.number("a block")?);
        let block = i64::from(named).checked_add(distance).and_then(|block| u32::try_from(block).ok());
        block.ok_or_else(|| self.malformed(start, &format!("a block {distance} after {named}"), "a block number"))
    }

    /// A part with its length in front.
    fn part(&mut self, what: &str) -> Result<Column<'a>, TraceError> {
        let start = self.at;
        let length = self.number(what)?;
        let found = || format!("a length of {length} with {} bytes left", self.bytes.len());
        let at = usize::try_from(length).ok();
        let (part, rest) = at
            .and_then(|at| self.bytes.split_at_checked(at))
            .ok_or_else(|| self.malformed(start, &found(), &format!("no more than that of {what}")))?;
        let part = Column { file: self.file, bytes: part, at: self.at };
        self.bytes = rest;
        self.at = self.at.saturating_add(length);
        Ok(part)
    }

    fn end(&self, expected: &str) -> Result<(), TraceError> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        Err(self.malformed(self.at, &format!("{} more bytes", self.bytes.len()), expected))
    }

    fn malformed(&self, at: u64, found: &str, expected: &str) -> TraceError {
        TraceError::malformed(self.file, Place::Byte(at), found, expected)
    }
}
