//! The status of functions, and the last error of each thread.
//!
//! Owns: the numbers of [`Status`], which are never given another meaning, and the conversion of the library's errors.
//! An error for whose text the host has no memory becomes `SEAM_STATUS_HOST_MEMORY`, whose text is constant.

use seamalloc::driver::OpenError;
use seamalloc::driver::cuda::CudaOpenError;
use seamalloc::{ConfigError, Error};
use seamalloc_trace::TraceError;
use seamalloc_trace::replay::ReplayError;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char};
use std::fmt::{self, Write};
use std::ops::Deref;

/// The result of a function. After anything but `SEAM_STATUS_OK` nothing has changed for live allocations, and
/// `seam_last_error_text` says more.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The function did what was asked.
    Ok = 0,
    /// An argument that must not be NULL is NULL, a text is not UTF-8, or a struct gives a size that it cannot have.
    InvalidArgument = 1,
    /// No allocator has this handle: it was destroyed, or never created.
    InvalidHandle = 2,
    /// Too little memory. Free some and try again; the text is a report.
    OutOfMemory = 3,
    /// No device has as much memory as was asked for.
    RequestTooLarge = 4,
    /// No live allocation of this allocator starts at the address: it was freed already, or belongs to another
    /// allocator.
    InvalidAddress = 5,
    /// The stream is one that memory cannot be ordered by (`cudaStreamPerThread`).
    InvalidStream = 6,
    /// There is no such private pool, or nobody uses it any more.
    UnknownPool = 7,
    /// Requests are routed to the private pool already.
    PoolRouted = 8,
    /// No requests are routed to the private pool.
    PoolNotRouted = 9,
    /// An option is unknown, or has a value that it cannot take.
    Options = 10,
    /// The device's name is invalid, there is no such device, or it cannot be opened.
    Device = 11,
    /// The device lacks virtual memory management, or pools of stream-ordered memory, and the strategy needs them;
    /// `strategy:caching` does not need them.
    NoVirtualMemory = 12,
    /// A driver call failed for another reason than too little memory. `seam_last_driver_status` has its `CUresult`.
    Driver = 13,
    /// A file could not be read or written, or the recorded history does not make a trace.
    File = 14,
    /// The buffer is too small; the length that is needed was stored.
    BufferTooSmall = 15,
    /// The process is a fork of the process that used the library, and can use none of its parent's memory.
    Forked = 16,
    /// A callback that runs under the allocator's lock (a filter or a source of a private pool, an observer) called the
    /// library.
    Reentrant = 17,
    /// The most allocators that a process can have (1,024) exist already.
    TooManyAllocators = 18,
    /// A rule that must always hold inside the library is broken. Please report it.
    Internal = 19,
    /// A block of a private pool cannot be handed out again where it was.
    NotRestorable = 20,
    /// The private pool has memory already, or segments of its own. The kind of its segments is chosen once, before it
    /// has any.
    PoolInUse = 21,
    /// The source of a private pool failed for another reason than too little memory, or returned an impossible
    /// address.
    Source = 22,
    /// Memory cannot be shared with other processes, or shared memory cannot be opened: the handle is bad, the process
    /// is gone, or it has freed the memory. Or memory cannot be shared with other devices, because the driver owns the
    /// strategy's memory (`malloc-async`).
    Ipc = 23,
    /// The host, not the device, has too little memory: for the library's tables, or for the text of an error.
    HostMemory = 24,
    /// The private pool sleeps: it must wake before its memory is requested or shared.
    PoolAsleep = 25,
    /// The private pool cannot sleep, or not now; the text says why.
    NotSleepable = 26,
    /// An allocation cannot grow in place, or not now, or a growing allocation does not support the request; the text
    /// says why.
    NotGrowable = 27,
    /// An allocation was to grow beyond the addresses that were reserved for it.
    BeyondCapacity = 28,
}

/// The error of a call. The type is as large as a pointer, so that the result of a call that succeeds stays in
/// registers.
///
/// The box holds an array of one element, because a `Vec` of one element can be converted to such a box, and only a
/// `Vec` can report that the host has no memory.
#[derive(Debug)]
pub(crate) struct Failure(Option<Box<[Reason; 1]>>);

/// The reason of a failure for whose text the host has no memory, and of `HostMemory` itself.
static HOST_MEMORY: Reason = Reason { status: Status::HostMemory, text: String::new(), driver_status: 0 };
/// The text of `HOST_MEMORY`.
const HOST_MEMORY_TEXT: &CStr = c"the host has too little memory for the tables of the allocator";

#[derive(Debug)]
pub(crate) struct Reason {
    pub(crate) status: Status,
    pub(crate) text: String,
    /// The driver's own status, 0 if no driver call failed.
    driver_status: u32,
}

impl Failure {
    #[cold]
    pub(crate) fn new(status: Status, said: impl fmt::Display) -> Self {
        Self::of_driver(status, said, 0)
    }

    #[cold]
    fn of_driver(status: Status, said: impl fmt::Display, driver_status: u32) -> Self {
        let reason = Text::of(said).map(|text| Reason { status, text, driver_status });
        Self(reason.and_then(boxed))
    }

    /// Puts words in front of the text.
    pub(crate) fn prefix(self, words: impl fmt::Display) -> Self {
        match self.0 {
            Some(reason) => {
                let [Reason { status, text, driver_status }] = *reason;
                Self::of_driver(status, format_args!("{words}{text}"), driver_status)
            }
            None => self,
        }
    }

    pub(crate) fn argument(said: impl fmt::Display) -> Self {
        Self::new(Status::InvalidArgument, said)
    }
}

/// Returns a value in a box, or `None` if the host has no memory for it.
fn boxed<T>(value: T) -> Option<Box<[T; 1]>> {
    let mut one = Vec::new();
    one.try_reserve_exact(1).ok()?;
    one.push(value);
    one.try_into().ok()
}

/// A text that grows only if the host has memory.
struct Text(String);

impl Text {
    /// Returns the text of a value, with room for a NUL at its end. Other NULs are left out, since C would read the
    /// first one as the end.
    fn of(said: impl fmt::Display) -> Option<String> {
        let mut text = Self(String::new());
        text.write_fmt(format_args!("{said}")).ok()?;
        text.0.retain(|character| character != '\0');
        text.0.try_reserve(1).ok()?;
        Some(text.0)
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.0.try_reserve(part.len()).map_err(|_| fmt::Error)?;
        self.0.push_str(part);
        Ok(())
    }
}

impl Deref for Failure {
    type Target = Reason;

    fn deref(&self) -> &Reason {
        self.0.as_deref().map_or(&HOST_MEMORY, |[reason]| reason)
    }
}

/// The result of a call's body.
pub(crate) type Outcome<T> = Result<T, Failure>;

impl From<Error> for Failure {
    #[cold]
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::OutOfMemory(_) => Status::OutOfMemory,
            Error::HostMemory => Status::HostMemory,
            Error::RequestTooLarge { .. } => Status::RequestTooLarge,
            Error::InvalidAddress { .. } | Error::WrongFree { .. } => Status::InvalidAddress,
            Error::UnknownPool { .. } => Status::UnknownPool,
            Error::PoolRouted { .. } => Status::PoolRouted,
            Error::PoolNotRouted { .. } => Status::PoolNotRouted,
            Error::Config(_) => Status::Options,
            Error::NoVirtualMemory { .. } | Error::Granularity { .. } | Error::NoMemoryPools { .. } => {
                Status::NoVirtualMemory
            }
            Error::Device(_) | Error::Open(_) => Status::Device,
            Error::Driver(_) => Status::Driver,
            Error::NotRestorable { .. } => Status::NotRestorable,
            Error::PoolInUse { .. } => Status::PoolInUse,
            Error::Source { .. } => Status::Source,
            Error::PoolAsleep { .. } => Status::PoolAsleep,
            Error::NotSleepable { .. } => Status::NotSleepable,
            Error::NotGrowable { .. } => Status::NotGrowable,
            Error::BeyondCapacity { .. } => Status::BeyondCapacity,
            Error::Backup { .. } => Status::File,
            Error::Ipc(_) | Error::NotOfPools { .. } => Status::Ipc,
            // Errors that are newer than this table are internal ones.
            _ => Status::Internal,
        };
        if status == Status::HostMemory {
            return Self(None);
        }
        let driver_status = if let Error::Driver(error) = &error { error.status.0 } else { 0 };
        Self::of_driver(status, error, driver_status)
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::new(Status::Options, error)
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Cuda(error) => error.into(),
            OpenError::Driver(error) => Error::from(error).into(),
            error => Self::new(Status::Device, error),
        }
    }
}

impl From<CudaOpenError> for Failure {
    fn from(error: CudaOpenError) -> Self {
        let driver_status = if let CudaOpenError::Call { status, .. } = &error { status.0 } else { 0 };
        Self::of_driver(Status::Device, error, driver_status)
    }
}

impl From<TraceError> for Failure {
    fn from(error: TraceError) -> Self {
        Self::new(Status::File, error)
    }
}

impl From<ReplayError> for Failure {
    fn from(error: ReplayError) -> Self {
        let status = match &error {
            ReplayError::Device(_) | ReplayError::Cuda(_) | ReplayError::Host(_) => Status::Device,
            ReplayError::BadTrace { .. } => Status::File,
            ReplayError::Config(_) => Status::Options,
            ReplayError::Allocator { .. } => Status::Internal,
        };
        Self::new(status, error)
    }
}

thread_local! {
    /// The last error, and its driver status. This cell has no destructor, so it can be used to the very end of the
    /// thread.
    static LAST: Cell<(Status, u32)> = const { Cell::new((Status::Ok, 0)) };
    /// The text of the last error, with a NUL at its end.
    static LAST_TEXT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps the failure as the thread's last error, and returns its status. On a thread that is ending, the text of the
/// failure is not kept.
#[cold]
pub(crate) fn remember(failure: Failure) -> Status {
    let Some(reason) = failure.0 else {
        keep(Status::HostMemory, 0, None);
        return Status::HostMemory;
    };
    let [Reason { status, mut text, driver_status }] = *reason;
    // The text has room for the NUL.
    text.push('\0');
    keep(status, driver_status, Some(text));
    status
}

fn keep(status: Status, driver_status: u32, text: Option<String>) {
    LAST.set((status, driver_status));
    let _ = LAST_TEXT.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = text;
        }
    });
}

/// Returns the status of the last call of this thread that failed, `SEAM_STATUS_OK` if none did since
/// `seam_clear_last_error`. A call that succeeds does not change this status.
#[unsafe(no_mangle)]
pub extern "C" fn seam_last_error() -> Status {
    LAST.get().0
}

/// Returns the message of the last call of this thread that failed, in words; empty if none did. Never NULL. The text
/// is the library's, and valid until the next call of this thread that fails.
#[unsafe(no_mangle)]
pub extern "C" fn seam_last_error_text() -> *const c_char {
    let kept = |last: &RefCell<Option<String>>| Some(last.try_borrow().ok()?.as_ref()?.as_ptr().cast());
    let text = LAST_TEXT.try_with(kept).ok().flatten();
    let without = if LAST.get().0 == Status::HostMemory { HOST_MEMORY_TEXT } else { c"" };
    text.unwrap_or(without.as_ptr())
}

/// Returns the `CUresult` of the driver call behind the last error of this thread; 0 if the error has no driver call.
#[unsafe(no_mangle)]
pub extern "C" fn seam_last_driver_status() -> u32 {
    LAST.get().1
}

/// Forgets the last error of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn seam_clear_last_error() {
    keep(Status::Ok, 0, None);
}

/// Returns the name of a status, such as "SEAM_STATUS_OUT_OF_MEMORY". The name is never NULL; it is
/// "SEAM_STATUS_UNKNOWN" for a number that is no status.
#[unsafe(no_mangle)]
pub extern "C" fn seam_status_name(status: i32) -> *const c_char {
    let names: [&CStr; 29] = [
        c"SEAM_STATUS_OK",
        c"SEAM_STATUS_INVALID_ARGUMENT",
        c"SEAM_STATUS_INVALID_HANDLE",
        c"SEAM_STATUS_OUT_OF_MEMORY",
        c"SEAM_STATUS_REQUEST_TOO_LARGE",
        c"SEAM_STATUS_INVALID_ADDRESS",
        c"SEAM_STATUS_INVALID_STREAM",
        c"SEAM_STATUS_UNKNOWN_POOL",
        c"SEAM_STATUS_POOL_ROUTED",
        c"SEAM_STATUS_POOL_NOT_ROUTED",
        c"SEAM_STATUS_OPTIONS",
        c"SEAM_STATUS_DEVICE",
        c"SEAM_STATUS_NO_VIRTUAL_MEMORY",
        c"SEAM_STATUS_DRIVER",
        c"SEAM_STATUS_FILE",
        c"SEAM_STATUS_BUFFER_TOO_SMALL",
        c"SEAM_STATUS_FORKED",
        c"SEAM_STATUS_REENTRANT",
        c"SEAM_STATUS_TOO_MANY_ALLOCATORS",
        c"SEAM_STATUS_INTERNAL",
        c"SEAM_STATUS_NOT_RESTORABLE",
        c"SEAM_STATUS_POOL_IN_USE",
        c"SEAM_STATUS_SOURCE",
        c"SEAM_STATUS_IPC",
        c"SEAM_STATUS_HOST_MEMORY",
        c"SEAM_STATUS_POOL_ASLEEP",
        c"SEAM_STATUS_NOT_SLEEPABLE",
        c"SEAM_STATUS_NOT_GROWABLE",
        c"SEAM_STATUS_BEYOND_CAPACITY",
    ];
    let name = usize::try_from(status).ok().and_then(|index| names.get(index));
    name.copied().unwrap_or(c"SEAM_STATUS_UNKNOWN").as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value whose text cannot be made, as if the host had no memory for a part of it.
    struct Unsaid;

    impl fmt::Display for Unsaid {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("half of it")?;
            Err(fmt::Error)
        }
    }

    fn last_text() -> String {
        // SAFETY: the text is the library's, and ends in a NUL.
        unsafe { CStr::from_ptr(seam_last_error_text()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_failure_without_memory_for_its_text_is_one_of_host_memory() {
        assert_eq!(remember(Failure::argument(Unsaid)), Status::HostMemory);
        assert_eq!(
            (seam_last_error(), last_text()),
            (Status::HostMemory, HOST_MEMORY_TEXT.to_string_lossy().into_owned())
        );
        let prefixed = Failure::argument("what").prefix(Unsaid);
        assert_eq!((prefixed.status, remember(prefixed)), (Status::HostMemory, Status::HostMemory));
    }

    #[test]
    fn a_text_is_kept_without_its_nuls() {
        let failure = Failure::new(Status::File, "a\0b").prefix("of a file: ");
        assert_eq!(failure.text, "of a file: ab");
        assert_eq!((remember(failure), last_text()), (Status::File, "of a file: ab".to_owned()));
    }
}
