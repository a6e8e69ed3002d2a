//! What a report is made from.

use crate::config::{Config, Limits};
use crate::driver::{DeviceProperties, MemoryInfo};
use crate::heap::{Heap, Request, ViewUsage};
use crate::strategy::Strategy;

/// The allocator's state right after the failed request.
pub(crate) struct ReportInput<'a> {
    pub(crate) heap: &'a Heap,
    pub(crate) strategy: &'a dyn Strategy,
    pub(crate) config: &'a Config,
    pub(crate) limits: Limits,
    pub(crate) properties: &'a DeviceProperties,
    /// `None` where the driver did not say.
    pub(crate) device: Option<MemoryInfo>,
    pub(crate) request: &'a Request,
    /// What views would have taken with the one that the bounds forbade.
    pub(crate) refused: Option<ViewUsage>,
}
