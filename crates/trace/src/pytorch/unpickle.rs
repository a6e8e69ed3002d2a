//! The pickle machine: runs the opcodes that make plain data and refuses all others.
//!
//! Owns: the stack, the marks and the memo while a pickle is read (protocols 2 to 5, Python's `pickletools`). Every
//! opcode makes at most one value, a shared value stays shared, and no function recurses. So time and memory are linear
//! in the input, even with deep nesting, multiplied references and false lengths. Memory is charged before it is
//! allocated, since a value that takes one byte in the file takes many in memory.

use super::opcode;
use super::pickle::{Item, Pickle};
use crate::error::{Place, TraceError};
use crate::memory::{Memory, MemoryError};

/// Reads a pickle.
pub(super) fn unpickle<'a>(file: &'a str, bytes: &'a [u8], memory: &mut Memory) -> Result<Pickle<'a>, TraceError> {
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
        memory,
    };
    let root = machine.run()?;
    machine.memory.release(&machine.stack);
    machine.memory.release(&machine.marks);
    machine.memory.release(&machine.memo);
    Ok(Pickle::new(file, bytes, machine.lists, root, machine.values))
}

struct Machine<'a> {
    file: &'a str,
    bytes: &'a [u8],
    at: usize,
    opcode_at: usize,
    values: usize,
    stack: Vec<Item>,
    /// The heights of the stack at the marks (opcode MARK).
    marks: Vec<usize>,
    memo: Vec<Item>,
    lists: Vec<Vec<Item>>,
    memory: &'a mut Memory,
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

    /// Executes an opcode that makes a constant or a number. Passes any other opcode on to [`Self::execute_string`].
    fn execute_number(&mut self, code: u8) -> Result<(), TraceError> {
        match code {
            opcode::NONE => self.push(Item::None)?,
            opcode::NEWTRUE => self.push(Item::Bool(true))?,
            opcode::NEWFALSE => self.push(Item::Bool(false))?,
            opcode::BININT => {
                let value = i32::from_le_bytes(self.array()?);
                self.push(Item::Small(value))?;
            }
            opcode::BININT1 => {
                let value = self.byte()?;
                self.push(Item::Small(value.into()))?;
            }
            opcode::BININT2 => {
                let value = u16::from_le_bytes(self.array()?);
                self.push(Item::Small(value.into()))?;
            }
            opcode::LONG1 => {
                let at = self.position();
                let length = self.byte()?;
                self.take(length.into())?;
                self.push(Item::Long1(at))?;
            }
            opcode::LONG4 => {
                let at = self.position();
                let length = self.length4()?;
                self.take(length)?;
                self.push(Item::Long4(at))?;
            }
            opcode::BINFLOAT => {
                let at = self.position();
                self.take(size_of::<f64>())?;
                self.push(Item::Float(at))?;
            }
            other => self.execute_string(other)?,
        }
        Ok(())
    }

    /// Executes an opcode that makes text or bytes. Passes any other opcode on to [`Self::execute_memo`].
    fn execute_string(&mut self, code: u8) -> Result<(), TraceError> {
        match code {
            opcode::SHORT_BINUNICODE => {
                let at = self.position();
                let length = self.byte()?;
                self.text(length.into(), Item::Text1(at))?;
            }
            opcode::BINUNICODE => {
                let at = self.position();
                let length = self.length4()?;
                self.text(length, Item::Text4(at))?;
            }
            opcode::BINUNICODE8 => {
                let at = self.position();
                let length = self.length8()?;
                self.text(length, Item::Text8(at))?;
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

    /// Executes an opcode of the memo. Passes any other opcode on to [`Self::execute_stack`].
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

    /// Executes an opcode of the stack. Passes any other opcode on to [`Self::execute_list`].
    fn execute_stack(&mut self, code: u8) -> Result<(), TraceError> {
        match code {
            opcode::MARK => {
                self.memory.push(&mut self.marks, self.stack.len()).map_err(|error| self.too_much(error))?;
            }
            opcode::POP => {
                if self.pop().is_err() {
                    self.marks.pop().ok_or_else(|| self.malformed("POP of an empty stack", "a value or a mark"))?;
                }
            }
            opcode::POP_MARK => {
                let mark = self.mark()?;
                self.stack.truncate(mark);
            }
            opcode::DUP => {
                let top = self.top()?;
                self.push(top)?;
            }
            other => self.execute_list(other)?,
        }
        Ok(())
    }

    /// Executes an opcode that makes or fills a list or tuple. Passes any other opcode on to [`Self::execute_dict`].
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

    /// Executes an opcode that makes or fills a dict. Refuses any other opcode.
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

    /// Returns the error for an opcode that is unknown or not plain data.
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
                let found = format!("the end of a file that is cut off, after {} of {length} bytes", rest.len());
                Err(self.malformed(found, "a whole pickle"))
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

    /// Returns the position of the byte after the opcode. An earlier check ensures that the position fits in 32 bits.
    fn position(&self) -> u32 {
        u32::try_from(self.at).unwrap_or(u32::MAX)
    }

    fn text(&mut self, length: usize, text: Item) -> Result<(), TraceError> {
        let valid = std::str::from_utf8(self.take(length)?).is_ok();
        // Python writes lone surrogates in its own form. Such text is valid data, but never a key that is looked up.
        self.push(if valid { text } else { Item::Bytes })
    }

    fn skip(&mut self, length: usize) -> Result<(), TraceError> {
        self.take(length)?;
        self.push(Item::Bytes)
    }

    fn too_much(&self, error: MemoryError) -> TraceError {
        TraceError::memory(self.file, error)
    }

    fn push(&mut self, item: Item) -> Result<(), TraceError> {
        self.values = self.values.saturating_add(1);
        self.memory.push(&mut self.stack, item).map_err(|error| self.too_much(error))
    }

    fn push_list(&mut self, items: Vec<Item>, make: fn(u32) -> Item) -> Result<(), TraceError> {
        let index = u32::try_from(self.lists.len()).unwrap_or(u32::MAX);
        self.memory.push(&mut self.lists, items).map_err(|error| self.too_much(error))?;
        self.push(make(index))
    }

    /// Returns the height of the stack at the last mark (opcode MARK). Values below it precede the mark.
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
        self.split_off(at)
    }

    /// Removes the stack above a height, and returns the removed values as a list.
    fn split_off(&mut self, at: usize) -> Result<Vec<Item>, TraceError> {
        let above = self.stack.get(at..).unwrap_or_default();
        let mut items = Vec::new();
        self.memory.room(&mut items, above.len()).map_err(|error| TraceError::memory(self.file, error))?;
        items.extend_from_slice(above);
        self.stack.truncate(at);
        Ok(items)
    }

    fn tuple(&mut self, count: usize) -> Result<(), TraceError> {
        let items = self.top_items(count)?;
        self.push_list(items, Item::List)
    }

    fn mark(&mut self) -> Result<usize, TraceError> {
        self.marks.pop().ok_or_else(|| self.malformed("no mark", "a mark"))
    }

    fn above_mark(&mut self) -> Result<Vec<Item>, TraceError> {
        let mark = self.mark()?;
        self.split_off(mark)
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
            Some(list) => {
                let added = self.memory.extend(list, &items);
                self.memory.release(&items);
                return added.map_err(|error| self.too_much(error));
            }
            None => return Err(self.malformed("another value on the stack", expected)),
        }
        Ok(())
    }

    /// Stores the top of the stack under an id. Python numbers ids from 0 without gaps.
    fn memoize(&mut self, id: usize) -> Result<(), TraceError> {
        let top = self.top()?;
        let known = self.memo.len();
        if id == known {
            self.memory.push(&mut self.memo, top).map_err(|error| self.too_much(error))?;
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
