//! The allocator and the state behind its lock.
//!
//! Owns: the state that the lock guards, how a step that calls the driver is run and timed, and how a refusal becomes
//! an error.

use crate::backing::{AllocatorContext, Exchanges, PendingRollback, Spill};
use crate::config::{self, Config, ConfigError, Split, StrategyKind, StreamSharing};
use crate::diagnose::ReportInput;
use crate::driver::{DeviceProperties, Driver, StreamId};
use crate::error::{Error, Result};
use crate::fallible::copy_of;
use crate::features::Features;
use crate::features::own_memory::OwnMemory;
use crate::features::pressure::Callbacks;
use crate::features::sleep::SleepCallbacks;
use crate::heap::{GRANULE, Heap, HeapRules, Request, ViewUsage};
use crate::limits::Limits;
use crate::report::observer::Action;
use crate::report::out_of_memory::OutOfMemoryReport;
use crate::span::Span;
use crate::strategy::{AnyStrategy, Present, Rules, Strategy, joins_free_memory};
use crate::streams::Streams;
use crate::units::format_bytes_exactly;
use parking_lot::Mutex;
use std::sync::Arc;

/// The log target of the warning that a device does not support the default strategy.
const FALLBACK: &str = "seamalloc::fallback";

/// A caching allocator for the memory of one device.
///
/// Addresses are device addresses (`CUdeviceptr`). Memory freed on a stream is handed out again on that stream in
/// stream order, without waiting for the GPU. If other streams use a block, name them with
/// [`Allocator::record_stream`].
///
/// ```
/// use seamalloc::{Allocator, Config, driver::{StreamId, sim::{SimConfig, SimGpu}}};
/// use std::sync::Arc;
///
/// let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=1GiB")?)?);
/// let allocator = Allocator::new(gpu, Config::default())?;
/// let address = allocator.allocate(10 << 20, StreamId::DEFAULT)?;
/// allocator.free(address)?;
/// assert_eq!(allocator.stats().reserved_bytes.all.current, 10 << 20);
/// allocator.empty_cache()?;
/// assert_eq!(allocator.stats().reserved_bytes.all.current, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Allocator {
    pub(super) core: Mutex<Core>,
    pub(super) driver: Arc<dyn Driver>,
    pub(super) callbacks: Callbacks,
    pub(super) sleep_callbacks: SleepCallbacks,
}

/// The state that the lock guards.
pub(super) struct Core {
    pub(super) heap: Heap,
    pub(super) streams: Streams,
    pub(super) rollback: PendingRollback,
    pub(super) driver: Arc<dyn Driver>,
    pub(super) config: Config,
    pub(super) rules: Rules,
    pub(super) limits: Limits,
    /// Whether a request must look at more than free blocks: frees that wait for other streams, routes to private
    /// pools, guard mode, or addresses whose memory is missing. A single flag keeps the hot path short; it may stay set
    /// for one request too many.
    pub(super) has_pre_work: bool,
    pub(super) strategy: AnyStrategy,
    pub(super) features: Features,
}

impl Allocator {
    /// Creates an allocator that holds no memory, without a driver call.
    ///
    /// # Errors
    /// [`Error::Config`] for options outside of their range (also a headroom as large as the device's memory), and for
    /// a strategy that is not in this build ([`ConfigError::WithoutBaselines`](crate::ConfigError::WithoutBaselines));
    /// [`Error::NoVirtualMemory`] and [`Error::Granularity`] if the device lacks a property that the strategy needs;
    /// [`Error::HostMemory`].
    pub fn new(driver: Arc<dyn Driver>, config: Config) -> Result<Self> {
        let properties = driver.properties();
        let (config, instead_of) = for_device(without_full_fraction(config.validated()?), properties);
        let kind = config.strategy;
        let strategy = AnyStrategy::new(kind)?;
        let needs_virtual_memory = kind.needs_virtual_memory() || config.guard.page;
        if needs_virtual_memory && !properties.virtual_memory {
            let needed_by = if kind.needs_virtual_memory() { kind.name() } else { "guard:page" };
            return Err(Error::NoVirtualMemory { strategy: needed_by, device: copy_of(&properties.name)? });
        }
        if kind.needs_memory_pools() && !properties.memory_pools {
            return Err(Error::NoMemoryPools { strategy: kind.name(), device: copy_of(&properties.name)? });
        }
        if config.headroom.kept_bytes() >= properties.total_memory {
            return Err(headroom_too_large(&config, properties).into());
        }
        if needs_virtual_memory && !GRANULE.is_multiple_of(properties.granularity) {
            let (device, granularity) = (copy_of(&properties.name)?, properties.granularity);
            return Err(Error::Granularity { device, granularity });
        }
        let config = heeded(config, properties);
        let heap = Heap::new(heap_rules(&config, &*strategy, properties))?;
        let rules = strategy.rules(&config);
        let features = Features::new(&config, &rules, instead_of);
        let core = Core {
            heap,
            streams: Streams::default(),
            rollback: PendingRollback::default(),
            driver: Arc::clone(&driver),
            rules,
            limits: Limits::new(&config, properties.total_memory),
            config,
            has_pre_work: features.have_work(),
            strategy,
            features,
        };
        Ok(Self {
            core: Mutex::new(core),
            driver,
            callbacks: Callbacks::default(),
            sleep_callbacks: SleepCallbacks::default(),
        })
    }

    /// Calls `run` with the tables, for tests that read or break the tables.
    #[cfg(test)]
    pub(crate) fn with_heap<T>(&self, run: impl FnOnce(&mut Heap) -> T) -> T {
        run(&mut self.core.lock().heap)
    }

    /// Returns the driver of the device on which the allocator allocates.
    #[must_use]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// Returns the options in force.
    #[must_use]
    pub fn config(&self) -> Config {
        self.core.lock().config.clone()
    }
}

impl Core {
    /// Runs a step that calls the driver, and counts its time as a stall. If the step failed and left live memory
    /// unmapped, mapping is tried once more: kernels may use the memory as soon as the operation is over.
    pub(super) fn timed<T>(&mut self, step: impl FnOnce(&mut AnyStrategy, &mut AllocatorContext<'_>) -> T) -> T {
        let before = self.driver.busy_ns();
        let (exchanges, budget) = (self.exchanges(), self.may_spill());
        let tables = (&mut self.heap, &mut self.streams, &mut self.rollback);
        let spill = budget.map(|budget| Spill { budget, policy: &*self.features.spill.policy });
        let rules = (&self.config, self.limits);
        let mut context = AllocatorContext::new(tables, &*self.driver, rules, exchanges, spill);
        let result = step(&mut self.strategy, &mut context);
        self.features.fallback.no_addresses |= context.has_no_addresses();
        self.features.fallback.no_splits |= context.has_no_splits();
        if !context.is_whole()
            && let Err(error) = context.retry_rollback()
        {
            tracing::error!(%error, "live memory is missing at its addresses until the next request");
        }
        self.has_pre_work |= !self.rollback.is_whole();
        if self.heap.has_split() && !self.rules.fit.is_by_granule() {
            self.rules.fit = self.rules.fit.by_granule();
            self.features.own_memory = OwnMemory::new(&self.config, &self.rules);
        }
        let spent = self.driver.busy_ns().saturating_sub(before);
        self.heap.journal_mut().stalled(spent);
        if spent > 0 {
            self.heap.journal_mut().note_time();
        }
        result
    }

    /// Returns how physical memory may be exchanged under live addresses. An exchange does not wait for work of other
    /// devices, so memory to which other devices have access is never exchanged.
    fn exchanges(&self) -> Exchanges {
        match self.config.split {
            // A split waits for the device, which the option `wait_ms` (a bound on waits) forbids.
            _ if self.config.wait_ms.is_some() || !self.nobody_else_looks() => Exchanges::Never,
            Split::Off => Exchanges::Never,
            Split::Ungated => Exchanges::Ungated,
            _ if self.driver.properties().stream_gates => Exchanges::Gated,
            _ => Exchanges::Never,
        }
    }

    /// Returns the value of the option `split` under which chunks could be split. Returns `None` if chunks can be split
    /// under the present value, or under no value.
    fn split_to_set(&self) -> Option<Split> {
        let gates = self.driver.properties().stream_gates;
        let (split, helps) = match self.config.split {
            Split::Ungated => return None,
            set if gates => (Split::LastResort, set == Split::Off && self.streams.known.may_be_held(&self.heap)),
            _ => (Split::Ungated, true),
        };
        (helps && self.config.wait_ms.is_none() && self.nobody_else_looks()).then_some(split)
    }

    /// Returns the present state of memory for estimates, if the device has `free` bytes free.
    pub(super) fn present(&self, free: u64) -> Present<'_> {
        let room = self.limits.room(self.heap.reserved(), free);
        let gate = || !self.features.fallback.no_splits && self.streams.known.may_be_held(&self.heap);
        let splits = match self.exchanges() {
            Exchanges::Never => false,
            Exchanges::Gated => gate(),
            Exchanges::Ungated => true,
        };
        Present { heap: &self.heap, config: &self.config, room, splits }
    }

    /// Returns how many bytes of live memory may be spilled, or `None` if memory is not spilled.
    pub(super) fn may_spill(&self) -> Option<u64> {
        self.config.spill.filter(|_| self.nobody_else_looks())
    }

    /// Returns whether no other device uses the memory and guard mode is off.
    pub(super) fn nobody_else_looks(&self) -> bool {
        self.features.sharing.peers.is_empty() && self.features.guard.is_none()
    }

    /// Returns whether a stream capture may be under way.
    pub(super) fn capturing(&self) -> bool {
        self.heap.private().capturing()
    }

    /// Changes the options, and everything derived from them.
    pub(super) fn set_config(&mut self, config: Config) {
        self.config = without_full_fraction(config);
        self.limits = Limits::new(&self.config, self.driver.properties().total_memory);
        self.rules = self.strategy.rules(&self.config);
        self.features.own_memory = OwnMemory::new(&self.config, &self.rules);
    }

    /// Returns the error for a request that was refused, with its report.
    #[cold]
    pub(super) fn out_of_memory(&mut self, request: &Request, refused: Option<ViewUsage>) -> Error {
        self.heap.journal_mut().refused();
        let device = self.driver.memory_info().ok();
        let free = device.map_or(0, |info| info.free);
        self.heap.journal_mut().note_time();
        self.heap.notify(Action::Oom, Span::new(free, request.size), request.pool);
        let lending = self.features.lending.told.take();
        let input = ReportInput {
            present: self.present(free),
            heap: &self.heap,
            strategy: self.strategy.estimates(),
            sharing: self.rules.sharing,
            config: &self.config,
            limits: self.limits,
            properties: self.driver.properties(),
            device,
            request,
            spill_policy: self.features.spill.policy.name(),
            split: self.split_to_set(),
            refused,
            instead_of: self.features.fallback.instead_of,
            lending,
            no_addresses: self.features.fallback.no_addresses,
        };
        match input.report().and_then(|report| Ok(OutOfMemoryReport::new(report)?)) {
            Ok(report) => {
                tracing::warn!(%report, "out of memory");
                Error::OutOfMemory(report)
            }
            Err(error) => {
                tracing::warn!(%error, size = request.size, "out of memory; there is no report");
                error
            }
        }
    }

    /// Replaces the strategy by `caching` if the program did not name the strategy, the driver has refused every range
    /// of addresses, and no memory lies in a range or depends on the strategy. Returns whether the strategy was
    /// replaced.
    pub(super) fn takes_plain_memory(&mut self) -> bool {
        let has_ranges = self.heap.home().is_some() || self.heap.views().iter().next().is_some();
        let depends = self.heap.private().has_apart() || !self.features.growing.is_empty();
        let is_named = self.config.insists_on_strategy() || !self.config.strategy.needs_virtual_memory();
        if !self.features.fallback.no_addresses || is_named || has_ranges || depends {
            return false;
        }
        let Ok(strategy) = AnyStrategy::new(StrategyKind::Caching) else { return false };
        let properties = self.driver.properties();
        self.features.fallback.instead_of = Some(self.config.strategy);
        let config = with_plain_memory(self.config.clone(), properties, "refuses addresses in every size");
        let config = heeded(config, properties);
        self.strategy = strategy;
        self.heap.set_rules(heap_rules(&config, &*self.strategy, properties));
        self.set_config(config);
        true
    }

    pub(super) fn check(&self) -> std::result::Result<(), String> {
        self.heap.check()?;
        self.strategy.check(&self.heap)
    }

    /// Checks every invariant after an operation, with the feature `paranoid` and in this crate's own tests.
    #[inline]
    pub(super) fn checked(&self) -> Result<()> {
        if cfg!(any(feature = "paranoid", test))
            && let Err(broken) = self.check()
        {
            tracing::error!(%broken, "an invariant is broken");
            return Err(Error::Internal("an invariant is broken; the log says which"));
        }
        Ok(())
    }

    /// Returns whether a block belongs to this stream.
    #[inline]
    pub(super) fn is_own_stream(&self, id: crate::ids::BlockId, stream: StreamId) -> bool {
        self.heap.pool(self.heap.block(id).pool.large()).stream == stream && !self.heap.has_no_stream(id)
    }
}

/// Returns the options with a strategy that the device supports, if the program named no strategy. Also returns the
/// strategy that was replaced, or `None`.
fn for_device(config: Config, device: &DeviceProperties) -> (Config, Option<StrategyKind>) {
    if device.virtual_memory || config.insists_on_strategy() || !config.strategy.needs_virtual_memory() {
        return (config, None);
    }
    let wanted = config.strategy;
    (with_plain_memory(config, device, "has no virtual memory management"), Some(wanted))
}

/// Returns the options with `caching` in the place of a strategy that needs virtual memory. Logs a warning with the
/// reason.
fn with_plain_memory(config: Config, device: &DeviceProperties, reason: &str) -> Config {
    let (wanted, strategy) = (config.strategy, StrategyKind::Caching);
    tracing::warn!(
        target: FALLBACK,
        "{} {reason}, which the strategy `{wanted}` needs: `{strategy}` takes its place, which joins no free memory. Name \
         `strategy:{strategy}` to say that this is meant",
        device.name
    );
    Config { strategy, ..config }
}

/// Returns the options without a spill budget that has no effect. Logs a warning for each option without effect.
fn heeded(config: Config, device: &DeviceProperties) -> Config {
    config::tell_without_effect(&config, device);
    let spills = config::has_effect("spill", &config, device);
    Config { spill: config.spill.filter(|_| spills), ..config }
}

/// Returns the rules of a heap under these options.
fn heap_rules(config: &Config, strategy: &dyn Strategy, device: &DeviceProperties) -> HeapRules {
    HeapRules {
        oversize_from: config.max_split_size.unwrap_or(u64::MAX),
        adopts_idle: config.sharing != StreamSharing::Completed,
        home_is_shared: joins_free_memory(config.strategy),
        layout: strategy.layout(config, device.total_memory),
        flight: config.flight_recorder,
        ages: config.spill.is_some(),
    }
}

/// Returns the error for a headroom that is as large as the device's memory.
fn headroom_too_large(config: &Config, device: &DeviceProperties) -> ConfigError {
    ConfigError::BadValue {
        option: "headroom".to_owned(),
        found: format_bytes_exactly(config.headroom.bytes),
        expected: format!("less than all memory of {}, {}", device.name, format_bytes_exactly(device.total_memory)),
    }
}

/// Returns the options without a memory fraction of 1. As in PyTorch, such a fraction is no limit: memory is not
/// compared with the device's size, and no garbage is collected.
fn without_full_fraction(config: Config) -> Config {
    Config { memory_fraction: config.memory_fraction.filter(|fraction| *fraction < 1.0), ..config }
}
