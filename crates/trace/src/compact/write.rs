//! Writes the compact format.

use std::io::Write;

use super::layout::{
    ALLOC, FREE, FREE_COMPLETED, FREE_REQUESTED, MAGIC, MAX_BODY, MAX_META, VERSION, WINDOW_LOG, checksum, limited,
    zigzag,
};
use crate::builder;
use crate::error::{Place, TraceError};
use crate::memory::SeededMap;
use crate::trace::{Trace, TraceEvent};

/// zstd's level, which is the highest one that needs no special setting of the reader.
const LEVEL: i32 = 19;

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

fn body_of(trace: &Trace, meta: &[u8]) -> Vec<u8> {
    let sizes = sizes_by_frequency(trace);
    let number: SeededMap<u64, u64> = sizes.iter().copied().zip(0..).collect();
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

/// Returns the distinct sizes, the most frequent first, so that the indexes of frequent sizes take one byte.
fn sizes_by_frequency(trace: &Trace) -> Vec<u64> {
    let mut counts: SeededMap<u64, u64> = SeededMap::default();
    for event in &trace.events {
        if let TraceEvent::Alloc { size, .. } = *event {
            *counts.entry(size).or_default() += 1;
        }
    }
    let mut sizes: Vec<(u64, u64)> = counts.into_iter().collect();
    sizes.sort_unstable_by_key(|&(size, count)| (std::cmp::Reverse(count), size));
    sizes.into_iter().map(|(size, _)| size).collect()
}

/// Writes a number in LEB128: seven bits in each byte, the lowest first, with the top bit set in all bytes but the
/// last.
fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_numbers(out: &mut Vec<u8>, numbers: impl ExactSizeIterator<Item = u64>) {
    put(out, numbers.len() as u64);
    numbers.for_each(|number| put(out, number));
}
