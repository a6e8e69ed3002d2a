//! One entry to the memory of several devices: allocators by name, and layers around them.
//!
//! Owns: the builder. `places.rs` chooses the allocator of a request. The facade's model is the function
//! `InitCUDAAllocator` of Paddle's `AllocatorFacade` (`allocator_facade.cc`, commit 05a90fc), which makes an allocator
//! `auto_growth` for each stream and puts the layers `StreamSafe`, `Retry` and `Stat` around the allocator. Here the
//! program chooses the layers.

use crate::contract::PrivatePools;
use crate::error::{ResourceError, Result};
use crate::places::{Device, Places, SharedResource, Spread};
use crate::retry::Retry;
use crate::statistics::Statistics;
use seamalloc::Allocator;
use seamalloc::StreamId;
use seamalloc::driver::Driver;
use seamalloc::{Config, StrategyKind};
use seamalloc_driver::fallible::TryPush;
use std::fmt;
use std::sync::Arc;

type Wrap = Arc<dyn Fn(SharedResource) -> SharedResource + Send + Sync>;

/// The settings of a [`Facade`].
#[derive(Clone)]
pub struct FacadeBuilder {
    config: Config,
    spread: Spread,
    around_each: Vec<Wrap>,
    around_all: Vec<Wrap>,
}

/// The memory of one or several devices, served by allocators of one strategy, with layers around the allocators.
///
/// ```
/// use seamalloc::driver::{StreamId, sim::{SimConfig, SimGpu}};
/// use seamalloc_layers::{Facade, MemoryResource, Spread};
/// use std::sync::Arc;
///
/// let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=1GiB")?)?);
/// let facade = Facade::builder("paddle-auto-growth", "FLAGS_free_idle_chunk:True")?
///     .spread(Spread::Stream)
///     .retry_time_ms(10)
///     .open([gpu as Arc<dyn seamalloc::driver::Driver>])?;
/// let memory = &facade.devices()[0];
/// assert_eq!(format!("{memory:?}"), "retry > paddle-auto-growth by stream");
/// // No allocator is made for a request of 0 bytes, or before the first larger request.
/// assert_eq!(memory.allocate(0, StreamId(7))?.address, 0);
/// assert_eq!(facade.allocators(0)?.len(), 0);
/// let block = memory.allocate(10 << 20, StreamId(7))?;
/// assert_eq!(facade.allocators(0)?.len(), 1);
/// memory.deallocate(block, StreamId(7))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Facade {
    places: Vec<Arc<Places>>,
    devices: Vec<SharedResource>,
}

impl Facade {
    /// Begins a facade whose allocators have the strategy of this name, and options as [`Config::parse`] reads them.
    /// The name overrides a strategy in the options. `paddle-thread-local` has one allocator for each thread, all other
    /// strategies have one for each device, unless [`FacadeBuilder::spread`] says otherwise.
    ///
    /// # Errors
    /// [`Error::Config`](seamalloc::Error::Config) for an unknown name or option.
    pub fn builder(strategy: &str, options: &str) -> Result<FacadeBuilder> {
        let strategy = strategy.parse::<StrategyKind>()?;
        let config = Config::parse(options)?.of_strategy(strategy).validated()?;
        let spread = if strategy == StrategyKind::PaddleThreadLocal { Spread::Thread } else { Spread::Device };
        Ok(FacadeBuilder { config, spread, around_each: Vec::new(), around_all: Vec::new() })
    }

    /// Returns the memory of each device, in the order of the devices given to [`FacadeBuilder::open`].
    #[must_use]
    pub fn devices(&self) -> &[SharedResource] {
        &self.devices
    }

    /// Returns the allocators that were made so far for a device. The list is empty for an unknown device.
    ///
    /// # Errors
    /// [`Error::HostMemory`](seamalloc::Error::HostMemory).
    pub fn allocators(&self, device: usize) -> Result<Vec<Arc<Allocator>>> {
        self.places.get(device).map_or_else(|| Ok(Vec::new()), |places| places.allocators())
    }

    /// Forgets a stream that the program is about to destroy
    /// ([`Streams::forget`](seamalloc::operations::Streams::forget)). With an allocator for each stream, that stream's
    /// allocator ends too, unless it has live blocks.
    ///
    /// # Errors
    /// The errors of [`Streams::forget`](seamalloc::operations::Streams::forget).
    pub fn forget_stream(&self, device: usize, stream: StreamId) -> Result<()> {
        self.places.get(device).map_or(Ok(()), |places| places.forget_stream(stream))
    }
}

impl fmt::Debug for Facade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.devices).finish()
    }
}

impl FacadeBuilder {
    /// Chooses how a device is divided among allocators.
    #[must_use]
    pub fn spread(self, spread: Spread) -> Self {
        Self { spread, ..self }
    }

    /// Adds a layer around each allocator. The layer that is added first is the innermost.
    #[must_use]
    pub fn around_each(mut self, layer: impl Fn(SharedResource) -> SharedResource + Send + Sync + 'static) -> Self {
        self.around_each.push(Arc::new(layer));
        self
    }

    /// Adds a layer around all allocators of each device. The layer that is added first is the innermost.
    #[must_use]
    pub fn around_all(mut self, layer: impl Fn(SharedResource) -> SharedResource + Send + Sync + 'static) -> Self {
        self.around_all.push(Arc::new(layer));
        self
    }

    /// Adds a [`Retry`] around all allocators of each device: a free on any stream wakes a waiting request. Paddle has
    /// a retry around each stream's allocator, so that only frees on the request's own stream wake it.
    #[must_use]
    pub fn retry_time_ms(self, retry_time_ms: u64) -> Self {
        self.around_all(move |resource| Arc::new(Retry::new(resource, retry_time_ms)))
    }

    /// Adds a [`Statistics`] layer around all allocators of each device, and passes the layer to `keep`, so that the
    /// program can read the counters.
    #[must_use]
    pub fn statistics(self, keep: impl Fn(Arc<Statistics<SharedResource>>) + Send + Sync + 'static) -> Self {
        self.around_all(move |resource| {
            let statistics = Arc::new(Statistics::new(resource));
            keep(Arc::clone(&statistics));
            statistics
        })
    }

    /// Makes the facade over these devices, without a driver call and without an allocator.
    ///
    /// # Errors
    /// [`Error::HostMemory`](seamalloc::Error::HostMemory).
    pub fn open(self, devices: impl IntoIterator<Item = Arc<dyn Driver>>) -> Result<Facade> {
        let mut facade = Facade { places: Vec::new(), devices: Vec::new() };
        for driver in devices {
            let places = Places::new(driver, self.config.clone(), self.spread, self.around_each.clone());
            let bottom: Arc<dyn PrivatePools> = Arc::new(Device(Arc::clone(&places)));
            let device = self.around_all.iter().fold(bottom, |resource, wrap| wrap(resource));
            facade.places.try_push(places).map_err(ResourceError::from)?;
            facade.devices.try_push(device).map_err(ResourceError::from)?;
        }
        Ok(facade)
    }
}

impl fmt::Debug for FacadeBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FacadeBuilder")
            .field("config", &self.config)
            .field("spread", &self.spread)
            .finish_non_exhaustive()
    }
}
