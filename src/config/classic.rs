//! The options of the classic strategies.
//!
//! Owns: [`ClassicOptions`], their defaults, ranges and text.

use std::fmt;

const MIB: u64 = 1 << 20;

/// How large the memory is that the strategies `exact` and `buddy` take from the driver at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassicOptions {
    /// `exact_buffer_mb`, in bytes: the buffers from which the strategy `exact` cuts its blocks. Where a whole one cannot be
    /// had, or a request is larger, a smaller or larger one is taken.
    pub exact_buffer: u64,
    /// `buddy_capacity_mb`, in bytes: the trees of the strategy `buddy`, a power of two. Where a whole one cannot be had, or
    /// a request is larger, a smaller or larger one is taken.
    pub buddy_capacity: u64,
}

impl ClassicOptions {
    /// The sizes of the tutorial that the strategies follow.
    pub const DEFAULT: Self = Self { exact_buffer: 5 << 30, buddy_capacity: 4 << 30 };

    pub(super) const NAMES: [&'static str; 2] = ["exact_buffer_mb", "buddy_capacity_mb"];

    /// Sets the option of this name. Returns `None` if there is none.
    pub(super) fn field(&mut self, name: &str) -> Option<&mut u64> {
        match name {
            "exact_buffer_mb" => Some(&mut self.exact_buffer),
            "buddy_capacity_mb" => Some(&mut self.buddy_capacity),
            _ => None,
        }
    }

    /// Returns the first option that is outside of its range: its name, its value, and what was expected.
    pub(super) fn out_of_range(&self) -> Option<(&'static str, String, &'static str)> {
        let in_mib = |bytes: u64| (bytes / MIB).to_string();
        if self.exact_buffer < 2 * MIB {
            return Some(("exact_buffer_mb", in_mib(self.exact_buffer), "at least 2"));
        }
        let is_tree = self.buddy_capacity.is_power_of_two() && self.buddy_capacity >= 2 * MIB;
        (!is_tree).then(|| ("buddy_capacity_mb", in_mib(self.buddy_capacity), "a power of two, at least 2"))
    }

    /// Adds the options that differ from the defaults, as text.
    pub(super) fn write(&self, part: &mut dyn FnMut(fmt::Arguments<'_>) -> fmt::Result) -> fmt::Result {
        if self.exact_buffer != Self::DEFAULT.exact_buffer {
            part(format_args!("exact_buffer_mb:{}", self.exact_buffer / MIB))?;
        }
        if self.buddy_capacity != Self::DEFAULT.buddy_capacity {
            part(format_args!("buddy_capacity_mb:{}", self.buddy_capacity / MIB))?;
        }
        Ok(())
    }
}

impl Default for ClassicOptions {
    fn default() -> Self {
        Self::DEFAULT
    }
}
