//! The device on which a job was recorded.
//!
//! Owns: the memory of that device according to the recording, and the default if the recording does not contain it.

use crate::trace::Trace;
use seamalloc::driver::sim::{MAX_CAPACITY, SimConfig};

/// The key of a trace's description under which recording programs note the device's memory in bytes.
const TOTAL: &str = "total_memory";
/// The key with the sum of the bytes that the recorded allocator held and the bytes that the device had free when
/// memory ran out. If a limit refused the request, only the held bytes count. Only snapshots in which memory ran out
/// have this key.
const AVAILABLE: &str = "available_memory";

/// The key with the bytes that the device had free when a limit refused a request.
pub(crate) const FREE_BEYOND_LIMIT: &str = "free_beyond_limit";

/// The source of the memory of a job's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceFrom {
    /// The caller has named the device.
    Asked,
    /// The program that recorded the job has noted the device's memory.
    Noted,
    /// Memory ran out while the job was recorded. The device counts as having the memory that the allocator held and
    /// the memory that was free. The memory of the CUDA context and of others is not included.
    Refusal,
    /// The recording does not contain the device's memory, and an H200 is assumed.
    Unknown,
}

impl DeviceFrom {
    /// Returns the name in lines of JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Noted => "noted",
            Self::Refusal => "refusal",
            Self::Unknown => "unknown",
        }
    }
}

/// Returns a simulated device with the memory of the device on which the job was recorded.
#[must_use]
pub fn device_of(trace: &Trace) -> (SimConfig, DeviceFrom) {
    let of = |key: &str| trace.meta.get(key)?.as_u64().filter(|bytes| (1..=MAX_CAPACITY).contains(bytes));
    let known = of(TOTAL).map(|bytes| (bytes, DeviceFrom::Noted));
    let known = known.or_else(|| of(AVAILABLE).map(|bytes| (bytes, DeviceFrom::Refusal)));
    match known {
        Some((capacity, from)) => (SimConfig { capacity, ..SimConfig::default() }, from),
        None => (SimConfig::default(), DeviceFrom::Unknown),
    }
}

/// The memory that a recorded job's allocator could have, according to the recording. Sizes are bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Recorded {
    /// The device's memory.
    pub(crate) total: Option<u64>,
    /// The memory that the allocator could have when a request was refused.
    pub(crate) available: Option<u64>,
    /// The device's free memory when a limit refused a request.
    pub(crate) free_beyond_limit: Option<u64>,
}

impl Recorded {
    pub(crate) fn of(trace: &Trace) -> Self {
        let of = |key: &str| trace.meta.get(key)?.as_u64();
        Self { total: of(TOTAL), available: of(AVAILABLE), free_beyond_limit: of(FREE_BEYOND_LIMIT) }
    }

    /// Returns the bytes of the device that others held.
    pub(crate) fn others(&self) -> Option<u64> {
        let known = self.total.zip(self.available).filter(|_| self.free_beyond_limit.is_none());
        known.and_then(|(total, available)| total.checked_sub(available))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_counts_before_what_a_refusal_shows() {
        let mut trace = Trace::default();
        let device = |trace: &Trace| {
            let (device, from) = device_of(trace);
            (device.to_string(), from)
        };
        assert_eq!(device(&trace), ("sim:h200".to_owned(), DeviceFrom::Unknown));
        trace.meta.insert(AVAILABLE.into(), (78_u64 << 30).into());
        assert_eq!(device(&trace), ("sim:h200,capacity=78GiB".to_owned(), DeviceFrom::Refusal));
        trace.meta.insert(TOTAL.into(), (80_u64 << 30).into());
        assert_eq!(device(&trace), ("sim:h200,capacity=80GiB".to_owned(), DeviceFrom::Noted));
        for nonsense in [serde_json::json!(0), serde_json::json!("80GiB"), serde_json::json!(u64::MAX)] {
            trace.meta = serde_json::Map::from_iter([(TOTAL.to_owned(), nonsense)]);
            assert_eq!(device(&trace).1, DeviceFrom::Unknown);
        }
    }
}
