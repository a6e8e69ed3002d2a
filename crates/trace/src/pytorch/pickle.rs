//! The values of a pickle of plain data: dicts, lists, tuples, text, numbers.
//!
//! Owns: the values and the access to them. A pickle may nest and share values in any way. So containers are copied as
//! indexes and followed only on request, and the followed items are counted. `unpickle.rs` makes the values, and
//! `dicts.rs` interprets them.

use std::cell::Cell;

use crate::error::{Place, TraceError, excerpt};

/// A value in 8 bytes. A snapshot has hundreds of millions of values. Containers are indexes, and longer values are
/// positions in the input, so that values are cheap to copy and are followed only on request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Item {
    None,
    Bool(bool),
    /// A small integer.
    Small(i32),
    /// A little-endian integer. The position is that of the integer's length, which is a number of one byte.
    Long1(u32),
    /// A little-endian integer. The position is that of the integer's length, which is a number of four bytes.
    Long4(u32),
    /// A floating-point number, whose eight bytes begin at this position.
    Float(u32),
    /// Text in UTF-8. The position is that of the text's length, which is a number of one byte.
    Text1(u32),
    /// Text in UTF-8. The position is that of the text's length, which is a number of four bytes.
    Text4(u32),
    /// Text in UTF-8. The position is that of the text's length, which is a number of eight bytes.
    Text8(u32),
    /// Bytes, or text that is not UTF-8.
    Bytes,
    List(u32),
    Dict(u32),
}

/// A number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Int(i64),
    /// An integer from 2^63 on.
    Large(u64),
    /// An integer that does not fit in 64 bits.
    Huge,
    Float(f64),
}

impl Number {
    /// Reads a signed little-endian integer of any length.
    fn long(bytes: &[u8]) -> Self {
        const WIDTH: usize = 16;
        if bytes.len() > WIDTH {
            return Self::Huge;
        }
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut wide = [if negative { 0xff } else { 0 }; WIDTH];
        wide.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        let value = i128::from_le_bytes(wide);
        i64::try_from(value).map(Self::Int).or(u64::try_from(value).map(Self::Large)).unwrap_or(Self::Huge)
    }

    /// Returns the number as an unsigned integer of 64 bits; `None` if it is no such integer.
    pub(super) fn unsigned(self) -> Option<u64> {
        match self {
            Self::Int(number) => u64::try_from(number).ok(),
            Self::Large(number) => Some(number),
            Self::Huge | Self::Float(_) => None,
        }
    }
}

impl Item {
    /// Returns the number of a list or tuple.
    pub(super) fn list(self) -> Option<u32> {
        if let Self::List(list) = self { Some(list) } else { None }
    }

    /// Returns the number of a dict.
    pub(super) fn dict(self) -> Option<u32> {
        if let Self::Dict(list) = self { Some(list) } else { None }
    }
}

/// The contents of a pickle.
pub(super) struct Pickle<'a> {
    file: &'a str,
    bytes: &'a [u8],
    lists: Vec<Vec<Item>>,
    root: Item,
    /// The number of items that may still be followed (read one by one). The count begins with the number of items in
    /// the pickle, so that sharing cannot multiply the items.
    left: Cell<usize>,
}

impl<'a> Pickle<'a> {
    /// Makes the contents that the pickle machine has read from `bytes`: lists, tuples and dicts by their numbers, and
    /// the number of values.
    pub(super) fn new(file: &'a str, bytes: &'a [u8], lists: Vec<Vec<Item>>, root: Item, values: usize) -> Self {
        Self { file, bytes, lists, root, left: Cell::new(values) }
    }

    /// Counts the items of a list or dict that is about to be followed (read item by item).
    ///
    /// # Errors
    /// More items are followed than the pickle has, because lists or dicts are shared. No snapshot shares them.
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

    /// Returns the outermost value.
    pub(super) fn root(&self) -> Item {
        self.root
    }

    /// Returns the name of the file, for errors.
    pub(super) fn file(&self) -> &'a str {
        self.file
    }

    /// Returns the text of a value, if it is text.
    pub(super) fn text(&self, item: Item) -> Option<&'a str> {
        std::str::from_utf8(self.text_bytes(item)?).ok()
    }

    fn text_bytes(&self, item: Item) -> Option<&'a [u8]> {
        match item {
            Item::Text1(at) => self.counted::<1>(at),
            Item::Text4(at) => self.counted::<4>(at),
            Item::Text8(at) => self.counted::<8>(at),
            _ => None,
        }
    }

    /// Returns the bytes whose number comes first, in `N` bytes.
    fn counted<const N: usize>(&self, at: u32) -> Option<&'a [u8]> {
        let (length, rest) = self.bytes.get(at as usize..)?.split_at_checked(N)?;
        let mut wide = [0; 8];
        wide.iter_mut().zip(length).for_each(|(to, from)| *to = *from);
        rest.get(..usize::try_from(u64::from_le_bytes(wide)).ok()?)
    }

    /// Returns the value of a number.
    pub(super) fn number(&self, item: Item) -> Option<Number> {
        match item {
            Item::Small(value) => Some(Number::Int(value.into())),
            Item::Long1(at) => self.counted::<1>(at).map(Number::long),
            Item::Long4(at) => self.counted::<4>(at).map(Number::long),
            Item::Float(at) => {
                let bytes = self.bytes.get(at as usize..)?.first_chunk()?;
                Some(Number::Float(f64::from_be_bytes(*bytes)))
            }
            _ => None,
        }
    }

    /// Returns the text of a value if it is short, as a key, an action or a state is. Many values may share a long
    /// text, and comparing it each time would take long.
    pub(super) fn word(&self, item: Item) -> Option<&'a str> {
        const LONGEST: usize = 64;
        let bytes = self.text_bytes(item).filter(|bytes| bytes.len() <= LONGEST)?;
        std::str::from_utf8(bytes).ok()
    }

    /// Returns the items of a list or tuple.
    pub(super) fn list(&self, item: Item) -> Option<&[Item]> {
        self.lists.get(item.list()? as usize).map(Vec::as_slice)
    }

    /// Returns the keys and values of a dict, in order of insertion.
    pub(super) fn pairs(&self, item: Item) -> Option<impl DoubleEndedIterator<Item = (Item, Item)> + '_> {
        let list = self.lists.get(item.dict()? as usize)?;
        Some(list.chunks_exact(2).filter_map(|pair| Some((*pair.first()?, *pair.get(1)?))))
    }

    /// Returns the value of a text key of a dict. If the key was set twice, returns the later value.
    pub(super) fn get(&self, dict: Item, key: &str) -> Option<Item> {
        self.pairs(dict)?.rev().find(|&(found, _)| self.word(found) == Some(key)).map(|(_, value)| value)
    }

    /// Returns a value in words, for errors.
    pub(super) fn describe(&self, item: Item) -> String {
        match item {
            Item::None => "None".to_owned(),
            Item::Bool(value) => format!("the bool {value}"),
            Item::Small(_) | Item::Long1(_) | Item::Long4(_) | Item::Float(_) => match self.number(item) {
                Some(Number::Int(value)) => value.to_string(),
                Some(Number::Large(value)) => value.to_string(),
                Some(Number::Float(value)) => format!("the float {value}"),
                Some(Number::Huge) | None => "an integer of more than 64 bits".to_owned(),
            },
            Item::Text1(_) | Item::Text4(_) | Item::Text8(_) => {
                format!("the text {}", excerpt(self.text_bytes(item).unwrap_or_default()))
            }
            Item::Bytes => "bytes".to_owned(),
            Item::List(_) => "a list".to_owned(),
            Item::Dict(_) => "a dict".to_owned(),
        }
    }
}
