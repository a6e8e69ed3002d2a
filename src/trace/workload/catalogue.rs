//! The list of workloads: which patterns run with which models and numbers.
//!
//! Owns: the names and the sizes. Peaks of live memory lie between 4 and 75 GiB, most below 50, so that an allocator that
//! wastes a third still runs them on an 80 GiB device.

use super::{
    GenerateError, Workload,
    models::{GPT_NEOX_20B, GPT2_XL, LLAMA_8B, Model, OPT_1_3B, OPT_13B, QWEN_MOE_SMALL},
    tape::{Dice, Tape},
    transformer::Training,
};

/// The pattern behind a workload, with its numbers.
#[derive(Clone, Debug)]
pub(super) enum Pattern {
    Training(Training),
}

impl Pattern {
    pub(super) fn run(&self, tape: &mut Tape, dice: &mut Dice, steps: u32) -> Result<(), GenerateError> {
        match self {
            Self::Training(plan) => plan.run(tape, dice, steps),
        }
    }

    /// Streams beside the default one.
    pub(super) fn side_streams(&self) -> u32 {
        match self {
            Self::Training(_) => 0,
        }
    }

    pub(super) fn model(&self) -> Option<&'static str> {
        match self {
            Self::Training(plan) => Some(plan.model.name),
        }
    }

    pub(super) fn batch(&self) -> Option<u64> {
        match self {
            Self::Training(plan) => Some(plan.batch),
        }
    }
}

/// What a training job does to save memory: letters as in GMLake's evaluation.
#[derive(Clone, Copy)]
struct Strategy {
    recompute: bool,
    lora: bool,
    offload: bool,
}

const N: Strategy = Strategy { recompute: false, lora: false, offload: false };
const R: Strategy = Strategy { recompute: true, ..N };
const L: Strategy = Strategy { lora: true, ..N };
const O: Strategy = Strategy { offload: true, ..N };
const LR: Strategy = Strategy { lora: true, ..R };
const RO: Strategy = Strategy { offload: true, ..R };
const LO: Strategy = Strategy { lora: true, ..O };
const LRO: Strategy = Strategy { offload: true, ..LR };

impl Strategy {
    const fn summary(self) -> &'static str {
        match (self.lora, self.recompute, self.offload) {
            (false, false, false) => "full fine-tuning, all activations kept",
            (false, true, false) => "full fine-tuning with recompute",
            (true, false, false) => "LoRA, all activations kept",
            (false, false, true) => "full fine-tuning, activations and optimizer offloaded",
            (true, true, false) => "LoRA with recompute",
            (false, true, true) => "full fine-tuning with recompute, layer inputs and optimizer offloaded",
            (true, false, true) => "LoRA, activations and optimizer offloaded",
            (true, true, true) => "LoRA with recompute, layer inputs and optimizer offloaded",
        }
    }
}

/// Shortest and longest sequence of most jobs, in tokens.
const LENGTHS: (u64, u64) = (300, 1900);

const fn training(
    name: &'static str,
    model: &'static Model,
    strategy: Strategy,
    world: u64,
    batch: u64,
    default_steps: u32,
) -> Workload {
    let Strategy { recompute, lora, offload } = strategy;
    let plan = Training { model, recompute, lora, offload, world, batch, lengths: LENGTHS };
    Workload {
        name,
        group: "transformer",
        summary: strategy.summary(),
        in_default_set: true,
        default_steps,
        pattern: Pattern::Training(plan),
    }
}

const fn optional(workload: Workload) -> Workload {
    Workload { in_default_set: false, ..workload }
}

pub(super) static CATALOGUE: [Workload; 41] = [
    training("gpt2-xl-N", &GPT2_XL, N, 1, 4, 5),
    training("gpt2-xl-R", &GPT2_XL, R, 1, 16, 4),
    optional(training("gpt2-xl-L", &GPT2_XL, L, 1, 4, 4)),
    optional(training("gpt2-xl-O", &GPT2_XL, O, 1, 8, 4)),
    optional(training("gpt2-xl-LR", &GPT2_XL, LR, 1, 16, 4)),
    optional(training("gpt2-xl-RO", &GPT2_XL, RO, 1, 16, 4)),
    optional(training("gpt2-xl-LO", &GPT2_XL, LO, 1, 16, 4)),
    optional(training("gpt2-xl-LRO", &GPT2_XL, LRO, 1, 16, 4)),
    training("opt-1.3b-N", &OPT_1_3B, N, 1, 8, 6),
    training("opt-1.3b-R", &OPT_1_3B, R, 1, 16, 6),
    training("opt-1.3b-L", &OPT_1_3B, L, 1, 8, 6),
    training("opt-1.3b-O", &OPT_1_3B, O, 1, 16, 6),
    training("opt-1.3b-LR", &OPT_1_3B, LR, 1, 16, 6),
    training("opt-1.3b-RO", &OPT_1_3B, RO, 1, 16, 6),
    training("opt-1.3b-LO", &OPT_1_3B, LO, 1, 16, 6),
    training("opt-1.3b-LRO", &OPT_1_3B, LRO, 1, 16, 6),
    optional(training("opt-13b-N", &OPT_13B, N, 4, 1, 4)),
    training("opt-13b-R", &OPT_13B, R, 4, 8, 4),
    optional(training("opt-13b-L", &OPT_13B, L, 4, 2, 4)),
    optional(training("opt-13b-O", &OPT_13B, O, 4, 8, 4)),
    training("opt-13b-LR", &OPT_13B, LR, 1, 12, 4),
    training("opt-13b-RO", &OPT_13B, RO, 4, 8, 4),
    optional(training("opt-13b-LO", &OPT_13B, LO, 4, 8, 4)),
    training("opt-13b-LRO", &OPT_13B, LRO, 4, 12, 4),
    optional(training("gpt-neox-20b-N", &GPT_NEOX_20B, N, 8, 1, 3)),
    optional(training("gpt-neox-20b-R", &GPT_NEOX_20B, R, 8, 8, 3)),
    optional(training("gpt-neox-20b-L", &GPT_NEOX_20B, L, 4, 1, 3)),
    optional(training("gpt-neox-20b-O", &GPT_NEOX_20B, O, 4, 8, 3)),
    training("gpt-neox-20b-LR", &GPT_NEOX_20B, LR, 4, 8, 3),
    training("gpt-neox-20b-RO", &GPT_NEOX_20B, RO, 4, 8, 3),
    optional(training("gpt-neox-20b-LO", &GPT_NEOX_20B, LO, 4, 8, 3)),
    training("gpt-neox-20b-LRO", &GPT_NEOX_20B, LRO, 4, 12, 3),
    optional(training("llama-8b-N", &LLAMA_8B, N, 4, 1, 4)),
    optional(training("llama-8b-R", &LLAMA_8B, R, 4, 4, 4)),
    optional(training("llama-8b-L", &LLAMA_8B, L, 1, 2, 4)),
    optional(training("llama-8b-O", &LLAMA_8B, O, 4, 4, 4)),
    training("llama-8b-LR", &LLAMA_8B, LR, 1, 8, 4),
    optional(training("llama-8b-RO", &LLAMA_8B, RO, 4, 8, 4)),
    optional(training("llama-8b-LO", &LLAMA_8B, LO, 4, 8, 4)),
    training("llama-8b-LRO", &LLAMA_8B, LRO, 4, 8, 4),
    Workload { group: "moe", ..training("qwen-moe-R", &QWEN_MOE_SMALL, R, 1, 4, 3) },
];
