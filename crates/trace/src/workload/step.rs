//! The parts of a training step around the blocks: weights, embedding, loss and optimizer.
//!
//! Owns: the allocations of these parts. `layer.rs` has the blocks, and the pattern determines the tensors that are
//! kept, recomputed or offloaded.

use super::{
    layer::{Trains, WeightGradients},
    models::{Model, Transformer},
    recipe::Op,
    tape::{Block, Tape},
};

/// Single precision, in bytes.
const FP32: u64 = 4;
/// A token or position index, in bytes.
const INDEX: u64 = 8;
/// A loss, in bytes.
const SCALAR: u64 = 4;

/// The matrix library's workspace on Hopper, in bytes. The workspace is made at the first product and kept to the end.
const PRODUCT_WORKSPACE: u64 = 32 << 20;

/// Allocates the workspaces that the libraries allocate once for the main stream.
pub(super) fn library_workspace(tape: &mut Tape) {
    tape.alloc_for_good(PRODUCT_WORKSPACE);
}

/// Allocates the weights. Each tensor is cut into `world` shards, of which one is kept. The weights live to the end of
/// the trace.
pub(super) fn weights(tape: &mut Tape, model: &Model, world: u64) {
    for tensor in model.tensors() {
        tape.alloc_for_good(tensor.bytes.div_ceil(world));
    }
}

/// Allocates the adapters of every block, which live to the end of the trace.
pub(super) fn adapters(tape: &mut Tape, ops: &[Op], layers: u64) {
    for _ in 0..layers {
        for op in ops.iter().filter(|op| op.adapter && op.weight > 0) {
            tape.alloc_for_good(op.weight);
        }
    }
}

/// A batch of tokens, and its model.
#[derive(Clone, Copy)]
pub(super) struct Batch<'a> {
    pub(super) model: &'a Model,
    pub(super) shape: &'a Transformer,
    pub(super) tokens: u64,
}

impl Batch<'_> {
    /// Looks up the batch's tokens. Returns the first block's input, and the blocks that the step holds to its end.
    pub(super) fn embed(self, tape: &mut Tape) -> (Block, Vec<Block>) {
        let Self { model, shape, tokens } = self;
        let row = shape.hidden * model.dtype_bytes;
        let ids = tape.alloc(tokens * INDEX);
        let found = tape.alloc(tokens * row);
        let mask = tape.alloc(tokens * FP32);
        for _ in 0..2 {
            tape.workspace(tokens * FP32);
        }
        let positions = tape.alloc(tokens * INDEX);
        if shape.positions == 0 {
            let (cosine, sine) = (tape.alloc(tokens * INDEX), tape.alloc(tokens * INDEX));
            return (found, vec![ids, mask, positions, cosine, sine]);
        }
        let placed = tape.alloc(tokens * row);
        let input = tape.alloc(tokens * row);
        tape.free(placed);
        tape.free(found);
        (input, vec![ids, mask, positions])
    }

    /// Allocates for the last norm, the logits, the loss and their backward. Returns the gradient of the last block's
    /// output.
    pub(super) fn loss(self, tape: &mut Tape, gradients: &mut WeightGradients) -> Block {
        let Self { model, shape, tokens } = self;
        let row = tokens * shape.hidden * model.dtype_bytes;
        let (narrow, wide) = (tokens * shape.vocab * model.dtype_bytes, tokens * shape.vocab * FP32);
        let normed = tape.alloc(row);
        let (mean, deviation) = (tape.alloc(tokens * FP32), tape.alloc(tokens * FP32));
        let logits = tape.alloc(narrow);
        let upcast = tape.alloc(wide);
        let padded = tape.alloc((tokens + 1) * INDEX);
        let labels = tape.alloc(tokens * INDEX);
        let probabilities = tape.alloc(wide);
        let (value, count) = (tape.alloc(SCALAR), tape.alloc(SCALAR));
        tape.free_all([upcast, padded, logits]);
        let picked = tape.alloc(wide);
        tape.free_all([labels, count]);
        let softmax = tape.alloc(wide);
        tape.free_all([picked, probabilities]);
        let gradient = tape.alloc(narrow);
        tape.free(softmax);
        if gradients.trains == Trains::All {
            gradients.blocks.push(tape.alloc(shape.vocab * shape.hidden * model.dtype_bytes));
        }
        let projected = tape.alloc(row);
        tape.free_all([gradient, normed]);
        let upstream = tape.alloc(row);
        if gradients.trains == Trains::All {
            let width = shape.hidden * model.dtype_bytes;
            gradients.blocks.extend([tape.alloc(width), tape.alloc(width)]);
        }
        tape.free_all([projected, mean, deviation, value]);
        upstream
    }

    /// Allocates for the backward of the embedding, which sorts the tokens and then sums rows.
    pub(super) fn embed_backward(self, tape: &mut Tape, upstream: Block, gradients: &mut WeightGradients) {
        let Self { model, shape, tokens } = self;
        let width = shape.hidden * model.dtype_bytes;
        if gradients.trains == Trains::All {
            for (rows, shared) in [(shape.positions, false), (shape.vocab, shape.tied)] {
                if rows == 0 {
                    continue;
                }
                let (sorted, order) = (tape.alloc(tokens * INDEX), tape.alloc(tokens * INDEX));
                let keys = tape.alloc(tokens * INDEX);
                // The radix sort's own scratch takes about two and a half words for each key.
                tape.workspace(tokens * INDEX * 5 / 2);
                tape.free(keys);
                let gradient = tape.alloc(rows * width);
                let (counts, segments) = (tape.alloc(tokens * INDEX), tape.alloc(INDEX));
                let offsets = tape.alloc(tokens * INDEX + INDEX);
                // The partial sums are in single precision, with one for every ten tokens or so.
                tape.workspace(tokens.div_ceil(10) * shape.hidden * FP32);
                tape.free_all([offsets, segments, counts, order, sorted]);
                if shared {
                    // The output projection has the same weight, and the gradient is added to its gradient.
                    tape.free(gradient);
                } else {
                    gradients.blocks.push(gradient);
                }
            }
        }
        tape.free(upstream);
    }
}

/// AdamW in PyTorch's `foreach` form, which allocates a temporary for every parameter before it frees the first one.
#[derive(Debug, Default)]
pub(super) struct AdamW {
    states: Vec<Block>,
}

impl AdamW {
    /// Updates from the gradients, then frees them (`zero_grad`). The first step makes the two states.
    pub(super) fn step(&mut self, tape: &mut Tape, gradients: Vec<Block>) {
        if self.states.is_empty() {
            for gradient in &gradients {
                self.states.extend([tape.alloc(gradient.size()), tape.alloc(gradient.size())]);
            }
        }
        let roots: Vec<Block> = gradients.iter().map(|gradient| tape.alloc(gradient.size())).collect();
        tape.free_all(roots.into_iter().rev());
        tape.free_all(gradients);
    }
}
