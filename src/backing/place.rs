//! A place (the addresses of a chunk) at which physical memory is exchanged.
//!
//! Owns: the calls that exchange memory at one place, and the calls that restore it. `exchange.rs` has the order of
//! places.

use crate::driver::{Driver, DriverResult};
use crate::fallible::{Grown, with_room};
use crate::ids::Handle;
use crate::span::Span;

/// The state of the old memory at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Old {
    /// All of the old memory is mapped and usable.
    Usable,
    /// All of the old memory is mapped, but the device has no access yet.
    Mapped,
    Gone,
}

/// A range of addresses at which a chunk's memory is exchanged.
#[derive(Debug)]
pub(super) struct Place {
    span: Span,
    handle: Handle,
    old: Old,
    /// The mapped spans of the new memory. The list has room for all parts.
    new: Vec<Span>,
}

impl Place {
    /// Returns the place of a span at which all of a handle's memory is mapped, with room to exchange this memory for
    /// `parts` parts.
    pub(super) fn of(span: Span, handle: Handle, parts: usize) -> Grown<Self> {
        Ok(Self { span, handle, old: Old::Usable, new: with_room(parts)? })
    }

    pub(super) fn address(&self) -> u64 {
        self.span.start
    }

    /// Maps new memory at the place. `parts` gives the bytes and the handle of each part; the handle is `None` if the
    /// part has no memory.
    pub(super) fn exchange(
        &mut self,
        driver: &dyn Driver,
        parts: impl Iterator<Item = (u64, Option<Handle>)>,
    ) -> DriverResult<()> {
        driver.unmap(self.span.start, self.span.size)?;
        self.old = Old::Gone;
        // The parts mapped after the last part without memory, as one span.
        let mut run = Span::new(self.span.start, 0);
        for (size, handle) in parts {
            match handle {
                Some(handle) => {
                    driver.map(run.end(), size, 0, handle)?;
                    self.new.push(Span::new(run.end(), size));
                    run.size += size;
                }
                None => {
                    allow(driver, run)?;
                    run = Span::new(run.end() + size, 0);
                }
            }
        }
        allow(driver, run)
    }

    /// Maps the old memory at the place again.
    pub(super) fn restore(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        while let Some(new) = self.new.last() {
            driver.unmap(new.start, new.size)?;
            self.new.pop();
        }
        let Span { start, size } = self.span;
        if self.old == Old::Gone {
            driver.map(start, size, 0, self.handle)?;
            self.old = Old::Mapped;
        }
        if self.old == Old::Mapped {
            driver.set_access(start, size)?;
            self.old = Old::Usable;
        }
        Ok(())
    }
}

/// Gives the device access to the memory mapped in a span.
fn allow(driver: &dyn Driver, span: Span) -> DriverResult<()> {
    if span.size == 0 { Ok(()) } else { driver.set_access(span.start, span.size) }
}
