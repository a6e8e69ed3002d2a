//! The errors of traces, of snapshots, and of files that contain them.
//!
//! Owns: [`TraceError`], which names the file, the place in the file, the content found and the content expected. Other
//! files do the reading.

use std::fmt;
use std::io;

use crate::layout::Layout;
use crate::memory::MemoryError;
use seamalloc::units::format_bytes;

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The file as a whole.
    Whole,
    /// A line of a text, from 1.
    Line(u64),
    /// A line and a column of a text, each from 1.
    LineColumn(u64, u64),
    /// A byte, from 0. In a compressed file, a byte of the unpacked content.
    Byte(u64),
    /// An entry of a snapshot's `device_traces`, with both numbers from 0.
    Entry {
        /// The ordinal of the device.
        device: usize,
        /// The index of the entry in the device's list.
        index: usize,
    },
    /// A segment of a snapshot's `segments`, from 0.
    Segment(usize),
    /// An event of a [`Trace`](crate::Trace) in memory, from 0.
    Event(usize),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Whole => write!(f, "as a whole"),
            Self::Line(line) => write!(f, "line {line}"),
            Self::LineColumn(line, column) => write!(f, "line {line}, column {column}"),
            Self::Byte(byte) => write!(f, "byte {byte}"),
            Self::Entry { device, index } => write!(f, "device_traces[{device}][{index}]"),
            Self::Segment(index) => write!(f, "segments[{index}]"),
            Self::Event(index) => write!(f, "event {index}"),
        }
    }
}

/// Returns the place in the form that is printed after a file's name.
fn at(place: &Place) -> String {
    if *place == Place::Whole { String::new() } else { format!(", {place}") }
}

/// A rule of traces that an event breaks. The numbers are those in the file, such as an id of a csv file or an address
/// of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// An allocation under an id (or at an address) that has not been freed.
    #[error("block {0} is allocated again while it is live; it must be freed first")]
    Reused(u64),
    /// A free of a block that was never allocated, or whose free is complete already.
    #[error("block {0} is freed, but no such block is live; an earlier allocation was expected")]
    Unknown(u64),
    /// The program freed the block a second time.
    #[error("block {0} is freed a second time; one free_requested was expected")]
    DoubleFree(u64),
    /// The free of the block completed before the program requested it.
    #[error("the free of block {0} completes before it was requested; its free_requested was expected first")]
    CompletedBeforeRequested(u64),
    /// A request for 0 bytes.
    #[error("block {0} has size 0; at least 1 byte was expected")]
    ZeroSize(u64),
    /// A request for more bytes than any address space has.
    #[error("block {id} has size {size}; at most {} bytes were expected", crate::trace::MAX_BLOCK_SIZE)]
    TooLarge {
        /// The block.
        id: u64,
        /// The bytes of the block.
        size: u64,
    },
    /// The list of the trace has no such stream.
    #[error("stream number {found} is named, but the trace lists {listed} streams")]
    NoSuchStream {
        /// The index of the stream.
        found: u32,
        /// The length of the list.
        listed: usize,
    },
    /// The trace has more blocks or streams than can be numbered.
    #[error("more than {} blocks or streams", u32::MAX)]
    TooMany,
    /// The trace takes more memory than its file allows, or than the system gives.
    #[error(transparent)]
    Memory(MemoryError),
}

/// Returns the end of the text of [`TraceError::NoHistory`], about the layouts of all devices together.
fn in_words(layouts: &[Layout]) -> String {
    let sum = |figure: fn(&Layout) -> u64| layouts.iter().map(figure).fold(0, u64::saturating_add);
    let [reserved, allocated] = [sum(|of| of.held.reserved), sum(|of| of.held.allocated)].map(format_bytes);
    let largest = layouts.iter().map(|of| of.held.largest_hole).max().unwrap_or(0);
    match sum(|of| of.segments) {
        0 => ", and no segments either".to_owned(),
        count => format!(
            ", only the layout at one moment: {count} segment{} of {reserved}, of which {allocated} are allocated; the largest \
             free block has {}; `seamalloc whatif` says more of it",
            if count == 1 { "" } else { "s" },
            format_bytes(largest)
        ),
    }
}

/// The reason why a trace or a snapshot could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be opened, read or written.
    #[error("{file}: {source}")]
    Io {
        /// The file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// The file begins like a known format, but the rest does not match this format. The content is damaged, cut off,
    /// or wrong at one place.
    #[error("{file}{}: found {found}, expected {expected}", at(.place))]
    Malformed {
        /// The file.
        file: String,
        /// The place in the file.
        place: Place,
        /// The content found there.
        found: String,
        /// The content expected there.
        expected: String,
    },
    /// The file can be read, but its events contradict each other.
    #[error("{file}{}: {source}", at(.place))]
    Rule {
        /// The file.
        file: String,
        /// The place in the file.
        place: Place,
        /// The rule that the event breaks.
        source: RuleError,
    },
    /// The beginning of the file matches no known format.
    #[error(
        "{file}: found {found}, which begins like no known format; expected a csv trace, a .seam trace, a log of \
         RMM, or a PyTorch memory snapshot (pickle or JSON), plain or gzip"
    )]
    UnknownFormat {
        /// The file.
        file: String,
        /// The first bytes of the file.
        found: String,
    },
    /// The file is a csv of buffers with lifetimes, from which no trace can be made.
    #[error(
        "{file}: a csv of buffers, which `seamalloc plan` reads and writes; expected a trace or a PyTorch memory snapshot: \
         the one that the plan was made of"
    )]
    Buffers {
        /// The file.
        file: String,
    },
    /// The file contains no allocation.
    #[error("{file}: holds no allocation; expected at least one")]
    Empty {
        /// The file.
        file: String,
    },
    /// The file has no content.
    #[error(
        "{file}: the file is empty (0 bytes); its program may have ended before it was written, or the disk is full: write the snapshot again"
    )]
    NoContent {
        /// The file.
        file: String,
    },
    /// A PyTorch snapshot in which no history was recorded: `device_traces` has no allocation and no free.
    #[error(
        "{file}: the snapshot holds no history of allocations (device_traces has no alloc entry){}; record one with \
         torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks=\"python\") before the job and \
         torch.cuda.memory._dump_snapshot(path) after it",
         in_words(.layouts)
    )]
    NoHistory {
        /// The file.
        file: String,
        /// The layouts that the file holds instead of a history, one for each device with memory.
        layouts: Vec<Layout>,
    },
    /// A pickle with objects that are not plain data. The pickle is not executed.
    #[error(
        "{file}, byte {offset}: the pickle holds {opcode}, which makes objects or calls functions; it was not executed, \
         and only plain data is read"
    )]
    NotData {
        /// The file.
        file: String,
        /// The opcode's offset in the unpacked file.
        offset: u64,
        /// The opcode's name in Python's `pickletools`.
        opcode: &'static str,
    },
    /// A compact file of a later version of the format.
    #[error("{file}: compact trace format version {found}; this program reads versions 1 to {supported}")]
    NewerVersion {
        /// The file.
        file: String,
        /// The file's version.
        found: u32,
        /// The newest supported version.
        supported: u32,
    },
    /// The content of a compact file does not match its checksum.
    #[error("{file}: damaged; its checksum is {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// The file.
        file: String,
        /// The checksum of the content.
        found: u32,
        /// The checksum in the header.
        expected: u32,
    },
    /// Reading the file takes more memory than a file of its size may take, or than the system gives. The limit keeps a
    /// small hostile file from filling the memory.
    #[error("{file}: {source}")]
    Memory {
        /// The file.
        file: String,
        /// The limit that was exceeded, or the allocation that failed.
        source: MemoryError,
    },
    /// The file exceeds a limit of the reader. The limit keeps a small hostile file from filling the memory.
    #[error("{file}: more than {limit} {unit}, which is the most that is accepted")]
    TooLarge {
        /// The file.
        file: String,
        /// The limit.
        limit: u64,
        /// The unit of the limit.
        unit: &'static str,
    },
}

impl TraceError {
    /// Returns the layouts that a snapshot has in place of a history; an empty list for other errors.
    #[must_use]
    pub fn layouts(&self) -> &[Layout] {
        match self {
            Self::NoHistory { layouts, .. } => layouts,
            _ => &[],
        }
    }

    /// Makes the error of unexpected content at a place.
    pub(crate) fn malformed(file: &str, place: Place, found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self::Malformed { file: file.to_owned(), place, found: found.into(), expected: expected.into() }
    }

    /// Makes the error of a broken rule at a place.
    pub(crate) fn rule(file: &str, place: Place, source: RuleError) -> Self {
        match source {
            RuleError::Memory(source) => Self::memory(file, source),
            source => Self::Rule { file: file.to_owned(), place, source },
        }
    }

    /// Makes the error of too much memory.
    pub(crate) fn memory(file: &str, source: MemoryError) -> Self {
        Self::Memory { file: file.to_owned(), source }
    }

    /// Makes the error of a failed read: an error of the system, or of an unpacked stream that is damaged or was cut
    /// off.
    pub(crate) fn read(file: &str, place: Place, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::InvalidData
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::Other => {
                let found = format!("a compressed stream that is damaged or ends early ({error})");
                Self::malformed(file, place, found, "a whole one")
            }
            _ => Self::io(file, error),
        }
    }

    /// Makes the error of a failed read or write of the system.
    pub(crate) fn io(file: &str, source: io::Error) -> Self {
        Self::Io { file: file.to_owned(), source }
    }
}

/// Returns text of a file for a message: the first few characters, with unprintable ones escaped.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    const SHOWN: usize = 40;
    let head = bytes.get(..SHOWN).unwrap_or(bytes);
    let dots = if bytes.len() > SHOWN { "…" } else { "" };
    format!("\"{}{dots}\"", head.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_file_place_found_and_expected() {
        let error = TraceError::malformed("job.csv", Place::Line(7), "\"x\"", "a, r or f");
        assert_eq!(error.to_string(), "job.csv, line 7: found \"x\", expected a, r or f");
        let error = TraceError::rule("s.pickle", Place::Entry { device: 1, index: 5 }, RuleError::Reused(42));
        assert!(error.to_string().starts_with("s.pickle, device_traces[1][5]: block 42 is allocated again"));
        let error = TraceError::malformed("s.pickle", Place::Whole, "a list", "a dict");
        assert_eq!(error.to_string(), "s.pickle: found a list, expected a dict");
    }

    #[test]
    fn a_snapshot_without_a_history_says_what_it_has() {
        let blocks = r#"[{"address":0,"size":3145728,"state":"active_allocated"},{"address":3145728,"size":1048576,"state":"inactive"}]"#;
        let segment = format!(r#"{{"address":0,"total_size":4194304,"blocks":{blocks}}}"#);
        let entry = r#"{"action":"snapshot","addr":0,"size":0,"stream":0}"#;
        let text = format!(r#"{{"segments":[{segment}],"device_traces":[[{entry}]]}}"#);
        let error = crate::read_bytes("s.json", text.as_bytes()).unwrap_err();
        let [layout] = error.layouts() else { panic!("{error}") };
        let held = layout.held;
        assert_eq!((layout.segments, held.reserved, held.allocated, held.largest_hole), (1, 4 << 20, 3 << 20, 1 << 20));
        let said = error.to_string();
        assert!(said.contains("no history of allocations (device_traces has no alloc entry)"), "{said}");
        assert!(
            said.contains(
                "1 segment of 4.00 MiB, of which 3.00 MiB are allocated; the largest free block has 1.00 MiB"
            ),
            "{said}"
        );
        let none = crate::read_bytes("s.json", br#"{"segments":[],"device_traces":[[]]}"#).unwrap_err().to_string();
        assert!(none.contains("no alloc entry), and no segments either; record one with"), "{none}");
    }

    #[test]
    fn excerpts_are_short_and_printable() {
        assert_eq!(excerpt(b"a\xff\n"), "\"a\\xff\\n\"");
        assert!(excerpt(&[b'x'; 1000]).chars().count() < 50);
    }
}
