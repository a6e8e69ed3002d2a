//! Converts a snapshot in JSON to its raw form.
//!
//! Owns: reading the keys from JSON, entry by entry, without a tree of the whole document. `raw.rs` has the keys.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::raw::{
    MAX_SETTINGS, MAX_SETTINGS_DEPTH, RawBlock, RawSegment, RawSnapshot, SNAPSHOT, action, address_key, spend,
};
use crate::error::{Place, TraceError};
use crate::memory::{Memory, list_bytes};
use seamalloc::PoolId;
use seamalloc::driver::StreamId;
use seamalloc::observer::{Action, Event};

/// Reads JSON.
pub(super) fn from_json(file: &str, bytes: &[u8], memory: &mut Memory) -> Result<RawSnapshot, TraceError> {
    let before = memory.held();
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let read = SnapshotSeed { memory }.deserialize(&mut json).and_then(|raw| json.end().map(|()| raw));
    match read {
        Ok(raw) => {
            memory.settle(before, raw.heap_bytes());
            Ok(raw)
        }
        Err(error) => Err(match memory.failure() {
            Some(error) => TraceError::memory(file, error),
            None => {
                let place = Place::LineColumn(error.line() as u64, error.column() as u64);
                let found =
                    if error.is_eof() { "the end of a file that is cut off".to_owned() } else { error.to_string() };
                TraceError::malformed(file, place, found, SNAPSHOT)
            }
        }),
    }
}

/// Reads the whole document, key by key.
struct SnapshotSeed<'m> {
    memory: &'m mut Memory,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum Key {
    Segments,
    DeviceTraces,
    AllocatorSettings,
    #[serde(other)]
    Other,
}

impl<'de> DeserializeSeed<'de> for SnapshotSeed<'_> {
    type Value = RawSnapshot;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<RawSnapshot, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for SnapshotSeed<'_> {
    type Value = RawSnapshot;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SNAPSHOT)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<RawSnapshot, A::Error> {
        fn once<T, E: Error>(there: Option<&T>, key: &'static str) -> Result<(), E> {
            there.map_or(Ok(()), |_| Err(E::duplicate_field(key)))
        }
        let Self { memory } = self;
        let (mut segments, mut traces, mut settings) = (None, None, None);
        while let Some(key) = items.next_key()? {
            match key {
                Key::Segments => {
                    once(segments.as_ref(), "segments")?;
                    segments = Some(items.next_value_seed(ListSeed::new(memory))?);
                }
                Key::DeviceTraces => {
                    once(traces.as_ref(), "device_traces")?;
                    traces = Some(items.next_value_seed(ListSeed::new(memory))?);
                }
                Key::AllocatorSettings => {
                    once(settings.as_ref(), "allocator_settings")?;
                    settings = Some(items.next_value::<Settings>()?);
                }
                Key::Other => drop(items.next_value::<IgnoredAny>()?),
            }
        }
        Ok(RawSnapshot {
            segments: segments.ok_or_else(|| A::Error::missing_field("segments"))?,
            traces: traces.ok_or_else(|| A::Error::missing_field("device_traces"))?,
            settings: settings.unwrap_or_default().0,
        })
    }
}
/// The items of a list.
trait Listed: Sized {
    /// Reads the next item, and counts the heap memory to which the item points towards the limit in `memory`.
    fn next<'de, A: SeqAccess<'de>>(items: &mut A, memory: &mut Memory) -> Result<Option<Self>, A::Error>;
}

impl Listed for RawSegment {
    fn next<'de, A: SeqAccess<'de>>(items: &mut A, memory: &mut Memory) -> Result<Option<Self>, A::Error> {
        let segment = items.next_element::<Self>()?;
        let blocks = segment.as_ref().map_or(0, |segment| list_bytes::<RawBlock>(segment.blocks.capacity()));
        memory.charge(blocks).map_err(|error| A::Error::custom(memory.fail(error)))?;
        Ok(segment)
    }
}

impl Listed for Vec<Option<Event>> {
    fn next<'de, A: SeqAccess<'de>>(items: &mut A, memory: &mut Memory) -> Result<Option<Self>, A::Error> {
        items.next_element_seed(ListSeed::new(memory))
    }
}

impl Listed for Option<Event> {
    fn next<'de, A: SeqAccess<'de>>(items: &mut A, _: &mut Memory) -> Result<Option<Self>, A::Error> {
        Ok(items.next_element::<JsonEvent>()?.map(|event| event.0))
    }
}

/// Reads a list, item by item.
struct ListSeed<'m, T> {
    memory: &'m mut Memory,
    items: PhantomData<T>,
}

impl<'m, T> ListSeed<'m, T> {
    fn new(memory: &'m mut Memory) -> Self {
        Self { memory, items: PhantomData }
    }
}

impl<'de, T: Listed> DeserializeSeed<'de> for ListSeed<'_, T> {
    type Value = Vec<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<T>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: Listed> Visitor<'de> for ListSeed<'_, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = T::next(&mut items, self.memory)? {
            self.memory.push(&mut list, item).map_err(|error| A::Error::custom(self.memory.fail(error)))?;
        }
        Ok(list)
    }
}

#[derive(Deserialize)]
#[serde(try_from = "JsonEntry<'_>")]
struct JsonEvent(Option<Event>);

#[derive(Deserialize)]
struct JsonEntry<'a> {
    #[serde(borrow)]
    action: Cow<'a, str>,
    #[serde(default)]
    addr: Option<u64>,
    #[serde(default)]
    device_free: Option<u64>,
    #[serde(default)]
    size: Option<u64>,
    #[serde(default)]
    stream: Option<u64>,
}

impl TryFrom<JsonEntry<'_>> for JsonEvent {
    type Error = String;

    fn try_from(entry: JsonEntry<'_>) -> Result<Self, String> {
        let Some(action) = action(&entry.action) else { return Ok(Self(None)) };
        let needed = |key, value: Option<u64>| value.ok_or_else(|| format!("an entry {} without {key}", action.name()));
        let address = if action == Action::Oom { entry.device_free } else { entry.addr };
        let address = needed(address_key(action), address)?;
        let stream = StreamId(needed("stream", entry.stream)?);
        Ok(Self(Some(Event { action, address, size: needed("size", entry.size)?, stream, pool: PoolId::NONE })))
    }
}

/// The settings, copied within limits, since a file could have any number of values.
#[derive(Default)]
struct Settings(Value);

impl<'de> Deserialize<'de> for Settings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut left = MAX_SETTINGS;
        Bounded { left: &mut left, depth: MAX_SETTINGS_DEPTH }.deserialize(deserializer).map(Self)
    }
}

struct Bounded<'a> {
    left: &'a mut usize,
    depth: usize,
}

impl Bounded<'_> {
    fn inner(&mut self) -> Bounded<'_> {
        Bounded { left: self.left, depth: self.depth.saturating_sub(1) }
    }

    fn spend<E: Error>(&mut self, text: &str) -> Result<(), E> {
        if self.depth > 0 && spend(self.left, text) {
            return Ok(());
        }
        Err(E::custom(format!("more than {MAX_SETTINGS} values in allocator_settings")))
    }
}

impl<'de> DeserializeSeed<'de> for Bounded<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(mut self, deserializer: D) -> Result<Value, D::Error> {
        self.spend("")?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Bounded<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a setting")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(mut self, value: &str) -> Result<Value, E> {
        self.spend(value)?;
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self.inner())? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut items: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = items.next_key::<String>()? {
            self.spend(&key)?;
            map.insert(key, items.next_value_seed(self.inner())?);
        }
        Ok(Value::Object(map))
    }
}
