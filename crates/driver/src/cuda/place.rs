//! The place of the memory of an opened device: on the GPU, or page-locked in the machine.
//!
//! Owns: how each place is described to the driver.

use super::ffi::{CUdevice, MemAccessDesc, MemAllocationProp, MemLocation};
use std::ffi::c_int;

/// The place of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The memory is on the GPU. The flags say whether the device supports access by network cards, and export to other
    /// processes.
    Device { direct_rdma: bool, exportable: bool },
    /// The memory is on a NUMA node of the machine.
    Node(c_int),
}

impl Place {
    /// Returns the description of memory to create.
    pub(super) fn prop(self, device: CUdevice) -> MemAllocationProp {
        match self {
            Self::Device { direct_rdma, exportable } => MemAllocationProp::on_device(device, direct_rdma, exportable),
            Self::Node(node) => MemAllocationProp::on_node(node),
        }
    }

    /// Returns which devices may use the memory.
    pub(super) fn access(self, device: CUdevice) -> Vec<MemAccessDesc> {
        let mut list = vec![MemAccessDesc::read_write(MemLocation::device(device))];
        if let Self::Node(node) = self {
            list.push(MemAccessDesc::read_write(MemLocation::node(node)));
        }
        list
    }

    pub(super) fn is_on_device(self) -> bool {
        matches!(self, Self::Device { .. })
    }
}
