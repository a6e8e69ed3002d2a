//! Reinforcement learning from feedback. Each round generates with a growing key-value cache, scores with a frozen
//! reference model, and trains with recompute. The phases follow one another on the same device.
//!
//! Owns: the order of the phases. Each phase consists of parts of the other patterns.

use super::{
    error::GenerateError,
    kv_cache::{self, Cache},
    layer::Layer,
    models::{Model, Transformer},
    moe,
    recipe::{self, Op},
    step::{self, Batch},
    tape::{Block, Dice, Tape},
    transformer::{Gradients, Job, Training},
};

/// A job of alternating phases.
#[derive(Clone, Copy, Debug)]
pub(super) struct Feedback {
    pub(super) model: &'static Model,
    /// Sequences of a round.
    pub(super) batch: u64,
    /// Sequences in one forward and backward pass of the training.
    pub(super) micro_batch: u64,
    /// Tokens of a prompt.
    pub(super) prompt: (u64, u64),
    /// Tokens of an answer.
    pub(super) answer: (u64, u64),
}

/// Single precision, in bytes.
const FP32: u64 = 4;
/// The index of a token, in bytes.
const INDEX: u64 = 8;

impl Feedback {
    pub(super) fn run(&self, tape: &mut Tape, dice: &mut Dice, rounds: u32) -> Result<(), GenerateError> {
        let (model, shape) = (self.model, self.model.transformer()?);
        let ops = recipe::block(model, shape, false);
        // The weights of the reference model. `Job::start` below allocates those of the trained model.
        step::weights(tape, model, 1);
        let plan = Training {
            model,
            recompute: true,
            lora: false,
            offload: false,
            world: 1,
            batch: self.micro_batch,
            lengths: self.prompt,
        };
        let mut job = Job::start(tape, &plan, shape);
        for _ in 0..rounds {
            if job.tape.is_full() {
                break;
            }
            let prompt = dice.between(self.prompt.0, self.prompt.1);
            let answer = dice.between(self.answer.0, self.answer.1);
            let round = Round { plan: self, shape, ops: &ops, prompt, answer };
            let sequences = round.generate(job.tape, dice);
            let scores = round.score(job.tape, dice);
            let tokens = self.micro_batch * (prompt + answer);
            let mut kept = job.gradients(tokens, dice, Gradients::Fresh);
            for _ in 1..self.batch / self.micro_batch.max(1) {
                kept.extend(job.gradients(tokens, dice, Gradients::Added));
            }
            job.update(kept);
            job.tape.free_all([sequences, scores]);
        }
        Ok(())
    }
}

/// A round, whose sequences all have the same length.
struct Round<'a> {
    plan: &'a Feedback,
    shape: &'a Transformer,
    ops: &'a [Op],
    /// Tokens of each prompt.
    prompt: u64,
    /// Tokens of each answer.
    answer: u64,
}

impl Round<'_> {
    /// Generates the answers token by token, and returns the sequences.
    fn generate(&self, tape: &mut Tape, dice: &mut Dice) -> Block {
        let Feedback { model, batch, .. } = *self.plan;
        let Self { shape, prompt, answer, .. } = *self;
        self.prefill(tape, dice, batch * prompt);
        let mut cache = Cache::fill(tape, model, shape, batch, prompt);
        let mut chosen = Vec::new();
        for _ in 0..answer {
            cache.grow(tape, model, shape);
            tape.workspace(batch * shape.vocab * model.dtype_bytes);
            chosen.push(tape.alloc(batch * INDEX));
        }
        cache.free(tape);
        let sequences = tape.alloc(batch * (prompt + answer) * INDEX);
        tape.free_all(chosen);
        sequences
    }

    /// Runs the reference model over the sequences, and returns the scores.
    fn score(&self, tape: &mut Tape, dice: &mut Dice) -> Block {
        let Feedback { model, batch, .. } = *self.plan;
        let tokens = batch * (self.prompt + self.answer);
        let elements = tokens * self.shape.vocab;
        self.prefill(tape, dice, tokens);
        let (logits, upcast) = (tape.alloc(elements * model.dtype_bytes), tape.alloc(elements * FP32));
        tape.free(logits);
        let logs = tape.alloc(elements * FP32);
        tape.free(upcast);
        let scores = tape.alloc(tokens * FP32);
        tape.free(logs);
        scores
    }

    fn prefill(&self, tape: &mut Tape, dice: &mut Dice, tokens: u64) {
        let rows = &moe::route(self.shape, tokens, dice);
        let batch = Batch { model: self.plan.model, shape: self.shape, tokens };
        kv_cache::prefill(tape, batch, Layer { ops: self.ops, rows }, self.plan.batch);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::models::LLAMA_1B, *};

    #[test]
    fn a_round_leaves_what_the_round_before_left() {
        let plan = Feedback { model: &LLAMA_1B, batch: 4, micro_batch: 2, prompt: (20, 60), answer: (3, 9) };
        let live_after = |rounds| {
            let mut tape = Tape::new(0);
            plan.run(&mut tape, &mut Dice::new(5), rounds).unwrap();
            tape.live()
        };
        // The live memory has two models, and the two optimizer states of one model.
        let weights: u64 = LLAMA_1B.tensors().iter().map(|t| t.bytes).sum();
        assert_eq!(live_after(1), live_after(3));
        assert!(live_after(1).abs_diff(4 * weights) * 50 < weights);
    }
}
