//! The pickle machine: runs the opcodes that make plain data and refuses every other.
//!
//! Owns: the stack, the marks and the memo while a pickle is read (protocols 2 to 5, Python's `pickletools`). Every
//! opcode makes at most one value, a shared value stays shared, and nothing recurses, so that time and memory are linear
//! in the input: nesting of any depth, references that multiply, and claimed lengths do no harm.

use super::opcode;
use super::pickle::{Item, Pickle, Span};
use crate::error::{Place, TraceError};

/// The most values that are made (16 bytes each); a snapshot has about one in five bytes of its file.
const MAX_VALUES: usize = 1 << 27;

/// Reads a pickle.
pub(super) fn unpickle<'a>(file: &'a str, bytes: &'a [u8]) -> Result<Pickle<'a>, TraceError> {
    if u32::try_from(bytes.len()).is_err() {
        return Err(TraceError::TooLarge { file: file.to_owned(), limit: u32::MAX.into(), unit: "bytes" });
    }
    let mut machine = Machine {
        file,
        bytes,
        at: 0,
        opcode_at: 0,
        values: 0,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
        lists: Vec::new(),
    };
    let root = machine.run()?;
    Ok(Pickle::new(file, bytes, machine.lists, root, machine.values))
}

struct Machine<'a> {
    file: &'a str,
    bytes: &'a [u8],
    at: usize,
    opcode_at: usize,
    values: usize,
    stack: Vec<Item>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: Vec<Item>,
    lists: Vec<Vec<Item>>,
}

impl Machine<'_> {
    fn run(&mut self) -> Result<Item, TraceError> {
        loop {
            self.opcode_at = self.at;
            match self.byte()? {
                opcode::PROTO => drop(self.byte()?),
                opcode::FRAME => drop(self.take(8)?),
                opcode::STOP => return self.pop(),
                other => self.execute_number(other)?,
            }
        }
    }

    /// Carries out an opcode that makes a constant or a number; any other goes on to [`Self::execute_string`].
    fn execute_number(&mut self, code: u8) -> Result<(), TraceError> {
        match code {
            opcode::NONE => self.push(Item::None)?,
            opcode::NEWTRUE => self.push(Item::Bool(true))?,
            opcode::NEWFALSE => self.push(Item::Bool(false))?,
            opcode::BININT => {
                let value = i32::from_le_bytes(self.array()?);
                self.push(Item::Int(value.into()))?;
            }
            opcode::BININT1 => {
                let value = self.byte()?;
                self.push(Item::Int(value.into()))?;
            }
            opcode::BININT2 => {
                let value = u16::from_le_bytes(self.array()?);
                self.push(Item::Int(value.into()))?;
            }
            opcode::LONG1 => {
                let length = self.byte()?;
                self.long(length.into())?;
            }
            opcode::LONG4 => {
                let length = self.length4()?;
                self.long(length)?;
            }
            opcode::BINFLOAT => {
                let value = f64::from_be_bytes(self.array()?);
                self.push(Item::Float(value))?;
            }
            other => self.execute_string(other)?,
        }
        Ok(())
    }

    /// Carries out an opcode that makes text or bytes; any other goes on to [`Self::execute_memo`].
    fn execute_string(&mut self, code: u8) -> Result<(), TraceError> {
        match code {
            opcode::SHORT_BINUNICODE => {
                let length = self.byte()?;
                self.text(length.into())?;
            }
            opcode::BINUNICODE => {
                let length = self.length4()?;
                self.text(length)?;
            }
            opcode::BINUNICODE8 => {
                let length = self.length8()?;
                self.text(length)?;
            }
            opcode::SHORT_BINBYTES | opcode::SHORT_BINSTRING => {
                let length = self.byte()?;
                self.skip(length.into())?;
            }
            opcode::BINBYTES | opcode::BINSTRING => {
                let length = self.length4()?;
                self.skip(length)?;
            }
            opcode::BINBYTES8 | opcode::BYTEARRAY8 => {
                let length = self.length8()?;
                self.skip(length)?;
            }
            other => self.execute_memo(other)?,
        }
        Ok(())
    }

    /// Carries out an opcode of the memo; any other goes on to [`Self::execute_stack`].
    fn execute_memo(&mut self, code: u8) -> Result<(), TraceError> {
        match code {
            opcode::MEMOIZE => self.memoize(self.memo.len())?,
            opcode::BINPUT => {
                let id = self.byte()?;
                self.memoize(id.into())?;
            }
            opcode::LONG_BINPUT => {
                let id = self.length4()?;
                self.memoize(id)?;
            }
            opcode::BINGET => {
                let id = self.byte()?;
                self.recall(id.into())?;
            }
            opcode::LONG_BINGET => {
                let id = self.length4()?;
                self.recall(id)?;
            }
            other => self.execute_stack(other)?,
        }
        Ok(())
    }

    /// Carries out an opcode of the stack; any other goes on to [`Self::execute_list`].
    fn execute_stack(&mut self, code: u8) -> Result<(), TraceError> {
        match code {
            opcode::MARK => {
                self.count()?;
                self.marks.push(self.stack.len());
            }
            opcode::POP => {
                if self.pop().is_err() {
                    self.marks.pop().ok_or_else(|| self.malformed("POP of an empty stack", "a value or a mark"))?;
                }
            }
            opcode::POP_MARK => drop(self.above_mark()?),
            opcode::DUP => {
                let top = self.top()?;
                self.push(top)?;
            }
            other => self.execute_list(other)?,
        }
        Ok(())
    }

    /// Carries out an opcode that makes or fills a list or tuple; any other goes on to [`Self::execute_dict`].
    fn execute_list(&mut self, code: u8) -> Result<(), TraceError> {
        match code {
            opcode::EMPTY_LIST | opcode::EMPTY_TUPLE => self.push_list(Vec::new(), Item::List)?,
            opcode::LIST | opcode::TUPLE => {
                let items = self.above_mark()?;
                self.push_list(items, Item::List)?;
            }
            opcode::TUPLE1 => self.tuple(1)?,
            opcode::TUPLE2 => self.tuple(2)?,
            opcode::TUPLE3 => self.tuple(3)?,
            opcode::APPEND => {
                let items = self.top_items(1)?;
                self.extend(items, "a list", Item::list)?;
            }
            opcode::APPENDS => {
                let items = self.above_mark()?;
                self.extend(items, "a list", Item::list)?;
            }
            other => self.execute_dict(other)?,
        }
        Ok(())
    }

    /// Carries out an opcode that makes or fills a dict; any other is refused.
    fn execute_dict(&mut self, code: u8) -> Result<(), TraceError> {
        match code {
            opcode::EMPTY_DICT => self.push_list(Vec::new(), Item::Dict)?,
            opcode::DICT => {
                let items = self.above_mark()?;
                self.paired(&items)?;
                self.push_list(items, Item::Dict)?;
            }
            opcode::SETITEM => {
                let items = self.top_items(2)?;
                self.extend(items, "a dict", Item::dict)?;
            }
            opcode::SETITEMS => {
                let items = self.above_mark()?;
                self.paired(&items)?;
                self.extend(items, "a dict", Item::dict)?;
            }
            other => return Err(self.refused(other)),
        }
        Ok(())
    }

    /// An opcode that is not plain data, or none at all.
    fn refused(&self, opcode: u8) -> TraceError {
        match opcode::more_than_data(opcode) {
            Some(name) => {
                TraceError::NotData { file: self.file.to_owned(), offset: self.opcode_at as u64, opcode: name }
            }
            None => self.malformed(format!("opcode {opcode:#04x}"), "an opcode of plain data, of protocols 2 to 5"),
        }
    }

    fn malformed(&self, found: impl Into<String>, expected: impl Into<String>) -> TraceError {
        TraceError::malformed(self.file, Place::Byte(self.opcode_at as u64), found, expected)
    }

    fn take(&mut self, length: usize) -> Result<&[u8], TraceError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        match rest.get(..length) {
            Some(bytes) => {
                self.at = self.at.saturating_add(length);
                Ok(bytes)
            }
            None => {
                Err(self.malformed(format!("{} bytes before the end of the pickle", rest.len()), length.to_string()))
            }
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], TraceError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn byte(&mut self) -> Result<u8, TraceError> {
        self.array().map(|[byte]| byte)
    }

    fn length4(&mut self) -> Result<usize, TraceError> {
        let length = u32::from_le_bytes(self.array()?);
        Ok(usize::try_from(length).unwrap_or(usize::MAX))
    }

    fn length8(&mut self) -> Result<usize, TraceError> {
        let length = u64::from_le_bytes(self.array()?);
        Ok(usize::try_from(length).unwrap_or(usize::MAX))
    }

    /// A signed little-endian integer of any length.
    fn long(&mut self, length: usize) -> Result<(), TraceError> {
        const WIDTH: usize = 16;
        let bytes = self.take(length)?;
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let item = if bytes.len() > WIDTH {
            Item::Huge
        } else {
            let mut wide = [if negative { 0xff } else { 0 }; WIDTH];
            wide.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            let value = i128::from_le_bytes(wide);
            i64::try_from(value).map(Item::Int).or(u64::try_from(value).map(Item::Large)).unwrap_or(Item::Huge)
        };
        self.push(item)
    }

    fn text(&mut self, length: usize) -> Result<(), TraceError> {
        let start = u32::try_from(self.at).unwrap_or(u32::MAX);
        let bytes = self.take(length)?;
        let valid = std::str::from_utf8(bytes).is_ok();
        // Python writes lone surrogates in its own way; such text is data still, but none that is looked for.
        let length = if valid { u32::try_from(length).unwrap_or(u32::MAX) } else { 0 };
        self.push(Item::Text(Span { start, length }))
    }

    fn skip(&mut self, length: usize) -> Result<(), TraceError> {
        self.take(length)?;
        self.push(Item::Bytes)
    }

    fn count(&mut self) -> Result<(), TraceError> {
        self.values = self.values.saturating_add(1);
        if self.values > MAX_VALUES {
            return Err(TraceError::TooLarge { file: self.file.to_owned(), limit: MAX_VALUES as u64, unit: "values" });
        }
        Ok(())
    }

    fn push(&mut self, item: Item) -> Result<(), TraceError> {
        self.count()?;
        self.stack.push(item);
        Ok(())
    }

    fn push_list(&mut self, items: Vec<Item>, make: fn(u32) -> Item) -> Result<(), TraceError> {
        let index = u32::try_from(self.lists.len()).unwrap_or(u32::MAX);
        self.lists.push(items);
        self.push(make(index))
    }

    /// The height below which the stack belongs to what came before the last mark.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self) -> Result<Item, TraceError> {
        let above = self.stack.get(self.floor()..).unwrap_or_default();
        above.last().copied().ok_or_else(|| self.malformed("an empty stack", "a value"))
    }

    fn pop(&mut self) -> Result<Item, TraceError> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn top_items(&mut self, count: usize) -> Result<Vec<Item>, TraceError> {
        let at = self.stack.len().checked_sub(count).filter(|&at| at >= self.floor());
        let at = at.ok_or_else(|| self.malformed("too few values on the stack", count.to_string()))?;
        Ok(self.stack.split_off(at))
    }

    fn tuple(&mut self, count: usize) -> Result<(), TraceError> {
        let items = self.top_items(count)?;
        self.push_list(items, Item::List)
    }

    fn above_mark(&mut self) -> Result<Vec<Item>, TraceError> {
        let mark = self.marks.pop().ok_or_else(|| self.malformed("no mark", "a mark"))?;
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn paired(&self, items: &[Item]) -> Result<(), TraceError> {
        if items.len().is_multiple_of(2) { Ok(()) } else { Err(self.malformed("a key without a value", "pairs")) }
    }

    /// Adds items to the list or dict on top of the stack.
    fn extend(
        &mut self,
        items: Vec<Item>,
        expected: &str,
        index: impl FnOnce(Item) -> Option<u32>,
    ) -> Result<(), TraceError> {
        let top = self.top()?;
        match index(top).and_then(|index| self.lists.get_mut(index as usize)) {
            Some(list) if list.is_empty() => *list = items,
            Some(list) => list.extend(items),
            None => return Err(self.malformed("another value on the stack", expected)),
        }
        Ok(())
    }

    /// Keeps the top of the stack under an id. Python numbers from 0 without gaps.
    fn memoize(&mut self, id: usize) -> Result<(), TraceError> {
        let top = self.top()?;
        let known = self.memo.len();
        if id == known {
            self.count()?;
            self.memo.push(top);
        } else if let Some(old) = self.memo.get_mut(id) {
            *old = top;
        } else {
            return Err(self.malformed(format!("memo id {id}"), format!("at most {known}")));
        }
        Ok(())
    }

    fn recall(&mut self, id: usize) -> Result<(), TraceError> {
        let item = self.memo.get(id).copied();
        let missing = || self.malformed(format!("memo id {id}"), format!("less than {}", self.memo.len()));
        let item = item.ok_or_else(missing)?;
        self.push(item)
    }
}

#[cfg(test)]
mod tests;
