//! A source of segments that keeps a book, and makes mistakes where it is told to.

use crate::on;
use crate::simulated::Device;
use seamalloc::driver::{PlainMemory, StreamId};
use seamalloc::{Allocator, PoolId, SegmentSource, Segments, SourceError, StrategyKind};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

pub(crate) const POOL: PoolId = PoolId(0, 77);

/// The fault that the next call of a source has.
pub(crate) enum Mishap {
    Short,
    Fails,
    Panics,
    Gives(u64),
}

#[derive(Default)]
pub(crate) struct Book {
    /// Segments that were given: address and size.
    pub(crate) given: BTreeMap<u64, u64>,
    pub(crate) sizes: Vec<u64>,
    pub(crate) frees: u64,
    pub(crate) dropped: bool,
    pub(crate) mishaps: Vec<Mishap>,
    /// Streams that must have passed before anything comes back.
    pub(crate) users: Vec<StreamId>,
}

/// Memory of the device, as `cudaMalloc` gives it, and a book of it.
#[derive(Clone)]
pub(crate) struct Source(Arc<Device>, Arc<Mutex<Book>>);

impl Source {
    pub(crate) fn of(gpu: &Arc<Device>) -> Self {
        Self(Arc::clone(gpu), Arc::default())
    }

    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.1.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn segments(&self) -> Segments {
        Segments::from_source(Given(self.clone()))
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.book().given.values().sum()
    }
}

/// The one that is dropped.
struct Given(Source);

impl SegmentSource for Given {
    fn malloc(&mut self, size: u64) -> Result<u64, SourceError> {
        let mut book = self.0.book();
        book.sizes.push(size);
        match book.mishaps.pop() {
            None => {}
            Some(Mishap::Short) => return Err(SourceError::OutOfMemory),
            Some(Mishap::Fails) => return Err(SourceError::Failed("no luck".into())),
            Some(Mishap::Panics) => std::panic::resume_unwind(Box::new(7)),
            Some(Mishap::Gives(address)) => return Ok(address),
        }
        let address = self.0.0.malloc(size).map_err(|error| match error.is_out_of_memory() {
            true => SourceError::OutOfMemory,
            false => SourceError::Failed(error.to_string()),
        })?;
        assert!(book.given.insert(address, size).is_none());
        Ok(address)
    }

    fn free(&mut self, address: u64, size: u64) -> Result<(), SourceError> {
        let mut book = self.0.book();
        match book.mishaps.pop() {
            Some(Mishap::Panics) => std::panic::resume_unwind(Box::new(7)),
            Some(_) => return Err(SourceError::Failed("it stays".into())),
            None => {}
        }
        for stream in &book.users {
            assert!(self.0.0.done_at(*stream).is_some_and(|done| done <= self.0.0.now_ns()), "stream {stream} runs");
        }
        self.0.0.free(address).map_err(|error| SourceError::Failed(error.to_string()))?;
        assert_eq!(book.given.remove(&address), Some(size), "what came is what goes back");
        book.frees += 1;
        Ok(())
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        self.0.book().dropped = true;
    }
}

pub(crate) fn opened(kind: StrategyKind, device: &str) -> (Arc<Device>, Allocator, Source) {
    let (gpu, allocator) = on(kind, device);
    let source = Source::of(&gpu);
    allocator.pools().open_with(POOL, source.segments()).unwrap();
    (gpu, allocator, source)
}
