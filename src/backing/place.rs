//! A place at which physical memory is exchanged.
//!
//! Owns: the calls at one place, there and back. `exchange.rs` has the order of places.

use crate::driver::{Driver, DriverResult};
use crate::fallible::{Grown, with_room};
use crate::ids::Handle;
use crate::span::Span;

/// What is mapped at a place of the old memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Old {
    /// All of it, for use.
    Usable,
    /// All of it, but the device may not use it.
    Mapped,
    Gone,
}

/// A place at which the memory is exchanged.
#[derive(Debug)]
pub(super) struct Place {
    span: Span,
    handle: Handle,
    old: Old,
    /// What is mapped there of the new memory, with room for all of it.
    new: Vec<Span>,
}

impl Place {
    /// A place where all of some memory is mapped, at which it may be exchanged for so many parts.
    pub(super) fn of(span: Span, handle: Handle, parts: usize) -> Grown<Self> {
        Ok(Self { span, handle, old: Old::Usable, new: with_room(parts)? })
    }

    pub(super) fn address(&self) -> u64 {
        self.span.start
    }

    /// Maps other memory there: for each part its bytes, and its handle unless nothing is mapped.
    pub(super) fn exchange(
        &mut self,
        driver: &dyn Driver,
        parts: impl Iterator<Item = (u64, Option<Handle>)>,
    ) -> DriverResult<()> {
        driver.unmap(self.span.start, self.span.size)?;
        self.old = Old::Gone;
        // Since the last gap.
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

    /// Maps the old memory there again.
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

/// Lets the device use what is mapped in a span.
fn allow(driver: &dyn Driver, span: Span) -> DriverResult<()> {
    if span.size == 0 { Ok(()) } else { driver.set_access(span.start, span.size) }
}
