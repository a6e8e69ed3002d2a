//! What a pickle of plain data holds: dicts, lists, tuples, text, numbers.
//!
//! Owns: the values and how they are looked at. Values are copied and never followed unasked, since a pickle may nest
//! and share them at will, and following is counted. Making them is `unpickle.rs`'s, their meaning `dicts.rs`'s.

use std::cell::Cell;

use crate::error::{Place, TraceError, excerpt};

/// A value. Containers are indexes, so that values are copied and never followed unasked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Item {
    None,
    Bool(bool),
    Int(i64),
    /// An integer from 2^63 on.
    Large(u64),
    /// An integer that 64 bits do not hold.
    Huge,
    Float(f64),
    Text(Span),
    Bytes,
    List(u32),
    Dict(u32),
}

impl Item {
    /// The number of a list or tuple.
    pub(super) fn list(self) -> Option<u32> {
        if let Self::List(list) = self { Some(list) } else { None }
    }

    /// The number of a dict.
    pub(super) fn dict(self) -> Option<u32> {
        if let Self::Dict(list) = self { Some(list) } else { None }
    }
}

/// Bytes of the input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) length: u32,
}

/// What a pickle holds.
pub(super) struct Pickle<'a> {
    file: &'a str,
    bytes: &'a [u8],
    lists: Vec<Vec<Item>>,
    root: Item,
    /// How many more items may be followed; as many as there are, so that sharing cannot multiply them.
    left: Cell<usize>,
}

impl<'a> Pickle<'a> {
    /// What the machine made of `bytes`: lists, tuples and dicts by their numbers, and how many values there are.
    pub(super) fn new(file: &'a str, bytes: &'a [u8], lists: Vec<Vec<Item>>, root: Item, values: usize) -> Self {
        Self { file, bytes, lists, root, left: Cell::new(values) }
    }

    /// Counts the items of a list or dict that is followed.
    ///
    /// # Errors
    /// More are followed than the pickle has: lists or dicts stand in several places, as in no snapshot.
    pub(super) fn follow(&self, item: Item, place: Place) -> Result<(), TraceError> {
        let list = item.list().or(item.dict()).and_then(|list| self.lists.get(list as usize));
        match self.left.get().checked_sub(list.map_or(0, Vec::len)) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => {
                let found = "a list or dict that stands in several places";
                Err(TraceError::malformed(self.file, place, found, "one of its own"))
            }
        }
    }

    /// The outermost value.
    pub(super) fn root(&self) -> Item {
        self.root
    }

    /// The name of the file, for errors.
    pub(super) fn file(&self) -> &'a str {
        self.file
    }

    /// The text of a value that is one.
    pub(super) fn text(&self, item: Item) -> Option<&'a str> {
        let Item::Text(Span { start, length }) = item else { return None };
        let from = self.bytes.get(start as usize..)?;
        std::str::from_utf8(from.get(..length as usize)?).ok()
    }

    /// The text of a value that is a short one: a key, an action, a state. A long one may stand in many places, and
    /// looking at it each time would take long.
    pub(super) fn word(&self, item: Item) -> Option<&'a str> {
        const LONGEST: u32 = 64;
        let Item::Text(Span { length: ..=LONGEST, .. }) = item else { return None };
        self.text(item)
    }

    /// The items of a list or tuple.
    pub(super) fn list(&self, item: Item) -> Option<&[Item]> {
        self.lists.get(item.list()? as usize).map(Vec::as_slice)
    }

    /// The keys and values of a dict, in order of insertion.
    pub(super) fn pairs(&self, item: Item) -> Option<impl DoubleEndedIterator<Item = (Item, Item)> + '_> {
        let list = self.lists.get(item.dict()? as usize)?;
        Some(list.chunks_exact(2).filter_map(|pair| Some((*pair.first()?, *pair.get(1)?))))
    }

    /// The value of a text key of a dict; of a key that was set twice, the later one.
    pub(super) fn get(&self, dict: Item, key: &str) -> Option<Item> {
        self.pairs(dict)?.rev().find(|&(found, _)| self.word(found) == Some(key)).map(|(_, value)| value)
    }

    /// A value in words, for errors.
    pub(super) fn describe(&self, item: Item) -> String {
        match item {
            Item::None => "None".to_owned(),
            Item::Bool(value) => format!("the bool {value}"),
            Item::Int(value) => value.to_string(),
            Item::Large(value) => value.to_string(),
            Item::Huge => "an integer of more than 64 bits".to_owned(),
            Item::Float(value) => format!("the float {value}"),
            Item::Text(_) => format!("the text {}", excerpt(self.text(item).unwrap_or_default().as_bytes())),
            Item::Bytes => "bytes".to_owned(),
            Item::List(_) => "a list".to_owned(),
            Item::Dict(_) => "a dict".to_owned(),
        }
    }
}
