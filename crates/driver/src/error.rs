//! The error of a failed driver call: the call, its status and its arguments.

use std::fmt;

/// The result of a driver call.
pub type DriverResult<T> = Result<T, DriverError>;

/// A driver call that failed. The call changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed with {status}: {detail}")]
pub struct DriverError {
    /// The call.
    pub call: Call,
    /// The status that the driver returned.
    pub status: Status,
    /// The arguments, and the mistake in them if it is known.
    pub detail: String,
}

impl DriverError {
    /// Makes an error of `call`.
    #[must_use]
    pub fn new(call: Call, status: Status, detail: impl Into<String>) -> Self {
        Self { call, status, detail: detail.into() }
    }

    /// Returns whether the device had too little memory (or too little address space) for the call.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.status == Status::OUT_OF_MEMORY
    }

    /// Returns whether the device's context is lost, as after a kernel that used an invalid address: every later call
    /// fails as well, and only a new process can use the device again.
    #[must_use]
    pub fn is_context_lost(&self) -> bool {
        self.status.is_context_lost()
    }
}

macro_rules! calls {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $api:literal;)*) => {
        /// A kind of driver call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(usize)]
        pub enum Call { $($(#[$doc])* $variant,)* }

        impl Call {
            /// Every kind of call.
            pub const ALL: [Self; Self::COUNT] = [$(Self::$variant,)*];
            /// The number of kinds of calls.
            pub const COUNT: usize = [$($name,)*].len();

            /// Returns the short name, as in `--json` output: `set_access`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Returns the name in the CUDA driver API: `cuMemSetAccess`.
            #[must_use]
            pub const fn api(self) -> &'static str {
                match self { $(Self::$variant => $api,)* }
            }
        }
    };
}

calls! {
    /// `cuMemAddressReserve`
    Reserve = "reserve", "cuMemAddressReserve";
    /// `cuMemAddressFree`
    AddressFree = "address_free", "cuMemAddressFree";
    /// `cuMemCreate`
    Create = "create", "cuMemCreate";
    /// `cuMemRelease`
    Release = "release", "cuMemRelease";
    /// `cuMemMap`
    Map = "map", "cuMemMap";
    /// `cuMemUnmap`
    Unmap = "unmap", "cuMemUnmap";
    /// `cuMemSetAccess`
    SetAccess = "set_access", "cuMemSetAccess";
    /// `cuMemAlloc`, which `cudaMalloc` calls
    Malloc = "malloc", "cuMemAlloc";
    /// `cuMemFree`, which `cudaFree` calls
    Free = "free", "cuMemFree";
    /// `cuMemGetInfo`
    MemoryInfo = "memory_info", "cuMemGetInfo";
    /// `cuEventCreate`
    EventCreate = "event_create", "cuEventCreate";
    /// `cuEventDestroy`
    EventDestroy = "event_destroy", "cuEventDestroy";
    /// `cuEventRecord`
    EventRecord = "event_record", "cuEventRecord";
    /// `cuEventQuery`
    EventQuery = "event_query", "cuEventQuery";
    /// `cuEventSynchronize`
    EventSynchronize = "event_synchronize", "cuEventSynchronize";
    /// `cuStreamWaitEvent`
    StreamWait = "stream_wait", "cuStreamWaitEvent";
    /// `cuStreamSynchronize`
    StreamSynchronize = "stream_synchronize", "cuStreamSynchronize";
    /// `cuStreamGetId`
    StreamNumber = "stream_number", "cuStreamGetId";
    /// `cuStreamIsCapturing`
    IsCapturing = "is_capturing", "cuStreamIsCapturing";
    /// `cuCtxSynchronize`
    Synchronize = "synchronize", "cuCtxSynchronize";
    /// `cuMemsetD8Async`: made in guard mode only
    Fill = "fill", "cuMemsetD8Async";
    /// `cuMemcpyDtoHAsync`: made in guard mode, and when memory goes to sleep
    Read = "read", "cuMemcpyDtoHAsync";
    /// `cuMemcpyHtoDAsync`: made when memory wakes from sleep
    Write = "write", "cuMemcpyHtoDAsync";
    /// `cuMemcpyAsync` between two places that the device uses: made when memory is exchanged for other memory
    Copy = "copy", "cuMemcpyAsync";
    /// `cuMemCreate` on a NUMA node of the machine: made when live memory is spilled
    CreateOnHost = "create_on_host", "cuMemCreate (host)";
    /// `cuMemHostAlloc`, or `cuMemHostRegister` of pages of the system
    HostMalloc = "host_malloc", "cuMemHostAlloc";
    /// `cuMemFreeHost`, or `cuMemHostUnregister`
    HostFree = "host_free", "cuMemFreeHost";
    /// `cuMemcpyDtoHAsync` into page-locked memory, without a wait of the CPU
    CopyOut = "copy_out", "cuMemcpyDtoHAsync";
    /// `cuMemcpyHtoDAsync` from page-locked memory, without a wait of the CPU
    CopyIn = "copy_in", "cuMemcpyHtoDAsync";
    /// `cuEventSynchronize` after the copies of page-locked memory
    HostWait = "host_wait", "cuEventSynchronize";
    /// `cuCtxEnablePeerAccess`
    EnablePeer = "enable_peer", "cuCtxEnablePeerAccess";
    /// `cuMemExportToShareableHandle`
    Export = "export", "cuMemExportToShareableHandle";
    /// `cuMemImportFromShareableHandle`
    Import = "import", "cuMemImportFromShareableHandle";
    /// `cuIpcGetMemHandle`
    IpcGet = "ipc_get", "cuIpcGetMemHandle";
    /// `cuIpcOpenMemHandle`
    IpcOpen = "ipc_open", "cuIpcOpenMemHandle";
    /// `cuIpcCloseMemHandle`
    IpcClose = "ipc_close", "cuIpcCloseMemHandle";
    /// `cuThreadExchangeStreamCaptureMode`
    ExchangeCaptureMode = "exchange_capture_mode", "cuThreadExchangeStreamCaptureMode";
    /// `cuLaunchKernel` for each stream: a kernel that holds the stream at a gate
    CloseGate = "close_gate", "cuLaunchKernel of a gate";
    /// `cuMemPoolCreate`
    PoolCreate = "pool_create", "cuMemPoolCreate";
    /// `cuMemPoolDestroy`
    PoolDestroy = "pool_destroy", "cuMemPoolDestroy";
    /// `cuMemAllocFromPoolAsync`, which `cudaMallocAsync` calls
    PoolMalloc = "pool_malloc", "cuMemAllocFromPoolAsync";
    /// `cuMemFreeAsync`, which `cudaFreeAsync` calls
    PoolFree = "pool_free", "cuMemFreeAsync";
    /// `cuMemPoolTrimTo`
    PoolTrim = "pool_trim", "cuMemPoolTrimTo";
    /// `cuMemPoolGetAttribute`
    PoolAttribute = "pool_attribute", "cuMemPoolGetAttribute";
    /// `cuStreamCreate`: for a stream on which frees of several streams are joined
    StreamCreate = "stream_create", "cuStreamCreate";
    /// `cuStreamDestroy`
    StreamDestroy = "stream_destroy", "cuStreamDestroy";
    /// `cuLaunchKernel`: a call of a program, never of an allocator; only errors of the simulated GPU name it
    Launch = "launch", "cuLaunchKernel";
    /// `cuStreamBeginCapture`: a call of a program, like [`Call::Launch`]
    BeginCapture = "begin_capture", "cuStreamBeginCapture";
    /// `cuStreamEndCapture`: a call of a program, like [`Call::Launch`]
    EndCapture = "end_capture", "cuStreamEndCapture";
}

impl Call {
    /// Returns whether an allocator makes this call. Programs make the other calls.
    #[must_use]
    pub const fn is_allocators(self) -> bool {
        !matches!(self, Self::Launch | Self::BeginCapture | Self::EndCapture)
    }
}

impl Call {
    /// Returns whether only an allocator that reads or writes contents makes this call: in guard mode, for exchanges of
    /// memory under live addresses, and for sleep.
    #[must_use]
    pub const fn is_of_contents(self) -> bool {
        matches!(
            self,
            Self::Fill
                | Self::Read
                | Self::Write
                | Self::Copy
                | Self::CreateOnHost
                | Self::CloseGate
                | Self::HostMalloc
                | Self::HostFree
                | Self::CopyOut
                | Self::CopyIn
                | Self::HostWait
        )
    }

    /// Returns whether the call belongs to virtual memory management: it reserves addresses, takes or gives back a
    /// chunk, or maps a chunk. A device without this feature refuses these calls. They wait for no stream.
    #[must_use]
    pub const fn is_of_virtual_memory(self) -> bool {
        matches!(
            self,
            Self::Reserve
                | Self::AddressFree
                | Self::Create
                | Self::Release
                | Self::Map
                | Self::Unmap
                | Self::SetAccess
        )
    }

    /// Returns whether only an allocator over the driver's pools of stream-ordered memory makes this call.
    #[must_use]
    pub const fn is_of_pools(self) -> bool {
        matches!(
            self,
            Self::PoolCreate
                | Self::PoolDestroy
                | Self::PoolMalloc
                | Self::PoolFree
                | Self::PoolTrim
                | Self::PoolAttribute
                | Self::StreamCreate
                | Self::StreamDestroy
        )
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.api())
    }
}

/// The result of a driver call: a `CUresult` as an integer, since newer drivers return values that older headers do not
/// know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(pub u32);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// Returns CUDA's name of the status, or `None` if this crate does not know the status.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 { $($value => Some($text),)* _ => None }
            }
        }
    };
}

statuses! {
    /// The call succeeded.
    SUCCESS = 0, "CUDA_SUCCESS";
    /// An argument is outside of its range.
    INVALID_VALUE = 1, "CUDA_ERROR_INVALID_VALUE";
    /// Too little physical memory, or too little address space.
    OUT_OF_MEMORY = 2, "CUDA_ERROR_OUT_OF_MEMORY";
    /// `cuInit` was not called, or failed.
    NOT_INITIALIZED = 3, "CUDA_ERROR_NOT_INITIALIZED";
    /// The driver is shutting down.
    DEINITIALIZED = 4, "CUDA_ERROR_DEINITIALIZED";
    /// There is no GPU.
    NO_DEVICE = 100, "CUDA_ERROR_NO_DEVICE";
    /// No GPU has this ordinal.
    INVALID_DEVICE = 101, "CUDA_ERROR_INVALID_DEVICE";
    /// No context is current on this thread, or the current context was destroyed.
    INVALID_CONTEXT = 201, "CUDA_ERROR_INVALID_CONTEXT";
    /// The device's memory has an error that could not be corrected; the context is lost.
    ECC_UNCORRECTABLE = 214, "CUDA_ERROR_ECC_UNCORRECTABLE";
    /// No path between the two devices lets one use the other's memory.
    PEER_ACCESS_UNSUPPORTED = 217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED";
    /// The handle, event or stream is not (or no longer) valid.
    INVALID_HANDLE = 400, "CUDA_ERROR_INVALID_HANDLE";
    /// The driver has no such entry point.
    NOT_FOUND = 500, "CUDA_ERROR_NOT_FOUND";
    /// The work is not finished yet.
    NOT_READY = 600, "CUDA_ERROR_NOT_READY";
    /// The GPU used an invalid address; the context is lost.
    ILLEGAL_ADDRESS = 700, "CUDA_ERROR_ILLEGAL_ADDRESS";
    /// A kernel ran for longer than the system allows; the context is lost.
    LAUNCH_TIMEOUT = 702, "CUDA_ERROR_LAUNCH_TIMEOUT";
    /// The other device can use memory of `cuMemAlloc` on this device already.
    PEER_ACCESS_ALREADY_ENABLED = 704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED";
    /// The context was destroyed (`cudaDeviceReset`).
    CONTEXT_IS_DESTROYED = 709, "CUDA_ERROR_CONTEXT_IS_DESTROYED";
    /// An assertion of a kernel failed; the context is lost.
    ASSERT = 710, "CUDA_ERROR_ASSERT";
    /// A kernel's stack is broken; the context is lost.
    HARDWARE_STACK_ERROR = 714, "CUDA_ERROR_HARDWARE_STACK_ERROR";
    /// A kernel reached an invalid instruction, or trapped; the context is lost.
    ILLEGAL_INSTRUCTION = 715, "CUDA_ERROR_ILLEGAL_INSTRUCTION";
    /// A kernel used an address that is not aligned; the context is lost.
    MISALIGNED_ADDRESS = 716, "CUDA_ERROR_MISALIGNED_ADDRESS";
    /// A kernel used an address of another space; the context is lost.
    INVALID_ADDRESS_SPACE = 717, "CUDA_ERROR_INVALID_ADDRESS_SPACE";
    /// A kernel's program counter is broken; the context is lost.
    INVALID_PC = 718, "CUDA_ERROR_INVALID_PC";
    /// A kernel failed in another way; the context is lost.
    LAUNCH_FAILED = 719, "CUDA_ERROR_LAUNCH_FAILED";
    /// The process has no permission for the call.
    NOT_PERMITTED = 800, "CUDA_ERROR_NOT_PERMITTED";
    /// The driver or the device does not support the call.
    NOT_SUPPORTED = 801, "CUDA_ERROR_NOT_SUPPORTED";
    /// The call is not allowed while a stream is being captured; it has invalidated the capture.
    STREAM_CAPTURE_UNSUPPORTED = 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
    /// An earlier call has invalidated the capture.
    STREAM_CAPTURE_INVALIDATED = 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED";
    /// The cause is unknown, even to the driver.
    UNKNOWN = 999, "CUDA_ERROR_UNKNOWN";
}

impl Status {
    /// Returns whether the status means a lost context: CUDA's "sticky" errors, and a context that was destroyed.
    #[must_use]
    pub const fn is_context_lost(self) -> bool {
        matches!(
            self,
            Self::ECC_UNCORRECTABLE
                | Self::ILLEGAL_ADDRESS
                | Self::LAUNCH_TIMEOUT
                | Self::CONTEXT_IS_DESTROYED
                | Self::ASSERT
                | Self::HARDWARE_STACK_ERROR
                | Self::ILLEGAL_INSTRUCTION
                | Self::MISALIGNED_ADDRESS
                | Self::INVALID_ADDRESS_SPACE
                | Self::INVALID_PC
                | Self::LAUNCH_FAILED
        )
    }
}

impl Status {
    /// Returns whether a call that names a destroyed stream may return this status. An H200 (driver 580.159) answers
    /// `CUDA_ERROR_INVALID_CONTEXT`. This status is no proof: with a destroyed context every call returns it.
    #[must_use]
    pub const fn may_name_no_stream(self) -> bool {
        matches!(self, Self::INVALID_HANDLE | Self::INVALID_CONTEXT | Self::CONTEXT_IS_DESTROYED)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "CUDA error {}", self.0),
        }
    }
}
