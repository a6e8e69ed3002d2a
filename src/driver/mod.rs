//! The calls an allocator makes of a GPU driver, and nothing else.
//!
//! Owns: the [`Driver`] trait, its contract and its error type. Nothing above this module knows CUDA, and nothing in
//! it knows blocks, pools or strategies.
//!
//! Sizes and addresses are bytes. Every call may fail, and a call that fails changes nothing, except that one
//! which a stream capture forbids invalidates that capture.

pub mod cuda;
mod error;
pub mod sim;

pub use crate::ids::{EventId, Handle, StreamId};
pub use error::{Call, DriverError, DriverResult, Status};

#[cfg(unix)]
use std::os::fd::OwnedFd;
#[cfg(unix)]
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// What the device has, in bytes (`cuMemGetInfo`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that `create` and `malloc` could still hand out.
    pub free: u64,
    /// Bytes the device has in all.
    pub total: u64,
}

/// What does not change while the device is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProperties {
    /// Short name for output: `sim:h200`, `cuda:0`.
    pub name: String,
    /// The device's number among those that the process sees, 0 on a simulated one.
    pub ordinal: u32,
    /// Physical memory of the device in bytes.
    pub total_memory: u64,
    /// Every size and address of a virtual-memory call is a multiple of this, in bytes (2 MiB on all NVIDIA GPUs so far).
    pub granularity: u64,
    /// The granularity that the driver recommends for speed, in bytes: a multiple of the other.
    pub recommended_granularity: u64,
    /// Whether the virtual-memory calls work at all.
    pub virtual_memory: bool,
}

/// How often one kind of call was made, and how long the calling CPU spent in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallStat {
    /// Calls made, failed ones included.
    pub count: u64,
    /// Total time in nanoseconds, waiting included.
    pub total_ns: u64,
}

/// A [`CallStat`] for each kind of call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallStats([CallStat; Call::COUNT]);

impl CallStats {
    /// The figures of one kind of call.
    #[must_use]
    pub fn get(&self, call: Call) -> CallStat {
        self.0[call as usize]
    }

    /// Adds one call that took `ns` nanoseconds.
    pub fn add(&mut self, call: Call, ns: u64) {
        let stat = &mut self.0[call as usize];
        stat.count += 1;
        stat.total_ns = stat.total_ns.saturating_add(ns);
    }

    /// Calls and time since `earlier`, which must be an older copy of the same statistics.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut out = self.clone();
        for (now, before) in out.0.iter_mut().zip(earlier.0) {
            now.count = now.count.saturating_sub(before.count);
            now.total_ns = now.total_ns.saturating_sub(before.total_ns);
        }
        out
    }

    /// Every kind of call that an allocator makes, with its figures, in the order of [`Call::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Call, CallStat)> + '_ {
        Call::ALL.into_iter().filter(|call| call.is_allocators()).map(|call| (call, self.get(call)))
    }

    /// Time in all calls together, in nanoseconds.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.0.iter().map(|stat| stat.total_ns).fold(0, u64::saturating_add)
    }
}

/// Which calls a stream capture forbids (`CUstreamCaptureMode`): as the mode of a capture, to others; as the mode of a
/// thread, to itself. The stricter one of the two is void: both must forbid a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CaptureMode {
    /// Unsafe calls of any thread. What a thread begins with.
    #[default]
    Global,
    /// Unsafe calls of the thread that began the capture.
    ThreadLocal,
    /// None.
    Relaxed,
}

/// Makes calls that a stream capture forbids otherwise. Where one is under way (`capturing`), the calling thread is in
/// relaxed mode for as long as they take, so that they are legal and the capture stays valid.
pub(crate) fn in_relaxed_capture_mode<T>(
    driver: &dyn Driver,
    capturing: bool,
    calls: impl FnOnce() -> DriverResult<T>,
) -> DriverResult<T> {
    if !capturing {
        return calls();
    }
    let before = driver.exchange_capture_mode(CaptureMode::Relaxed)?;
    let result = calls();
    if let Err(error) = driver.exchange_capture_mode(before) {
        // The calls were made. All that is wrong is that captures bind the thread less than before.
        tracing::error!(%error, "a thread stays in relaxed capture mode");
    }
    result
}

/// What `malloc` gave, as another process can open it: a `CUipcMemHandle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpcMemory(pub [u8; 64]);

/// Memory of `create` as other processes can import it: a file descriptor, which is closed with the last copy of this.
#[derive(Clone, Debug)]
pub struct Exported {
    #[cfg(unix)]
    descriptor: Arc<OwnedFd>,
    number: u64,
}

impl Exported {
    /// Memory behind a descriptor that a driver gave, or that came from another process.
    #[cfg(unix)]
    #[must_use]
    pub fn new(descriptor: OwnedFd) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        Self { descriptor: Arc::new(descriptor), number: NUMBERS.fetch_add(1, Ordering::Relaxed) }
    }

    /// The descriptor.
    #[cfg(unix)]
    #[must_use]
    pub fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.descriptor
    }

    /// A number that no other descriptor of the process has or will have: descriptors come again, this does not.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }
}

fn not_shared(call: Call, detail: String) -> DriverError {
    DriverError::new(call, Status::NOT_SUPPORTED, format!("{detail}: this driver shares no memory between processes"))
}

/// A GPU driver, real or simulated.
///
/// The contract of each call is CUDA's (CUDA driver API, "Virtual Memory Management", and what was measured of it);
/// an implementation refuses what CUDA refuses, with the same [`Status`].
///
/// Implementations are shared between threads and lock for themselves.
pub trait Driver: Send + Sync {
    /// What the device is. Cheap; makes no driver call.
    fn properties(&self) -> &DeviceProperties;

    /// `cuMemAddressReserve`: `size` bytes of address space, holding no memory. `size` is a multiple of the granularity
    /// and not 0, `alignment` is 0 or a power of two.
    fn reserve(&self, size: u64, alignment: u64) -> DriverResult<u64>;

    /// `cuMemAddressFree`: gives back exactly one reservation, whole, in which nothing is mapped any more.
    fn address_free(&self, address: u64, size: u64) -> DriverResult<()>;

    /// `cuMemCreate`: physical memory on the device, a multiple of the granularity. [`Status::OUT_OF_MEMORY`] when the
    /// device has less than that free.
    fn create(&self, size: u64) -> DriverResult<Handle>;

    /// `cuMemRelease`: drops the handle. The memory goes back to the device once no mapping of it is left either.
    fn release(&self, handle: Handle) -> DriverResult<()>;

    /// `cuMemMap`: maps the whole of `handle` at `address`, inside a reservation and over nothing that is mapped.
    /// `offset` other than 0, or a `size` other than the handle's, is refused: [`Status::NOT_SUPPORTED`].
    /// The memory cannot be used before `set_access`. A handle may be mapped at several addresses.
    fn map(&self, address: u64, size: u64, offset: u64, handle: Handle) -> DriverResult<()>;

    /// `cuMemUnmap`: removes every mapping of a range that consists of whole mappings without a gap. Does not wait for
    /// the GPU: unmapping what a kernel still uses is a fault.
    fn unmap(&self, address: u64, size: u64) -> DriverResult<()>;

    /// `cuMemSetAccess`: lets the device (and the peers the implementation was told of) read and write a range that
    /// consists of whole mappings without a gap.
    fn set_access(&self, address: u64, size: u64) -> DriverResult<()>;

    /// `cuMemAlloc` (`cudaMalloc`): memory with an address, at once. Refused in a capture that is not relaxed, and
    /// invalidates it.
    fn malloc(&self, size: u64) -> DriverResult<u64>;

    /// `cuMemFree` (`cudaFree`): waits for the device's work, then gives the memory back.
    fn free(&self, address: u64) -> DriverResult<()>;

    /// `cuMemGetInfo`.
    fn memory_info(&self) -> DriverResult<MemoryInfo>;

    /// `cuEventCreate` without timing.
    fn event_create(&self) -> DriverResult<EventId>;

    /// `cuEventDestroy`.
    fn event_destroy(&self, event: EventId) -> DriverResult<()>;

    /// `cuEventRecord`: the event completes when all work given to `stream` so far has. Recording again forgets the
    /// earlier record.
    fn event_record(&self, event: EventId, stream: StreamId) -> DriverResult<()>;

    /// `cuEventQuery`: whether the event is complete; one that was never recorded is. Refused in a capture that is not
    /// relaxed, and invalidates it.
    fn event_query(&self, event: EventId) -> DriverResult<bool>;

    /// `cuEventSynchronize`: the CPU waits until the event is complete.
    fn event_synchronize(&self, event: EventId) -> DriverResult<()>;

    /// `cuStreamWaitEvent`: work given to `stream` from now on starts after the event. The CPU does not wait.
    fn stream_wait(&self, stream: StreamId, event: EventId) -> DriverResult<()>;

    /// `cuStreamSynchronize`: the CPU waits for all work given to `stream`.
    fn stream_synchronize(&self, stream: StreamId) -> DriverResult<()>;

    /// The handle under which the driver knows `stream`, where it has several. Makes no driver call. Refuses handles that
    /// name no stream of their own: [`Status::INVALID_HANDLE`].
    fn canonical_stream(&self, stream: StreamId) -> DriverResult<StreamId> {
        Ok(stream)
    }

    /// `cuStreamGetId`: a number that no other stream of the process ever has, where handles of destroyed streams come
    /// again. `None` where the driver does not tell, and for the default stream, which is never destroyed.
    fn stream_number(&self, _stream: StreamId) -> DriverResult<Option<u64>> {
        Ok(None)
    }

    /// Lets the device with this ordinal use this one's memory too: what is mapped, and what will be. With `plain` also
    /// what `malloc` has given and will give, of whoever in the process. Enabling it twice is the same as once.
    /// [`Status::PEER_ACCESS_UNSUPPORTED`] where no path between the two allows it. A call that fails has changed nothing.
    fn enable_peer_access(&self, peer: u32, plain: bool) -> DriverResult<()> {
        let detail = format!("device {peer} (plain memory too: {plain}): this driver knows no other devices");
        Err(DriverError::new(Call::EnablePeer, Status::PEER_ACCESS_UNSUPPORTED, detail))
    }

    /// `cuMemExportToShareableHandle`: memory of `create` as a file descriptor, which other processes can import. Asked
    /// again, it is the same one; it is closed once the handle is released and nobody holds it any more.
    /// [`Status::NOT_SUPPORTED`] where the device exports nothing.
    fn export(&self, handle: Handle) -> DriverResult<Exported> {
        Err(not_shared(Call::Export, format!("handle {:#x}", handle.0)))
    }

    /// `cuMemImportFromShareableHandle`: a handle for memory of `size` bytes that another process exported, or this one.
    /// It is mapped and released as one of `create`; the memory lives until everyone has released and unmapped it.
    fn import(&self, memory: &Exported, size: u64) -> DriverResult<Handle> {
        Err(not_shared(Call::Import, format!("{size} bytes of {memory:?}")))
    }

    /// `cuIpcGetMemHandle`: what `malloc` gave at `address`, for other processes.
    fn ipc_get(&self, address: u64) -> DriverResult<IpcMemory> {
        Err(not_shared(Call::IpcGet, format!("{address:#x}")))
    }

    /// `cuIpcOpenMemHandle`: the address in this process of what another one's `malloc` gave. A process cannot open its
    /// own. Opened again it has the same address, and must be closed as often.
    fn ipc_open(&self, memory: &IpcMemory) -> DriverResult<u64> {
        Err(not_shared(Call::IpcOpen, format!("{memory:?}")))
    }

    /// `cuIpcCloseMemHandle`: gives back an address of `ipc_open`. Does not wait for the GPU.
    fn ipc_close(&self, address: u64) -> DriverResult<()> {
        Err(not_shared(Call::IpcClose, format!("{address:#x}")))
    }

    /// `cuStreamIsCapturing`.
    fn is_capturing(&self, stream: StreamId) -> DriverResult<bool>;

    /// `cuCtxSynchronize`: the CPU waits for all work of the device, whatever its stream. While any stream is being
    /// captured it is refused, in every mode and from every thread, and invalidates the capture.
    fn synchronize(&self) -> DriverResult<()>;

    /// `cuThreadExchangeStreamCaptureMode`: what captures forbid the calling thread from now on; answers what they did
    /// until now. In [`CaptureMode::Relaxed`] a call that captures forbid otherwise is legal, unless it waits for a
    /// captured stream or asks for an event of one.
    fn exchange_capture_mode(&self, mode: CaptureMode) -> DriverResult<CaptureMode>;

    /// Calls made so far and the time spent in them.
    fn call_stats(&self) -> CallStats;

    /// Total time in this driver's calls, in nanoseconds: the same as `call_stats().total_ns()`, without the copy.
    fn busy_ns(&self) -> u64;
}
