//! One open GPU: the state and helpers behind the methods of the driver's traits.
//!
//! Owns: which events and handles are live, and the errors and statistics of the device's calls. This file adds one
//! rule to those of libcuda: an event, a handle or a stream that this device did not create, or that was destroyed,
//! never reaches libcuda, which would follow it as a pointer. For streams of other libraries, the program must vouch
//! (streams.rs).

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use super::access::Access;
use super::api::CudaApi;
use super::context::{ContextError, PrimaryContext};
use super::error::MissingEntryPoint;
use super::ffi::{CUdevice, CUevent, MemAccessDesc};
use super::gate::Gate;
use super::host_pages::HostPages;
use super::locked_buffer::LockedBuffer;
use super::place::Place;
use crate::call_counters::CallCounters;
use crate::{
    Call, DeviceProperties, DriverError, DriverResult, EventId, Handle, HostBuffer, MemoryPool, Status, StreamId,
    WeakExported,
};

/// An NVIDIA GPU.
///
/// Uses the device's primary context, as the CUDA runtime and frameworks do. A calling thread needs no current context.
/// If it has one, this context is current again after the call. Dropping a `CudaDriver` releases the context, but no
/// event, handle or memory that is still live.
///
/// The driver accepts the default stream and streams of [`Self::create_stream`], until they are destroyed. libcuda
/// follows a stream's handle as a pointer, which cannot be checked. So handles of other libraries are refused with
/// [`Status::INVALID_HANDLE`] until the program vouches for them by [`Self::trust_streams`].
#[derive(Debug)]
pub struct CudaDriver {
    pub(super) api: CudaApi,
    pub(super) device: CUdevice,
    pub(super) context: PrimaryContext,
    pub(super) properties: DeviceProperties,
    /// The place of the device's memory. Memory of a GPU is created exportable wherever possible: on an H200, this made
    /// creation no slower.
    pub(super) place: Place,
    /// The NUMA node of the machine nearest to the device, on which host memory for the device is created; `None` if
    /// the device cannot use such memory.
    pub(super) host_node: Option<c_int>,
    pub(super) access: Access,
    pub(super) events: Mutex<FxHashMap<EventId, Arc<LiveEvent>>>,
    /// The live handles, each with its export, if any. An export stays open while code outside of this driver holds it.
    pub(super) handles: Mutex<FxHashMap<Handle, Option<WeakExported>>>,
    /// Live page-locked host memory.
    pub(super) buffers: Mutex<FxHashMap<HostBuffer, Arc<Mutex<LockedBuffer>>>>,
    /// The source of pages of the operating system for page-locked memory.
    pub(super) host_pages: HostPages,
    /// Whether page-locked memory is made of the system's pages. Cleared once the driver or the system turns out to be
    /// unable to page-lock these.
    pub(super) registers_pages: AtomicBool,
    /// The live pools of stream-ordered memory.
    pub(super) pools: Mutex<FxHashSet<MemoryPool>>,
    /// The live streams that this driver created.
    pub(super) streams: Mutex<FxHashSet<StreamId>>,
    /// The stream for copies, once the first copy was made.
    pub(super) own_stream: Mutex<Option<StreamId>>,
    /// The gate for streams; `None` if the device has none.
    pub(super) gate: Mutex<Option<Gate>>,
    /// Whether the program has vouched that the handles of streams that this driver did not create are valid
    /// ([`Self::trust_streams`]).
    pub(super) trusts_streams: AtomicBool,
    /// Whether libcuda numbers streams (`cuStreamGetId`). Cleared if libcuda turns out not to.
    pub(super) tells_streams_apart: AtomicBool,
    pub(super) calls: CallCounters,
}

/// A `CUevent` that is destroyed when no call uses it any more.
#[derive(Debug)]
pub(super) struct LiveEvent(pub(super) EventId);

impl CudaDriver {
    /// Returns libcuda, for its version and its names of errors.
    #[must_use]
    pub fn api(&self) -> &CudaApi {
        &self.api
    }

    /// Returns the maker's name of the device, `NVIDIA H200`; empty if the driver does not report it.
    #[must_use]
    pub fn model(&self) -> String {
        let mut bytes = [0_u8; 256];
        let size = c_int::try_from(bytes.len() - 1).unwrap_or(0);
        // SAFETY: the driver writes at most `size` bytes, which the buffer has.
        let answer = unsafe { self.api.device_get_name(bytes.as_mut_ptr().cast(), size, self.device) };
        if answer != Ok(Status::SUCCESS) {
            return String::new();
        }
        let length = bytes.iter().position(|&byte| byte == 0).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    /// Makes one counted call with the context current. Returns the driver's status.
    pub(super) fn ask(
        &self,
        call: Call,
        arguments: impl Fn() -> String,
        issue: impl FnOnce(&CudaApi) -> Result<Status, MissingEntryPoint>,
    ) -> DriverResult<Status> {
        let start = Instant::now();
        let answer = self.context.while_current(&self.api, || issue(&self.api));
        self.calls.add(call, start);
        answer.map_err(|error| match error {
            ContextError::Missing(missing) => DriverError::new(call, Status::NOT_FOUND, missing.to_string()),
            ContextError::Refused(status) => {
                DriverError::new(call, status, format!("{}; cuCtxPushCurrent was refused", arguments()))
            }
        })
    }

    /// Makes a call by [`Self::ask`], and returns an error unless the call succeeds.
    pub(super) fn demand(
        &self,
        call: Call,
        arguments: impl Fn() -> String,
        issue: impl FnOnce(&CudaApi) -> Result<Status, MissingEntryPoint>,
    ) -> DriverResult<()> {
        match self.ask(call, &arguments, issue)? {
            Status::SUCCESS => Ok(()),
            status => Err(self.refusal(call, status, arguments())),
        }
    }

    pub(super) fn refusal(&self, call: Call, status: Status, mut detail: String) -> DriverError {
        if status.name().is_none() {
            detail = format!("{}; {detail}", self.api.error_name(status));
        }
        DriverError::new(call, status, detail)
    }

    /// Makes a call by [`Self::ask`] with an event that cannot be destroyed during the call.
    pub(super) fn ask_event(
        &self,
        call: Call,
        event: EventId,
        issue: impl FnOnce(&CudaApi, CUevent) -> Result<Status, MissingEntryPoint>,
    ) -> DriverResult<Status> {
        let Some(live) = self.events.lock().get(&event).cloned() else {
            return Err(unknown_event(call, event));
        };
        let answer = self.ask(call, || event_text(event), |api| issue(api, raw_event(live.0)));
        // The last user of the event destroys it, since another thread may have asked to destroy it during the call.
        if let Some(last) = Arc::into_inner(live)
            && let Err(error) = self.destroy(&last)
        {
            tracing::warn!(%error, "an event was not destroyed");
        }
        answer
    }

    pub(super) fn demand_event(
        &self,
        call: Call,
        event: EventId,
        issue: impl FnOnce(&CudaApi, CUevent) -> Result<Status, MissingEntryPoint>,
    ) -> DriverResult<()> {
        match self.ask_event(call, event, issue)? {
            Status::SUCCESS => Ok(()),
            status => Err(self.refusal(call, status, event_text(event))),
        }
    }

    /// Gives the devices of a list access to a mapped range, by `cuMemSetAccess`.
    pub(super) fn issue_access(
        &self,
        address: u64,
        size: u64,
        list: &[MemAccessDesc],
        arguments: impl Fn() -> String,
    ) -> DriverResult<()> {
        let bytes = host_size(Call::SetAccess, size)?;
        // SAFETY: the descriptions live during the call and their number is right.
        self.demand(Call::SetAccess, arguments, |api| unsafe {
            api.mem_set_access(address, bytes, list.as_ptr(), list.len())
        })
    }

    pub(super) fn destroy(&self, event: &LiveEvent) -> DriverResult<()> {
        // SAFETY: the event came from cuEventCreate, it is out of the table, and no other call holds it.
        self.demand(Call::EventDestroy, || event_text(event.0), |api| unsafe { api.event_destroy(raw_event(event.0)) })
    }
}

pub(super) fn raw_event(event: EventId) -> CUevent {
    ptr::with_exposed_provenance_mut(event.0 as usize)
}

pub(super) fn unknown_event(call: Call, event: EventId) -> DriverError {
    let detail = format!("{} is not one of this device, or was destroyed", event_text(event));
    DriverError::new(call, Status::INVALID_HANDLE, detail)
}

pub(super) fn event_text(event: EventId) -> String {
    format!("event {:#x}", event.0)
}

pub(super) fn unknown_handle(call: Call, handle: Handle) -> DriverError {
    let detail = format!("{} is not one of this device, or was released", handle_text(handle));
    DriverError::new(call, Status::INVALID_VALUE, detail)
}

pub(super) fn handle_text(handle: Handle) -> String {
    format!("handle {:#x}", handle.0)
}

pub(super) fn stream_text(stream: StreamId) -> String {
    format!("stream {stream}")
}

pub(super) fn host_size(call: Call, bytes: u64) -> DriverResult<usize> {
    usize::try_from(bytes).map_err(|_| {
        DriverError::new(call, Status::INVALID_VALUE, format!("{bytes} bytes are more than this machine can address"))
    })
}

pub(super) fn range_text(address: u64, size: u64) -> String {
    format!("{size} bytes at {address:#x}")
}
