//! Bodies of the compact format.
//!
//! Owns: the packing. A file has a checksum and is compressed, so that mutations of a file itself hardly ever reach what reads
//! the body.

use crate::exercise::exercise;
use flate2::Crc;
use seamalloc_trace::compact::{MAGIC, VERSION};
use seamalloc_trace::read_compact;

/// zstd's; quick to write.
const LEVEL: i32 = 1;

/// Packs the bytes as the body of a compact file, and reads it.
///
/// # Panics
/// Something is wrong with the reading, or with the trace.
pub fn run(body: &[u8]) {
    match read_compact("x", &pack(body)) {
        Ok(trace) => exercise(&trace),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn pack(body: &[u8]) -> Vec<u8> {
    let mut checksum = Crc::new();
    checksum.update(body);
    let mut file = MAGIC.to_vec();
    file.extend(VERSION.to_le_bytes());
    file.extend(checksum.sum().to_le_bytes());
    file.extend((body.len() as u64).to_le_bytes());
    file.extend(zstd::bulk::compress(body, LEVEL).expect("a Vec takes all bytes"));
    file
}
