//! Traces of real PyTorch jobs in this crate, recorded on an NVIDIA H200 with PyTorch 2.11.
//!
//! Owns: the list of jobs, and the measured reserved memory of PyTorch's two allocators on each job. The strategies
//! `caching` and `expandable` are compared with these figures. The files are in `crates/trace/traces/`, in the compact
//! format.

use crate::error::TraceError;
use crate::read::read_bytes;
use crate::trace::Trace;

/// The group of the recorded jobs, beside the groups of generated workloads.
pub const GROUP: &str = "recorded";

/// A recorded job.
#[derive(Debug)]
pub struct Job {
    /// The short name, such as `gpt2xl-N`.
    pub name: &'static str,
    /// A description of the job, in one line.
    pub summary: &'static str,
    /// The most bytes that were requested and not freed, as PyTorch counted them (`requested_bytes.all.peak`).
    pub live: u64,
    /// Bytes that PyTorch's native allocator reserved on the H200 (`reserved_bytes.all.peak`).
    pub native_reserved: u64,
    /// Bytes that PyTorch's allocator reserved with `expandable_segments:True`.
    pub expandable_reserved: u64,
    bytes: &'static [u8],
}

impl Job {
    /// Unpacks the trace.
    ///
    /// # Errors
    /// No error occurs, unless the crate was built from damaged files.
    pub fn load(&self) -> Result<Trace, TraceError> {
        let mut traces = read_bytes(self.name, self.bytes)?;
        Ok(traces.pop().unwrap_or_default())
    }
}

/// Returns the job with that name; `None` for other names.
#[must_use]
pub fn find(name: &str) -> Option<&'static Job> {
    JOBS.iter().find(|job| job.name == name)
}

macro_rules! jobs {
    ($($name:literal, $live:literal, $native:literal, $expandable:literal, $summary:literal;)*) => {
        /// Every recorded job.
        pub static JOBS: &[Job] = &[$(Job {
            name: $name,
            summary: $summary,
            live: $live,
            native_reserved: $native,
            expandable_reserved: $expandable,
            bytes: include_bytes!(concat!("../traces/", $name, ".seam")),
        },)*];
    };
}

jobs! {
    "gpt2xl-N", 51_448_320_266, 70_223_134_720, 52_378_468_352,
        "GPT-2 XL, full fine-tuning with AdamW, 5 sequence lengths, 6 steps";
    "resnet-multi", 15_660_358_464, 23_156_752_384, 15_873_343_488,
        "ResNet-152, mixed precision, resolutions 128 to 512, batch 16 to 48, 24 steps";
    "moe-R", 45_686_422_118, 64_445_480_960, 46_529_511_424,
        "Qwen2-MoE-like with 32 experts, recompute, 6 steps";
    "opt1.3b-R", 29_614_053_386, 36_159_094_784, 33_397_145_600,
        "OPT-1.3B, recompute, sequence lengths 300 to 1900, 10 steps";
    "opt13b-LR", 49_413_794_698, 56_528_732_160, 52_871_299_072,
        "OPT-13B, LoRA and recompute, sequence lengths 300 to 1900, 8 steps";
    "llama1b-ppo", 20_476_931_586, 32_151_437_312, 25_633_488_896,
        "Llama-1B, PPO: generate with a growing key-value cache, then train with recompute, 6 rounds";
    "llama8b-fsdp2", 40_282_677_034, 62_918_754_304, 55_203_332_096,
        "Llama-8B under FSDP2, rank 0 of 2 GPUs, three streams, recompute, 6 steps";
}
