//! Reads texts that have one event on each line.
//!
//! Owns: the parts that these formats share: building a trace line by line, reading numbers, and naming the line in
//! errors. Each format parses its own lines.

use std::io::BufRead;

use crate::builder::TraceBuilder;
use crate::error::{Place, RuleError, TraceError, excerpt};
use crate::lines::{Line, Lines, number_of};
use crate::memory::Memory;
use crate::trace::Trace;

/// A line and its place in the file.
pub(crate) struct EventLine<'a> {
    pub(crate) file: &'a str,
    /// The line's number, from 1.
    pub(crate) number: u64,
    pub(crate) content: &'a [u8],
}

/// Reads a trace by `read`, which is called for each line. `name` is the trace's name. Errors name `file`.
///
/// # Errors
/// The errors of `read`, of a text that is too long, and of a text without an allocation.
pub(crate) fn read_events(
    name: &str,
    file: &str,
    text: impl BufRead,
    read: impl Fn(&EventLine<'_>, &mut TraceBuilder) -> Result<(), TraceError>,
) -> Result<Trace, TraceError> {
    let mut builder = TraceBuilder::within(Memory::of(0), name);
    let mut lines = Lines::new(file, text);
    while let Some(Line { number, content, read: bytes }) = lines.next()? {
        builder.memory().unpacked(bytes);
        read(&EventLine { file, number, content }, &mut builder)?;
    }
    if builder.blocks() == 0 {
        return Err(TraceError::Empty { file: file.to_owned() });
    }
    Ok(builder.finish())
}

impl EventLine<'_> {
    pub(crate) fn decimal(&self, digits: &[u8], what: &str) -> Result<u64, TraceError> {
        number_of(digits, 10)
            .ok_or_else(|| self.malformed(excerpt(digits), format!("{what}: a decimal number from 0 to {}", u64::MAX)))
    }

    /// Reads a hexadecimal number, with or without `0x`.
    pub(crate) fn hexadecimal(&self, digits: &[u8], what: &str) -> Result<u64, TraceError> {
        let bare = digits.strip_prefix(b"0x").unwrap_or(digits);
        number_of(bare, 16)
            .ok_or_else(|| self.malformed(excerpt(digits), format!("{what}: a hexadecimal number of up to 64 bits")))
    }

    pub(crate) fn malformed(&self, found: impl Into<String>, expected: impl Into<String>) -> TraceError {
        TraceError::malformed(self.file, Place::Line(self.number), found, expected)
    }

    pub(crate) fn rule(&self, rule: RuleError) -> TraceError {
        TraceError::rule(self.file, Place::Line(self.number), rule)
    }
}
