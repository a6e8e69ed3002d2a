//! Collections whose growth returns an error if the host has no memory. `Vec::push` and similar methods end the process
//! in this case.
//!
//! Owns: the ways to grow a collection and to report that it did not grow. A change first makes room (`try_reserve`) in
//! all tables that the change will write. Then it writes them, and no write fails within that room.
//! docs/decisions/0036-host-memory.md has the rules.

use std::alloc::{Layout, alloc_zeroed};
use std::collections::{HashMap, TryReserveError};
use std::fmt;
use std::hash::{BuildHasher, Hash};

/// The result of a step for which the host may have too little memory.
pub type Grown<T> = std::result::Result<T, TryReserveError>;

/// A list whose growth may fail because the host has too little memory.
pub trait TryPush<T> {
    /// Appends an element. On error the list is unchanged.
    fn try_push(&mut self, value: T) -> Grown<()>;
}

impl<T> TryPush<T> for Vec<T> {
    fn try_push(&mut self, value: T) -> Grown<()> {
        self.try_reserve(1)?;
        self.push(value);
        Ok(())
    }
}

/// An iterator whose elements become a list, if the host has memory for it.
pub trait TryCollect: Iterator + Sized {
    /// Returns the elements as a list.
    fn try_to_vec(self) -> Grown<Vec<Self::Item>> {
        let mut out = Vec::new();
        out.try_reserve_exact(self.size_hint().0)?;
        for item in self {
            out.try_push(item)?;
        }
        Ok(out)
    }
}

impl<I: Iterator> TryCollect for I {}

/// Returns a list of `len` equal elements.
pub fn filled<T: Clone>(value: T, len: usize) -> Grown<Vec<T>> {
    let mut out = Vec::new();
    out.try_reserve_exact(len)?;
    out.resize(len, value);
    Ok(out)
}

/// A number whose value is 0 if all its bits are 0.
pub trait Number: Copy + From<u8> {}

impl Number for u8 {}
impl Number for u32 {}
impl Number for u64 {}

/// Returns `len` zeros. The kernel fills large tables with zeros, page by page on first use: this function writes no
/// byte.
#[allow(unsafe_code)]
pub fn zeros<T: Number>(len: usize) -> Grown<Vec<T>> {
    let Some(layout) = Layout::array::<T>(len).ok().filter(|layout| layout.size() > 0) else {
        return filled(T::from(0), len);
    };
    // SAFETY: the layout has a size.
    let start = unsafe { alloc_zeroed(layout) }.cast::<T>();
    if start.is_null() {
        // `filled` tries again and returns the error, since the standard library has no constructor of
        // `TryReserveError`.
        return filled(T::from(0), len);
    }
    // SAFETY: the global allocator gave memory for `len` numbers, with their layout, and all its bytes are zeros.
    Ok(unsafe { Vec::from_raw_parts(start, len, len) })
}

/// Returns an empty list with room for `capacity` elements.
pub fn with_room<T>(capacity: usize) -> Grown<Vec<T>> {
    let mut out = Vec::new();
    out.try_reserve_exact(capacity)?;
    Ok(out)
}

/// Inserts an entry, and returns the previous value of the key. On error the map is unchanged.
pub fn try_insert<K: Eq + Hash, V, S: BuildHasher>(map: &mut HashMap<K, V, S>, key: K, value: V) -> Grown<Option<V>> {
    map.try_reserve(1)?;
    Ok(map.insert(key, value))
}

/// Returns a value in a box, as an array of one: Rust has no fallible allocation of a plain box. Returns `None` if the
/// host has no memory; the value is then dropped.
pub fn boxed<T>(value: T) -> Option<Box<[T; 1]>> {
    let mut one = with_room(1).ok()?;
    one.push(value);
    // The list's capacity is one value, so it becomes an array without a copy.
    one.try_into().ok()
}

/// Returns a copy of a text.
pub fn copy_of(text: &str) -> Grown<String> {
    let mut out = String::new();
    out.try_reserve_exact(text.len())?;
    out.push_str(text);
    Ok(out)
}

/// Returns a text for an error, cut off if the host has no memory for the rest.
pub fn text(arguments: fmt::Arguments<'_>) -> String {
    write(arguments).text
}

/// Returns the whole text, or an error.
pub fn try_text(arguments: fmt::Arguments<'_>) -> Grown<String> {
    let Text { text, failed } = write(arguments);
    failed.map_or(Ok(text), Err)
}

fn write(arguments: fmt::Arguments<'_>) -> Text {
    let mut out = Text { text: String::new(), failed: None };
    // `failed` records an error of `fmt::write`.
    let _ = fmt::write(&mut out, arguments);
    out
}

struct Text {
    text: String,
    failed: Option<TryReserveError>,
}

impl fmt::Write for Text {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        if let Err(error) = self.text.try_reserve(part.len()) {
            self.failed = Some(error);
            return Err(fmt::Error);
        }
        self.text.push_str(part);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_any_host_has_is_an_error_and_changes_nothing() {
        assert!(filled(0u64, usize::MAX / 8).is_err() && with_room::<u64>(usize::MAX / 8).is_err());
        assert!((0..usize::MAX).try_to_vec().is_err());
        assert_eq!((0..3).filter(|at| at % 2 == 0).try_to_vec(), Ok(vec![0, 2]));
        assert_eq!((filled(7, 2), copy_of("ab")), (Ok(vec![7; 2]), Ok("ab".to_owned())));
        assert_eq!(boxed(3), Some(Box::new([3])));
        assert_eq!(text(format_args!("{} of {}", 1, "two")), "1 of two");
    }
}
