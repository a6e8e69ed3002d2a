//! Fine-tuning of a transformer with recompute (R), LoRA (L), offload (O), all their combinations, or none (N). The
//! combinations are the strategies of GMLake's evaluation (Guo et al., ASPLOS 2024). Sequences have another length in
//! each step.
//!
//! Owns: the choice of the tensors that are kept, recomputed, gathered and offloaded, and the times of these actions.
//! With several ranks, weights, gradients and optimizer states are sharded as in ZeRO-3, and a block's weights are
//! gathered while it runs.

use super::{
    error::GenerateError,
    layer::{Layer, RowCounts, Saved, Trains, WeightGradients},
    models::{Model, Transformer},
    moe,
    recipe::{self, Op},
    step::{self, AdamW, Batch},
    tape::{Block, Dice, Tape},
};

/// A training job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Training {
    pub(super) model: &'static Model,
    pub(super) recompute: bool,
    pub(super) lora: bool,
    pub(super) offload: bool,
    /// The number of ranks that share weights and states.
    pub(super) world: u64,
    /// The number of sequences in a batch.
    pub(super) batch: u64,
    /// The shortest and the longest sequence, in tokens.
    pub(super) lengths: (u64, u64),
}

/// The most bytes of one layer's weights in an offload bucket. DeepSpeed's default bucket of 5e8 elements is far above
/// a layer, and FSDP's bucket is a layer.
const BUCKET_BYTES: u64 = 1 << 30;

impl Training {
    pub(super) fn run(&self, tape: &mut Tape, dice: &mut Dice, steps: u32) -> Result<(), GenerateError> {
        let mut job = Job::start(tape, self, self.model.transformer()?);
        for _ in 0..steps {
            if job.tape.is_full() {
                break;
            }
            let tokens = self.batch * dice.between(self.lengths.0, self.lengths.1);
            let gradients = job.gradients(tokens, dice, Gradients::Fresh);
            job.update(gradients);
        }
        Ok(())
    }
}

/// The use of a batch's gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gradients {
    /// The gradients are the first since the last update.
    Fresh,
    /// The gradients are added to earlier ones, block by block.
    Added,
}

/// A running training job.
pub(super) struct Job<'a> {
    pub(super) tape: &'a mut Tape,
    plan: &'a Training,
    shape: &'a Transformer,
    ops: Vec<Op>,
    /// Bytes of each weight of a block.
    block_weights: Vec<u64>,
    optimizer: AdamW,
    trains: Trains,
    adding: bool,
}

impl<'a> Job<'a> {
    pub(super) fn start(tape: &'a mut Tape, plan: &'a Training, shape: &'a Transformer) -> Self {
        let ops = recipe::block(plan.model, shape, plan.lora);
        step::weights(tape, plan.model, plan.world);
        step::library_workspace(tape);
        step::adapters(tape, &ops, shape.layers);
        let frozen = ops.iter().filter(|op| !op.adapter);
        let block_weights = frozen.flat_map(|op| [op.weight, op.bias]).filter(|bytes| *bytes > 0).collect();
        let trains = if plan.lora { Trains::Adapters } else { Trains::All };
        Self { tape, plan, shape, ops, block_weights, optimizer: AdamW::default(), trains, adding: false }
    }

    /// Runs one pass forward and backward over a batch. Returns the gradients; an empty list if they were added to
    /// earlier ones.
    pub(super) fn gradients(&mut self, tokens: u64, dice: &mut Dice, kind: Gradients) -> Vec<Block> {
        let shape = self.shape;
        self.adding = kind == Gradients::Added;
        let rows: Vec<RowCounts> = (0..shape.layers).map(|_| moe::route(shape, tokens, dice)).collect();
        let mut gradients = WeightGradients::of(self.trains);
        let batch = Batch { model: self.plan.model, shape, tokens };
        let (mut state, inputs) = batch.embed(self.tape);
        let mut passed = Vec::new();
        for rows in rows {
            let gathered = self.gather();
            let keep = !self.plan.recompute && !self.plan.offload;
            let (output, saved) = Layer { ops: &self.ops, rows: &rows }.forward(self.tape, keep);
            self.tape.free_all(gathered);
            let input = std::mem::replace(&mut state, output);
            let (input, saved) = self.leave(input, saved);
            passed.push((input, saved, rows));
        }
        let mut upstream = batch.loss(self.tape, &mut gradients);
        self.tape.free(state);
        self.reduce(&mut gradients.blocks, 0);
        while let Some((input, saved, rows)) = passed.pop() {
            let made = gradients.blocks.len();
            let input = input.unwrap_or_else(|| self.tape.alloc(upstream.size()));
            let gathered = self.gather();
            let saved = self.restore(saved, &rows);
            upstream = Layer { ops: &self.ops, rows: &rows }.backward(self.tape, saved, upstream, &mut gradients);
            self.tape.free(input);
            self.tape.free_all(gathered);
            self.reduce(&mut gradients.blocks, made);
        }
        let made = gradients.blocks.len();
        batch.embed_backward(self.tape, upstream, &mut gradients);
        self.reduce(&mut gradients.blocks, made);
        self.tape.free_all(inputs);
        gradients.blocks
    }

    /// Runs the optimizer's step, then frees the gradients.
    pub(super) fn update(&mut self, gradients: Vec<Block>) {
        if self.plan.offload {
            self.update_offloaded(gradients);
        } else {
            self.optimizer.step(self.tape, gradients);
        }
    }

    /// Allocates the other ranks' shards of a block's weights.
    fn gather(&mut self) -> Vec<Block> {
        if self.plan.world == 1 {
            return Vec::new();
        }
        self.block_weights.iter().map(|bytes| self.tape.alloc(*bytes)).collect()
    }

    /// Returns the tensors that stay on the device after a block has run forward.
    fn leave(&mut self, input: Block, saved: Saved) -> (Option<Block>, Saved) {
        if self.plan.offload {
            self.tape.free(input);
            return (None, Saved::Host);
        }
        (Some(input), saved)
    }

    /// Returns the tensors that the backward pass of a transformer block reads. Tensors that were not kept are
    /// recomputed.
    fn restore(&mut self, saved: Saved, rows: &RowCounts) -> Saved {
        if !self.plan.recompute {
            return saved;
        }
        let (output, saved) = Layer { ops: &self.ops, rows }.forward(self.tape, true);
        self.tape.free(output);
        saved
    }

    /// Reduces over the ranks the gradients from index `made` on. With offload, sends them to the host.
    fn reduce(&mut self, gradients: &mut Vec<Block>, made: usize) {
        if self.adding {
            let added = gradients.split_off(made.min(gradients.len()));
            return self.tape.free_all(added);
        }
        if self.plan.world == 1 && !self.plan.offload {
            return;
        }
        let fresh = gradients.split_off(made.min(gradients.len()));
        let total: u64 = fresh.iter().map(Block::size).sum();
        if total == 0 {
            return;
        }
        let flat = self.tape.alloc(total);
        let sizes: Vec<u64> = fresh.iter().map(|block| block.size().div_ceil(self.plan.world)).collect();
        self.tape.free_all(fresh);
        if self.plan.offload {
            let shard = self.tape.alloc(total.div_ceil(self.plan.world));
            self.tape.free_all([flat, shard]);
        } else {
            gradients.extend(sizes.into_iter().map(|bytes| self.tape.alloc(bytes)));
            self.tape.free(flat);
        }
    }

    /// Updates with optimizer states that are copied to the device bucket by bucket. The next bucket is copied while
    /// the current one is used.
    fn update_offloaded(&mut self, gradients: Vec<Block>) {
        self.tape.free_all(gradients);
        let tensors = self.plan.model.tensors();
        let frozen = tensors.iter().map(|tensor| tensor.bytes.div_ceil(self.plan.world));
        let adapters = self.ops.iter().filter(|op| op.adapter && op.weight > 0).map(|op| op.weight);
        let adapters = (0..self.shape.layers).flat_map(|_| adapters.clone());
        let trained: Vec<u64> = if self.plan.lora { adapters.collect() } else { frozen.collect() };
        let (mut using, mut arriving, mut bytes) = (Vec::new(), Vec::new(), 0);
        for size in trained {
            // The allocations are the gradient, two moments, and the square root that the update computes.
            arriving.extend((0..4).map(|_| self.tape.alloc(size)));
            bytes += size;
            if bytes >= BUCKET_BYTES / 4 {
                self.tape.free_all(std::mem::take(&mut using));
                using = std::mem::take(&mut arriving);
                bytes = 0;
            }
        }
        self.tape.free_all(using);
        self.tape.free_all(arriving);
    }
}
