//! Runs a program under a budget. If the memory refuses a request, tensors are evicted; an evicted tensor is recomputed
//! when it is read.
//!
//! The order of actions is that of `RuntimeV2EagerOptimized` in `simrd/simrd/runtime/v2.py` of uwsampl/dtr-prototype.
//! An operator's inputs are locked while it runs, and evicted inputs are recomputed before it, depth first. An operator
//! that runs again makes all of its outputs again. If the tensor of such an output is still in memory, the new output
//! is a duplicate, which is dropped after the operator. Tensors that the program releases leave memory immediately, and
//! can be recomputed for other tensors. Two rules differ from simrd's. The memory itself refuses requests, also because
//! of fragmentation, and each output is a separate request. An operator that overwrites an input takes the input's
//! memory if the scheme asks for this.

use crate::graph::{Graph, OperatorId, Step, StorageId, TensorId};
use crate::memory::{End, Memory};
use crate::scheme::{Ask, Scheme};
use crate::state::State;
use std::cell::Cell;

/// A run that takes longer than this many times the program's own cost counts as thrashing, and is ended.
pub const MAX_OVERHEAD: u64 = 10;

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The reason why the run ended early; `None` if the run reached its end.
    pub failure: Option<Stop>,
    /// Time of all operators that ran.
    pub time: u64,
    /// The number of operators run, repetitions included.
    pub operators_run: u64,
    /// The number of evictions to make room.
    pub evictions: u64,
    /// Bytes freed by these evictions.
    pub evicted_bytes: u64,
    /// Operators that were run again.
    pub rematerialisations: u64,
    /// The number of refused requests, retries included.
    pub refusals: u64,
    /// The number of refusals, out of `refusals`, at which enough bytes were unused but could not be joined.
    pub fragmented_refusals: u64,
    /// The sum of the unused bytes over the refusals of `fragmented_refusals`.
    pub unusable_bytes: u64,
    /// Tensors, and pieces of memory (free or in use), that eviction schemes examined.
    pub searched: u64,
    /// Outputs that took an input's memory.
    pub in_place: u64,
    /// The most bytes of tensors in memory.
    pub peak_live: u64,
}

/// The reason why a run ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// No tensor was left to evict.
    OutOfMemory {
        /// The requested bytes.
        bytes: u64,
        /// The bytes that belonged to no block.
        unused: u64,
    },
    /// Recomputations repeated the same tensors over and over.
    Thrashing,
}

/// The error of a run without an outcome.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The allocator failed for another reason than a refusal.
    #[error(transparent)]
    Allocator(#[from] seamalloc::Error),
    /// An operator ran on other contents of its inputs than the first time, or the scheme chose a tensor that cannot be
    /// evicted. Please report this error.
    #[error("internal error in seamalloc-evict: {0}")]
    Internal(&'static str),
}

/// The reason that ends a step.
enum Halt {
    Stop(Stop),
    Error(RunError),
}

impl From<seamalloc::Error> for Halt {
    fn from(error: seamalloc::Error) -> Self {
        Self::Error(error.into())
    }
}

const fn internal(what: &'static str) -> Halt {
    Halt::Error(RunError::Internal(what))
}

/// Runs a program. A hash of each tensor's inputs tracks its contents.
///
/// # Errors
/// [`RunError`]. Running out of memory is no error but an [`Outcome`].
pub fn run(graph: &Graph, memory: &mut dyn Memory, scheme: &mut dyn Scheme) -> Result<Outcome, RunError> {
    let mut runtime = Runtime {
        graph,
        state: State::new(graph),
        memory,
        scheme,
        outcome: Outcome::default(),
        contents: vec![0; graph.tensors().len()],
        expected: vec![None; graph.tensors().len()],
        live: 0,
        most_time: graph.cost().saturating_mul(MAX_OVERHEAD),
    };
    for at in 0..graph.steps().len() {
        match runtime.step(at) {
            Ok(()) => {}
            Err(Halt::Stop(stop)) => {
                runtime.outcome.failure = Some(stop);
                break;
            }
            Err(Halt::Error(error)) => return Err(error),
        }
    }
    runtime.outcome.time = runtime.state.clock;
    Ok(runtime.outcome)
}

struct Runtime<'a> {
    graph: &'a Graph,
    state: State<'a>,
    memory: &'a mut dyn Memory,
    scheme: &'a mut dyn Scheme,
    outcome: Outcome,
    /// The hash of each tensor's inputs, while its contents are in memory (`defined`).
    contents: Vec<u64>,
    /// The hash of each tensor when it was first made.
    expected: Vec<Option<u64>>,
    live: u64,
    most_time: u64,
}

/// An operator that is about to run, and the inputs that it locked so far.
struct Frame {
    operator: OperatorId,
    /// The inputs in the order in which they are locked: first those in memory, then the evicted ones.
    inputs: Vec<TensorId>,
    locked: usize,
    is_first: bool,
}

impl Runtime<'_> {
    /// Tells the eviction scheme of storages that get new neighbours, because an operator makes a view.
    fn link(&mut self, operator: OperatorId) {
        let operator = self.graph.operator(operator);
        if operator.outputs.iter().any(|output| self.graph.tensor(*output).is_alias) {
            for input in &operator.inputs {
                self.scheme.linked(&self.state, self.graph.storage_of(*input));
            }
        }
    }

    fn step(&mut self, at: usize) -> Result<(), Halt> {
        match self.graph.steps()[at] {
            Step::Run(operator) => {
                self.state.ran = operator.0 + 1;
                self.link(operator);
                self.run_operator(operator, true, at)
            }
            Step::Keep(tensor) => {
                self.state.held[self.graph.storage_of(tensor).index()].refs += 1;
                Ok(())
            }
            Step::Release(tensor) => self.release(tensor),
            Step::Pin(tensor) => self.pin(tensor, at),
        }
    }

    fn release(&mut self, tensor: TensorId) -> Result<(), Halt> {
        let storage = self.graph.storage_of(tensor);
        let held = &mut self.state.held[storage.index()];
        held.refs = held.refs.saturating_sub(1);
        if held.refs == 0 && !held.is_pinned && held.address.is_some() {
            self.drop_storage(storage)?;
        }
        Ok(())
    }

    fn pin(&mut self, tensor: TensorId, at: usize) -> Result<(), Halt> {
        if !self.state.defined[tensor.index()] {
            self.run_operator(self.graph.tensor(tensor).maker, false, at)?;
        }
        let storage = self.graph.storage_of(tensor);
        self.state.held[storage.index()].is_pinned = true;
        self.state.update_evictable(storage);
        Ok(())
    }

    /// Runs an operator, and before it the operators of its evicted inputs, with an explicit stack instead of
    /// recursion.
    fn run_operator(&mut self, operator: OperatorId, is_first: bool, step: usize) -> Result<(), Halt> {
        let mut stack = vec![self.frame(operator, is_first)];
        while let Some(frame) = stack.last_mut() {
            let Some(input) = frame.inputs.get(frame.locked).copied() else {
                let Some(frame) = stack.pop() else { break };
                self.compute(&frame, step)?;
                self.unlock(&frame.inputs);
                continue;
            };
            if self.state.defined[input.index()] {
                self.lock(input);
                frame.locked += 1;
            } else {
                let maker = self.graph.tensor(input).maker;
                let next = self.frame(maker, false);
                stack.push(next);
            }
        }
        if is_first {
            // Later operators use the outputs just made, so the outputs count as accessed.
            for output in &self.graph.operator(operator).outputs {
                self.state.held[self.graph.storage_of(*output).index()].last_access = self.state.clock;
            }
        }
        Ok(())
    }

    /// Notes the reads of an operator, and locks the inputs that are in memory.
    fn frame(&mut self, operator: OperatorId, is_first: bool) -> Frame {
        let mut inputs = self.graph.operator(operator).inputs.clone();
        for input in &inputs {
            self.state.held[self.graph.storage_of(*input).index()].last_access = self.state.clock;
        }
        // The sort is stable: inputs in memory keep their order, and so do evicted inputs.
        inputs.sort_by_key(|input| !self.state.defined[input.index()]);
        let locked = inputs.iter().take_while(|input| self.state.defined[input.index()]).count();
        for input in &inputs[..locked] {
            self.lock(*input);
        }
        Frame { operator, inputs, locked, is_first }
    }

    fn lock(&mut self, tensor: TensorId) {
        let storage = self.graph.storage_of(tensor);
        self.state.held[storage.index()].locks += 1;
        self.state.update_evictable(storage);
    }

    fn unlock(&mut self, tensors: &[TensorId]) {
        for tensor in tensors {
            let storage = self.graph.storage_of(*tensor);
            let held = &mut self.state.held[storage.index()];
            held.locks = held.locks.saturating_sub(1);
            self.state.update_evictable(storage);
        }
    }

    /// Runs an operator whose inputs are all in memory.
    fn compute(&mut self, frame: &Frame, step: usize) -> Result<(), Halt> {
        let operator = self.graph.operator(frame.operator);
        let end = if operator.is_dear() || operator.is_constant() { End::Dear } else { End::Cheap };
        let read = self.contents_of(&operator.inputs)?;
        let mut doubles = Vec::new();
        let mut made = Vec::new();
        for (place, output) in operator.outputs.iter().enumerate() {
            let tensor = self.graph.tensor(*output);
            let bytes = self.graph.storages()[tensor.storage.index()].bytes;
            if tensor.is_alias || bytes == 0 {
                continue;
            }
            if self.state.held[tensor.storage.index()].address.is_some() {
                // All outputs are computed, including outputs whose tensors are still in memory. These duplicates are
                // dropped.
                doubles.push((self.allocate(bytes, end)?, bytes));
                self.note_live(bytes);
                continue;
            }
            let address = match self.take_over(frame, place, step) {
                Some(address) => address,
                None => self.allocate(bytes, end)?,
            };
            self.note_live(bytes);
            let held = &mut self.state.held[tensor.storage.index()];
            held.address = Some(address);
            held.last_access = self.state.clock;
            // An output is locked until all outputs are in memory.
            held.locks += 1;
            made.push(*output);
            self.scheme.made(&self.state, tensor.storage);
        }
        self.advance(frame)?;
        for (place, output) in operator.outputs.iter().enumerate() {
            self.define(*output, mix(read, frame.operator, place), frame.is_first)?;
        }
        if frame.is_first {
            self.note_first(frame.operator);
        }
        for (address, bytes) in doubles {
            self.memory.free(address)?;
            self.live -= bytes;
        }
        self.unlock(&made);
        Ok(())
    }

    fn advance(&mut self, frame: &Frame) -> Result<(), Halt> {
        self.state.clock += self.graph.operator(frame.operator).cost;
        self.outcome.operators_run += 1;
        if !frame.is_first {
            self.outcome.rematerialisations += 1;
            if self.state.clock > self.most_time {
                return Err(Halt::Stop(Stop::Thrashing));
            }
        }
        Ok(())
    }

    fn define(&mut self, tensor: TensorId, contents: u64, is_first: bool) -> Result<(), Halt> {
        let storage = self.graph.storage_of(tensor);
        let was_defined = std::mem::replace(&mut self.state.defined[tensor.index()], true);
        if !was_defined {
            self.contents[tensor.index()] = contents;
        }
        match self.expected[tensor.index()] {
            None => self.expected[tensor.index()] = Some(contents),
            Some(expected) if expected != contents => return Err(internal("a tensor was made of other contents")),
            Some(_) => {}
        }
        if !is_first && !was_defined && !self.graph.tensor(tensor).is_alias {
            self.state.held[storage.index()].remade += 1;
        }
        Ok(())
    }

    /// Adds the effects of an operator's first run: its time counts as a cost of its storages, and the program holds
    /// its outputs.
    fn note_first(&mut self, operator: OperatorId) {
        let (cost, outputs) = (self.graph.operator(operator).cost, &self.graph.operator(operator).outputs);
        let mut seen: Vec<StorageId> = Vec::with_capacity(outputs.len());
        for output in outputs {
            let storage = self.graph.storage_of(*output);
            let held = &mut self.state.held[storage.index()];
            held.refs += 1;
            held.is_made = true;
            if !seen.contains(&storage) {
                held.cost += cost;
                seen.push(storage);
            }
        }
    }

    /// Returns a hash of the tensors that an operator reads.
    fn contents_of(&self, inputs: &[TensorId]) -> Result<u64, Halt> {
        let mut hash = 0;
        for input in inputs {
            if !self.state.defined[input.index()] {
                return Err(internal("an operator ran without an input"));
            }
            hash = spread(hash ^ self.contents[input.index()]);
        }
        Ok(hash)
    }

    fn allocate(&mut self, bytes: u64, end: End) -> Result<u64, Halt> {
        loop {
            if let Some(address) = self.memory.allocate(bytes, end)? {
                return Ok(address);
            }
            let (unused, rounded) = (self.memory.unused(), self.memory.rounded(bytes));
            self.outcome.refusals += 1;
            if unused >= rounded {
                self.outcome.fragmented_refusals += 1;
                self.outcome.unusable_bytes += unused;
            }
            let searched = Cell::new(0);
            let ask = Ask { state: &self.state, memory: &*self.memory, bytes: rounded, searched: &searched };
            let chosen = self.scheme.choose(&ask);
            self.outcome.searched += searched.get();
            if chosen.is_empty() {
                return Err(Halt::Stop(Stop::OutOfMemory { bytes, unused }));
            }
            for storage in chosen {
                if !self.state.is_evictable(storage) {
                    return Err(internal("a scheme chose what cannot be evicted"));
                }
                self.outcome.evictions += 1;
                self.outcome.evicted_bytes += self.state.bytes(storage);
                self.drop_storage(storage)?;
            }
        }
    }

    /// Frees the memory of a storage.
    fn drop_storage(&mut self, storage: StorageId) -> Result<(), Halt> {
        let Some(address) = self.leave(storage) else { return Ok(()) };
        self.memory.free(address)?;
        self.scheme.evicted(&self.state, storage);
        Ok(())
    }

    /// Marks a storage as not in memory. Returns its address.
    fn leave(&mut self, storage: StorageId) -> Option<u64> {
        let address = self.state.held[storage.index()].address.take()?;
        self.live -= self.state.bytes(storage);
        for tensor in &self.graph.storages()[storage.index()].tensors {
            self.state.defined[tensor.index()] = false;
        }
        self.state.update_evictable(storage);
        Some(address)
    }

    fn note_live(&mut self, bytes: u64) {
        self.live += bytes;
        self.outcome.peak_live = self.outcome.peak_live.max(self.live);
    }

    /// Returns the address of the input that this output overwrites. Returns `None` unless no other reference to the
    /// input remains, the program releases the input after the operator, and the input can be recomputed.
    fn take_over(&mut self, frame: &Frame, place: usize, step: usize) -> Option<u64> {
        if !self.scheme.works_in_place() {
            return None;
        }
        let operator = self.graph.operator(frame.operator);
        let (input, _) = *operator.in_place.iter().find(|(_, output)| *output == place)?;
        let storage = self.graph.storage_of(operator.inputs[input]);
        let locks = operator.inputs.iter().filter(|input| self.graph.storage_of(**input) == storage).count();
        let behind = self.graph.steps()[step + 1..].iter().take_while(|step| matches!(step, Step::Release(_)));
        let released = behind
            .filter(|step| matches!(step, Step::Release(tensor) if self.graph.storage_of(*tensor) == storage))
            .count();
        let held = &self.state.held[storage.index()];
        let is_last = held.locks as usize == locks && held.refs as usize == if frame.is_first { released } else { 0 };
        if !is_last || held.is_pinned || self.graph.storages()[storage.index()].is_constant {
            return None;
        }
        let address = self.leave(storage)?;
        self.scheme.evicted(&self.state, storage);
        self.outcome.in_place += 1;
        Some(address)
    }
}

/// Returns the hash of an output, from the hash of the inputs.
fn mix(read: u64, operator: OperatorId, place: usize) -> u64 {
    spread(read ^ spread((u64::from(operator.0) << 20) ^ place as u64 ^ 0x9e37_79b9_7f4a_7c15))
}

/// Returns a number with its bits spread (the finalizer of SplitMix64).
const fn spread(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
