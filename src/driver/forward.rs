//! Layers over a driver: types that pass most calls on to another driver and change a few.
//!
//! Owns: [`ForwardingDriver`], and the one list of all methods of a driver. A layer cannot miss a method: the traits of
//! the contract have no default bodies, so that a method outside of the list does not compile.

use super::call_stats::CallStats;
use super::contract::{
    CaptureMode, Contents, DeviceProperties, Driver, Events, Exported, IpcMemory, MemoryInfo, MemoryPools, PageLocked,
    PeerAccess, PlainMemory, PoolAttribute, ProcessSharing, StreamCapture, Streams, VirtualMemory,
};
use super::error::{Call, DriverResult};
use crate::ids::{EventId, Handle, HostBuffer, MemoryPool, StreamId};

/// Defines [`ForwardingDriver`], and implements the traits for it, from a list of methods by trait. `calls` make a
/// driver call, each given with its [`Call`] and the type that it returns in a [`DriverResult`]; `answers` make none.
macro_rules! forward {
    ($(
        $contract:ident {
            calls { $($call:ident: $method:ident($($argument:ident: $kind:ty),*) -> $returned:ty;)* }
            answers { $($answer:ident($($asked:ident: $asked_kind:ty),*) -> $answered:ty;)* }
        }
    )*) => {
        /// A layer over a driver: a method that it does not write itself goes to the driver below, unchanged.
        ///
        /// A layer writes [`inner`](Self::inner) and the methods that differ, which makes it a [`Driver`]. To do
        /// something at every call, it writes [`make_call`](Self::make_call). The methods have the names of the
        /// contract's traits, so this trait should be in scope only where a layer is written. Name the trait there:
        /// `self.inner().malloc(size)` calls the driver below, `PlainMemory::malloc(self, size)` the layer.
        ///
        /// ```
        /// use seamalloc::driver::sim::{SimConfig, SimGpu};
        /// use seamalloc::driver::{Call, Driver, DriverError, DriverResult, ForwardingDriver, PlainMemory, Status};
        ///
        /// /// A device whose plain memory ends at so many bytes an allocation.
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

            /// Makes one call of the driver below. Every call that the layer does not write goes through here.
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::driver::error::Status;
    use crate::driver::sim::{SimConfig, SimGpu};

    /// Notes the calls that it makes of a simulated GPU.
    struct Noting {
        gpu: SimGpu,
        made: Mutex<Vec<Call>>,
    }

    impl ForwardingDriver for Noting {
        fn inner(&self) -> &dyn Driver {
            &self.gpu
        }
        fn make_call<T>(&self, call: Call, make: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> DriverResult<T> {
            self.made.lock().unwrap().push(call);
            make(self.inner())
        }
    }

    /// Makes a call of that kind, valid or not. Returns `None` for calls of a program, which are not made.
    fn make(driver: &dyn Driver, call: Call) -> Option<DriverResult<()>> {
        let (stream, event, handle) = (StreamId(1), EventId(77), Handle(77));
        let ipc = IpcMemory([0; 64]);
        Some(match call {
            Call::Reserve => driver.reserve(0, 0).map(drop),
            Call::AddressFree => driver.address_free(0, 0),
            Call::Create => driver.create(0).map(drop),
            Call::Release => driver.release(handle),
            Call::Map => driver.map(0, 0, 0, handle),
            Call::Unmap => driver.unmap(0, 0),
            Call::SetAccess => driver.set_access(0, 0),
            Call::Malloc => driver.malloc(0).map(drop),
            Call::Free => driver.free(1),
            Call::MemoryInfo => driver.memory_info().map(drop),
            Call::EventCreate => driver.event_create().map(drop),
            Call::EventDestroy => driver.event_destroy(event),
            Call::EventRecord => driver.event_record(event, stream),
            Call::EventQuery => driver.event_query(event).map(drop),
            Call::EventSynchronize => driver.event_synchronize(event),
            Call::StreamWait => driver.stream_wait(stream, event),
            Call::StreamSynchronize => driver.stream_synchronize(stream),
            Call::StreamNumber => driver.stream_number(stream).map(drop),
            Call::IsCapturing => driver.is_capturing(stream).map(drop),
            Call::Synchronize => driver.synchronize(),
            Call::Fill => driver.fill(0, 0, 0, stream),
            Call::Read => driver.read(0, &mut [0]),
            Call::Write => driver.write(0, &[0]),
            Call::Copy => driver.copy(0, 8, 8),
            Call::HostMalloc => driver.host_malloc(0).map(drop),
            Call::HostFree => driver.host_free(HostBuffer(77)),
            Call::CopyOut => driver.copy_out(0, HostBuffer(77), 0, 8),
            Call::CopyIn => driver.copy_in(HostBuffer(77), 0, 0, 8),
            Call::HostWait => driver.host_wait(HostBuffer(77)),
            Call::CreateOnHost => driver.create_on_host(0).map(drop),
            Call::EnablePeer => driver.enable_peer_access(1, true),
            Call::Export => driver.export(handle).map(drop),
            Call::Import => driver.import(&Exported::new(std::io::pipe().unwrap().0.into()), 0).map(drop),
            Call::IpcGet => driver.ipc_get(1).map(drop),
            Call::IpcOpen => driver.ipc_open(&ipc).map(drop),
            Call::IpcClose => driver.ipc_close(1),
            Call::ExchangeCaptureMode => driver.exchange_capture_mode(CaptureMode::Global).map(drop),
            Call::PoolCreate => driver.pool_create(u64::MAX).map(drop),
            Call::PoolDestroy => driver.pool_destroy(MemoryPool(77)),
            Call::PoolMalloc => driver.pool_malloc(MemoryPool(77), 1, stream).map(drop),
            Call::PoolFree => driver.pool_free(1, stream),
            Call::PoolTrim => driver.pool_trim(MemoryPool(77), 0),
            Call::PoolAttribute => driver.pool_attribute(MemoryPool(77), PoolAttribute::Used).map(drop),
            Call::StreamCreate => driver.stream_create().map(drop),
            Call::StreamDestroy => driver.stream_destroy(stream),
            Call::Launch | Call::BeginCapture | Call::EndCapture => return None,
        })
    }

    #[test]
    fn every_call_reaches_the_driver_below_once_under_its_name() {
        let layer = Noting { gpu: SimGpu::new(SimConfig::default()).unwrap(), made: Mutex::default() };
        let bare = SimGpu::new(SimConfig::default()).unwrap();
        let mut expected = Vec::new();
        for call in Call::ALL {
            let Some(answer) = make(&layer, call) else { continue };
            assert_eq!(Some(answer), make(&bare, call), "{call}");
            assert_eq!(layer.gpu.call_stats().get(call).count, 1, "{call}");
            expected.push(call);
        }
        assert_eq!(*layer.made.lock().unwrap(), expected);
        let driver: &dyn Driver = &layer;
        assert_eq!(driver.properties(), layer.gpu.properties());
        assert_eq!(driver.canonical_stream(StreamId(3)), Ok(StreamId(3)));
        assert!(driver.host_bytes(HostBuffer(77), 0, 8, &mut |_| ()).is_err());
        assert_eq!((driver.call_stats(), driver.busy_ns()), (layer.gpu.call_stats(), layer.gpu.busy_ns()));
        assert_eq!(*layer.made.lock().unwrap(), expected, "these are no calls");
    }

    /// Refuses to create memory, and passes all other calls on.
    struct Full(SimGpu);

    impl ForwardingDriver for Full {
        fn inner(&self) -> &dyn Driver {
            &self.0
        }
        fn create(&self, _: u64) -> DriverResult<Handle> {
            Err(crate::driver::DriverError::new(Call::Create, Status::OUT_OF_MEMORY, "full"))
        }
    }

    #[test]
    fn what_a_layer_writes_takes_the_place_of_the_call_below() {
        let full = Full(SimGpu::new(SimConfig::default()).unwrap());
        let driver: &dyn Driver = &full;
        assert!(driver.create(2 << 20).is_err_and(|error| error.is_out_of_memory()));
        assert!(driver.malloc(2 << 20).is_ok());
        assert_eq!(full.0.call_stats().get(Call::Create).count, 0);
        assert_eq!(full.0.leaks().mallocs, 1);
    }
}
