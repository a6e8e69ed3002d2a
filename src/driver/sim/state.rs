//! All that changes on a simulated GPU, behind one lock.
//!
//! Owns: the parts of the device together, and what concerns all calls alike: failures that were asked for, a lost context,
//! statistics and faults. The rules of the parts are theirs.

use rustc_hash::FxHashMap;

use super::capture::Captures;
use super::faults::{Fault, Leaks};
use super::memory::Memory;
use super::peers::Peers;
use super::refusal::{Answer, refuse};
use super::streams::Timeline;
use crate::driver::{Call, CallStats, Exported, Handle, Status};

/// Faults kept in full; a program that is wrong at every step must not fill the memory with reports.
const FAULTS_KEPT: usize = 10_000;

/// A call that shall fail when it comes.
#[derive(Debug)]
struct Failure {
    call: Call,
    calls_left: u64,
    status: Status,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) memory: Memory,
    pub(super) timeline: Timeline,
    pub(super) captures: Captures,
    pub(super) peers: Peers,
    /// Of handles that were not released.
    pub(super) exported: FxHashMap<Handle, Exported>,
    failures: Vec<Failure>,
    /// What every call answers once the context is lost.
    pub(super) lost: Option<Status>,
    pub(super) stats: CallStats,
    pub(super) faults: Vec<Fault>,
}

impl State {
    /// The state of a device with so many bytes of memory and nothing on it.
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            memory: Memory::new(capacity),
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

    /// Keeps a fault.
    pub(super) fn report(&mut self, fault: Fault) {
        if self.faults.len() < FAULTS_KEPT {
            self.faults.push(fault);
        }
    }

    /// Makes the `nth` call of that kind from now fail.
    pub(super) fn fail_nth(&mut self, call: Call, nth: u64, status: Status) {
        self.failures.push(Failure { call, calls_left: nth.max(1), status });
    }

    /// Forgets the failures that have not come.
    pub(super) fn fail_no_more(&mut self) {
        self.failures.clear();
    }

    /// Refuses a call that was made to fail, and every call once the context is lost. Counts the others that are to fail.
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

    /// Returns what is held of the device now.
    pub(super) fn leaks(&self) -> Leaks {
        Leaks { events: self.timeline.events(), ..self.memory.leaks() }
    }
}
