//! The input of a report.

use crate::config::{Config, Split, StrategyKind, StreamSharing};
use crate::driver::{DeviceProperties, MemoryInfo};
use crate::heap::{Heap, Request, ViewUsage};
use crate::limits::Limits;
use crate::report::lending::Lending;
use crate::strategy::{Estimates, Present};

/// The allocator's state right after the failed request.
pub(crate) struct ReportInput<'a> {
    pub(crate) heap: &'a Heap,
    /// The state of memory for estimates of growth, with the bytes that the driver could give and the limits allow; 0
    /// bytes if the driver did not report its free memory.
    pub(crate) present: Present<'a>,
    pub(crate) strategy: &'a dyn Estimates,
    /// The rule by which memory freed on one stream may serve another.
    pub(crate) sharing: StreamSharing,
    pub(crate) config: &'a Config,
    pub(crate) limits: Limits,
    pub(crate) properties: &'a DeviceProperties,
    /// The memory of the device; `None` if the driver did not report it.
    pub(crate) device: Option<MemoryInfo>,
    pub(crate) request: &'a Request,
    /// The name of the policy that chooses the memory to spill.
    pub(crate) spill_policy: &'static str,
    /// The value of the option `split` under which chunks could be split, if no chunk can be split now.
    pub(crate) split: Option<Split>,
    /// If the limits on views (their number, mappings and addresses) forbade a view: the usage that all views would
    /// have had together with that view.
    pub(crate) refused: Option<ViewUsage>,
    /// The strategy that the present strategy replaces, if any.
    pub(crate) instead_of: Option<StrategyKind>,
    /// The questions to other processes for memory, and their answers, if any were asked.
    pub(crate) lending: Option<Lending>,
    /// Whether the driver has refused addresses for the request.
    pub(crate) no_addresses: bool,
}
