//! Memory that a side stream fills and the main stream uses, as in FSDP's gathering of weights and in prefetching.
//!
//! Owns: the stream that allocates, and the delay between the program's free and the last use on the other stream
//! (`record_stream`).

use std::collections::VecDeque;

use super::{
    error::GenerateError,
    layer::{Layer, RowCounts, Trains, WeightGradients},
    models::{Model, Transformer},
    recipe,
    step::{self, AdamW, Batch},
    tape::{Block, Dice, PendingFree, Tape},
};

/// Fully sharded training.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sharded {
    pub(super) model: &'static Model,
    /// Ranks that share weights and states.
    pub(super) world: u64,
    /// Sequences of a batch.
    pub(super) batch: u64,
    /// Shortest and longest sequence, in tokens.
    pub(super) lengths: (u64, u64),
}

/// Data that is copied to the device ahead of its use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefetch {
    /// The number of buffers in each step.
    pub(super) buffers: u64,
    /// The least and the most bytes of a buffer, which is a multiple of 4 MiB.
    pub(super) sizes: (u64, u64),
}

/// The compute stream.
const MAIN: u32 = 0;
/// The stream that gathers weights, or prefetches.
const GATHER: u32 = 1;
/// The stream that reduces gradients.
const REDUCE: u32 = 2;
/// Streams beside the main one.
pub(super) const SIDE_STREAMS: u32 = 2;
/// The number of later frees after which the GPU has passed a freed block's last use on the other stream. This
/// corresponds to a CPU that runs two layers ahead of the GPU.
const USES_BEHIND: usize = 2;
/// The size of a reduced gradient, in single precision, as a multiple of a stored weight, in half precision.
const WIDENING: u64 = 2;

/// Blocks that the program has freed and another stream still uses, oldest first.
#[derive(Default)]
struct InUse(VecDeque<PendingFree>);

impl InUse {
    fn free(&mut self, tape: &mut Tape, block: Block) {
        self.0.push_back(tape.request_free(block));
        if self.0.len() > USES_BEHIND
            && let Some(oldest) = self.0.pop_front()
        {
            tape.complete_free(oldest);
        }
    }

    fn finish(self, tape: &mut Tape) {
        for pending in self.0 {
            tape.complete_free(pending);
        }
    }
}

fn alloc_on(tape: &mut Tape, stream: u32, size: u64) -> Block {
    tape.on_stream(stream);
    let block = tape.alloc(size);
    tape.on_stream(MAIN);
    block
}

impl Sharded {
    pub(super) fn run(&self, tape: &mut Tape, dice: &mut Dice, steps: u32) -> Result<(), GenerateError> {
        let shape = self.model.transformer()?;
        step::weights(tape, self.model, self.world);
        step::library_workspace(tape);
        let mut optimizer = AdamW::default();
        for _ in 0..steps {
            if tape.is_full() {
                break;
            }
            let tokens = self.batch * dice.between(self.lengths.0, self.lengths.1);
            let gradients = self.gradients(tape, shape, tokens);
            optimizer.step(tape, gradients);
        }
        Ok(())
    }

    fn gradients(&self, tape: &mut Tape, shape: &Transformer, tokens: u64) -> Vec<Block> {
        let ops = recipe::block(self.model, shape, false);
        let block_bytes: u64 = ops.iter().map(|op| op.weight + op.bias).sum();
        let rows = RowCounts::dense(tokens);
        let (mut gathered, mut reducing) = (InUse::default(), InUse::default());
        let mut shards = Vec::new();
        let layer = Layer { ops: &ops, rows: &rows };
        let batch = Batch { model: self.model, shape, tokens };
        let (mut state, tokens_held) = batch.embed(tape);
        let mut inputs = Vec::new();
        // The next layer's weights are gathered while this layer runs.
        let mut next = alloc_on(tape, GATHER, block_bytes);
        for number in 0..shape.layers {
            let weights = next;
            next = alloc_on(tape, GATHER, block_bytes);
            let (output, _) = layer.forward(tape, false);
            inputs.push(std::mem::replace(&mut state, output));
            // The backward pass begins with the last layer's weights.
            if number + 1 < shape.layers {
                gathered.free(tape, weights);
            } else {
                gathered.free(tape, std::mem::replace(&mut next, weights));
            }
        }
        let mut fresh = WeightGradients::of(Trains::All);
        let mut upstream = batch.loss(tape, &mut fresh);
        tape.free(state);
        let mut weights = Some(next);
        while let Some(input) = inputs.pop() {
            let ahead = (!inputs.is_empty()).then(|| alloc_on(tape, GATHER, block_bytes));
            let (again, saved) = layer.forward(tape, true);
            tape.free(again);
            upstream = layer.backward(tape, saved, upstream, &mut fresh);
            tape.free(input);
            if let Some(used) = std::mem::replace(&mut weights, ahead) {
                gathered.free(tape, used);
            }
            self.reduce(tape, &mut reducing, std::mem::take(&mut fresh.blocks), &mut shards);
        }
        batch.embed_backward(tape, upstream, &mut fresh);
        self.reduce(tape, &mut reducing, fresh.blocks, &mut shards);
        gathered.finish(tape);
        reducing.finish(tape);
        tape.free_all(tokens_held);
        shards
    }

    /// Copies gradients into one buffer of the reducing stream, and keeps this rank's shard of the sum.
    fn reduce(&self, tape: &mut Tape, reducing: &mut InUse, fresh: Vec<Block>, shards: &mut Vec<Block>) {
        let total: u64 = fresh.iter().map(Block::size).sum();
        let input = alloc_on(tape, REDUCE, total * WIDENING);
        let sizes: Vec<u64> = fresh.iter().map(|block| block.size().div_ceil(self.world)).collect();
        // The reducing stream reads the gradients of the main one.
        tape.free_all(fresh);
        let output = alloc_on(tape, REDUCE, total.div_ceil(self.world) * WIDENING);
        reducing.free(tape, input);
        shards.extend(sizes.into_iter().map(|bytes| tape.alloc(bytes)));
        tape.free(output);
    }
}

impl Prefetch {
    pub(super) fn run(&self, tape: &mut Tape, dice: &mut Dice, steps: u32) {
        /// The unit of buffers, in bytes.
        const UNIT: u64 = 4 << 20;
        /// The bytes of a row of the computation: 4,096 single-precision numbers.
        const ROW: u64 = 4096 * 4;
        for _ in 0..steps {
            if tape.is_full() {
                break;
            }
            let mut in_use = InUse::default();
            for _ in 0..self.buffers {
                let size = dice.between(self.sizes.0 / UNIT, self.sizes.1 / UNIT) * UNIT;
                let buffer = alloc_on(tape, GATHER, size);
                let rows = dice.between(1024, 8192);
                let (left, scaled) = (tape.alloc(rows * ROW), tape.alloc(rows * ROW));
                let product = tape.alloc(rows * rows * 4);
                tape.workspace(8);
                tape.free_all([product, left, scaled]);
                in_use.free(tape, buffer);
            }
            in_use.finish(tape);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::models::LLAMA_1B, *};
    use crate::trace::{Trace, TraceEvent};

    fn late_frees(trace: &Trace) -> usize {
        let pairs = trace.events.windows(2);
        pairs
            .filter(|pair| match pair {
                [TraceEvent::FreeRequested { block }, next] => *next != TraceEvent::FreeCompleted { block: *block },
                _ => false,
            })
            .count()
    }

    fn sharded(world: u64) -> (Trace, u64) {
        let plan = Sharded { model: &LLAMA_1B, world, batch: 2, lengths: (50, 90) };
        let mut tape = Tape::new(SIDE_STREAMS);
        plan.run(&mut tape, &mut Dice::new(1), 2).unwrap();
        let live = tape.live();
        (tape.finish().unwrap(), live)
    }

    #[test]
    fn gathered_weights_are_freed_late_and_from_their_own_stream() {
        let (trace, _) = sharded(2);
        assert!(late_frees(&trace) > 2 * 16);
        for stream in [MAIN, GATHER, REDUCE] {
            assert!(trace.events.iter().any(|e| matches!(e, TraceEvent::Alloc { stream: s, .. } if *s == stream)));
        }
    }

    #[test]
    fn only_the_shards_stay() {
        let weights: u64 = LLAMA_1B.tensors().iter().map(|t| t.bytes).sum();
        for world in [1, 4] {
            let (_, live) = sharded(world);
            assert!(live.abs_diff(3 * weights / world) * 20 < weights, "{live} of {weights}");
        }
    }

    #[test]
    fn prefetching_leaves_nothing() {
        let mut tape = Tape::new(SIDE_STREAMS);
        Prefetch { buffers: 9, sizes: (4 << 20, 64 << 20) }.run(&mut tape, &mut Dice::new(1), 3);
        assert_eq!(tape.live(), 0);
        assert!(late_frees(&tape.finish().unwrap()) > 9);
    }
}
