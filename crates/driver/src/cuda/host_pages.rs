//! Host memory to be page-locked: pages of this process, all of them populated.
//!
//! Owns: `mmap`, `madvise` and `munmap` for these pages, and the fallbacks where the system refuses one of the calls.
//! `registration.rs` calls the driver to lock the pages.
//!
//! ```text
//! mmap       |.....[=================]...|   2 MiB more than asked for
//! munmap           [=================]       from a multiple of 2 MiB on
//! madvise          no child inherits the pages, pages are huge, and every page is populated
//! ```
//! On an H100's machine, populating a GiB takes 0.13 to 0.18 s in huge pages and 0.26 to 0.29 s in small ones. Several
//! threads populate huge pages no faster than one: docs/measurements/2026-11-25-page-locking.

use std::ffi::c_void;
use std::fs;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::machine::memory;

/// The bytes of a huge page on machines whose small pages have 4 KiB.
const HUGE_PAGE: usize = 2 << 20;

/// A multiple of every size that Linux has for small pages: 4, 16 or 64 KiB.
const PAGE: usize = 64 << 10;

/// The smallest page of any machine.
const SMALLEST_PAGE: usize = 4 << 10;

/// The bytes of host memory that are left to other programs. With less free memory, the kernel would kill a process as
/// soon as a program touches more memory.
const SPARE: u64 = 256 << 20;

/// The file that says whether programs get huge pages, such as `always [madvise] never`: the word in brackets holds.
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// The system calls that are made. Tests replace them.
#[derive(Clone, Copy, Debug)]
pub(super) struct System {
    /// Maps writable pages at any address.
    pub(super) map: fn(usize) -> rustix::io::Result<*mut c_void>,
    pub(super) advise: unsafe fn(*mut c_void, usize, Advice) -> rustix::io::Result<()>,
    pub(super) unmap: unsafe fn(*mut c_void, usize) -> rustix::io::Result<()>,
    /// Returns `false` if huge pages are switched off.
    pub(super) has_huge_pages: fn() -> bool,
    /// Returns the bytes that programs could still take.
    pub(super) available: fn() -> Option<u64>,
}

impl Default for System {
    fn default() -> Self {
        Self {
            map,
            advise: madvise,
            unmap: munmap,
            has_huge_pages: || !fs::read_to_string(HUGE_PAGES).is_ok_and(|text| text.contains("[never]")),
            available: || Some(memory()?.free),
        }
    }
}

fn map(size: usize) -> rustix::io::Result<*mut c_void> {
    // SAFETY: without MAP_FIXED, the kernel finds unused addresses.
    unsafe { mmap_anonymous(ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }
}

/// Pages that no other code of this process uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pages {
    address: usize,
    mapped: usize,
}

impl Pages {
    pub(super) fn pointer(self) -> *mut c_void {
        ptr::with_exposed_provenance_mut(self.address)
    }
}

/// The reason why there are no pages. All pages taken before the error were given back.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum NoPages {
    #[error("the machine has no more than {available} bytes left")]
    Short { available: u64 },
    #[error("{call}: {error}")]
    Refused { call: &'static str, error: Errno },
    #[error("madvise(MADV_DONTFORK): {0}, so a child of this process would have the pages too")]
    Inherited(Errno),
}

impl NoPages {
    /// Returns whether the host has too little memory, or addresses.
    pub(super) fn is_out_of_memory(self) -> bool {
        matches!(self, Self::Short { .. } | Self::Refused { error: Errno::NOMEM, .. })
    }

    /// Returns whether later requests would fail for the same reason.
    pub(super) fn is_for_good(self) -> bool {
        matches!(self, Self::Inherited(_))
    }
}

/// The source of the system's pages. Each feature that the system turns out to lack is logged once.
#[derive(Debug, Default)]
pub(super) struct HostPages {
    pub(super) system: System,
    told_of_small_pages: AtomicBool,
    told_of_touching: AtomicBool,
}

impl HostPages {
    /// Returns an error if the host has no room for `size` bytes, which this process or the driver would take. The
    /// system overcommits: it does not refuse pages when memory is short, but kills a process.
    pub(super) fn has_room(&self, size: usize) -> Result<(), NoPages> {
        match (self.system.available)() {
            Some(available) if available < (size as u64).saturating_add(SPARE) => Err(NoPages::Short { available }),
            _ => Ok(()),
        }
    }

    /// Takes populated pages for `size` bytes, filled with zeros.
    pub(super) fn take(&self, size: usize) -> Result<Pages, NoPages> {
        let pages = self.map(size)?;
        match self.make(pages, size) {
            Ok(()) => Ok(pages),
            Err(error) => {
                self.give_back(pages);
                Err(error)
            }
        }
    }

    /// Gives back pages that are not page-locked.
    pub(super) fn give_back(&self, pages: Pages) {
        self.unmap(pages.address, pages.mapped).unwrap_or_else(|error| {
            // The process has too many address ranges for `munmap`. The memory of the pages goes back to the system
            // nevertheless, and only the addresses stay taken. SAFETY: nobody uses the pages any more.
            let emptied = unsafe { (self.system.advise)(pages.pointer(), pages.mapped, Advice::LinuxDontNeed) };
            tracing::warn!(%error, bytes = pages.mapped, ?emptied, "addresses of page-locked memory stay taken");
        });
    }

    /// Maps an address range with room for `size` bytes.
    fn map(&self, size: usize) -> Result<Pages, NoPages> {
        let refused = |call| move |error| NoPages::Refused { call, error };
        let alignment = if size < HUGE_PAGE { PAGE } else { HUGE_PAGE };
        let mapped = size.checked_next_multiple_of(PAGE).ok_or(Errno::NOMEM).map_err(refused("mmap"))?;
        let whole = mapped.checked_add(alignment).ok_or(Errno::NOMEM).map_err(refused("mmap"))?;
        let start = (self.system.map)(whole).map_err(refused("mmap"))?.expose_provenance();
        let before = start.next_multiple_of(alignment) - start;
        let pages = Pages { address: start + before, mapped };
        // If the kernel allows no further address range, trimming fails, and all pages are unmapped. Addresses that
        // were trimmed already may belong to another thread by then, and are left out.
        if let Err(error) = self.unmap(pages.address + mapped, alignment - before) {
            self.give_back(Pages { address: start, mapped: whole });
            return Err(refused("munmap")(error));
        }
        if let Err(error) = self.unmap(start, before) {
            self.give_back(Pages { address: start, mapped: before + mapped });
            return Err(refused("munmap")(error));
        }
        Ok(pages)
    }

    fn unmap(&self, address: usize, size: usize) -> rustix::io::Result<()> {
        if size == 0 {
            return Ok(());
        }
        // SAFETY: these addresses came from mmap, were not given back, and nobody uses the pages there.
        unsafe { (self.system.unmap)(ptr::with_exposed_provenance_mut(address), size) }
    }

    /// Populates every page of a range, and sets the advice that page-locked memory needs.
    fn make(&self, pages: Pages, size: usize) -> Result<(), NoPages> {
        // A child would get a copy of each locked page, for which a fork takes 0.6 s a GiB; before Linux 5.9, a write
        // of this process would go to a new page, and the device would keep the old one. No child process can use CUDA,
        // so no child needs the pages.
        self.advise(pages, pages.mapped, Advice::LinuxDontFork).map_err(NoPages::Inherited)?;
        if size >= HUGE_PAGE {
            let asked = self.advise(pages, pages.mapped, Advice::LinuxHugepage);
            if (asked.is_err() || !(self.system.has_huge_pages)()) && is_first(&self.told_of_small_pages) {
                let refused = asked.err().map(tracing::field::display);
                tracing::warn!(refused, "this system has no huge pages ({HUGE_PAGES}): page-locking takes longer");
            }
        }
        match self.advise(pages, size, Advice::LinuxPopulateWrite) {
            Ok(()) => Ok(()),
            // Linux before 5.14, and systems that imitate it, return these errors.
            Err(error @ (Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)) => {
                if is_first(&self.told_of_touching) {
                    tracing::info!(%error, "this system populates no pages: each one is touched before it is page-locked");
                }
                touch(pages, size);
                Ok(())
            }
            Err(error) => Err(NoPages::Refused { call: "madvise(MADV_POPULATE_WRITE)", error }),
        }
    }

    fn advise(&self, pages: Pages, size: usize, advice: Advice) -> rustix::io::Result<()> {
        // SAFETY: the pages are mapped, nobody else knows them, and no advice given here takes them away.
        retry_on_intr(|| unsafe { (self.system.advise)(pages.pointer(), size, advice) })
    }
}

/// Writes to every page.
fn touch(pages: Pages, size: usize) {
    for offset in (0..size).step_by(SMALLEST_PAGE) {
        let at = pages.pointer().cast::<u8>().wrapping_add(offset);
        // SAFETY: the byte is one of the pages, which can be written and which nobody else knows.
        unsafe { at.write_volatile(0) };
    }
}

fn is_first(told: &AtomicBool) -> bool {
    !told.swap(true, Ordering::Relaxed)
}
