//! The log of RMM's `logging_resource_adaptor`, with one line for each request and free. `Logging` of
//! `seamalloc-layers` writes the same form.
//!
//! Owns: reading the log. The columns are those of `logging_resource_adaptor_impl.cpp` (`header`) and of RMM's own
//! reader, `cpp/benchmarks/utilities/log_parser.hpp`.
//!
//! ```text
//! Thread,Time,Action,Pointer,Size,Stream
//! 1,13:05:59.000214,allocate,0x7f2c40000000,1048576,0
//! 1,13:05:59.000391,free,0x7f2c40000000,1048576,0
//! ```
//! A trace has no threads and no times, so events are in the order of lines. Failed requests and blocks of 0 bytes are
//! skipped. A free completes with the next event, since the log does not say whether another stream still used the
//! block.

use std::io::BufRead;

use crate::builder::TraceBuilder;
use crate::error::{TraceError, excerpt};
use crate::event_lines::{EventLine, read_events};
use crate::trace::Trace;
use seamalloc::driver::StreamId;

/// The first line of a log.
const LOG_HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream";
/// The first bytes of a log.
pub(crate) const BEGIN: &[u8] = b"Thread,";

/// Reads a trace from a log of RMM's `logging_resource_adaptor`. `name` is the trace's name. Errors name `file`.
///
/// # Errors
/// Other columns, a wrong field, too few or too many fields, or the free of a block that is not live: the error names
/// the line. A log without an allocation gives [`TraceError::Empty`]. A `text` that cannot be read or is too long gives
/// an error of reading.
pub fn read_rmm(name: &str, file: &str, text: impl BufRead) -> Result<Trace, TraceError> {
    read_events(name, file, text, |line, builder| match line.number {
        1 => read_header(line),
        _ if line.content.is_empty() => Ok(()),
        _ => read_line(line, builder),
    })
}

fn read_header(line: &EventLine<'_>) -> Result<(), TraceError> {
    if line.content == LOG_HEADER.as_bytes() {
        return Ok(());
    }
    Err(line.malformed(excerpt(line.content), format!("the columns {LOG_HEADER}")))
}

fn read_line(line: &EventLine<'_>, builder: &mut TraceBuilder) -> Result<(), TraceError> {
    let mut fields = line.content.split(|&byte| byte == b',');
    let mut field = || fields.next().ok_or_else(|| line.malformed(excerpt(line.content), "six fields"));
    let [_thread, _time, action, pointer, size, stream] = [field()?, field()?, field()?, field()?, field()?, field()?];
    if fields.next().is_some() {
        return Err(line.malformed(excerpt(line.content), "six fields"));
    }
    let size = line.decimal(size, "a size")?;
    let pointer = match pointer {
        b"(nil)" => 0,
        digits => line.hexadecimal(digits, "a pointer")?,
    };
    let stream = StreamId(line.hexadecimal(stream, "a stream")?);
    let event = match action {
        b"allocate failure" => return Ok(()),
        b"allocate" | b"free" if size == 0 => return Ok(()),
        b"allocate" => builder.stream(stream).and_then(|stream| builder.alloc(pointer, size, stream)).map(drop),
        b"free" => builder.free_requested(pointer).and_then(|()| builder.free_completed(pointer)),
        other => return Err(line.malformed(excerpt(other), "allocate, allocate failure or free")),
    };
    event.map_err(|rule| line.rule(rule))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::read_bytes;
    use crate::trace::TraceEvent::{Alloc, FreeCompleted, FreeRequested};

    fn read(lines: &str) -> Result<Trace, TraceError> {
        read_bytes("job.csv", format!("{LOG_HEADER}\n{lines}").as_bytes()).map(|mut traces| traces.remove(0))
    }

    #[test]
    fn a_log_is_a_trace_in_the_order_of_its_lines() {
        let trace = read(
            "7,10:00:00.000001,allocate,0x7f00,100,0\r\n9,10:00:00.000002,allocate,0x8000,50,0x55d0\n\
             7,10:00:00.000003,allocate failure,(nil),1099511627776,0\n7,x,allocate,(nil),0,0\n7,x,free,(nil),0,0\n\
             9,10:00:00.000004,free,0x7f00,100,0\n7,10:00:00.000005,allocate,0x7f00,60,0\n",
        )
        .unwrap();
        assert_eq!(trace.name, "job");
        assert_eq!(trace.streams, [StreamId(0), StreamId(0x55d0)]);
        let events = [
            Alloc { size: 100, stream: 0 },
            Alloc { size: 50, stream: 1 },
            FreeRequested { block: 0 },
            FreeCompleted { block: 0 },
            Alloc { size: 60, stream: 0 },
        ];
        assert_eq!(trace.events, events);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let says = |lines: &str, words: &[&str]| {
            let error = read(lines).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        };
        says("1,t,allocate,0x10,5,0\n1,t,free,0x20,5,0\n", &["line 3"]);
        says("1,t,allocate,0x10,5,0\n1,t,allocate,0x10,5,0\n", &["line 3"]);
        says("1,t,allocate,0x10,5\n", &["line 2", "six fields"]);
        says("1,t,allocate,0x10,5,0,0\n", &["line 2", "six fields"]);
        says("1,t,realloc,0x10,5,0\n", &["line 2", "allocate failure"]);
        says("1,t,allocate,0xzz,5,0\n", &["line 2", "a pointer"]);
        says("1,t,allocate,0x10,-5,0\n", &["line 2", "a size"]);
        says("1,t,allocate,0x10,5,default\n", &["line 2", "a stream"]);
        assert!(matches!(read("1,t,allocate failure,(nil),5,0\n"), Err(TraceError::Empty { .. })));
        let other = read_bytes("x", b"Thread,Time,Action\n1,t,allocate\n").unwrap_err().to_string();
        assert!(other.contains("line 1") && other.contains("the columns"), "{other}");
    }
}
