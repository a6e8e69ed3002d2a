//! The layout of a compact file, which reading and writing share.
//!
//! Owns: the header, the limits, the numbers of operations, and the code of signed numbers.

use crate::error::TraceError;

/// The first bytes of every compact file. The bytes above 127 and the line ends reveal a file that was copied as text,
/// as in the signature of PNG.
pub const MAGIC: [u8; 8] = *b"\x89sea\r\n\x1a\n";

/// The version that is written, and the newest version that is read.
pub const VERSION: u32 = 1;

/// The bytes of magic, version, checksum, and length of the body.
pub(super) const HEADER: usize = 24;

/// The base-2 logarithm of zstd's window in bytes. A reader needs a window of this size.
pub(super) const WINDOW_LOG: u32 = 26;

/// The longest body in bytes, which is fifteen times the body of the longest trace known (2 million events).
pub(super) const MAX_BODY: u64 = 1 << WINDOW_LOG;

/// The longest file in bytes. zstd lengthens data that it cannot compress by at most 1/256 (`ZSTD_COMPRESSBOUND`).
pub(crate) const MAX_FILE: u64 = HEADER as u64 + MAX_BODY + (MAX_BODY >> 8) + (1 << 10);

/// The longest description of a job in bytes, which is the longest line of a csv file.
pub(super) const MAX_META: u64 = crate::lines::MAX_LINE;

/// The operations, one byte each.
pub(super) const ALLOC: u8 = 0;
pub(super) const FREE: u8 = 1;
pub(super) const FREE_REQUESTED: u8 = 2;
pub(super) const FREE_COMPLETED: u8 = 3;

/// Returns a signed number as an unsigned one. Small numbers of either sign become small numbers: 0, -1, 1, -2, 2.
pub(super) const fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

pub(super) const fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

/// Returns an error for a length above the format's limit.
pub(super) fn limited(file: &str, found: u64, limit: u64, unit: &'static str) -> Result<(), TraceError> {
    if found > limit { Err(TraceError::TooLarge { file: file.to_owned(), limit, unit }) } else { Ok(()) }
}

pub(super) fn checksum(body: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(body);
    crc.sum()
}
