//! Training under a memory budget. If an activation does not fit, the runtime evicts the activation that is cheapest to
//! recompute for its size and age. The runtime recomputes evicted activations, recursively, when they are next read.
//!
//! Owns: the eviction and the rematerialisation, after Kirisame et al., Dynamic Tensor Rematerialization, ICLR 2021
//! (heuristic `h_DTR-local`: cost / (size * staleness)). The workload is included because such a runtime frees and
//! allocates in an order that follows no stack and no layer.

use super::{
    error::GenerateError,
    models::Model,
    step,
    tape::{Block, Dice, Tape},
};

/// A job under a budget.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rematerialisation {
    pub(super) model: &'static Model,
    /// The most bytes of activations and gradients that may be live together.
    pub(super) budget: u64,
    pub(super) batch: u64,
    /// Shortest and longest sequence, in tokens.
    pub(super) lengths: (u64, u64),
    pub(super) graph: Graph,
}

/// The tensors to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Graph {
    /// The model's blocks, one after the other.
    Chain,
    /// A random binary tree over a sentence's words, with another shape in every step, as in a TreeLSTM.
    Tree,
}

/// A tensor that can be recomputed.
#[derive(Debug)]
struct Tensor {
    size: u64,
    /// The cost of the tensor's operation, in bytes moved or an equivalent.
    cost: u64,
    parents: Vec<usize>,
    block: Option<Block>,
    read_at: u64,
    /// The number of operations that read the tensor at present, so that it must stay.
    pins: u32,
}

struct Runtime<'a> {
    tape: &'a mut Tape,
    tensors: Vec<Tensor>,
    /// Indices of tensors that hold a block.
    resident: Vec<usize>,
    clock: u64,
    /// The live bytes that the budget allows, including those of the weights.
    ceiling: u64,
}

impl Rematerialisation {
    pub(super) fn run(&self, tape: &mut Tape, dice: &mut Dice, steps: u32) -> Result<(), GenerateError> {
        let shape = self.model.transformer()?;
        let row = shape.hidden * self.model.dtype_bytes;
        let wide = shape.ffn * self.model.dtype_bytes;
        // The job allocates weights and both optimizer states.
        for _ in 0..3 {
            step::weights(tape, self.model, 1);
        }
        step::library_workspace(tape);
        let ceiling = tape.live() + self.budget;
        for _ in 0..steps {
            if tape.is_full() {
                break;
            }
            let tokens = self.batch * dice.between(self.lengths.0, self.lengths.1);
            let mut runtime =
                Runtime { tape: &mut *tape, tensors: Vec::new(), resident: Vec::new(), clock: 0, ceiling };
            match self.graph {
                Graph::Chain => runtime.chain(shape.layers, tokens * row, tokens * wide),
                Graph::Tree => runtime.tree(tokens / self.batch.max(1) / 4, self.batch * row, dice),
            }
            runtime.backward();
        }
        Ok(())
    }
}

impl Runtime<'_> {
    fn chain(&mut self, layers: u64, row: u64, wide: u64) {
        // A product of two matrices does far more work for each byte than a norm.
        const PRODUCT: u64 = 40;
        let mut state = self.compute(row, row, Vec::new());
        for _ in 0..layers {
            let normed = self.compute(row, row, vec![state]);
            let projected = self.compute(3 * row, 3 * row * PRODUCT, vec![normed]);
            let attended = self.compute(row, row * PRODUCT, vec![projected]);
            let mixed = self.compute(row, row * PRODUCT, vec![attended]);
            let middle = self.compute(row, row, vec![state, mixed]);
            let normed = self.compute(row, row, vec![middle]);
            let inner = self.compute(wide, wide * PRODUCT, vec![normed]);
            let active = self.compute(wide, wide, vec![inner]);
            let down = self.compute(row, wide * PRODUCT, vec![active]);
            state = self.compute(row, row, vec![middle, down]);
        }
    }

    fn tree(&mut self, words: u64, row: u64, dice: &mut Dice) {
        // A node has four gates and a state. Nodes for longer spans of words are larger.
        let leaves = words.clamp(2, 400);
        let mut roots: Vec<(usize, u64)> = (0..leaves).map(|_| (self.compute(row, row, Vec::new()), 1)).collect();
        while roots.len() > 1 {
            let last = roots.len() as u64 - 1;
            let (left, left_span) = roots.swap_remove(dice.between(0, last) as usize);
            let (right, right_span) = roots.swap_remove(dice.between(0, last - 1) as usize);
            let span = left_span + right_span;
            let size = row * span.min(16);
            let gates = self.compute(4 * size, 40 * size, vec![left, right]);
            roots.push((self.compute(size, size, vec![gates]), span));
        }
    }

    /// Runs an operation for the first time.
    fn compute(&mut self, size: u64, cost: u64, parents: Vec<usize>) -> usize {
        let index = self.tensors.len();
        self.tensors.push(Tensor { size, cost, parents, block: None, read_at: 0, pins: 0 });
        self.read(index);
        self.tensors[index].pins -= 1;
        index
    }

    /// Makes the tensor resident, after its parents, and protects it from eviction.
    fn read(&mut self, index: usize) {
        self.clock += 1;
        if self.tensors[index].block.is_none() {
            let parents = self.tensors[index].parents.clone();
            for parent in &parents {
                self.read(*parent);
            }
            let block = self.alloc(self.tensors[index].size);
            self.tensors[index].block = Some(block);
            self.resident.push(index);
            for parent in &parents {
                self.tensors[*parent].pins -= 1;
            }
        }
        let tensor = &mut self.tensors[index];
        tensor.read_at = self.clock;
        tensor.pins += 1;
    }

    /// Allocates after evicting as the budget requires. If operations read all tensors at present, the budget is
    /// exceeded.
    fn alloc(&mut self, size: u64) -> Block {
        while self.tape.live() + size > self.ceiling && self.evict() {}
        self.tape.alloc(size)
    }

    /// Frees the tensor with the least cost for its size and staleness. Returns `false` if operations read all tensors
    /// at present.
    fn evict(&mut self) -> bool {
        let mut best: Option<(usize, u128, u128)> = None;
        for (place, index) in self.resident.iter().enumerate() {
            let tensor = &self.tensors[*index];
            if tensor.pins > 0 {
                continue;
            }
            let weight = u128::from(tensor.size) * u128::from(self.clock - tensor.read_at + 1);
            let cost = u128::from(tensor.cost);
            // Fractions are compared crosswise without rounding, so the choice is the same on every machine.
            if best.is_none_or(|(_, least, over)| cost * over < least * weight) {
                best = Some((place, cost, weight));
            }
        }
        let Some((place, ..)) = best else { return false };
        let index = self.resident.swap_remove(place);
        self.release(index);
        true
    }

    fn release(&mut self, index: usize) {
        if let Some(block) = self.tensors[index].block.take() {
            self.tape.free(block);
        }
    }

    /// Runs backward: for each operation, reads the inputs, makes a gradient, and frees the operation's output
    /// permanently.
    fn backward(&mut self) {
        let Some(last) = self.tensors.last() else { return };
        let mut gradient = self.alloc(last.size);
        for index in (0..self.tensors.len()).rev() {
            let parents = self.tensors[index].parents.clone();
            for parent in &parents {
                self.read(*parent);
            }
            for parent in &parents {
                let made = self.alloc(self.tensors[*parent].size);
                self.tape.free(std::mem::replace(&mut gradient, made));
            }
            for parent in &parents {
                self.tensors[*parent].pins -= 1;
            }
            self.resident.retain(|held| *held != index);
            self.release(index);
        }
        self.tape.free(gradient);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::models::OPT_1_3B, *};

    fn run(budget: u64, graph: Graph) -> (usize, u64) {
        let plan = Rematerialisation { model: &OPT_1_3B, budget, batch: 8, lengths: (500, 500), graph };
        let mut tape = Tape::new(0);
        plan.run(&mut tape, &mut Dice::new(1), 1).unwrap();
        let trace = tape.finish().unwrap();
        let peak = trace.summary().peak_active;
        (trace.events.len(), peak)
    }

    #[test]
    fn a_smaller_budget_computes_more_and_holds_less() {
        let weights: u64 = 3 * OPT_1_3B.tensors().iter().map(|t| t.bytes).sum::<u64>() + (32 << 20);
        for graph in [Graph::Chain, Graph::Tree] {
            let (free_events, free_peak) = run(1 << 40, graph);
            let budget = (free_peak - weights) / 3;
            let (events, peak) = run(budget, graph);
            assert!(events > free_events, "{graph:?}");
            assert!(peak <= weights + budget, "{graph:?}: {peak} over {weights} + {budget}");
        }
    }

    #[test]
    fn a_budget_of_nothing_still_ends() {
        assert!(run(0, Graph::Chain).0 > 0);
    }
}
