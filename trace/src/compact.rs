//! The compact format of traces, `.seam`: columns under zstd, with a version and a checksum (docs/trace-format.md).
//!
//! Owns: reading and writing it. Untrusted bytes cannot make it allocate more than they unpack to.

use std::io::{Read, Write};

use rustc_hash::FxHashMap;

use super::builder::{self, TraceBuilder};
use super::error::{Place, TraceError, excerpt};
use super::{Trace, TraceEvent};
use seamalloc::driver::StreamId;

/// How every compact file begins. The bytes above 127 and the line ends show a file that was copied as text, as PNG's
/// do.
pub const MAGIC: [u8; 8] = *b"\x89sea\r\n\x1a\n";

/// The version that is written, and the newest that is read.
pub const VERSION: u32 = 1;

/// Magic, version, checksum, length of the body.
const HEADER: usize = 24;

/// Window of the compression, as a power of two; also what a reader must be ready to hold.
const WINDOW_LOG: u32 = 26;

/// The longest body in bytes: fifteen times that of the longest trace at hand (2 million events).
const MAX_BODY: u64 = 1 << WINDOW_LOG;

/// The longest description of a job in bytes, as a csv file's longest line.
const MAX_META: u64 = super::csv::MAX_LINE;

/// zstd's; the highest that needs no special setting of the reader.
const LEVEL: i32 = 19;

/// Operations, one byte each.
const ALLOC: u8 = 0;
const FREE: u8 = 1;
const FREE_REQUESTED: u8 = 2;
const FREE_COMPLETED: u8 = 3;

/// Writes a trace.
///
/// # Errors
/// The trace breaks a rule or is longer than the format allows, or `out` cannot be written.
pub fn write_compact(trace: &Trace, mut out: impl Write) -> Result<(), TraceError> {
    let file = trace.name.as_str();
    builder::check(trace).map_err(|(event, rule)| TraceError::rule(file, Place::Event(event), rule))?;
    let meta = serde_json::to_vec(&trace.meta).map_err(|error| TraceError::io(file, error.into()))?;
    limited(file, meta.len() as u64, MAX_META, "bytes that describe the job")?;
    let body = body_of(trace, &meta);
    let length = body.len() as u64;
    limited(file, length, MAX_BODY, "bytes of columns")?;
    let fail = |error| TraceError::io(file, error);
    out.write_all(&MAGIC).map_err(fail)?;
    out.write_all(&VERSION.to_le_bytes()).map_err(fail)?;
    out.write_all(&checksum(&body).to_le_bytes()).map_err(fail)?;
    out.write_all(&length.to_le_bytes()).map_err(fail)?;
    let mut encoder = zstd::Encoder::new(out, LEVEL).map_err(fail)?;
    encoder.window_log(WINDOW_LOG).map_err(fail)?;
    encoder.long_distance_matching(true).map_err(fail)?;
    encoder.set_pledged_src_size(Some(length)).map_err(fail)?;
    encoder.write_all(&body).map_err(fail)?;
    encoder.finish().and_then(|mut out| out.flush()).map_err(fail)
}

fn limited(file: &str, found: u64, limit: u64, unit: &'static str) -> Result<(), TraceError> {
    if found > limit { Err(TraceError::TooLarge { file: file.to_owned(), limit, unit }) } else { Ok(()) }
}

fn checksum(body: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(body);
    crc.sum()
}

fn body_of(trace: &Trace, meta: &[u8]) -> Vec<u8> {
    let sizes = sizes_by_frequency(trace);
    let number: FxHashMap<u64, u64> = sizes.iter().copied().zip(0..).collect();
    let mut columns = Columns::default();
    let mut named = 0;
    let mut free = |columns: &mut Columns, operation, block: u32| {
        columns.operations.push(operation);
        put(&mut columns.blocks, zigzag(i64::from(block) - i64::from(named)));
        named = block;
    };
    let mut events = trace.events.iter().peekable();
    while let Some(event) = events.next() {
        match *event {
            TraceEvent::Alloc { size, stream } => {
                columns.operations.push(ALLOC);
                put(&mut columns.sizes, number.get(&size).copied().unwrap_or_default());
                put(&mut columns.streams, stream.into());
            }
            TraceEvent::FreeRequested { block } => {
                let both = events.next_if_eq(&&TraceEvent::FreeCompleted { block }).is_some();
                free(&mut columns, if both { FREE } else { FREE_REQUESTED }, block);
            }
            TraceEvent::FreeCompleted { block } => free(&mut columns, FREE_COMPLETED, block),
        }
    }

    let mut body = Vec::new();
    put_bytes(&mut body, trace.name.as_bytes());
    put_bytes(&mut body, meta);
    put_numbers(&mut body, trace.streams.iter().map(|stream| stream.0));
    put_numbers(&mut body, sizes.into_iter());
    for column in [&columns.operations, &columns.sizes, &columns.streams, &columns.blocks] {
        put_bytes(&mut body, column);
    }
    body
}

#[derive(Default)]
struct Columns {
    operations: Vec<u8>,
    sizes: Vec<u8>,
    streams: Vec<u8>,
    blocks: Vec<u8>,
}

/// The distinct sizes, the most frequent first, so that most of them are named by one byte.
fn sizes_by_frequency(trace: &Trace) -> Vec<u64> {
    let mut counts: FxHashMap<u64, u64> = FxHashMap::default();
    for event in &trace.events {
        if let TraceEvent::Alloc { size, .. } = *event {
            *counts.entry(size).or_default() += 1;
        }
    }
    let mut sizes: Vec<(u64, u64)> = counts.into_iter().collect();
    sizes.sort_unstable_by_key(|&(size, count)| (std::cmp::Reverse(count), size));
    sizes.into_iter().map(|(size, _)| size).collect()
}

/// A number in LEB128: seven bits a byte, the lowest first, the top bit set on all but the last.
fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_numbers(out: &mut Vec<u8>, numbers: impl ExactSizeIterator<Item = u64>) {
    put(out, numbers.len() as u64);
    numbers.for_each(|number| put(out, number));
}

/// Signed to unsigned, the small ones of either sign to small ones: 0, -1, 1, -2, 2.
const fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

const fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::RuleError;
    use super::super::builder::tests::valid_trace;
    use super::*;

    fn pack(body: &[u8], length: u64) -> Vec<u8> {
        let mut file = MAGIC.to_vec();
        file.extend(VERSION.to_le_bytes());
        file.extend(checksum(body).to_le_bytes());
        file.extend(length.to_le_bytes());
        file.extend(zstd::encode_all(body, 1).unwrap());
        file
    }

    /// A body of one stream, the sizes 5 and 6, and the given columns.
    fn body(operations: &[u8], sizes: &[u8], streams: &[u8], blocks: &[u8]) -> Vec<u8> {
        let mut body = b"\x01t\x02{}\x01\x00\x02\x05\x06".to_vec();
        for column in [operations, sizes, streams, blocks] {
            put_bytes(&mut body, column);
        }
        body
    }

    fn read_body(body: &[u8]) -> Result<Trace, TraceError> {
        read_compact("t.seam", &pack(body, body.len() as u64))
    }

    fn small_file() -> Vec<u8> {
        let body = body(&[ALLOC, ALLOC, FREE], &[0, 1], &[0, 0], &[2]);
        pack(&body, body.len() as u64)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn round_trip(trace in valid_trace()) {
            let mut file = Vec::new();
            write_compact(&trace, &mut file).unwrap();
            prop_assert_eq!(read_compact("t", &file).unwrap(), trace);
        }

        #[test]
        fn damage_is_found(at in 0usize..1000, flip in 1u8..=255) {
            let mut file = small_file();
            let at = at % file.len();
            file[at] ^= flip;
            // A flip in zstd's frame header may leave the content as it was; then the trace must be the same.
            if let Ok(trace) = read_compact("t", &file) {
                prop_assert_eq!(trace, read_compact("t", &small_file()).unwrap());
            }
        }

        #[test]
        fn hostile_bodies_do_not_panic(body in proptest::collection::vec(0u8..8, 0..60)) {
            drop(read_body(&body));
        }
    }

    #[test]
    fn streams_that_are_unused_or_listed_twice_come_back() {
        let streams = vec![StreamId(4), StreamId(0), StreamId(4)];
        let trace = Trace { name: "ü".to_owned(), streams, ..Trace::default() };
        let mut file = Vec::new();
        write_compact(&trace, &mut file).unwrap();
        assert_eq!(read_compact("t", &file).unwrap(), trace);
    }

    #[test]
    fn the_documented_columns_are_read() {
        let trace = read_compact("t", &small_file()).unwrap();
        assert_eq!(trace.events[1], TraceEvent::Alloc { size: 6, stream: 0 });
        assert_eq!(trace.events[2..], [TraceEvent::FreeRequested { block: 1 }, TraceEvent::FreeCompleted { block: 1 }]);
    }

    #[test]
    fn every_truncation_is_an_error() {
        let file = small_file();
        for length in 0..file.len() {
            let error = read_compact("t.seam", &file[..length]).unwrap_err();
            assert!(matches!(error, TraceError::Malformed { place: Place::Byte(_), .. }), "{length}: {error}");
        }
        let mut longer = file;
        longer.push(0);
        assert!(read_compact("t.seam", &longer).unwrap_err().to_string().contains("1 more bytes"));
    }

    #[test]
    fn headers_that_lie_are_named() {
        let mut newer = small_file();
        newer[8] = 2;
        let error = read_compact("t", &newer).unwrap_err();
        assert!(error.to_string().contains("version 2; this program reads versions 1 to 1"), "{error}");
        let mut wrong = small_file();
        wrong[12] ^= 1;
        assert!(matches!(read_compact("t", &wrong), Err(TraceError::Checksum { .. })));
        let error = read_compact("t", b"notmagic").unwrap_err();
        assert!(matches!(error, TraceError::Malformed { place: Place::Byte(0), .. }), "{error}");
        assert!(matches!(read_compact("t", &pack(b"", u64::MAX)), Err(TraceError::TooLarge { .. })));
    }

    #[test]
    fn a_bomb_is_cut_at_its_claimed_length() {
        let bomb = vec![0u8; 8 << 20];
        let packed = pack(&bomb, 100);
        assert!(packed.len() < 4096);
        let error = read_compact("t", &packed).unwrap_err();
        assert!(error.to_string().contains("found more, expected 100 bytes"), "{error}");
    }

    #[test]
    fn counts_that_lie_allocate_nothing() {
        let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        for front in [b"".as_slice(), b"\x01t", b"\x01t\x02{}", b"\x01t\x02{}\x01\x00", b"\x01t\x02{}\x01\x00\x00"] {
            let error = read_body(&[front, &huge].concat()).unwrap_err();
            assert!(matches!(error, TraceError::Malformed { place: Place::Byte(_), .. }), "{error}");
        }
        let eleven = [[0xff; 10].as_slice(), &[1]].concat();
        assert!(read_body(&eleven).unwrap_err().to_string().contains("more than 64 bits"));
    }

    #[test]
    fn columns_that_disagree_are_named() {
        for (operations, sizes, streams, blocks) in [
            (&[ALLOC, 4][..], &[0][..], &[0][..], &[0][..]),
            (&[ALLOC], &[2], &[0], &[]),
            (&[ALLOC], &[], &[0], &[]),
            (&[ALLOC], &[0], &[], &[]),
            (&[ALLOC], &[0, 0], &[0], &[]),
            (&[ALLOC], &[0], &[0, 0], &[]),
            (&[ALLOC], &[0], &[0], &[0]),
            (&[ALLOC, FREE], &[0], &[0], &[1]),
            (&[ALLOC, FREE], &[0], &[0], &[]),
        ] {
            let error = read_body(&body(operations, sizes, streams, blocks)).unwrap_err();
            assert!(matches!(error, TraceError::Malformed { place: Place::Byte(_), .. }), "{error}");
        }
        let error = read_body(&body(&[ALLOC, FREE_COMPLETED], &[0], &[0], &[0])).unwrap_err();
        assert!(matches!(error, TraceError::Rule { source: RuleError::CompletedBeforeRequested(0), .. }), "{error}");
        let error = read_body(&body(&[ALLOC], &[0], &[1], &[])).unwrap_err();
        assert!(matches!(error, TraceError::Rule { source: RuleError::NoSuchStream { .. }, .. }), "{error}");
        let mut longer = body(&[ALLOC], &[0], &[0], &[]);
        longer.push(0);
        assert!(read_body(&longer).unwrap_err().to_string().contains("the end of the body"));
    }

    #[test]
    fn zigzag_is_undone() {
        for number in [0, -1, 1, i64::from(u32::MAX), i64::MIN, i64::MAX] {
            assert_eq!(unzigzag(zigzag(number)), number);
        }
    }
}
