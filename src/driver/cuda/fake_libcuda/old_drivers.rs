//! Drivers and devices that lack something: what goes on without, said once, and what does not.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::*;
use crate::driver::StreamId;
use crate::driver::prelude::*;
use crate::{Allocator, Config, Error, StrategyKind};

/// Keeps the text of warnings.
#[derive(Clone, Default)]
struct Warnings {
    texts: Arc<Mutex<Vec<String>>>,
    spans: Arc<AtomicU32>,
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(u64::from(self.spans.fetch_add(1, Ordering::Relaxed)) + 1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = String::new();
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            text += &format!("{field}: {value:?}; ");
        });
        self.texts.lock().unwrap().push(text);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// What was warned of while `run` ran.
fn warned(run: impl FnOnce()) -> Vec<String> {
    let warnings = Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), run);
    std::mem::take(&mut *warnings.texts.lock().unwrap())
}

fn allocator(entry_points: EntryPoints, strategy: StrategyKind) -> Result<Allocator, Error> {
    let driver = CudaDriver::open_with(CudaApi::of(entry_points), 1).unwrap();
    Allocator::new(Arc::new(driver), Config::with_strategy(strategy))
}

/// Opens, allocates and gives back by `cudaMalloc` alone; every other strategy is refused.
fn only_plain_memory_works(entry_points: impl Fn() -> EntryPoints) {
    for strategy in StrategyKind::ALL.into_iter().filter(|strategy| strategy.needs_virtual_memory()) {
        let error = allocator(entry_points(), strategy).err().unwrap();
        assert!(matches!(error, Error::NoVirtualMemory { .. }), "{error}");
        assert!(error.to_string().contains("which cuda:1 does not have; `caching` works without"), "{error}");
    }
    let allocator = allocator(entry_points(), StrategyKind::Caching).unwrap();
    let address = allocator.allocate(1 << 20, StreamId::DEFAULT).unwrap();
    allocator.free(address).unwrap();
    assert_eq!(allocator.empty_cache(), Ok(2 << 20));
    assert_eq!(with(|state| state.misplaced), 0);
}

#[test]
fn a_device_without_virtual_memory_has_plain_memory() {
    with(|state| state.lacks.push(ATTRIBUTE_VIRTUAL_MEMORY));
    let texts = warned(|| only_plain_memory_works(entry_points));
    assert!(texts.is_empty(), "{texts:?}");
}

/// The driver of CUDA 10.1 on a device that could do more.
#[test]
fn a_driver_without_the_calls_has_plain_memory_and_says_why() {
    let old = || EntryPoints { mem_set_access: None, stream_get_id: None, ..entry_points() };
    let texts = warned(|| {
        let driver = CudaDriver::open_with(CudaApi::of(old()), 1).unwrap();
        assert!(!driver.properties().virtual_memory);
    });
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert!(texts[0].contains("libcuda has no cuMemSetAccess (CUDA 10.2 or newer is needed)"), "{texts:?}");
    only_plain_memory_works(old);
}

/// The driver of CUDA 11.2: it has all but the numbers of streams.
#[test]
fn a_driver_without_numbers_of_streams_says_so_once() {
    let old = EntryPoints { stream_get_id: None, device_primary_ctx_release_v2: None, ..entry_points() };
    let driver = CudaDriver::open_with(CudaApi::of(old), 1).unwrap();
    let (a, b) = (driver.create_stream().unwrap(), driver.create_stream().unwrap());
    let texts = warned(|| {
        assert_eq!(driver.stream_number(StreamId::DEFAULT), Ok(None));
        for stream in [a, b, a] {
            assert_eq!(driver.stream_number(stream), Ok(None));
        }
    });
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert!(texts[0].contains("libcuda has no cuStreamGetId (CUDA 12.0 or newer is needed)"), "{texts:?}");
    drop(driver);
    assert_eq!(with(|state| state.releases), 1, "by the older call");
}

#[test]
fn memory_in_unknown_pieces_is_refused_where_it_matters() {
    let coarse = || EntryPoints { mem_get_allocation_granularity: Some(coarse_granularity), ..entry_points() };
    let error = allocator(coarse(), StrategyKind::Stitch).err().unwrap();
    assert_eq!(error, Error::Granularity { device: "cuda:1".into(), granularity: 32 << 20 });
    assert!(allocator(coarse(), StrategyKind::Caching).is_ok());
}

#[test]
fn what_nothing_can_replace_is_an_error_that_names_it() {
    let old = EntryPoints { event_query: None, ..entry_points() };
    let driver = CudaDriver::open_with(CudaApi::of(old), 1).unwrap();
    let event = driver.event_create().unwrap();
    let error = driver.event_query(event).unwrap_err();
    assert_eq!(error.status, Status::NOT_FOUND);
    assert!(error.to_string().contains("libcuda has no cuEventQuery (CUDA 2.0 or newer is needed)"), "{error}");
}
