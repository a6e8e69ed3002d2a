//! The text form of timelines.
//!
//! Owns: reading this form, and the rules of a timeline. `docs/trace-format.md` describes both.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde_json::Value;

use super::recording::{Line, StartBlock, Synchronized, Timeline, What};
use crate::error::{Place, RuleError, TraceError, excerpt};
use crate::lines::{self, Lines, number_of};
use crate::memory::{Memory, SeededMap};
use crate::pytorch::PICKLE_MAGIC;
use crate::read::stem;
use crate::trace::MAX_BLOCK_SIZE;
use crate::unpack::{self, Opened};
use seamalloc::driver::StreamId;

/// The supported version of the form.
const VERSION: u64 = 1;
/// The longest time in a timeline, in nanoseconds. The limit is a day, so that sums of times stay far below 64 bits.
const LONGEST: u64 = 86_400_000_000_000;
/// The most threads, and the most streams. A replay visits all of them repeatedly. Jobs have about a dozen.
const MOST_THREADS: usize = 256;
const MOST_STREAMS: usize = 256;
/// The expected first line, in errors.
const DESCRIPTION: &str = "# and a JSON object with \"timeline\": 1";
const KINDS: &str = "a line that begins with b, p, q, a, u, r, k, e, w, s or j and a comma";

/// Reads a timeline from a file, plain or gzip.
///
/// # Errors
/// The file cannot be read or is no timeline. The error names the line.
pub fn read_timeline_path(path: &Path) -> Result<Timeline, TraceError> {
    let file = path.display().to_string();
    let opened = File::open(path).map_err(|error| TraceError::io(&file, error))?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let opened = Opened::new(&file, BufReader::with_capacity(unpack::BUFFER, opened))?;
    if opened.is_gzip() {
        return read_opened(stem(&name), &file, Opened::new(&file, opened.unpacked())?);
    }
    read_opened(stem(&name), &file, opened)
}

/// Reads a timeline from unpacked content. A snapshot is refused with a message of its own, since users of PyTorch may
/// pass one.
fn read_opened(name: &str, file: &str, opened: Opened<impl BufRead>) -> Result<Timeline, TraceError> {
    if matches!(opened.head.first(), Some(&(PICKLE_MAGIC | b'{'))) {
        let expected = format!(
            "a timeline, which begins with {DESCRIPTION} and says when kernels ran and what waited for them; a snapshot does \
             not, and is replayed without --timeline"
        );
        return Err(TraceError::malformed(file, Place::Whole, "a PyTorch memory snapshot (pickle or JSON)", expected));
    }
    read_timeline(name, file, opened.content)
}

/// Reads a timeline from plain text. `name` is the timeline's name if the text has no `job`. Errors name `file`.
///
/// # Errors
/// Every error names the line: a field that is wrong, too few or too many, or an event that breaks a rule.
pub fn read_timeline(name: &str, file: &str, text: impl BufRead) -> Result<Timeline, TraceError> {
    let mut reader = Reader::new(name, file);
    let mut lines = Lines::new(file, text);
    while let Some(lines::Line { number, content, read }) = lines.next()? {
        reader.memory.unpacked(read);
        reader.number = number;
        reader.line(content)?;
    }
    reader.finish()
}

/// The state of a live block during reading.
#[derive(Clone, Copy)]
struct Live {
    block: u32,
    /// The thread and the number of the last line that named the block; `None` for a block that is live at the
    /// beginning.
    last: Option<(u32, u32)>,
}

/// An event, the thread that recorded it last, and the line of this thread that did so.
#[derive(Clone, Copy)]
struct Recorded {
    event: u32,
    last: (u32, u32),
}

struct Reader<'a> {
    file: &'a str,
    number: u64,
    memory: Memory,
    timeline: Timeline,
    described: bool,
    streams: SeededMap<u64, u32>,
    threads: SeededMap<u64, u32>,
    blocks: SeededMap<u64, Live>,
    events: SeededMap<u64, Recorded>,
    /// The last line of each thread.
    last_lines: Vec<Option<u32>>,
    /// The thread whose step has begun and has not ended.
    in_step: Option<u32>,
    steps: u64,
}

impl<'a> Reader<'a> {
    fn new(name: &str, file: &'a str) -> Self {
        Self {
            file,
            number: 0,
            memory: Memory::of(0),
            timeline: Timeline { name: name.to_owned(), ..Timeline::default() },
            described: false,
            streams: SeededMap::default(),
            threads: SeededMap::default(),
            blocks: SeededMap::default(),
            events: SeededMap::default(),
            last_lines: Vec::new(),
            in_step: None,
            steps: 0,
        }
    }

    fn line(&mut self, content: &[u8]) -> Result<(), TraceError> {
        if content.is_empty() {
            return Ok(());
        }
        if !self.described {
            return self.describe(content);
        }
        let mut fields = Fields { all: content, rest: Some(content) };
        let kind = fields.next(self, "a letter")?;
        if kind == b"b" {
            self.start_block(&mut fields)?;
            return self.end(&fields);
        }
        let thread = fields.decimal(self, "a thread")?;
        let gap_ns = fields.time(self, "the time before it")?;
        let thread = self.thread(thread)?;
        let (call_ns, needs, what) = match kind {
            b"p" | b"q" => {
                let _ = fields.decimal(self, "the step's number")?;
                (0, None, self.step(thread, kind == b"p")?)
            }
            b"a" => (0, None, self.allocate(&mut fields, thread)?),
            b"u" => {
                let (block, needs) = self.block(&mut fields, thread)?;
                let stream = self.stream(&mut fields)?;
                (0, needs, What::Use { block, stream })
            }
            b"r" => {
                let id = fields.decimal(self, "a block")?;
                let live = self.blocks.remove(&id).ok_or_else(|| self.rule(RuleError::Unknown(id)))?;
                (0, of_another(live.last, thread), What::Free { block: live.block })
            }
            b"k" => {
                let call_ns = fields.time(self, "the time of the call")?;
                let stream = self.stream(&mut fields)?;
                let duration_ns = fields.time(self, "how long it runs")?;
                (call_ns, None, What::Work { stream, duration_ns })
            }
            b"e" => {
                let call_ns = fields.time(self, "the time of the call")?;
                let stream = self.stream(&mut fields)?;
                (call_ns, None, What::Record { event: self.record(&mut fields, thread)?, stream })
            }
            b"w" => {
                let call_ns = fields.time(self, "the time of the call")?;
                let stream = self.stream(&mut fields)?;
                let (event, needs) = self.event(&mut fields, thread)?;
                (call_ns, needs, What::Wait { event, stream })
            }
            b"s" => {
                let call_ns = fields.time(self, "the time of the call")?;
                let (synchronized, needs) = self.synchronized(&mut fields, thread)?;
                (call_ns, needs, What::Synchronize(synchronized))
            }
            b"j" => {
                let other = fields.decimal(self, "a thread")?;
                let other = self.thread(other)?;
                let last = self.last_lines.get(other as usize).copied().flatten();
                (0, last.filter(|_| other != thread), What::Join)
            }
            _ => return Err(self.malformed(excerpt(content), KINDS)),
        };
        self.end(&fields)?;
        let index = self.next_line()?;
        let line = Line { thread, gap_ns, call_ns, needs, what };
        self.memory.push(&mut self.timeline.lines, line).map_err(|error| TraceError::memory(self.file, error))?;
        if let Some(last) = self.last_lines.get_mut(thread as usize) {
            *last = Some(index);
        }
        Ok(())
    }

    /// Reads the first line: a JSON object with the version.
    fn describe(&mut self, content: &[u8]) -> Result<(), TraceError> {
        let expected = DESCRIPTION;
        let json = content.strip_prefix(b"#").ok_or_else(|| self.malformed(excerpt(content), expected))?;
        self.memory.charge_json(json).map_err(|error| TraceError::memory(self.file, error))?;
        let meta: serde_json::Map<String, Value> = serde_json::from_slice(json)
            .map_err(|error| self.malformed(format!("{} ({error})", excerpt(content)), expected))?;
        if meta.get("timeline").and_then(Value::as_u64) != Some(VERSION) {
            return Err(self.malformed(excerpt(content), expected));
        }
        let time = |key: &str| match meta.get(key) {
            None => Ok(0),
            Some(value) => value
                .as_u64()
                .filter(|time| *time <= LONGEST)
                .ok_or_else(|| self.malformed(format!("\"{key}\": {value}"), "nanoseconds, at most a day")),
        };
        let (gap_ns, latency_ns) = (time("gap_ns")?, time("latency_ns")?);
        let steps = meta.get("steps_ns").and_then(Value::as_array);
        let recorded_ns =
            steps.map(|steps| steps.iter().filter_map(Value::as_u64).filter(|step| *step <= LONGEST).collect());
        let recorded_ns = recorded_ns.unwrap_or_default();
        if let Some(job) = meta.get("job").and_then(Value::as_str) {
            self.timeline.name = job.to_owned();
        }
        self.timeline = Timeline { meta, recorded_ns, gap_ns, latency_ns, ..std::mem::take(&mut self.timeline) };
        self.described = true;
        Ok(())
    }

    fn start_block(&mut self, fields: &mut Fields<'_>) -> Result<(), TraceError> {
        if !self.timeline.lines.is_empty() {
            return Err(self.malformed(excerpt(fields.all), "blocks of the beginning before all that happens"));
        }
        let id = fields.decimal(self, "a block")?;
        let size = self.size(fields, id)?;
        let stream = self.stream(fields)?;
        self.new_block(id, None)?;
        let start = StartBlock { size, stream };
        self.memory.push(&mut self.timeline.start, start).map_err(|error| TraceError::memory(self.file, error))
    }

    fn step(&mut self, thread: u32, begins: bool) -> Result<What, TraceError> {
        match (begins, self.in_step) {
            (true, None) => {
                self.in_step = Some(thread);
                Ok(What::StepBegins)
            }
            (false, Some(by)) if by == thread => {
                self.in_step = None;
                self.steps = self.steps.saturating_add(1);
                Ok(What::StepEnds)
            }
            (true, Some(_)) => Err(self.malformed("a step that begins", "the end of the step before")),
            (false, _) => Err(self.malformed("a step that ends", "its begin before, in the same thread")),
        }
    }

    fn allocate(&mut self, fields: &mut Fields<'_>, thread: u32) -> Result<What, TraceError> {
        let id = fields.decimal(self, "a block")?;
        let size = self.size(fields, id)?;
        let stream = self.stream(fields)?;
        let line = self.next_line()?;
        Ok(What::Allocate { block: self.new_block(id, Some((thread, line)))?, size, stream })
    }

    fn size(&self, fields: &mut Fields<'_>, id: u64) -> Result<u64, TraceError> {
        match fields.decimal(self, "a size in bytes")? {
            0 => Err(self.rule(RuleError::ZeroSize(id))),
            size if size > MAX_BLOCK_SIZE => Err(self.rule(RuleError::TooLarge { id, size })),
            size => Ok(size),
        }
    }

    fn new_block(&mut self, id: u64, last: Option<(u32, u32)>) -> Result<u32, TraceError> {
        let block = self.timeline.blocks;
        let next = block.checked_add(1).ok_or_else(|| self.rule(RuleError::TooMany))?;
        self.memory.room_in_map(&mut self.blocks).map_err(|error| TraceError::memory(self.file, error))?;
        if self.blocks.insert(id, Live { block, last }).is_some() {
            return Err(self.rule(RuleError::Reused(id)));
        }
        self.timeline.blocks = next;
        Ok(block)
    }

    /// Reads a live block that a thread names. Returns the block, and the line (a call) of another thread that must end
    /// before this line begins.
    fn block(&mut self, fields: &mut Fields<'_>, thread: u32) -> Result<(u32, Option<u32>), TraceError> {
        let id = fields.decimal(self, "a block")?;
        let line = self.next_line()?;
        let unknown = self.rule(RuleError::Unknown(id));
        let live = self.blocks.get_mut(&id).ok_or(unknown)?;
        let needs = of_another(live.last, thread);
        live.last = Some((thread, line));
        Ok((live.block, needs))
    }

    fn record(&mut self, fields: &mut Fields<'_>, thread: u32) -> Result<u32, TraceError> {
        let id = fields.decimal(self, "an event")?;
        let last = (thread, self.next_line()?);
        if let Some(known) = self.events.get_mut(&id) {
            known.last = last;
            return Ok(known.event);
        }
        let event = self.timeline.events;
        self.memory.room_in_map(&mut self.events).map_err(|error| TraceError::memory(self.file, error))?;
        self.events.insert(id, Recorded { event, last });
        self.timeline.events = event.checked_add(1).ok_or_else(|| self.rule(RuleError::TooMany))?;
        Ok(event)
    }

    /// Reads an event that was recorded. Returns the event, and the line (a call) of another thread that must end
    /// before this line begins.
    fn event(&self, fields: &mut Fields<'_>, thread: u32) -> Result<(u32, Option<u32>), TraceError> {
        let id = fields.decimal(self, "an event")?;
        match self.events.get(&id) {
            Some(known) => Ok((known.event, of_another(Some(known.last), thread))),
            None => Err(self.malformed(format!("event {id}"), "an event that was recorded before")),
        }
    }

    fn synchronized(
        &mut self,
        fields: &mut Fields<'_>,
        thread: u32,
    ) -> Result<(Synchronized, Option<u32>), TraceError> {
        match fields.next(self, "d, s or e")? {
            b"d" => Ok((Synchronized::Device, None)),
            b"s" => Ok((Synchronized::Stream(self.stream(fields)?), None)),
            b"e" => self.event(fields, thread).map(|(event, needs)| (Synchronized::Event(event), needs)),
            other => Err(self.malformed(excerpt(other), "d, s and a stream, or e and an event")),
        }
    }

    fn stream(&mut self, fields: &mut Fields<'_>) -> Result<u32, TraceError> {
        let handle = fields.hex(self, "a stream")?;
        if let Some(&index) = self.streams.get(&handle) {
            return Ok(index);
        }
        if self.streams.len() >= MOST_STREAMS {
            return Err(self.malformed("one stream more", format!("at most {MOST_STREAMS} streams")));
        }
        let index = u32::try_from(self.streams.len()).map_err(|_| self.rule(RuleError::TooMany))?;
        let room = self.memory.room_in_map(&mut self.streams);
        let room = room.and_then(|()| self.memory.push(&mut self.timeline.streams, StreamId(handle)));
        room.map_err(|error| TraceError::memory(self.file, error))?;
        self.streams.insert(handle, index);
        Ok(index)
    }

    fn thread(&mut self, id: u64) -> Result<u32, TraceError> {
        if let Some(&index) = self.threads.get(&id) {
            return Ok(index);
        }
        if self.threads.len() >= MOST_THREADS {
            return Err(self.malformed("one thread more", format!("at most {MOST_THREADS} threads")));
        }
        let index = self.timeline.threads;
        let room = self.memory.room_in_map(&mut self.threads);
        let room = room.and_then(|()| self.memory.push(&mut self.last_lines, None));
        room.map_err(|error| TraceError::memory(self.file, error))?;
        self.threads.insert(id, index);
        self.timeline.threads = index.checked_add(1).ok_or_else(|| self.rule(RuleError::TooMany))?;
        Ok(index)
    }

    fn next_line(&self) -> Result<u32, TraceError> {
        u32::try_from(self.timeline.lines.len()).map_err(|_| self.rule(RuleError::TooMany))
    }

    fn end(&self, fields: &Fields<'_>) -> Result<(), TraceError> {
        match fields.rest {
            None => Ok(()),
            Some(_) => Err(self.malformed(excerpt(fields.all), "fewer fields")),
        }
    }

    fn finish(self) -> Result<Timeline, TraceError> {
        if !self.described {
            return Err(TraceError::Empty { file: self.file.to_owned() });
        }
        if self.in_step.is_some() || self.steps == 0 {
            let expected = "at least one step, and the end of each (lines p and q)";
            return Err(TraceError::malformed(
                self.file,
                Place::Whole,
                format!("{} whole steps", self.steps),
                expected,
            ));
        }
        Ok(self.timeline)
    }

    fn malformed(&self, found: impl Into<String>, expected: impl Into<String>) -> TraceError {
        TraceError::malformed(self.file, Place::Line(self.number), found, expected)
    }

    fn rule(&self, rule: RuleError) -> TraceError {
        TraceError::rule(self.file, Place::Line(self.number), rule)
    }
}

/// Returns the line of `last` if another thread than `thread` has the line; `None` otherwise.
fn of_another(last: Option<(u32, u32)>, thread: u32) -> Option<u32> {
    last.filter(|(by, _)| *by != thread).map(|(_, line)| line)
}

/// The unread fields of a line.
struct Fields<'a> {
    all: &'a [u8],
    rest: Option<&'a [u8]>,
}

impl<'a> Fields<'a> {
    fn next(&mut self, reader: &Reader<'_>, what: &str) -> Result<&'a [u8], TraceError> {
        let rest = self.rest.ok_or_else(|| reader.malformed(excerpt(self.all), format!("{what} after a comma")))?;
        let mut parts = rest.splitn(2, |&byte| byte == b',');
        let field = parts.next().unwrap_or_default();
        self.rest = parts.next();
        Ok(field)
    }

    fn decimal(&mut self, reader: &Reader<'_>, what: &str) -> Result<u64, TraceError> {
        let field = self.next(reader, what)?;
        number_of(field, 10).ok_or_else(|| reader.malformed(excerpt(field), format!("{what}: a decimal number")))
    }

    fn hex(&mut self, reader: &Reader<'_>, what: &str) -> Result<u64, TraceError> {
        let field = self.next(reader, what)?;
        number_of(field, 16).ok_or_else(|| reader.malformed(excerpt(field), format!("{what}: a hexadecimal number")))
    }

    fn time(&mut self, reader: &Reader<'_>, what: &str) -> Result<u64, TraceError> {
        let field = self.next(reader, what)?;
        let time = number_of(field, 10).filter(|time| *time <= LONGEST);
        time.ok_or_else(|| reader.malformed(excerpt(field), format!("{what}: nanoseconds, at most a day")))
    }
}
