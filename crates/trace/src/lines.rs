//! The lines of a text, one at a time.
//!
//! Owns: the limits on the length of lines and texts, the ends of lines, and the reading of numbers. Each format parses
//! its own lines.

use std::io::{BufRead, Read};

use crate::error::{Place, TraceError, excerpt};

/// The longest line in bytes. Only the first line, with the description of the job, is ever long.
pub(crate) const MAX_LINE: u64 = 1 << 20;

/// The longest text that is read, in bytes. The limit is twenty times the longest trace known (24 MB, 2 million
/// events). So a small hostile gzip file cannot fill the memory.
const MAX_TEXT: u64 = 512 << 20;

/// A text that is read line by line.
pub(crate) struct Lines<'a, R> {
    file: &'a str,
    text: R,
    line: Vec<u8>,
    number: u64,
    total: u64,
}

/// A line without its end.
#[derive(Clone, Copy)]
pub(crate) struct Line<'a> {
    /// The line's number, from 1.
    pub(crate) number: u64,
    pub(crate) content: &'a [u8],
    /// The bytes of the text that the line took, including its end.
    pub(crate) read: u64,
}

impl<'a, R: BufRead> Lines<'a, R> {
    pub(crate) fn new(file: &'a str, text: R) -> Self {
        Self { file, text, line: Vec::with_capacity(256), number: 0, total: 0 }
    }

    /// Returns the next line, or `None` at the text's end.
    pub(crate) fn next(&mut self) -> Result<Option<Line<'_>>, TraceError> {
        self.line.clear();
        self.number = self.number.saturating_add(1);
        let place = Place::Line(self.number);
        let mut limited = (&mut self.text).take(MAX_LINE);
        let read =
            limited.read_until(b'\n', &mut self.line).map_err(|error| TraceError::read(self.file, place, error))?;
        if read == 0 {
            return Ok(None);
        }
        self.total = self.total.saturating_add(read as u64);
        if self.total > MAX_TEXT {
            return Err(TraceError::TooLarge { file: self.file.to_owned(), limit: MAX_TEXT, unit: "bytes of text" });
        }
        let content = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        if content.len() == self.line.len() && read as u64 == MAX_LINE {
            let expected = format!("at most {MAX_LINE} bytes in a line");
            return Err(TraceError::malformed(self.file, place, excerpt(content), expected));
        }
        let content = content.strip_suffix(b"\r").unwrap_or(content);
        Ok(Some(Line { number: self.number, content, read: read as u64 }))
    }
}

/// Returns the number that the digits represent; `None` if there are no digits or other characters, or if the number
/// needs more than 64 bits.
pub(crate) fn number_of(digits: &[u8], radix: u32) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, &byte| {
        let digit = char::from(byte).to_digit(radix)?;
        number.checked_mul(radix.into())?.checked_add(digit.into())
    })
}
