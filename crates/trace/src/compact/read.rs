//! Reads the compact format.
//!
//! Untrusted bytes cannot make the reader take more memory than the file's account ([`Memory`]) allows. The body's
//! length is trusted up to the longest allowed body. Any other count is trusted only after a check that as many bytes
//! remain in the body, and lists are allocated at their final length.

use zstd::zstd_safe::{self, zstd_sys::ZSTD_ErrorCode};

use super::layout::{
    ALLOC, FREE, FREE_COMPLETED, FREE_REQUESTED, HEADER, MAGIC, MAX_BODY, MAX_META, VERSION, checksum, limited,
    unzigzag,
};
use crate::builder::NumberedBlocks;
use crate::error::{Place, RuleError, TraceError, excerpt};
use crate::memory::{Memory, MemoryError, list_bytes};
use crate::trace::{Trace, TraceEvent};
use seamalloc::driver::StreamId;

/// Reads a trace from the bytes of a file. Errors name `file`.
///
/// # Errors
/// The bytes are not of this format, have a later version, are cut off or damaged, or an event breaks a rule. Byte
/// offsets in errors count from the start of the unpacked body.
pub fn read_compact(file: &str, bytes: &[u8]) -> Result<Trace, TraceError> {
    let (body, mut memory) = unpack(file, bytes)?;
    let too_much = |error| TraceError::memory(file, error);
    let mut body = Column { file, bytes: &body, at: 0 };
    let name = text(&mut body, "a name", &mut memory)?;
    let meta = body.part("the description of the job")?;
    limited(file, meta.bytes.len() as u64, MAX_META, "bytes that describe the job")?;
    memory.charge_json(meta.bytes).map_err(too_much)?;
    let meta = serde_json::from_slice(meta.bytes).map_err(|error| {
        TraceError::malformed(file, Place::Byte(meta.at), format!("{} ({error})", excerpt(meta.bytes)), "a JSON object")
    })?;
    let streams = body.numbers("the number of streams", "a stream", StreamId, &mut memory)?;
    let dictionary = body.numbers("the number of sizes", "a size", |size| size, &mut memory)?;
    let mut columns = Columns {
        operations: body.part("the operations")?,
        sizes: body.part("the sizes")?,
        streams: body.part("the streams")?,
        blocks: body.part("the blocks")?,
    };
    body.end("the end of the body")?;
    let mut trace = Trace { name, meta, streams, events: Vec::new() };
    columns.read_into(&mut trace, &dictionary, &mut memory)?;
    Ok(trace)
}

/// The columns of operations and of their operands.
struct Columns<'a> {
    operations: Column<'a>,
    sizes: Column<'a>,
    streams: Column<'a>,
    blocks: Column<'a>,
}

impl Columns<'_> {
    fn read_into(&mut self, trace: &mut Trace, dictionary: &[u64], memory: &mut Memory) -> Result<(), TraceError> {
        let file = self.operations.file;
        let too_much = |error| TraceError::memory(file, error);
        let count = |of: u8| self.operations.bytes.iter().filter(|operation| **operation == of).count();
        let (blocks, both) = (count(ALLOC), count(FREE));
        if u32::try_from(blocks).is_err() {
            return Err(TraceError::rule(file, Place::Byte(self.operations.at), RuleError::TooMany));
        }
        memory.room(&mut trace.events, self.operations.bytes.len().saturating_add(both)).map_err(too_much)?;
        let mut states = NumberedBlocks::with_room(memory, blocks).map_err(too_much)?;
        let mut named = 0u32;
        while let Some(operation) = self.operations.byte() {
            let at = Place::Byte(self.operations.at.saturating_sub(1));
            let mut add = |event| {
                states.apply(event, trace.streams.len()).map_err(|rule| TraceError::rule(file, at, rule))?;
                trace.events.push(event);
                Ok(())
            };
            if operation == ALLOC {
                let size = self.size(dictionary)?;
                let stream = u32::try_from(self.streams.number("a stream")?).unwrap_or(u32::MAX);
                add(TraceEvent::Alloc { size, stream })?;
                continue;
            }
            let block = self.blocks.block(named)?;
            named = block;
            match operation {
                FREE => {
                    add(TraceEvent::FreeRequested { block })?;
                    add(TraceEvent::FreeCompleted { block })?;
                }
                FREE_REQUESTED => add(TraceEvent::FreeRequested { block })?,
                FREE_COMPLETED => add(TraceEvent::FreeCompleted { block })?,
                _ => return Err(TraceError::malformed(file, at, format!("operation {operation}"), "0, 1, 2 or 3")),
            }
        }
        self.sizes.end("one size for each allocation")?;
        self.streams.end("one stream for each allocation")?;
        self.blocks.end("one block for each free")
    }

    fn size(&mut self, dictionary: &[u64]) -> Result<u64, TraceError> {
        let at = self.sizes.at;
        let number = self.sizes.number("a size")?;
        let size = usize::try_from(number).ok().and_then(|number| dictionary.get(number));
        size.copied().ok_or_else(|| {
            let expected = format!("less than {}, the number of sizes", dictionary.len());
            TraceError::malformed(self.sizes.file, Place::Byte(at), format!("size number {number}"), expected)
        })
    }
}

/// The most memory that zstd takes beside the packed and the unpacked bytes, in bytes. zstd's context has 96 KiB.
const CONTEXT: u64 = 1 << 18;
/// zstd's error for a frame whose content does not fit into the buffer.
const BODY_TOO_SHORT: usize = (ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall as usize).wrapping_neg();

/// Checks the header and unpacks the body. Returns the body, and the account of the memory that reading it may take.
fn unpack(file: &str, bytes: &[u8]) -> Result<(Vec<u8>, Memory), TraceError> {
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
    let damaged = |code| {
        let error = zstd_safe::get_error_name(code);
        malformed(HEADER, format!("a zstd stream that is damaged or ends early ({error})"), "a whole one")
    };
    let wrong_length =
        |found: String| malformed(HEADER, found, &format!("{length} bytes once unpacked, as the header says"));
    let too_much = |error| TraceError::memory(file, error);
    let frame_length = zstd_safe::find_frame_compressed_size(packed).map_err(damaged)?;
    let (frame, left) = packed.split_at_checked(frame_length).unwrap_or((packed, &[]));
    let mut memory = Memory::of(0);
    let mut body = Vec::new();
    memory.room(&mut body, usize::try_from(length).unwrap_or(usize::MAX)).map_err(too_much)?;
    memory.charge(CONTEXT).map_err(too_much)?;
    let mut context = zstd_safe::DCtx::try_create().ok_or(MemoryError::Refused { bytes: CONTEXT }).map_err(too_much)?;
    // zstd uses the buffer of the body as its window. zstd allocates no other window, even for a frame that asks for a
    // large one.
    match context.decompress(&mut body, frame) {
        Ok(_) if body.len() as u64 == length => {}
        Ok(found) if (found as u64) < length => return Err(wrong_length(format!("{found} bytes"))),
        Ok(_) => return Err(wrong_length("more".to_owned())),
        Err(BODY_TOO_SHORT) => return Err(wrong_length("more".to_owned())),
        Err(code) => return Err(damaged(code)),
    }
    if !left.is_empty() {
        let at = bytes.len().saturating_sub(left.len());
        return Err(malformed(at, format!("{} more bytes", left.len()), "the end of the file"));
    }
    let found = checksum(&body);
    if found != expected {
        return Err(TraceError::Checksum { file: file.to_owned(), found, expected });
    }
    memory.unpacked(length);
    memory.settle(0, list_bytes::<u8>(body.capacity()));
    Ok((body, memory))
}

fn text(body: &mut Column<'_>, what: &str, memory: &mut Memory) -> Result<String, TraceError> {
    let part = body.part(what)?;
    memory.charge(part.bytes.len() as u64).map_err(|error| TraceError::memory(part.file, error))?;
    let text = std::str::from_utf8(part.bytes)
        .map_err(|_| TraceError::malformed(part.file, Place::Byte(part.at), excerpt(part.bytes), "UTF-8"))?;
    Ok(text.to_owned())
}

/// The unread rest of a part of the body, and the offset of this rest in the body.
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

    /// Reads a count, and then as many numbers. At least one byte must remain for each number.
    fn numbers<T>(
        &mut self,
        count: &str,
        what: &str,
        make: impl Fn(u64) -> T,
        memory: &mut Memory,
    ) -> Result<Vec<T>, TraceError> {
        let start = self.at;
        let number = self.number(count)?;
        let left = self.bytes.len();
        let number = usize::try_from(number).ok().filter(|number| *number <= left);
        let number = number.ok_or_else(|| self.malformed(start, &format!("more than the {left} bytes left"), count))?;
        let mut numbers = Vec::new();
        memory.room(&mut numbers, number).map_err(|error| TraceError::memory(self.file, error))?;
        for _ in 0..number {
            numbers.push(make(self.number(what)?));
        }
        Ok(numbers)
    }

    fn block(&mut self, named: u32) -> Result<u32, TraceError> {
        let start = self.at;
        let distance = unzigzag(self.number("a block")?);
        let block = i64::from(named).checked_add(distance).and_then(|block| u32::try_from(block).ok());
        block.ok_or_else(|| self.malformed(start, &format!("a block {distance} after {named}"), "a block number"))
    }

    /// Reads a length, and then a part of as many bytes.
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
