//! Tests of drivers and devices that lack a feature: which calls work without the feature, with one warning, and which
//! fail. The allocator's own tests cover the allocator on such drivers.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::*;

/// Records the text of warnings.
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

/// Returns the warnings that `run` causes.
pub fn warned(run: impl FnOnce()) -> Vec<String> {
    let warnings = Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), run);
    std::mem::take(&mut *warnings.texts.lock().unwrap())
}

/// Opens a device without virtual memory, whose driver supports virtual memory.
pub fn without_virtual_memory() -> CudaDriver {
    with(|state| state.lacks.push(ATTRIBUTE_VIRTUAL_MEMORY));
    open()
}

/// Opens a device that has virtual memory, with a driver like that of CUDA 10.1, which lacks calls for it.
pub fn of_cuda_10_1() -> CudaDriver {
    let old = EntryPoints { mem_set_access: None, stream_get_id: None, ..entry_points() };
    CudaDriver::open_with(CudaApi::of(old), 1).unwrap()
}

/// Opens a device that, like some vGPUs, claims to have virtual memory but supports no call for it.
pub fn with_a_false_claim() -> CudaDriver {
    let vgpu = EntryPoints { mem_get_allocation_granularity: Some(no_granularity), ..entry_points() };
    CudaDriver::open_with(CudaApi::of(vgpu), 1).unwrap()
}

/// Opens a device whose memory comes in pieces of 32 MiB.
pub fn with_coarse_granularity() -> CudaDriver {
    let coarse = EntryPoints { mem_get_allocation_granularity: Some(coarse_granularity), ..entry_points() };
    CudaDriver::open_with(CudaApi::of(coarse), 1).unwrap()
}

/// Returns how many calls of this thread were made with another context than they need.
pub fn misplaced_calls() -> u32 {
    with(|state| state.misplaced)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StreamId;
    use crate::prelude::*;

    #[test]
    fn a_driver_without_the_calls_says_why_it_has_no_virtual_memory() {
        let texts = warned(|| assert!(!of_cuda_10_1().properties().virtual_memory));
        assert_eq!(texts.len(), 1, "{texts:?}");
        assert!(texts[0].contains("libcuda has no cuMemSetAccess (CUDA 10.2 or newer is needed)"), "{texts:?}");
    }

    /// A driver that lacks the call for the numbers of streams, and the newer call that releases a context.
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
    fn what_nothing_can_replace_is_an_error_that_names_it() {
        let old = EntryPoints { event_query: None, ..entry_points() };
        let driver = CudaDriver::open_with(CudaApi::of(old), 1).unwrap();
        let event = driver.event_create().unwrap();
        let error = driver.event_query(event).unwrap_err();
        assert_eq!(error.status, Status::NOT_FOUND);
        assert!(error.to_string().contains("libcuda has no cuEventQuery (CUDA 2.0 or newer is needed)"), "{error}");
    }
}
