//! The list of workloads: the patterns, and their models and numbers.
//!
//! Owns: the names and the sizes. Peaks of live memory lie between 4 and 75 GiB, most of them below 50, so that an
//! allocator that wastes a third still runs them on an 80 GiB device.

use super::{
    adversarial::{Adversary, Kind},
    generator::Workload,
    kv_cache::{Caches, Decoding},
    models::{GPT_NEOX_20B, GPT2_XL, LLAMA_1B, LLAMA_8B, Model, OPT_1_3B, OPT_13B, QWEN_MOE_SMALL, RESNET_152},
    pattern::Pattern,
    rematerialisation::{Graph, Rematerialisation},
    rlhf::Feedback,
    side_stream::{Prefetch, Sharded},
    transformer::Training,
    vision::Images,
};
use seamalloc::nearest::nearest;
use thiserror::Error;

/// The error of an unknown workload's name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no workload is called `{name}`; the nearest is `{nearest}`")]
pub struct UnknownWorkload {
    /// The requested name.
    pub name: String,
    /// The known name with the least edit distance.
    pub nearest: &'static str,
}

/// Returns every workload, in the order of reports.
pub fn catalogue() -> &'static [Workload] {
    &CATALOGUE
}

/// Returns the workload with that name.
///
/// # Errors
/// [`UnknownWorkload`], with the nearest name.
pub fn find(name: &str) -> Result<&'static Workload, UnknownWorkload> {
    CATALOGUE.iter().find(|w| w.name == name).ok_or_else(|| UnknownWorkload {
        name: name.to_owned(),
        nearest: nearest(name, CATALOGUE.iter().map(|w| w.name)),
    })
}

/// The techniques by which a training job saves memory, named by the letters of GMLake's evaluation.
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

/// The shortest and the longest sequence of most jobs, in tokens.
const LENGTHS: (u64, u64) = (300, 1900);

const fn training(
    name: &'static str,
    model: &'static Model,
    strategy: Strategy,
    (world, batch): (u64, u64),
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

const fn other(
    name: &'static str,
    group: &'static str,
    summary: &'static str,
    default_steps: u32,
    pattern: Pattern,
) -> Workload {
    Workload { name, group, summary, in_default_set: true, default_steps, pattern }
}

const fn optional(workload: Workload) -> Workload {
    Workload { in_default_set: false, ..workload }
}

static CATALOGUE: [Workload; 54] = [
    training("gpt2-xl-N", &GPT2_XL, N, (1, 4), 5),
    optional(training("gpt2-xl-R", &GPT2_XL, R, (1, 16), 4)),
    optional(training("gpt2-xl-L", &GPT2_XL, L, (1, 4), 4)),
    optional(training("gpt2-xl-O", &GPT2_XL, O, (1, 8), 4)),
    optional(training("gpt2-xl-LR", &GPT2_XL, LR, (1, 16), 4)),
    optional(training("gpt2-xl-RO", &GPT2_XL, RO, (1, 16), 4)),
    optional(training("gpt2-xl-LO", &GPT2_XL, LO, (1, 16), 4)),
    optional(training("gpt2-xl-LRO", &GPT2_XL, LRO, (1, 16), 4)),
    training("opt-1.3b-N", &OPT_1_3B, N, (1, 8), 6),
    training("opt-1.3b-R", &OPT_1_3B, R, (1, 16), 6),
    optional(training("opt-1.3b-L", &OPT_1_3B, L, (1, 8), 6)),
    optional(training("opt-1.3b-O", &OPT_1_3B, O, (1, 16), 6)),
    training("opt-1.3b-LR", &OPT_1_3B, LR, (1, 16), 6),
    training("opt-1.3b-RO", &OPT_1_3B, RO, (1, 16), 6),
    optional(training("opt-1.3b-LO", &OPT_1_3B, LO, (1, 16), 6)),
    training("opt-1.3b-LRO", &OPT_1_3B, LRO, (1, 16), 6),
    optional(training("opt-13b-N", &OPT_13B, N, (4, 1), 4)),
    training("opt-13b-R", &OPT_13B, R, (4, 8), 4),
    optional(training("opt-13b-L", &OPT_13B, L, (4, 2), 4)),
    optional(training("opt-13b-O", &OPT_13B, O, (4, 8), 4)),
    training("opt-13b-LR", &OPT_13B, LR, (1, 12), 4),
    optional(training("opt-13b-RO", &OPT_13B, RO, (4, 8), 4)),
    optional(training("opt-13b-LO", &OPT_13B, LO, (4, 8), 4)),
    optional(training("opt-13b-LRO", &OPT_13B, LRO, (4, 12), 4)),
    optional(training("gpt-neox-20b-N", &GPT_NEOX_20B, N, (8, 1), 3)),
    optional(training("gpt-neox-20b-R", &GPT_NEOX_20B, R, (8, 8), 3)),
    optional(training("gpt-neox-20b-L", &GPT_NEOX_20B, L, (4, 1), 3)),
    optional(training("gpt-neox-20b-O", &GPT_NEOX_20B, O, (4, 8), 3)),
    training("gpt-neox-20b-LR", &GPT_NEOX_20B, LR, (4, 8), 3),
    optional(training("gpt-neox-20b-RO", &GPT_NEOX_20B, RO, (4, 8), 3)),
    optional(training("gpt-neox-20b-LO", &GPT_NEOX_20B, LO, (4, 8), 3)),
    training("gpt-neox-20b-LRO", &GPT_NEOX_20B, LRO, (4, 12), 3),
    optional(training("llama-8b-N", &LLAMA_8B, N, (4, 1), 4)),
    optional(training("llama-8b-R", &LLAMA_8B, R, (4, 4), 4)),
    optional(training("llama-8b-L", &LLAMA_8B, L, (1, 2), 4)),
    optional(training("llama-8b-O", &LLAMA_8B, O, (4, 4), 4)),
    training("llama-8b-LR", &LLAMA_8B, LR, (1, 8), 4),
    optional(training("llama-8b-RO", &LLAMA_8B, RO, (4, 8), 4)),
    optional(training("llama-8b-LO", &LLAMA_8B, LO, (4, 8), 4)),
    optional(training("llama-8b-LRO", &LLAMA_8B, LRO, (4, 8), 4)),
    Workload { group: "moe", ..training("qwen-moe-R", &QWEN_MOE_SMALL, R, (1, 4), 2) },
    optional(Workload { group: "moe", ..training("qwen-moe-LR", &QWEN_MOE_SMALL, LR, (1, 6), 3) }),
    other("dtr-chain", "rematerialisation", "evicts and recomputes under a budget, block after block", 4, DTR_CHAIN),
    other("dtr-tree", "rematerialisation", "the same over a random tree in every step", 6, DTR_TREE),
    other("kv-batch", "kv-cache", "one cache a layer, grown by concatenation, gathered anew on joins", 70, KV_BATCH),
    other("kv-requests", "kv-cache", "a cache a layer for each request, grown by concatenation", 30, KV_REQUESTS),
    other("resnet-152", "vision", "ResNet-152 in mixed precision, resolutions and batches vary", 10, RESNET_MULTI),
    other("llama-1b-rlhf", "rlhf", "generates, scores with a reference model, trains; in turn", 2, LLAMA_RLHF),
    other("llama-8b-fsdp", "side-stream", "weights gathered and gradients reduced on side streams", 3, LLAMA_FSDP),
    other("prefetch", "side-stream", "buffers of a side stream used on the main one", 60, PREFETCH),
    other("comb", "adversarial", "every other block freed, then larger ones asked for", 4, adversary(Kind::Comb)),
    other(
        "sawtooth",
        "adversarial",
        "ramps of changing sizes, a few blocks survive each",
        12,
        adversary(Kind::Sawtooth),
    ),
    other("creeping", "adversarial", "each block replaced by one a little larger", 40, adversary(Kind::Creeping)),
    other("ping-pong", "adversarial", "two streams in turn fill what the other freed", 24, adversary(Kind::PingPong)),
];

const GIB: u64 = 1 << 30;

const fn adversary(kind: Kind) -> Pattern {
    Pattern::Adversary(Adversary { kind, bound: 24 * GIB })
}

const DTR_CHAIN: Pattern = Pattern::Rematerialisation(Rematerialisation {
    model: &OPT_1_3B,
    budget: 12 * GIB,
    batch: 16,
    lengths: LENGTHS,
    graph: Graph::Chain,
});
const DTR_TREE: Pattern = Pattern::Rematerialisation(Rematerialisation {
    model: &OPT_1_3B,
    budget: 10 * GIB,
    batch: 512,
    lengths: LENGTHS,
    graph: Graph::Tree,
});
const KV_BATCH: Pattern = Pattern::Decoding(Decoding {
    model: &LLAMA_8B,
    requests: 48,
    prompt: (64, 1500),
    answer: (32, 160),
    caches: Caches::Batched,
});
const KV_REQUESTS: Pattern = Pattern::Decoding(Decoding {
    model: &OPT_13B,
    requests: 12,
    prompt: (100, 1800),
    answer: (4, 40),
    caches: Caches::Separate,
});
const RESNET_MULTI: Pattern =
    Pattern::Images(Images { model: &RESNET_152, sides: (128, 512), batches: &[16, 24, 32, 48] });
const LLAMA_RLHF: Pattern =
    Pattern::Feedback(Feedback { model: &LLAMA_1B, batch: 16, micro_batch: 4, prompt: (64, 400), answer: (64, 200) });
const LLAMA_FSDP: Pattern = Pattern::Sharded(Sharded { model: &LLAMA_8B, world: 2, batch: 4, lengths: LENGTHS });
const PREFETCH: Pattern = Pattern::Prefetch(Prefetch { buffers: 24, sizes: (GIB / 2, 2 * GIB) });
