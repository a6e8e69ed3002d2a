//! The state of a host device's memory and captures, behind one lock.
//!
//! Owns: this state, and the moving of memory to a file of its own. Work holds the lock for reading during a step, so
//! that no mapping changes meanwhile.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::addresses::Reserved;
use super::chunk::{Chunk, HostMemory};
use super::work::HostWork;
use crate::bookkeeping::{Answer, Captures, Fault, HostBuffers, refuse};
use seamalloc_driver::{Exported, Status, StreamId};

/// The most faults that are kept.
const FAULTS_KEPT: usize = 10_000;

#[derive(Debug)]
pub(super) struct State {
    pub(super) memory: HostMemory,
    pub(super) captures: Captures,
    /// Page-locked buffers.
    pub(super) buffers: HostBuffers<Vec<u8>>,
    /// For each capture under way, by the stream with which it was begun: its work, in order.
    pub(super) captured: FxHashMap<StreamId, Vec<Arc<HostWork>>>,
    /// The status of every call once the context is lost.
    pub(super) lost: Option<Status>,
    pub(super) faults: Vec<Fault>,
}

impl State {
    pub(super) fn new(capacity: u64, host_capacity: u64) -> Self {
        Self {
            memory: HostMemory::new(capacity, host_capacity),
            captures: Captures::default(),
            buffers: HostBuffers::new(),
            captured: FxHashMap::default(),
            lost: None,
            faults: Vec::new(),
        }
    }

    /// Records a fault.
    pub(super) fn report(&mut self, fault: Fault) {
        if self.faults.len() < FAULTS_KEPT {
            self.faults.push(fault);
        }
    }

    /// Refuses every call once the context is lost.
    pub(super) fn check_context(&self) -> Answer<()> {
        match self.lost {
            Some(status) => Err(refuse(status, "the context is lost".to_owned())),
            None => Ok(()),
        }
    }

    /// Returns the file that holds only the memory with this number. Memory without such a file gets one: its bytes
    /// move there, and all its addresses are mapped to the new file.
    pub(super) fn own_file(&mut self, number: u64) -> Answer<Exported> {
        let gone = || refuse(Status::INVALID_VALUE, format!("memory {number} is gone"));
        let (chunk, mapped) = self.memory.backing_mut(number).ok_or_else(gone)?;
        if let Some(file) = chunk.file() {
            return Ok(file.clone());
        }
        let own = chunk.in_own_file()?;
        let all_at = |chunk: &Chunk, count: usize| {
            mapped.iter().take(count).enumerate().try_for_each(|(done, &(address, size, access))| {
                let mapping = Reserved::known(address, size).map(chunk.part(), access);
                mapping.map_err(|refusal| (done, refusal))
            })
        };
        if let Err((done, refusal)) = all_at(&own, mapped.len()) {
            // The addresses get their old memory again. No work has changed its bytes meanwhile.
            all_at(chunk, done).map_err(|(_, refusal)| refusal)?;
            return Err(refusal);
        }
        *chunk = own;
        chunk.file().cloned().ok_or_else(gone)
    }
}
