//! The stacks of a snapshot's requests: which lines of the program requested each block, and which lines made the
//! requests that were refused.
//!
//! Owns: reading the stacks of history entries and of blocks (their key `frames`). Each different stack is kept once.
//! Only pickles have stacks.

use super::assemble::assemble;
use super::dicts::of_pickle;
use super::pickle::{Item, Number, Pickle};
use super::read::PICKLE_MAGIC;
use super::unpickle::unpickle;
use crate::error::TraceError;
use crate::history::earlier_addresses;
use crate::memory::{Memory, SeededMap, list_bytes};
use crate::read::{read_path, stem};
use crate::trace::Trace;
use crate::unpack::{BUFFER, MAX_WHOLE, Opened, read_to_limit};
use rapidhash::fast::RandomState;
use seamalloc::observer::{Action, Event};
use seamalloc::snapshot::BlockState;
use std::fmt;
use std::fs::File;
use std::hash::BuildHasher;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// The most frames of a stack that are kept, from the innermost on. With C++ frames a program's own lines lie deep.
const MOST_FRAMES: usize = 1024;

/// The stacks of the requests of one trace, and the requests that were refused.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Origins {
    /// Frames of stacks, each different frame once.
    pub frames: Vec<Frame>,
    /// The stacks, each different stack once, as indexes of `frames` with the innermost first. The stack of a thread
    /// without Python is empty if no functions of C++ were recorded.
    pub stacks: Vec<Vec<u32>>,
    /// For each block of the trace, one more than the index of its stack; 0 if the stack is not known.
    pub of_block: Vec<u32>,
    /// The requests that PyTorch's allocator refused when the job was recorded.
    pub refusals: Vec<Refusal>,
}

/// A line of Python, or a function of C++, in a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The function's name.
    pub function: String,
    /// The path of the function's file in the recording.
    pub file: String,
    /// The line, if it is known.
    pub line: Option<u64>,
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.function, self.file)?;
        self.line.map_or(Ok(()), |line| write!(f, ":{line}"))?;
        f.write_str(")")
    }
}

impl Frame {
    /// Returns the heap bytes of a frame's texts.
    fn heap_bytes(&self) -> u64 {
        list_bytes::<u8>(self.function.len()) + list_bytes::<u8>(self.file.len())
    }
}

/// A request that was refused when the job was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The number of blocks of the trace that were allocated before the request.
    pub before_block: u32,
    /// The requested bytes.
    pub size: u64,
    /// The bytes that the device had free.
    pub device_free: u64,
    /// One more than the index of the request's stack; 0 if the stack is not known.
    pub stack: u32,
}

impl Origins {
    /// Returns the heap bytes that a copy of these origins takes.
    fn heap_bytes(&self) -> u64 {
        let frames = self.frames.iter().map(Frame::heap_bytes);
        let stacks = self.stacks.iter().map(|stack| list_bytes::<u32>(stack.len()));
        let lists = list_bytes::<Frame>(self.frames.len()) + list_bytes::<Vec<u32>>(self.stacks.len());
        frames.chain(stacks).fold(lists + list_bytes::<u32>(self.of_block.len()), u64::saturating_add)
    }
}

/// Reads the origins of a snapshot file's traces, in the order of [`read_path`](crate::read_path). Returns an empty
/// list if the file is no pickle.
///
/// # Errors
/// The errors of [`read_path`](crate::read_path).
pub fn read_origins(path: &Path) -> Result<Vec<Origins>, TraceError> {
    let (file, opened) = open(path)?;
    origins_of(&file, opened)
}

/// Opens a file. Returns the file and its name for errors.
fn open(path: &Path) -> Result<(String, BufReader<File>), TraceError> {
    let file = path.display().to_string();
    let opened = File::open(path).map_err(|error| TraceError::io(&file, error))?;
    Ok((file, BufReader::with_capacity(BUFFER, opened)))
}

/// Reads the whole of a pickle, packed or not, with the account of its memory; `None` if the content is no pickle.
fn whole_pickle(file: &str, reader: impl BufRead) -> Result<Option<(Vec<u8>, Memory)>, TraceError> {
    let opened = Opened::new(file, reader)?;
    if opened.is_gzip() {
        return unpacked_pickle(file, Opened::new(file, opened.unpacked())?);
    }
    unpacked_pickle(file, opened)
}

fn unpacked_pickle(file: &str, opened: Opened<impl BufRead>) -> Result<Option<(Vec<u8>, Memory)>, TraceError> {
    // Only pickles are read whole. Traces of other formats may be larger than the limit for this.
    let is_pickle = opened.head.first() == Some(&PICKLE_MAGIC);
    is_pickle.then(|| read_to_limit(file, opened.content, MAX_WHOLE)).transpose()
}

/// Reads every trace of a file as [`read_path`](crate::read_path) does, and the origins if the file is a pickle.
///
/// # Errors
/// The errors of [`read_path`](crate::read_path).
pub fn read_with_origins(path: &Path) -> Result<Vec<(Trace, Option<Origins>)>, TraceError> {
    let (file, opened) = open(path)?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let whole = whole_pickle(&file, opened)?;
    let (traces, origins) = whole.map(|whole| of_whole(&file, stem(&name), whole)).transpose()?.unwrap_or_default();
    if traces.is_empty() {
        return Ok(read_path(path)?.into_iter().map(|trace| (trace, None)).collect());
    }
    let mut origins = origins.into_iter();
    Ok(traces.into_iter().map(|trace| (trace, origins.next())).collect())
}

fn origins_of(file: &str, reader: impl BufRead) -> Result<Vec<Origins>, TraceError> {
    let whole = whole_pickle(file, reader)?;
    Ok(whole.map(|whole| of_whole(file, file, whole)).transpose()?.unwrap_or_default().1)
}

/// Returns the traces of a pickle, named after `name`, and their origins.
fn of_whole(
    file: &str,
    name: &str,
    (whole, mut memory): (Vec<u8>, Memory),
) -> Result<(Vec<Trace>, Vec<Origins>), TraceError> {
    let too_much = |error| TraceError::memory(file, error);
    let pickle = unpickle(file, &whole, &mut memory)?;
    let raw = of_pickle(file, &pickle, &mut memory)?;
    let histories = raw.traces.clone();
    let copied = histories.iter().map(|history| list_bytes::<Option<Event>>(history.capacity())).sum();
    memory.charge(copied).map_err(too_much)?;
    let mut reader = Reader::new(&pickle, memory);
    let held = reader.stacks_of_blocks(file)?;
    let snapshot = assemble(file, name, raw, reader.memory)?;
    let mut found = Vec::new();
    for (device, history) in histories.iter().enumerate() {
        let is_use =
            |event: &Event| matches!(event.action, Action::Alloc | Action::FreeRequested | Action::FreeCompleted);
        if !history.iter().flatten().any(is_use) {
            continue;
        }
        let ordinal = u32::try_from(device).unwrap_or(u32::MAX);
        let of_device = snapshot.snapshots.iter().find(|snapshot| snapshot.device == ordinal);
        let earlier = earlier_addresses(history.iter().copied(), of_device, &mut reader.memory).map_err(too_much)?;
        // If a block was allocated before the history and freed in it, its stack is not known.
        let known = |address: &Option<u64>| address.and_then(|address| held.get(&address).copied()).unwrap_or(0);
        reader.out.of_block = earlier.iter().map(known).collect();
        reader.out.refusals.clear();
        let entries =
            pickle.get(pickle.root(), "device_traces").and_then(|traces| pickle.list(traces)?.get(device).copied());
        let entries = entries.and_then(|entries| pickle.list(entries)).unwrap_or_default();
        for (entry, event) in entries.iter().zip(history) {
            let Some(event) = event else { continue };
            match event.action {
                Action::Alloc => {
                    let stack = reader.stack(*entry).map_err(too_much)?;
                    reader.memory.push(&mut reader.out.of_block, stack).map_err(too_much)?;
                }
                Action::Oom => {
                    let stack = reader.stack(*entry).map_err(too_much)?;
                    let before_block = u32::try_from(reader.out.of_block.len()).unwrap_or(u32::MAX);
                    let (size, device_free) = (event.size, event.address);
                    reader.out.refusals.push(Refusal { before_block, size, device_free, stack });
                }
                _ => {}
            }
        }
        reader.memory.charge(reader.out.heap_bytes()).map_err(too_much)?;
        found.push(reader.out.clone());
    }
    Ok((snapshot.traces, found))
}

/// The stacks of the blocks that are allocated on one device, from a snapshot's segments.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeldOrigins {
    /// The ordinal of the device.
    pub device: u32,
    /// The stacks. `of_block` is in the order of `sizes`.
    pub origins: Origins,
    /// The requested bytes of each block that the program has not freed.
    pub sizes: Vec<u64>,
}

/// Reads the stacks of the blocks that are allocated when a snapshot is taken, by device. A snapshot without a history
/// has no other stacks. Returns an empty list if the file is no pickle.
///
/// # Errors
/// The errors of [`read_path`](crate::read_path).
pub fn read_held_origins(path: &Path) -> Result<Vec<HeldOrigins>, TraceError> {
    let (file, opened) = open(path)?;
    held_of(&file, opened)
}

fn held_of(file: &str, reader: impl BufRead) -> Result<Vec<HeldOrigins>, TraceError> {
    let Some((whole, mut memory)) = whole_pickle(file, reader)? else { return Ok(Vec::new()) };
    let too_much = |error| TraceError::memory(file, error);
    let pickle = unpickle(file, &whole, &mut memory)?;
    let raw = of_pickle(file, &pickle, &mut memory)?;
    let mut reader = Reader::new(&pickle, memory);
    let stacks = reader.stacks_of_blocks(file)?;
    let snapshot = assemble(file, file, raw, reader.memory)?;
    reader.memory.charge(snapshot.heap_bytes()).map_err(too_much)?;
    let mut found = Vec::new();
    for of_device in &snapshot.snapshots {
        let mut held = HeldOrigins { device: of_device.device, ..HeldOrigins::default() };
        reader.out.of_block.clear();
        let blocks = of_device.segments.iter().flat_map(|segment| &segment.blocks);
        for block in blocks.filter(|block| block.state == BlockState::ActiveAllocated) {
            let stack = stacks.get(&block.address).copied().unwrap_or(0);
            reader.memory.push(&mut reader.out.of_block, stack).map_err(too_much)?;
            reader.memory.push(&mut held.sizes, block.requested_size).map_err(too_much)?;
        }
        reader.memory.charge(reader.out.heap_bytes()).map_err(too_much)?;
        held.origins = reader.out.clone();
        found.push(held);
    }
    Ok(found)
}

/// Reads stacks. A stack that is shared many times is read once.
struct Reader<'a> {
    pickle: &'a Pickle<'a>,
    memory: Memory,
    /// For each list of frames, by the list's number: one more than the index of the stack.
    known: SeededMap<u32, u32>,
    /// For each dict of a frame, by the dict's number: the index of the frame.
    frames: SeededMap<u32, u32>,
    /// The index of a frame or of a stack, by its hash. PyTorch writes equal stacks of several requests repeatedly.
    hashed: SeededMap<u64, u32>,
    seed: RandomState,
    out: Origins,
}

impl<'a> Reader<'a> {
    fn new(pickle: &'a Pickle<'a>, memory: Memory) -> Self {
        Self {
            pickle,
            memory,
            known: SeededMap::default(),
            frames: SeededMap::default(),
            hashed: SeededMap::default(),
            seed: RandomState::default(),
            out: Origins::default(),
        }
    }

    /// Returns the stacks of the blocks that the allocator holds, by their addresses.
    fn stacks_of_blocks(&mut self, file: &str) -> Result<SeededMap<u64, u32>, TraceError> {
        let pickle = self.pickle;
        let mut held = SeededMap::default();
        let segments =
            pickle.get(pickle.root(), "segments").and_then(|segments| pickle.list(segments)).unwrap_or_default();
        for segment in segments {
            let blocks = pickle.get(*segment, "blocks").and_then(|blocks| pickle.list(blocks)).unwrap_or_default();
            for block in blocks {
                let number = |item| pickle.number(item).and_then(Number::unsigned);
                let Some(address) = pickle.get(*block, "address").and_then(number) else { continue };
                let stack = self.stack(*block).map_err(|error| TraceError::memory(file, error))?;
                // PyTorch writes an empty stack for a block without a recorded stack.
                let recorded =
                    self.out.stacks.get((stack as usize).wrapping_sub(1)).is_some_and(|stack| !stack.is_empty());
                let stack = if recorded { stack } else { 0 };
                self.memory.room_in_map(&mut held).map_err(|error| TraceError::memory(file, error))?;
                held.insert(address, stack);
            }
        }
        Ok(held)
    }

    /// Returns one more than the index of the stack of an entry or a block; 0 if the stack was not recorded.
    fn stack(&mut self, of: Item) -> Result<u32, crate::MemoryError> {
        let pickle = self.pickle;
        let Some((list, frames)) = pickle.get(of, "frames").and_then(|item| Some((item.list()?, pickle.list(item)?)))
        else {
            return Ok(0);
        };
        if let Some(known) = self.known.get(&list) {
            return Ok(*known);
        }
        let mut stack = Vec::new();
        for frame in frames.iter().take(MOST_FRAMES) {
            let index = self.frame(*frame)?;
            self.memory.push(&mut stack, index)?;
        }
        let number = self.index_of_stack(stack)? + 1;
        self.memory.room_in_map(&mut self.known)?;
        self.known.insert(list, number);
        Ok(number)
    }

    fn index_of_stack(&mut self, stack: Vec<u32>) -> Result<u32, crate::MemoryError> {
        let hash = self.seed.hash_one(&stack);
        let known = self.hashed.get(&hash).copied();
        if let Some(index) = known.filter(|index| self.out.stacks.get(*index as usize) == Some(&stack)) {
            self.memory.release(&stack);
            return Ok(index);
        }
        let index = self.out.stacks.len() as u32;
        self.memory.push(&mut self.out.stacks, stack)?;
        self.memory.room_in_map(&mut self.hashed)?;
        self.hashed.insert(hash, index);
        Ok(index)
    }

    fn frame(&mut self, item: Item) -> Result<u32, crate::MemoryError> {
        if let Some(known) = item.dict().and_then(|dict| self.frames.get(&dict)) {
            return Ok(*known);
        }
        let pickle = self.pickle;
        let text = |key| pickle.get(item, key).and_then(|item| pickle.text(item)).unwrap_or("?");
        let line = pickle.get(item, "line").and_then(|line| pickle.number(line)).and_then(Number::unsigned);
        let hash = self.seed.hash_one((text("name"), text("filename"), line));
        let is = |frame: &Frame| frame.function == text("name") && frame.file == text("filename") && frame.line == line;
        let known = self.hashed.get(&hash).copied();
        let index = match known.filter(|index| self.out.frames.get(*index as usize).is_some_and(is)) {
            Some(index) => index,
            None => {
                self.memory.charge(list_bytes::<u8>(text("name").len()) + list_bytes::<u8>(text("filename").len()))?;
                let frame = Frame { function: text("name").to_owned(), file: text("filename").to_owned(), line };
                let index = self.out.frames.len() as u32;
                self.memory.push(&mut self.out.frames, frame)?;
                self.memory.room_in_map(&mut self.hashed)?;
                self.hashed.insert(hash, index);
                index
            }
        };
        if let Some(dict) = item.dict() {
            self.memory.room_in_map(&mut self.frames)?;
            self.frames.insert(dict, index);
        }
        Ok(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_bytes;
    use serde_json::{Value, json};

    fn pickled(value: &Value) -> Vec<u8> {
        serde_pickle::to_vec(value, serde_pickle::SerOptions::new().proto_v2()).unwrap()
    }

    fn frames(names: &[&str]) -> Value {
        names.iter().map(|name| json!({"name": name, "filename": "train.py", "line": 7})).collect()
    }

    #[test]
    fn blocks_know_the_stacks_of_their_requests() {
        let entry = |action: &str, addr: u64, frames: Value| json!({"action": action, "addr": addr, "size": 8, "stream": 0, "frames": frames});
        let block = |address: u64, state: &str, names: &[&str]| json!({"address": address, "size": 512, "requested_size": 8, "state": state, "frames": frames(names)});
        let history = json!([
            entry("alloc", 4096, frames(&["forward", "main"])),
            json!({"action": "oom", "device_free": 30, "size": 50, "stream": 0}),
            entry("free_requested", 4096, json!([])),
            entry("free_completed", 4096, json!([])),
            entry("alloc", 8192, json!([])),
        ]);
        let segment = json!({"device": 0, "address": 0, "total_size": 1024, "blocks":
            [block(0, "active_allocated", &["weights"]), block(512, "inactive", &["gone"])]});
        let bytes = pickled(&json!({"segments": [segment], "device_traces": [[], history]}));
        // The segment belongs to device 0, which has no history. For the trace's device no earlier block is known.
        let found = origins_of("t", &*bytes).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].refusals, [Refusal { before_block: 1, size: 50, device_free: 30, stack: 0 }]);
        let named = |origins: &Origins, block: usize| match origins.of_block[block] {
            0 => Vec::new(),
            stack => origins.stacks[stack as usize - 1]
                .iter()
                .map(|frame| origins.frames[*frame as usize].to_string())
                .collect(),
        };
        assert_eq!(found[0].of_block.len(), 2);
        assert_eq!(named(&found[0], 0), ["forward (train.py:7)", "main (train.py:7)"]);
        assert_eq!(named(&found[0], 1), [""; 0]);
    }

    #[test]
    fn blocks_from_before_the_history_have_the_stacks_that_the_allocator_kept() {
        let alloc = json!({"action": "alloc", "addr": 4096, "size": 8, "stream": 0, "frames": frames(&["step"])});
        let block = |address: u64, names: &[&str]| json!({"address": address, "size": 512, "requested_size": 8, "state": "active_allocated", "frames": frames(names)});
        let segment = json!({"device": 0, "address": 0, "total_size": 1024, "blocks": [block(0, &["weights"]), block(512, &["bias"])]});
        let bytes = pickled(&json!({"segments": [segment], "device_traces": [[alloc]]}));
        let origins = origins_of("t", &*bytes).unwrap().remove(0);
        let trace = &read_bytes("t", &bytes).unwrap()[0];
        assert_eq!(origins.of_block.len() as u64, trace.summary().allocations);
        let names: Vec<_> = origins
            .of_block
            .iter()
            .map(|stack| origins.frames[origins.stacks[*stack as usize - 1][0] as usize].to_string())
            .collect();
        assert_eq!(names, ["weights (train.py:7)", "bias (train.py:7)", "step (train.py:7)"]);
    }

    #[test]
    fn blocks_that_are_held_have_their_stacks_by_device() {
        let block = |address: u64, state: &str, names: &[&str]| json!({"address": address, "size": 512, "requested_size": 8, "state": state, "frames": frames(names)});
        let of = |device: u64, address: u64, blocks: Value| json!({"device": device, "address": address, "total_size": 1024, "blocks": blocks});
        let weights =
            of(0, 0, json!([block(0, "active_allocated", &["weights"]), block(512, "active_pending_free", &["gone"])]));
        let others =
            of(2, 4096, json!([block(4096, "active_allocated", &[]), block(4608, "active_allocated", &["weights"])]));
        let bytes = pickled(&json!({"segments": [weights, others], "device_traces": [[], [], []]}));
        let found = held_of("t", &*bytes).unwrap();
        let stacks = |held: &HeldOrigins| {
            let stack = |number: &u32| Some(held.origins.stacks.get(number.checked_sub(1)? as usize)?.len());
            held.origins.of_block.iter().map(stack).collect::<Vec<_>>()
        };
        let devices: Vec<_> = found.iter().map(|held| (held.device, held.sizes.clone(), stacks(held))).collect();
        assert_eq!(devices, [(0, vec![8], vec![Some(1)]), (2, vec![8, 8], vec![None, Some(1)])]);
        assert_eq!(held_of("t", &b"a,1,5,0\n"[..]).unwrap(), []);
    }

    #[test]
    fn a_block_that_is_gone_does_not_have_the_stack_of_the_next_at_its_address() {
        let free = |action| json!({"action": action, "addr": 0, "size": 8, "stream": 0, "frames": frames(&["freed"])});
        let alloc = json!({"action": "alloc", "addr": 0, "size": 16, "stream": 0, "frames": frames(&["later"])});
        let block = json!({"address": 0, "size": 512, "requested_size": 16, "state": "active_allocated", "frames": frames(&["later"])});
        let segment = json!({"device": 0, "address": 0, "total_size": 512, "blocks": [block]});
        let history = json!([free("free_requested"), free("free_completed"), alloc]);
        let bytes = pickled(&json!({"segments": [segment], "device_traces": [history]}));
        assert_eq!(origins_of("t", &*bytes).unwrap()[0].of_block, [0, 1]);
    }

    #[test]
    fn stacks_of_threads_without_python_are_empty_and_those_of_the_allocator_unknown() {
        let alloc = json!({"action": "alloc", "addr": 4096, "size": 8, "stream": 0, "frames": []});
        let block = json!({"address": 0, "size": 512, "requested_size": 8, "state": "active_allocated", "frames": []});
        let segment = json!({"device": 0, "address": 0, "total_size": 512, "blocks": [block]});
        let bytes = pickled(&json!({"segments": [segment], "device_traces": [[alloc]]}));
        let origins = origins_of("t", &*bytes).unwrap().remove(0);
        let empty = origins.of_block[1] as usize - 1;
        assert_eq!((origins.of_block[0], origins.stacks[empty].len()), (0, 0));
    }

    #[test]
    fn equal_stacks_and_frames_are_kept_once() {
        let alloc = |address: u64, names: &[&str]| json!({"action": "alloc", "addr": address, "size": 8, "stream": 0, "frames": frames(names)});
        let history = json!([alloc(0, &["f", "main"]), alloc(512, &["f", "main"]), alloc(1024, &["g", "main"])]);
        let bytes = pickled(&json!({"segments": [], "device_traces": [history]}));
        let origins = origins_of("t", &*bytes).unwrap().remove(0);
        assert_eq!((origins.of_block, origins.frames.len(), origins.stacks.len()), (vec![1, 1, 2], 3, 2));
    }

    #[test]
    fn what_is_no_pickle_has_no_origins_and_a_damaged_one_is_an_error() {
        assert_eq!(origins_of("t", &b"a,1,5,0\n"[..]).unwrap(), []);
        assert!(origins_of("t", &[PICKLE_MAGIC, 2, b'}'][..]).is_err());
    }
}
