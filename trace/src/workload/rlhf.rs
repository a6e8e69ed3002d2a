//! Reinforcement learning from feedback: each round generates with a growing key-value cache, scores with a frozen
//! reference model, and trains with recompute, one phase after the other on the same device.
//!
//! Owns: the order of the phases. Each is made of the other patterns' parts.

use super::{
    GenerateError,
    kv_cache::{self, Cache},
    models::Model,
    moe, recipe, step,
    tape::{Dice, Tape},
    transformer::{Gradients, Job, Training},
};

/// A job of alternating phases.
#[derive(Clone, Copy, Debug)]
pub(super) struct Feedback {
    pub(super) model: &'static Model,
    /// Sequences of a round.
    pub(super) batch: u64,
    /// Sequences trained on at once.
    pub(super) micro_batch: u64,
    /// Tokens of a prompt.
    pub(super) prompt: (u64, u64),
    /// Tokens of an answer.
    pub(super) answer: (u64, u64),
}

/// Single precision, in bytes.
const FP32: u64 = 4;

impl Feedback {
    pub(super) fn run(&self, tape: &mut Tape, dice: &mut Dice, rounds: u32) -> Result<(), GenerateError> {
        let (model, shape) = (self.model, self.model.transformer()?);
        let ops = recipe::block(model, shape, false);
        // The reference model; the job brings the one that is trained.
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
            kv_cache::prefill(job.tape, model, shape, &ops, self.batch, &moe::route(shape, self.batch * prompt, dice));
            let mut cache = Cache::fill(job.tape, model, shape, self.batch, prompt);
            let mut chosen = Vec::new();
            for _ in 0..answer {
                cache.grow(job.tape, model, shape);
                job.tape.workspace(self.batch * shape.vocab * model.dtype_bytes);
                chosen.push(job.tape.alloc(self.batch * 8));
            }
            cache.free(job.tape);
            let length = prompt + answer;
            let sequences = job.tape.alloc(self.batch * length * 8);
            job.tape.free_all(chosen);

            let tokens = self.batch * length;
            kv_cache::prefill(job.tape, model, shape, &ops, self.batch, &moe::route(shape, tokens, dice));
            let (logits, upcast) =
                (job.tape.alloc(tokens * shape.vocab * model.dtype_bytes), job.tape.alloc(tokens * shape.vocab * FP32));
            job.tape.free(logits);
            let logs = job.tape.alloc(tokens * shape.vocab * FP32);
            job.tape.free(upcast);
            let scores = job.tape.alloc(tokens * FP32);
            job.tape.free(logs);

            let mut kept = job.gradients(self.micro_batch * length, dice, Gradients::Fresh);
            for _ in 1..self.batch / self.micro_batch.max(1) {
                kept.extend(job.gradients(self.micro_batch * length, dice, Gradients::Added));
            }
            job.update(kept);
            job.tape.free_all([sequences, scores]);
        }
        Ok(())
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
        // Two models and the two optimizer states of one.
        let weights: u64 = LLAMA_1B.tensors().iter().map(|t| t.bytes).sum();
        assert_eq!(live_after(1), live_after(3));
        assert!(live_after(1).abs_diff(4 * weights) * 50 < weights);
    }
}
