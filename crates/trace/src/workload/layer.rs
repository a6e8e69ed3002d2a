//! Runs the operations of a recipe (`recipe.rs`): a block's forward pass, with or without autograd keeping tensors, and
//! its backward pass.
//!
//! Owns: the lifetimes of activations and of their gradients inside one block. Other files define models and training
//! strategies.

use super::{
    recipe::{Backward, Op, Rows},
    tape::{Block, Tape},
};

/// The numbers of rows in one run of a block.
#[derive(Clone, Debug, Default)]
pub(super) struct RowCounts {
    /// The number of tokens in the batch.
    pub(super) tokens: u64,
    /// The number of tokens routed to each expert.
    pub(super) experts: Vec<u64>,
}

impl RowCounts {
    pub(super) fn dense(tokens: u64) -> Self {
        Self { tokens, experts: Vec::new() }
    }

    fn of(&self, rows: Rows) -> u64 {
        match rows {
            Rows::Tokens => self.tokens,
            Rows::Expert(expert) => self.experts.get(expert).copied().unwrap_or(0),
        }
    }

    fn bytes(&self, op: &Op) -> u64 {
        self.of(op.rows) * op.row + op.fixed
    }

    /// Returns whether an operation is skipped, since an expert without tokens launches no kernel.
    fn skips(&self, op: &Op) -> bool {
        op.row > 0 && self.of(op.rows) == 0
    }
}

/// The place of the tensors that autograd keeps from one run of a block.
#[derive(Debug)]
pub(super) enum Saved {
    /// On the device, with an entry for each operation.
    Device(Vec<Option<Block>>),
    /// On the host. Each tensor is copied back just before its operation's backward.
    Host,
}

/// The operations of one block of the network, and the rows of one run of the block.
#[derive(Clone, Copy)]
pub(super) struct Layer<'a> {
    pub(super) ops: &'a [Op],
    pub(super) rows: &'a RowCounts,
}

impl Layer<'_> {
    /// Runs forward. Returns the block's output, and with `keep` the tensors that autograd needs.
    pub(super) fn forward(self, tape: &mut Tape, keep: bool) -> (Block, Saved) {
        let mut saved: Vec<Option<Block>> = Vec::new();
        let mut waiting: Vec<(usize, Block)> = Vec::new();
        let mut output = None;
        let last = self.ops.len().saturating_sub(1);
        for (index, op) in self.ops.iter().enumerate() {
            let mut kept = None;
            if !self.rows.skips(op) {
                let block = tape.alloc(self.rows.bytes(op));
                if index == last {
                    output = Some(block);
                } else if keep && op.saved {
                    kept = Some(block);
                } else {
                    waiting.push((index.saturating_add(op.uses), block));
                }
            }
            if keep {
                saved.push(kept);
            }
            free_due(tape, &mut waiting, index);
        }
        tape.free_all(waiting.into_iter().map(|(_, block)| block));
        (output.unwrap_or_else(|| tape.alloc(1)), Saved::Device(saved))
    }

    /// Runs backward from the gradient of the output. Frees all saved tensors, appends the gradients of the weights to
    /// `gradients`, and returns the gradient of the block's input.
    pub(super) fn backward(
        self,
        tape: &mut Tape,
        mut saved: Saved,
        upstream: Block,
        gradients: &mut WeightGradients,
    ) -> Block {
        let mut pass = Pass {
            tape,
            rows: self.rows,
            flowing: None,
            residual: upstream,
            branches: Vec::new(),
            shared: None,
            beside: None,
            gradients,
        };
        for (index, op) in self.ops.iter().enumerate().rev() {
            if self.rows.skips(op) {
                continue;
            }
            let kept = match &mut saved {
                Saved::Device(blocks) => blocks.get_mut(index).and_then(Option::take),
                Saved::Host => op.saved.then(|| pass.tape.alloc(self.rows.bytes(op))),
            };
            pass.step(op);
            if let Some(block) = kept {
                pass.tape.free(block);
            }
        }
        let Pass { flowing, residual, branches, shared, beside, .. } = pass;
        tape.free_all(flowing.into_iter().chain(branches).chain(shared).chain(beside));
        residual
    }
}

fn free_due(tape: &mut Tape, waiting: &mut Vec<(usize, Block)>, index: usize) {
    let mut next = 0;
    while let Some((due, _)) = waiting.get(next) {
        if *due <= index {
            let (_, block) = waiting.remove(next);
            tape.free(block);
        } else {
            next += 1;
        }
    }
}

/// The weights of a block that get gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trains {
    /// All weights.
    All,
    /// The weights of the adapters. All others are frozen.
    Adapters,
}

/// The gradients of weights, in the order in which they were made.
#[derive(Debug)]
pub(super) struct WeightGradients {
    /// The weights that get a gradient.
    pub(super) trains: Trains,
    pub(super) blocks: Vec<Block>,
}

impl WeightGradients {
    pub(super) fn of(trains: Trains) -> Self {
        Self { trains, blocks: Vec::new() }
    }
}

/// The limit on the partial sums of a bias gradient: 1 MiB for each of an H200's 132 multiprocessors.
const REDUCTION_LIMIT: u64 = 132 << 20;
/// The semaphores of a reduction of partial sums, in bytes.
const REDUCTION_SEMAPHORES: u64 = 64;
/// The size of a single-precision number, in bytes.
const FP32: u64 = 4;

/// One backward pass through a block.
struct Pass<'a> {
    tape: &'a mut Tape,
    rows: &'a RowCounts,
    /// The gradient that flows back; `None` while the residual's gradient itself flows.
    flowing: Option<Block>,
    /// The gradient of the residual stream, held until the branch's gradient is added to it.
    residual: Block,
    /// The gradients of further branches: key and value, or the gate's other side.
    branches: Vec<Block>,
    /// The sum of input gradients of matrix products that share their input.
    shared: Option<Block>,
    /// The gradient inside a LoRA adapter, which is added to the input gradient of the adapter's matrix product.
    beside: Option<Block>,
    gradients: &'a mut WeightGradients,
}

impl Pass<'_> {
    fn step(&mut self, op: &Op) {
        let bytes = self.rows.bytes(op);
        if op.adapter {
            return self.adapter(op);
        }
        match op.backward {
            Backward::None | Backward::Residual => {}
            Backward::Same => {
                let gradient = self.tape.alloc(bytes);
                self.flow(gradient);
            }
            Backward::Linear => self.linear(op),
            Backward::Norm => self.norm(op, bytes),
            Backward::Attention { fused } => self.attention(bytes, fused),
            Backward::Gate => {
                let (one, other) = (self.tape.alloc(bytes), self.tape.alloc(bytes));
                self.flow(one);
                self.branches.push(other);
            }
        }
    }

    /// Frees the gradient that flows back, and lets `gradient` flow instead.
    fn flow(&mut self, gradient: Block) {
        if let Some(old) = self.flowing.replace(gradient) {
            self.tape.free(old);
        }
    }

    fn linear(&mut self, op: &Op) {
        let input_bytes = self.rows.of(op.rows) * op.input_row;
        let gradient = self.tape.alloc(input_bytes);
        self.weights(op);
        if let Some(beside) = self.beside.take() {
            self.tape.free(beside);
        }
        if let Some(branch) = self.branches.pop() {
            self.tape.free(branch);
            self.share(gradient);
        } else if self.shared.is_some() {
            if let Some(old) = self.flowing.take() {
                self.tape.free(old);
            }
            self.share(gradient);
            self.flowing = self.shared.take();
        } else {
            self.flow(gradient);
        }
    }

    fn share(&mut self, gradient: Block) {
        let Some(sum) = self.shared.take() else {
            self.shared = Some(gradient);
            return;
        };
        let total = self.tape.alloc(gradient.size());
        self.tape.free(sum);
        self.tape.free(gradient);
        self.shared = Some(total);
    }

    fn norm(&mut self, op: &Op, bytes: u64) {
        let gradient = self.tape.alloc(bytes);
        self.weights(op);
        if let Some(old) = self.flowing.take() {
            self.tape.free(old);
        }
        let sum = self.tape.alloc(bytes);
        let before = std::mem::replace(&mut self.residual, sum);
        self.tape.free(before);
        self.tape.free(gradient);
    }

    fn attention(&mut self, bytes: u64, fused: bool) {
        let query = self.tape.alloc(bytes);
        let (key, value) = (self.tape.alloc(bytes), self.tape.alloc(bytes));
        // The kernel sums the query's gradient in single precision.
        self.tape.workspace(bytes * 2 + REDUCTION_SEMAPHORES * FP32);
        if fused {
            let together = self.tape.alloc(bytes * 3);
            self.tape.free_all([query, key, value]);
            self.flow(together);
        } else {
            self.flow(query);
            self.branches.extend([key, value]);
        }
    }

    fn adapter(&mut self, op: &Op) {
        let gradient = self.tape.alloc(self.rows.of(op.rows) * op.input_row);
        self.weights(op);
        if let Some(old) = self.beside.replace(gradient) {
            self.tape.free(old);
        }
    }

    fn weights(&mut self, op: &Op) {
        let trained = match self.gradients.trains {
            Trains::All => !op.adapter,
            Trains::Adapters => op.adapter,
        };
        if !trained {
            return;
        }
        if op.weight > 0 {
            self.gradients.blocks.push(self.tape.alloc(op.weight));
        }
        if op.bias > 0 {
            self.gradients.blocks.push(self.tape.alloc(op.bias));
            if op.backward == Backward::Linear {
                let sums = self.rows.of(op.rows) * op.row * 2;
                let partial = self.tape.alloc(sums.min(REDUCTION_LIMIT));
                self.tape.workspace(REDUCTION_SEMAPHORES);
                self.tape.free(partial);
            }
        }
    }
}
