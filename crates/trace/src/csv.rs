//! The csv format of traces: plain text with one event on each line, for scripts to read and write.
//!
//! Owns: reading and writing this format. `read.rs` unpacks gzip and recognizes formats.
//!
//! ```text
//! # {"job": "gpt2xl-N"}      optional, only as the first line: facts about the job
//! a,ID,SIZE,STREAM           an allocation: requested bytes, stream handle in hex
//! r,ID                       the program freed the block
//! f,ID                       every stream has finished with the block
//! ```

use std::fmt::Display;
use std::io::{self, BufRead, Write};

use crate::builder::{self, TraceBuilder};
use crate::error::{Place, TraceError, excerpt};
use crate::event_lines::{EventLine, read_events};
use crate::lines::MAX_LINE;
use crate::trace::{Trace, TraceEvent};
use seamalloc::driver::StreamId;

/// Reads a trace from plain text. `name` is the trace's name; errors name `file`.
///
/// # Errors
/// A malformed field, a wrong number of fields, an event that breaks a rule, or text that ends early: the error names
/// the line. A text that is too long or has no allocation: the error names only the file.
pub fn read_csv(name: &str, file: &str, text: impl BufRead) -> Result<Trace, TraceError> {
    read_events(name, file, text, read_line)
}

fn read_line(line: &EventLine<'_>, builder: &mut TraceBuilder) -> Result<(), TraceError> {
    if line.content.is_empty() {
        return Ok(());
    }
    if line.number == 1 && line.content.first() == Some(&b'#') {
        return read_meta(line, builder);
    }
    let mut fields = line.content.split(|&byte| byte == b',');
    let kind = fields.next().unwrap_or_default();
    let mut field = |what: &'static str| {
        fields.next().ok_or_else(|| line.malformed("too few fields", format!("{what} after a comma")))
    };
    let event = match kind {
        b"a" => {
            let id = field("an id")?;
            if line.number == 1 && !id.iter().any(u8::is_ascii_digit) {
                // The line may be the headings of another csv file, the first of which is `a`.
                let expected =
                    "an event: a,ID,SIZE,STREAM or r,ID or f,ID, with a number as ID; no other form of csv is known";
                return Err(line.malformed(excerpt(line.content), expected));
            }
            let id = line.decimal(id, "an id")?;
            let size = line.decimal(field("a size in bytes")?, "a size in bytes")?;
            let stream = StreamId(line.hexadecimal(field("a stream in hex")?, "a stream")?);
            end(line, fields)?;
            let stream = builder.stream(stream).map_err(|rule| line.rule(rule))?;
            builder.alloc(id, size, stream).map(drop)
        }
        b"r" | b"f" => {
            let id = line.decimal(field("an id")?, "an id")?;
            end(line, fields)?;
            if kind == b"r" { builder.free_requested(id) } else { builder.free_completed(id) }
        }
        _ => return Err(line.malformed(excerpt(line.content), "a line that begins with a, r or f and a comma")),
    };
    event.map_err(|rule| line.rule(rule))
}

fn read_meta(line: &EventLine<'_>, builder: &mut TraceBuilder) -> Result<(), TraceError> {
    let json = line.content.get(1..).unwrap_or_default();
    builder.memory().charge_json(json).map_err(|error| TraceError::memory(line.file, error))?;
    let meta = serde_json::from_slice(json)
        .map_err(|error| line.malformed(format!("{} ({error})", excerpt(line.content)), "# and a JSON object"))?;
    builder.set_meta(meta);
    Ok(())
}

fn end<'b>(line: &EventLine<'_>, mut fields: impl Iterator<Item = &'b [u8]>) -> Result<(), TraceError> {
    match fields.next() {
        None => Ok(()),
        Some(_) => Err(line.malformed(excerpt(line.content), "fewer fields: a,ID,SIZE,STREAM or r,ID or f,ID")),
    }
}

/// Writes a trace as plain text. The ids are the block numbers. The name is not written.
///
/// # Errors
/// The trace breaks a rule, or `out` cannot be written.
pub fn write_csv(trace: &Trace, out: impl Write) -> Result<(), TraceError> {
    let fail = |source| TraceError::io(&trace.name, source);
    builder::check(trace).map_err(|(event, rule)| TraceError::rule(&trace.name, Place::Event(event), rule))?;
    let mut out = io::BufWriter::new(out);
    if !trace.meta.is_empty() {
        let line = format!("# {}\n", serde_json::to_string(&trace.meta).map_err(|error| fail(error.into()))?);
        if line.len() as u64 > MAX_LINE {
            return Err(TraceError::TooLarge { file: trace.name.clone(), limit: MAX_LINE, unit: "bytes in a line" });
        }
        out.write_all(line.as_bytes()).map_err(fail)?;
    }
    let mut next = 0u64;
    for event in &trace.events {
        match *event {
            TraceEvent::Alloc { size, stream } => {
                let stream = trace.streams.get(stream as usize).copied().unwrap_or_default();
                writeln!(out, "a,{next},{size},{:x}", stream.0).map_err(fail)?;
                next = next.saturating_add(1);
            }
            TraceEvent::FreeRequested { block } => write_free(&mut out, 'r', block).map_err(fail)?,
            TraceEvent::FreeCompleted { block } => write_free(&mut out, 'f', block).map_err(fail)?,
        }
    }
    out.flush().map_err(fail)
}

fn write_free(out: &mut impl Write, kind: impl Display, block: u32) -> io::Result<()> {
    writeln!(out, "{kind},{block}")
}

#[cfg(test)]
mod tests {
    use crate::error::RuleError;
    use proptest::prelude::*;

    use super::*;
    use crate::builder::tests::valid_trace;

    fn read(text: &str) -> Result<Trace, TraceError> {
        read_csv("t", "t.csv", text.as_bytes())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn round_trip(trace in valid_trace()) {
            let mut text = Vec::new();
            write_csv(&trace, &mut text).unwrap();
            prop_assert_eq!(read_csv("made", "made.csv", text.as_slice()).unwrap(), trace);
        }
    }

    #[test]
    fn heads_of_columns_are_no_event() {
        let error = read("a,b,c\n1,2,3\n").unwrap_err().to_string();
        assert!(error.contains("\"a,b,c\"") && error.contains("no other form of csv is known"), "{error}");
    }

    #[test]
    fn the_documented_lines_are_read() {
        let trace =
            read("# {\"job\": \"x\"}\r\na,18446744073709551615,512,0\r\na,7,3,1e8c5d20\nr,7\n\nf,7\na,7,9,0x1E8C5D20")
                .unwrap();
        assert_eq!(trace.meta["job"], "x");
        assert_eq!(trace.streams, [StreamId(0), StreamId(0x1e8c_5d20)]);
        assert_eq!(trace.events[1], TraceEvent::Alloc { size: 3, stream: 1 });
        assert_eq!(
            trace.events[2..4],
            [TraceEvent::FreeRequested { block: 1 }, TraceEvent::FreeCompleted { block: 1 }]
        );
        assert_eq!(trace.events[4], TraceEvent::Alloc { size: 9, stream: 1 });
    }

    #[test]
    fn wrong_lines_are_named() {
        for (text, line) in [
            ("a,1,5,0\nx,1", 2),
            ("a,1,5,0\n\nar,1", 3),
            ("a,1,5", 1),
            ("a,1", 1),
            ("r", 1),
            ("a,1,5,0,0", 1),
            ("a,1,5,0\nr,1,1", 2),
            ("a,1,-5,0", 1),
            ("a,1,+5,0", 1),
            ("a,1, 5,0", 1),
            ("a,1,18446744073709551616,0", 1),
            ("a,,5,0", 1),
            ("a,1,5,0x", 1),
            ("a,1,5,g", 1),
            ("a,1,5,10000000000000000", 1),
            ("# {", 1),
            ("# [1]", 1),
            ("a,1,5,0\n# {}", 2),
        ] {
            match read(text) {
                Err(TraceError::Malformed { place: Place::Line(found), file, .. }) => {
                    assert_eq!((found, file.as_str()), (line, "t.csv"), "{text:?}");
                }
                other => panic!("{text:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn broken_rules_are_named_with_their_line() {
        for (text, line, rule) in [
            ("a,1,0,0", 1, RuleError::ZeroSize(1)),
            ("a,1,281474976710656,0", 1, RuleError::TooLarge { id: 1, size: 1 << 48 }),
            ("a,1,5,0\na,1,5,0", 2, RuleError::Reused(1)),
            ("a,1,5,0\nr,2", 2, RuleError::Unknown(2)),
            ("a,1,5,0\nf,1", 2, RuleError::CompletedBeforeRequested(1)),
            ("a,1,5,0\nr,1\nr,1", 3, RuleError::DoubleFree(1)),
            ("a,1,5,0\nr,1\nf,1\nr,1", 4, RuleError::Unknown(1)),
        ] {
            match read(text) {
                Err(TraceError::Rule { place: Place::Line(found), source, .. }) => {
                    assert_eq!((found, source), (line, rule), "{text:?}");
                }
                other => panic!("{text:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn no_allocation_is_an_error() {
        for text in ["", "\n", "# {}\n"] {
            let error = read(text).unwrap_err();
            assert!(error.to_string().contains("holds no allocation"), "{error}");
        }
    }

    #[test]
    fn an_endless_line_is_refused() {
        let text = vec![b'1'; MAX_LINE as usize + 10];
        let error = read_csv("t", "t.csv", text.as_slice()).unwrap_err();
        assert!(matches!(error, TraceError::Malformed { place: Place::Line(1), .. }), "{error}");
    }

    #[test]
    fn an_invalid_trace_is_not_written() {
        let trace = Trace { events: vec![TraceEvent::FreeRequested { block: 0 }], ..Trace::default() };
        assert!(matches!(write_csv(&trace, Vec::new()), Err(TraceError::Rule { place: Place::Event(0), .. })));
    }
}
