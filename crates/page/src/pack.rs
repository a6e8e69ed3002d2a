//! The encoding of data in the page: columns of whole numbers and their description, deflated, as text.
//!
//! ```text
//! 4 bytes, little-endian: the length of the description
//! the description, JSON: {"columns": {NAME: [OFFSET, COUNT, DELTAS]}, …}
//! the columns: numbers in groups of 7 bits, the lowest first, the top bit set where another group follows
//! ```
//! A column of deltas stores the difference d from the number before as 2d, or as -2d - 1 for a negative d.
//! `crates/page/assets/decode.js` reads the encoding. Numbers stay below 2^53, so that a browser stores them exactly.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use serde_json::{Map, Value, json};
use std::io::Write;

/// Columns and their description.
#[derive(Debug, Default)]
pub(crate) struct Pack {
    columns: Map<String, Value>,
    bytes: Vec<u8>,
}

impl Pack {
    /// Adds a column of numbers without a transformation.
    pub(crate) fn numbers(&mut self, name: &str, numbers: impl Iterator<Item = u64>) {
        self.column(name, false, numbers);
    }

    /// Adds a column of numbers as differences, for numbers that differ little from the number before.
    pub(crate) fn deltas(&mut self, name: &str, numbers: impl Iterator<Item = u64>) {
        let mut last = 0u64;
        let deltas = numbers.map(|number| {
            let delta = number.wrapping_sub(last) as i64;
            last = number;
            (delta << 1 ^ delta >> 63) as u64
        });
        self.column(name, true, deltas);
    }

    fn column(&mut self, name: &str, deltas: bool, numbers: impl Iterator<Item = u64>) {
        let offset = self.bytes.len();
        let mut count = 0u64;
        for mut number in numbers {
            count += 1;
            while number >= 0x80 {
                self.bytes.push(number as u8 | 0x80);
                number >>= 7;
            }
            self.bytes.push(number as u8);
        }
        self.columns.insert(name.to_owned(), json!([offset, count, deltas]));
    }

    /// Returns the columns as text. `description` has further entries of the description.
    pub(crate) fn text(self, mut description: Map<String, Value>) -> String {
        description.insert("columns".to_owned(), self.columns.into());
        let description = Value::from(description).to_string();
        let mut deflate = DeflateEncoder::new(Vec::new(), Compression::new(LEVEL));
        let length = u32::try_from(description.len()).unwrap_or(u32::MAX).to_le_bytes();
        let parts = [&length[..], description.as_bytes(), &self.bytes];
        // Writing to memory cannot fail.
        let packed = parts.iter().try_for_each(|part| deflate.write_all(part)).and_then(|()| deflate.finish());
        STANDARD.encode(packed.unwrap_or_default())
    }
}

/// The compression level. Higher levels take much more time and save little.
const LEVEL: u32 = 6;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use flate2::read::DeflateDecoder;
    use std::collections::BTreeMap;
    use std::io::Read;

    /// Reads the data of a page as the page's script does.
    pub(crate) fn read(text: &str) -> (Value, BTreeMap<String, Vec<u64>>) {
        let mut bytes = Vec::new();
        DeflateDecoder::new(&*STANDARD.decode(text).unwrap()).read_to_end(&mut bytes).unwrap();
        let length = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
        let description: Value = serde_json::from_slice(&bytes[4..4 + length]).unwrap();
        let mut columns = BTreeMap::new();
        for (name, column) in description["columns"].as_object().unwrap() {
            let mut at = 4 + length + column[0].as_u64().unwrap() as usize;
            let mut last = 0u64;
            let numbers = (0..column[1].as_u64().unwrap()).map(|_| {
                let (mut number, mut shift) = (0u64, 0);
                loop {
                    let byte = bytes[at];
                    at += 1;
                    number |= u64::from(byte & 0x7f) << shift;
                    shift += 7;
                    if byte < 0x80 {
                        break;
                    }
                }
                if column[2].as_bool().unwrap() {
                    last = last.wrapping_add((number >> 1) ^ (number & 1).wrapping_neg());
                    number = last;
                }
                number
            });
            let numbers = numbers.collect();
            columns.insert(name.clone(), numbers);
        }
        (description, columns)
    }

    #[test]
    fn columns_come_out_as_they_went_in() {
        let numbers = [0, 1, 127, 128, 1 << 20, (1 << 53) - 1, 0, 5];
        let mut pack = Pack::default();
        pack.numbers("plain", numbers.into_iter());
        pack.deltas("near", numbers.into_iter());
        pack.numbers("none", std::iter::empty());
        let text = pack.text(Map::from_iter([("name".to_owned(), "a job".into())]));
        let (description, columns) = read(&text);
        assert_eq!(description["name"], "a job");
        assert_eq!((&columns["plain"][..], &columns["near"][..]), (&numbers[..], &numbers[..]));
        assert_eq!(columns["none"], [0u64; 0]);
    }
}
