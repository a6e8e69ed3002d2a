//! The pattern behind a workload.

use super::{
    adversarial::Adversary,
    error::GenerateError,
    kv_cache::Decoding,
    rematerialisation::Rematerialisation,
    rlhf::Feedback,
    side_stream::{self, Prefetch, Sharded},
    tape::{Dice, Tape},
    transformer::Training,
    vision::Images,
};

/// The pattern behind a workload, with its numbers.
#[derive(Clone, Debug)]
pub(super) enum Pattern {
    Training(Training),
    Rematerialisation(Rematerialisation),
    Decoding(Decoding),
    Images(Images),
    Feedback(Feedback),
    Sharded(Sharded),
    Prefetch(Prefetch),
    Adversary(Adversary),
}

impl Pattern {
    pub(super) fn run(&self, tape: &mut Tape, dice: &mut Dice, steps: u32) -> Result<(), GenerateError> {
        match self {
            Self::Training(plan) => plan.run(tape, dice, steps),
            Self::Rematerialisation(plan) => plan.run(tape, dice, steps),
            Self::Decoding(plan) => plan.run(tape, dice, steps),
            Self::Images(plan) => plan.run(tape, dice, steps),
            Self::Feedback(plan) => plan.run(tape, dice, steps),
            Self::Sharded(plan) => plan.run(tape, dice, steps),
            Self::Prefetch(plan) => {
                plan.run(tape, dice, steps);
                Ok(())
            }
            Self::Adversary(plan) => {
                plan.run(tape, dice, steps);
                Ok(())
            }
        }
    }

    /// Returns the number of streams beside the default one.
    pub(super) fn side_streams(&self) -> u32 {
        match self {
            Self::Sharded(_) | Self::Prefetch(_) => side_stream::SIDE_STREAMS,
            Self::Adversary(plan) => plan.side_streams(),
            _ => 0,
        }
    }

    pub(super) fn model(&self) -> Option<&'static str> {
        let model = match self {
            Self::Training(plan) => plan.model,
            Self::Rematerialisation(plan) => plan.model,
            Self::Decoding(plan) => plan.model,
            Self::Images(plan) => plan.model,
            Self::Feedback(plan) => plan.model,
            Self::Sharded(plan) => plan.model,
            Self::Prefetch(_) | Self::Adversary(_) => return None,
        };
        Some(model.name)
    }

    /// Returns the most sequences, images or requests that run together.
    pub(super) fn batch(&self) -> Option<u64> {
        match self {
            Self::Training(plan) => Some(plan.batch),
            Self::Rematerialisation(plan) => Some(plan.batch),
            Self::Decoding(plan) => Some(plan.requests),
            Self::Images(plan) => plan.batches.iter().copied().max(),
            Self::Feedback(plan) => Some(plan.batch),
            Self::Sharded(plan) => Some(plan.batch),
            Self::Prefetch(_) | Self::Adversary(_) => None,
        }
    }
}
