//! Layers over a driver: types that pass most calls on to another driver and change a few.
//!
//! Owns: [`ForwardingDriver`], and the one list of all methods of a driver. A layer cannot miss a method: the traits of
//! the contract have no default bodies, so that a method outside of the list does not compile.

use super::call_stats::CallStats;
use super::contract::{
    CaptureMode, Contents, DeviceProperties, Driver, Events, Exported, GateCopy, IpcMemory, MemoryInfo, MemoryPools,
    PageLocked, PeerAccess, PlainMemory, PoolAttribute, ProcessSharing, StreamCapture, StreamGate, Streams,
    VirtualMemory,
};
use super::error::{Call, DriverResult};
use crate::ids::{EventId, Handle, HostBuffer, MemoryPool, StreamId};

/// Defines the trait [`ForwardingDriver`], and implements the driver's traits for every type that implements
/// [`ForwardingDriver`], from a list of methods by trait. Each method in `calls` makes a driver call, and is listed
/// with its [`Call`] and the type that it returns in a [`DriverResult`]. Methods in `answers` make no driver call.
macro_rules! forward {
    ($(
        $contract:ident {
            calls { $($call:ident: $method:ident($($argument:ident: $kind:ty),*) -> $returned:ty;)* }
            answers { $($answer:ident($($asked:ident: $asked_kind:ty),*) -> $answered:ty;)* }
        }
    )*) => {
        /// A layer over a driver: a method that the layer does not write itself goes to the driver below, unchanged.
        ///
        /// A layer writes [`inner`](Self::inner) and the methods that differ, which makes the layer a [`Driver`]. To do
        /// something at every call, a layer writes [`make_call`](Self::make_call). The methods have the names of the
        /// contract's traits, so this trait should be in scope only where a layer is written. In the code of a layer,
        /// name the trait: `self.inner().malloc(size)` calls the driver below, `PlainMemory::malloc(self, size)` the
        /// layer.
        ///
        /// ```
        /// use seamalloc::driver::sim::{SimConfig, SimGpu};
        /// use seamalloc::driver::{Call, Driver, DriverError, DriverResult, ForwardingDriver, PlainMemory, Status};
        ///
        /// /// A device that refuses allocations of plain memory beyond `most` bytes.
        /// struct Limited {
        ///     gpu: SimGpu,
        ///     most: u64,
        /// }
        ///
        /// impl ForwardingDriver for Limited {
        ///     fn inner(&self) -> &dyn Driver {
        ///         &self.gpu
        ///     }
        ///     fn malloc(&self, size: u64) -> DriverResult<u64> {
        ///         if size > self.most {
        ///             return Err(DriverError::new(Call::Malloc, Status::OUT_OF_MEMORY, format!("{size} bytes")));
        ///         }
        ///         self.inner().malloc(size)
        ///     }
        /// }
        ///
        /// let limited = Limited { gpu: SimGpu::new(SimConfig::default())?, most: 1 << 20 };
        /// assert!(PlainMemory::malloc(&limited, 1 << 21).is_err_and(|error| error.is_out_of_memory()));
        /// let driver: &dyn Driver = &limited;
        /// driver.free(driver.malloc(1 << 20)?)?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub trait ForwardingDriver: Send + Sync {
            /// Returns the driver below.
            fn inner(&self) -> &dyn Driver;

            /// Makes one call of the driver below. Every call that the layer does not write itself goes through this
            /// method.
            fn make_call<T>(&self, _call: Call, make: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> DriverResult<T> {
                make(self.inner())
            }

            $(
                $(
                    #[doc = concat!("[`", stringify!($contract), "::", stringify!($method), "`] of the driver below.")]
                    fn $method(&self $(, $argument: $kind)*) -> DriverResult<$returned> {
                        self.make_call(Call::$call, |driver| driver.$method($($argument),*))
                    }
                )*
                $(
                    #[doc = concat!("[`", stringify!($contract), "::", stringify!($answer), "`] of the driver below.")]
                    fn $answer(&self $(, $asked: $asked_kind)*) -> $answered {
                        self.inner().$answer($($asked),*)
                    }
                )*
            )*
        }

        $(
            impl<L: ForwardingDriver> $contract for L {
                $(
                    fn $method(&self $(, $argument: $kind)*) -> DriverResult<$returned> {
                        ForwardingDriver::$method(self $(, $argument)*)
                    }
                )*
                $(
                    fn $answer(&self $(, $asked: $asked_kind)*) -> $answered {
                        ForwardingDriver::$answer(self $(, $asked)*)
                    }
                )*
            }
        )*
    };
}

forward! {
    VirtualMemory {
        calls {
            Reserve: reserve(size: u64, alignment: u64) -> u64;
            AddressFree: address_free(address: u64, size: u64) -> ();
            Create: create(size: u64) -> Handle;
            CreateOnHost: create_on_host(size: u64) -> Handle;
            Release: release(handle: Handle) -> ();
            Map: map(address: u64, size: u64, offset: u64, handle: Handle) -> ();
            Unmap: unmap(address: u64, size: u64) -> ();
            SetAccess: set_access(address: u64, size: u64) -> ();
        }
        answers {}
    }
    PlainMemory {
        calls {
            Malloc: malloc(size: u64) -> u64;
            Free: free(address: u64) -> ();
        }
        answers {}
    }
    MemoryPools {
        calls {
            PoolCreate: pool_create(release_threshold: u64) -> MemoryPool;
            PoolDestroy: pool_destroy(pool: MemoryPool) -> ();
            PoolMalloc: pool_malloc(pool: MemoryPool, size: u64, stream: StreamId) -> u64;
            PoolFree: pool_free(address: u64, stream: StreamId) -> ();
            PoolTrim: pool_trim(pool: MemoryPool, keep: u64) -> ();
            PoolAttribute: pool_attribute(pool: MemoryPool, attribute: PoolAttribute) -> u64;
            StreamCreate: stream_create() -> StreamId;
            StreamDestroy: stream_destroy(stream: StreamId) -> ();
        }
        answers {}
    }
    Events {
        calls {
            EventCreate: event_create() -> EventId;
            EventDestroy: event_destroy(event: EventId) -> ();
            EventRecord: event_record(event: EventId, stream: StreamId) -> ();
            EventQuery: event_query(event: EventId) -> bool;
            EventSynchronize: event_synchronize(event: EventId) -> ();
            StreamWait: stream_wait(stream: StreamId, event: EventId) -> ();
        }
        answers {}
    }
    Streams {
        calls {
            StreamNumber: stream_number(stream: StreamId) -> Option<u64>;
            StreamSynchronize: stream_synchronize(stream: StreamId) -> ();
        }
        answers {
            canonical_stream(stream: StreamId) -> DriverResult<StreamId>;
        }
    }
    StreamCapture {
        calls {
            IsCapturing: is_capturing(stream: StreamId) -> bool;
            ExchangeCaptureMode: exchange_capture_mode(mode: CaptureMode) -> CaptureMode;
        }
        answers {}
    }
    StreamGate {
        calls {
            CloseGate: close_gate(streams: &[StreamId], copies: &[GateCopy], patience_ns: u64) -> bool;
        }
        answers {
            open_gate() -> ();
        }
    }
    Contents {
        calls {
            Fill: fill(address: u64, size: u64, value: u8, stream: StreamId) -> ();
            Read: read(address: u64, bytes: &mut [u8]) -> ();
            Write: write(address: u64, bytes: &[u8]) -> ();
            Copy: copy(from: u64, to: u64, size: u64) -> ();
        }
        answers {}
    }
    PageLocked {
        calls {
            HostMalloc: host_malloc(size: u64) -> HostBuffer;
            HostFree: host_free(buffer: HostBuffer) -> ();
            CopyOut: copy_out(from: u64, buffer: HostBuffer, offset: u64, size: u64) -> ();
            CopyIn: copy_in(buffer: HostBuffer, offset: u64, to: u64, size: u64) -> ();
            HostWait: host_wait(buffer: HostBuffer) -> ();
        }
        answers {
            host_bytes(buffer: HostBuffer, offset: u64, size: u64, with: &mut dyn FnMut(&mut [u8])) -> DriverResult<()>;
        }
    }
    PeerAccess {
        calls {
            EnablePeer: enable_peer_access(peer: u32, plain: bool) -> ();
        }
        answers {}
    }
    ProcessSharing {
        calls {
            Export: export(handle: Handle) -> Exported;
            Import: import(memory: &Exported, size: u64) -> Handle;
            IpcGet: ipc_get(address: u64) -> IpcMemory;
            IpcOpen: ipc_open(memory: &IpcMemory) -> u64;
            IpcClose: ipc_close(address: u64) -> ();
        }
        answers {}
    }
    Driver {
        calls {
            MemoryInfo: memory_info() -> MemoryInfo;
            Synchronize: synchronize() -> ();
        }
        answers {
            properties() -> &DeviceProperties;
            call_stats() -> CallStats;
            busy_ns() -> u64;
            clock_ns() -> u64;
            rest(ns: u64) -> ();
        }
    }
}
