//! Converts the dicts of a pickled snapshot to its raw form.
//!
//! Owns: the lookup of keys in a pickle, and the errors that name the entry and the key. `raw.rs` has the keys.

use serde_json::{Map, Value};

use super::pickle::{Item, Number, Pickle};
use super::raw::{
    MAX_SETTINGS, MAX_SETTINGS_DEPTH, RawBlock, RawSegment, RawSnapshot, SMALL, SNAPSHOT, STATES, action, address_key,
    block_state, spend,
};
use super::unpickle::unpickle;
use crate::error::{Place, TraceError, excerpt};
use crate::memory::Memory;
use seamalloc::PoolId;
use seamalloc::driver::StreamId;
use seamalloc::observer::Event;
use seamalloc::snapshot::BlockState;

/// Reads a pickle.
pub(super) fn from_pickle(file: &str, bytes: &[u8], memory: &mut Memory) -> Result<RawSnapshot, TraceError> {
    let before = memory.held();
    let raw = of_pickle(file, &unpickle(file, bytes, memory)?, memory)?;
    memory.settle(before, raw.heap_bytes());
    Ok(raw)
}

/// Converts the keys of a pickle that describe memory: `segments`, `device_traces` and `allocator_settings`.
pub(super) fn of_pickle(file: &str, pickle: &Pickle<'_>, memory: &mut Memory) -> Result<RawSnapshot, TraceError> {
    let root = pickle.root();
    let top = |key| {
        let value = pickle.get(root, key);
        value.ok_or_else(|| {
            let found = match root {
                Item::Dict(_) => format!("a dict without {key}"),
                other => pickle.describe(other),
            };
            TraceError::malformed(file, Place::Whole, found, SNAPSHOT)
        })
    };
    let whole = |key| At { pickle, dict: root, place: Place::Whole, key };
    let segments = whole("segments").list(top("segments")?)?;
    let traces = whole("device_traces").list(top("device_traces")?)?;
    let settings = match pickle.get(root, "allocator_settings") {
        Some(item) => json_of(pickle, item, MAX_SETTINGS_DEPTH, &mut { MAX_SETTINGS })?,
        None => Value::Null,
    };
    let mut raw = RawSnapshot { segments: Vec::new(), traces: Vec::new(), settings };
    let too_much = |error| TraceError::memory(file, error);
    memory.room(&mut raw.traces, traces.len()).map_err(too_much)?;
    for (device, &trace) in traces.iter().enumerate() {
        let entries = whole("device_traces").list(trace)?;
        let mut events = Vec::new();
        memory.room(&mut events, entries.len()).map_err(too_much)?;
        for (index, &entry) in entries.iter().enumerate() {
            events.push(pickle_entry(pickle, entry, Place::Entry { device, index })?);
        }
        raw.traces.push(events);
    }
    memory.room(&mut raw.segments, segments.len()).map_err(too_much)?;
    for (index, &item) in segments.iter().enumerate() {
        raw.segments.push(pickle_segment(pickle, item, index, memory)?);
    }
    Ok(raw)
}

fn pickle_entry(pickle: &Pickle<'_>, dict: Item, place: Place) -> Result<Option<Event>, TraceError> {
    let at = |key| At { pickle, dict, place, key };
    pickle.follow(dict, place)?;
    let Some(action) = action(at("action").word()?) else { return Ok(None) };
    let address = at(address_key(action)).number()?;
    let stream = StreamId(at("stream").number()?);
    Ok(Some(Event { action, address, size: at("size").number()?, stream, pool: PoolId::NONE }))
}

fn pickle_segment(
    pickle: &Pickle<'_>,
    dict: Item,
    index: usize,
    memory: &mut Memory,
) -> Result<RawSegment, TraceError> {
    let place = Place::Segment(index);
    pickle.follow(dict, place)?;
    let at = |key| At { pickle, dict, place, key };
    let listed = at("blocks").list(at("blocks").value()?)?;
    let mut blocks = Vec::new();
    memory.room(&mut blocks, listed.len()).map_err(|error| TraceError::memory(pickle.file(), error))?;
    for &dict in listed {
        let at = |key| At { pickle, dict, place, key };
        pickle.follow(dict, place)?;
        blocks.push(RawBlock {
            address: at("address").optional_number()?,
            size: at("size").number()?,
            requested_size: at("requested_size").optional_number()?,
            state: at("state").state()?,
            spilled: at("spilled").optional_number()?.unwrap_or_default(),
            asleep: pickle.get(dict, "asleep") == Some(Item::Bool(true)),
        });
    }
    let number = |item: &Item| pickle.number(*item).and_then(Number::unsigned);
    let pool = pickle.get(dict, "segment_pool_id").map(|item| match pickle.list(item).unwrap_or_default() {
        [a, b] => number(a).zip(number(b)).ok_or(item),
        _ => Err(item),
    });
    let pool = pool.transpose().map_err(|item| at("segment_pool_id").wrong(pickle.describe(item), "two numbers"))?;
    let device = at("device").optional_number()?.unwrap_or_default();
    Ok(RawSegment {
        device: u32::try_from(device).map_err(|_| at("device").wrong(device.to_string(), "a device's ordinal"))?,
        address: at("address").number()?,
        total_size: at("total_size").number()?,
        stream: at("stream").optional_number()?.unwrap_or_default(),
        small: pickle.get(dict, "segment_type").and_then(|item| pickle.word(item)) == Some(SMALL),
        is_expandable: pickle.get(dict, "is_expandable") == Some(Item::Bool(true)),
        segment_pool_id: pool.unwrap_or_default(),
        blocks,
    })
}

/// A dict at a place of the file, whose keys are read.
struct At<'a> {
    pickle: &'a Pickle<'a>,
    dict: Item,
    place: Place,
    key: &'static str,
}

impl<'a> At<'a> {
    fn wrong(&self, found: String, expected: &str) -> TraceError {
        TraceError::malformed(self.pickle.file(), self.place, found, format!("{expected} under {}", self.key))
    }

    fn value(&self) -> Result<Item, TraceError> {
        self.pickle.get(self.dict, self.key).ok_or_else(|| {
            let found = match self.dict {
                Item::Dict(_) => "a dict without that key".to_owned(),
                other => self.pickle.describe(other),
            };
            self.wrong(found, "a value")
        })
    }

    fn number(&self) -> Result<u64, TraceError> {
        let value = self.value()?;
        let number = self.pickle.number(value).and_then(Number::unsigned);
        number.ok_or_else(|| self.wrong(self.pickle.describe(value), "an unsigned 64-bit integer"))
    }

    fn optional_number(&self) -> Result<Option<u64>, TraceError> {
        self.pickle.get(self.dict, self.key).map(|_| self.number()).transpose()
    }

    fn word(&self) -> Result<&'a str, TraceError> {
        let value = self.value()?;
        self.pickle.word(value).ok_or_else(|| self.wrong(self.pickle.describe(value), "a word"))
    }

    fn state(&self) -> Result<BlockState, TraceError> {
        let name = self.word()?;
        block_state(name).ok_or_else(|| self.wrong(excerpt(name.as_bytes()), STATES))
    }

    fn list(&self, item: Item) -> Result<&'a [Item], TraceError> {
        self.pickle.follow(item, self.place)?;
        self.pickle.list(item).ok_or_else(|| self.wrong(self.pickle.describe(item), "a list"))
    }
}

/// Converts a value to JSON. `left` limits the number of values made, since a shared value is made again at each use.
fn json_of(pickle: &Pickle<'_>, item: Item, depth: usize, left: &mut usize) -> Result<Value, TraceError> {
    let text = pickle.text(item).unwrap_or_default();
    let depth = depth.checked_sub(1).filter(|_| spend(left, text)).ok_or_else(|| TraceError::TooLarge {
        file: pickle.file().to_owned(),
        limit: MAX_SETTINGS as u64,
        unit: "values in allocator_settings",
    })?;
    if let Some(list) = pickle.list(item) {
        return list.iter().map(|&item| json_of(pickle, item, depth, left)).collect();
    }
    if let Some(pairs) = pickle.pairs(item) {
        let mut map = Map::new();
        for (key, value) in pairs {
            let name = json_of(pickle, key, depth, left)?;
            let name = name.as_str().map_or_else(|| pickle.describe(key), str::to_owned);
            map.insert(name, json_of(pickle, value, depth, left)?);
        }
        return Ok(Value::Object(map));
    }
    Ok(match (item, pickle.number(item)) {
        (Item::Bool(value), _) => value.into(),
        (Item::Text1(_) | Item::Text4(_) | Item::Text8(_), _) => text.into(),
        (_, Some(Number::Int(value))) => value.into(),
        (_, Some(Number::Large(value))) => value.into(),
        (_, Some(Number::Float(value))) => value.into(),
        _ => Value::Null,
    })
}
