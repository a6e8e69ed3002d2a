//! All mutable state of a simulated GPU, behind one lock.
//!
//! Owns: the parts of the device, and the state that concerns all calls: requested failures, a lost context, statistics
//! and faults. Each part has its own rules.

use rustc_hash::FxHashMap;

use super::addresses::AddressSpace;
use super::contents::Contents;
use super::copies::Copies;
use super::gate::Gate;
use super::memory_pools::Pools;
use super::peers::Peers;
use super::streams::Timeline;
use crate::bookkeeping::{Answer, Captures, Fault, Leaks, Memory, refuse};
use seamalloc_driver::{Call, CallStats, Handle, Status, WeakExported};

/// The most faults that are kept, so that a program with a fault in every step does not fill host memory with reports.
const FAULTS_KEPT: usize = 10_000;

/// A call that will fail.
#[derive(Debug)]
struct Failure {
    call: Call,
    calls_left: u64,
    status: Status,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) memory: Memory<()>,
    pub(super) addresses: AddressSpace,
    pub(super) contents: Contents,
    pub(super) copies: Copies,
    pub(super) gate: Gate,
    pub(super) pools: Pools,
    pub(super) timeline: Timeline,
    pub(super) captures: Captures,
    pub(super) peers: Peers,
    /// The exports of handles that were not released.
    pub(super) exported: FxHashMap<Handle, WeakExported>,
    failures: Vec<Failure>,
    /// The status of every call once the context is lost.
    pub(super) lost: Option<Status>,
    pub(super) stats: CallStats,
    pub(super) faults: Vec<Fault>,
}

impl State {
    /// Makes the state of a device with `capacity` bytes of memory. The device may use `host_capacity` bytes of host
    /// memory.
    pub(super) fn new(capacity: u64, host_capacity: u64) -> Self {
        Self {
            memory: Memory::new(capacity, host_capacity),
            addresses: AddressSpace::new(),
            contents: Contents::default(),
            copies: Copies::new(),
            gate: Gate::default(),
            pools: Pools::default(),
            timeline: Timeline::default(),
            captures: Captures::default(),
            peers: Peers::default(),
            exported: FxHashMap::default(),
            failures: Vec::new(),
            lost: None,
            stats: CallStats::default(),
            faults: Vec::new(),
        }
    }

    /// Makes pools give back the memory beyond their thresholds, after a wait of the CPU.
    pub(super) fn release_pools(&mut self) {
        self.pools.release(self.timeline.now(), &mut self.memory);
    }

    /// Records a fault.
    pub(super) fn report(&mut self, fault: Fault) {
        if self.faults.len() < FAULTS_KEPT {
            self.faults.push(fault);
        }
    }

    /// Makes the `nth` call of that kind from now fail.
    pub(super) fn fail_nth(&mut self, call: Call, nth: u64, status: Status) {
        self.failures.push(Failure { call, calls_left: nth.max(1), status });
    }

    /// Cancels the pending failures.
    pub(super) fn fail_no_more(&mut self) {
        self.failures.clear();
    }

    /// Refuses a call whose failure is due, and every call after the context is lost. Counts down the other failures.
    pub(super) fn failure(&mut self, call: Call) -> Answer<()> {
        if let Some(status) = self.lost {
            return Err(refuse(status, "the context is lost".to_owned()));
        }
        if self.failures.is_empty() {
            return Ok(());
        }
        let mut status = None;
        self.failures.retain_mut(|failure| {
            if failure.call != call {
                return true;
            }
            failure.calls_left = failure.calls_left.saturating_sub(1);
            if failure.calls_left == 0 {
                status.get_or_insert(failure.status);
            }
            failure.calls_left > 0
        });
        status.map_or(Ok(()), |status| Err(refuse(status, "made to fail".to_owned())))
    }

    /// Returns the resources that are held on the device at present.
    pub(super) fn leaks(&self) -> Leaks {
        let (pools, streams) = (self.pools.count(), self.pools.streams());
        let host_buffers = self.copies.buffers.count();
        Leaks { events: self.timeline.events(), pools, streams, host_buffers, ..self.memory.leaks() }
    }
}
