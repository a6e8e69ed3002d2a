//! From a snapshot in JSON to its raw form.
//!
//! Owns: how the keys are read from JSON, entry by entry, without holding the whole as a tree. `raw.rs` has the
//! keys.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::raw::{MAX_SETTINGS, MAX_SETTINGS_DEPTH, RawSegment, RawSnapshot, SNAPSHOT, action, address_key, spend};
use crate::error::{Place, TraceError};
use seamalloc::PoolId;
use seamalloc::driver::StreamId;
use seamalloc::observer::{Action, Event};

/// Reads JSON.
pub(super) fn from_json(file: &str, bytes: &[u8]) -> Result<RawSnapshot, TraceError> {
    #[derive(Deserialize)]
    struct JsonSnapshot {
        segments: Vec<RawSegment>,
        device_traces: Vec<Vec<JsonEvent>>,
        #[serde(default)]
        allocator_settings: Settings,
    }
    let read: JsonSnapshot = serde_json::from_slice(bytes).map_err(|error| {
        let place = Place::LineColumn(error.line() as u64, error.column() as u64);
        TraceError::malformed(file, place, error.to_string(), SNAPSHOT)
    })?;
    let events = |trace: Vec<JsonEvent>| trace.into_iter().map(|event| event.0).collect();
    let traces = read.device_traces.into_iter().map(events).collect();
    Ok(RawSnapshot { segments: read.segments, traces, settings: read.allocator_settings.0 })
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

/// The settings as they are, in bounds: of a value that is copied through, a file could make any number.
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
