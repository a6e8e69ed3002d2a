//! Tests over the whole catalogue.

use std::{
    collections::HashSet,
    hash::{Hash, Hasher},
};

use super::{
    error::{GenerateError, MAX_STEPS},
    models,
    tape::{Dice, Tape},
    transformer::{Gradients, Job, Training},
    {Scale, catalogue, find},
};
use crate::trace::{Trace, TraceEvent};

const GIB: u64 = 1 << 30;

/// Returns the peak of live bytes. Panics if the trace is invalid.
fn peak_of(trace: &Trace) -> u64 {
    let mut sizes = Vec::new();
    let mut states = Vec::new();
    let (mut live, mut peak) = (0_u64, 0);
    for event in &trace.events {
        match *event {
            TraceEvent::Alloc { size, stream } => {
                assert!(size > 0 && (stream as usize) < trace.streams.len(), "{}", trace.name);
                sizes.push(size);
                states.push(0);
                live += size;
                peak = peak.max(live);
            }
            TraceEvent::FreeRequested { block } => {
                assert_eq!(states[block as usize], 0, "{}: block {block} freed twice", trace.name);
                states[block as usize] = 1;
            }
            TraceEvent::FreeCompleted { block } => {
                assert_eq!(states[block as usize], 1, "{}: block {block} completed", trace.name);
                states[block as usize] = 2;
                live -= sizes[block as usize];
            }
        }
    }
    peak
}

/// The FNV-1a hash, so that the hash of a trace depends on its events alone.
struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

fn hash_of(trace: &Trace) -> u64 {
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    for event in &trace.events {
        let (kind, number, stream) = match *event {
            TraceEvent::Alloc { size, stream } => (0_u8, size, stream),
            TraceEvent::FreeRequested { block } => (1, u64::from(block), 0),
            TraceEvent::FreeCompleted { block } => (2, u64::from(block), 0),
        };
        kind.hash(&mut hasher);
        hasher.write(&number.to_le_bytes());
        hasher.write(&stream.to_le_bytes());
    }
    hasher.finish()
}

fn sizes_of(trace: &Trace) -> impl Iterator<Item = u64> {
    trace.events.iter().filter_map(|event| match event {
        TraceEvent::Alloc { size, .. } => Some(*size),
        _ => None,
    })
}

const TWO_STEPS: Scale = Scale { steps: Some(2) };

#[test]
fn names_are_unique_and_found() {
    let mut names = HashSet::new();
    for workload in catalogue() {
        assert!(names.insert(workload.name), "{} twice", workload.name);
        assert_eq!(find(workload.name).unwrap().name, workload.name);
        assert!(!workload.summary.is_empty() && !workload.group.is_empty());
    }
}

#[test]
fn a_misspelt_name_gets_the_nearest() {
    for (misspelt, nearest) in [("opt-1.3-R", "opt-1.3b-R"), ("pingpong", "ping-pong"), ("GPT2-XL-n", "gpt2-xl-N")] {
        let error = find(misspelt).unwrap_err();
        assert_eq!(error.nearest, nearest);
        assert!(error.to_string().contains(misspelt));
    }
}

#[test]
fn a_scale_out_of_bounds_is_an_error() {
    let workload = find("comb").unwrap();
    for steps in [0, MAX_STEPS + 1, u32::MAX] {
        let error = workload.generate(0, Scale { steps: Some(steps) }).unwrap_err();
        assert_eq!(error, GenerateError::Steps { steps });
    }
}

#[test]
fn a_trace_too_long_is_an_error_and_its_generation_ends() {
    for workload in catalogue() {
        let mut tape = Tape::with_limit(workload.pattern.side_streams(), 100);
        workload.pattern.run(&mut tape, &mut Dice::new(0), MAX_STEPS).unwrap();
        assert_eq!(tape.finish().unwrap_err(), GenerateError::TooLong { limit: 100 }, "{}", workload.name);
    }
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
    for workload in catalogue() {
        let trace = workload.generate(0, TWO_STEPS).unwrap();
        assert_eq!(trace, workload.generate(0, TWO_STEPS).unwrap(), "{}", workload.name);
        assert_ne!(trace.events, workload.generate(1, TWO_STEPS).unwrap().events, "{}", workload.name);
    }
}

#[test]
fn every_trace_is_valid_at_any_seed() {
    for workload in catalogue() {
        for seed in [1, u64::MAX] {
            peak_of(&workload.generate(seed, TWO_STEPS).unwrap());
        }
    }
}

#[test]
fn peaks_fit_an_80_gib_device_and_the_default_set_is_bounded() {
    let mut events = 0;
    for workload in catalogue() {
        let trace = workload.generate(0, Scale::default()).unwrap();
        let peak = peak_of(&trace);
        assert!((4 * GIB..=75 * GIB).contains(&peak), "{}: {peak}", workload.name);
        if workload.in_default_set {
            events += trace.events.len();
        }
    }
    assert!(events <= 1_500_000, "{events}");
}

#[test]
fn the_meta_says_how_the_trace_was_made() {
    let trace = find("opt-1.3b-LR").unwrap().generate(7, TWO_STEPS).unwrap();
    for (key, value) in [("workload", "opt-1.3b-LR"), ("group", "transformer"), ("model", "opt-1.3b")] {
        assert_eq!(trace.meta[key], value);
    }
    for (key, value) in [("seed", 7), ("steps", 2), ("batch", 16)] {
        assert_eq!(trace.meta[key], value);
    }
}

const FULL: Training = Training {
    model: &models::OPT_1_3B,
    recompute: false,
    lora: false,
    offload: false,
    world: 1,
    batch: 8,
    lengths: (300, 1900),
};

/// Returns the trace of a job with one step for each of these lengths.
fn train(plan: &Training, lengths: &[u64]) -> Trace {
    let mut tape = Tape::new(0);
    let mut job = Job::start(&mut tape, plan, plan.model.transformer().unwrap());
    for length in lengths {
        let gradients = job.gradients(plan.batch * length, &mut Dice::new(*length), Gradients::Fresh);
        job.update(gradients);
    }
    tape.finish().unwrap()
}

#[test]
fn every_strategy_saves_memory() {
    let peak = |plan: Training| peak_of(&train(&plan, &[1200, 900]));
    for model in [&models::OPT_1_3B, &models::GPT2_XL, &models::LLAMA_1B] {
        let full = Training { model, ..FULL };
        let none = peak(full);
        assert!(peak(Training { recompute: true, ..full }) < none, "{}", model.name);
        assert!(peak(Training { lora: true, recompute: true, ..full }) < peak(Training { recompute: true, ..full }));
        assert!(peak(Training { offload: true, ..full }) < none, "{}", model.name);
        assert!(peak(Training { world: 4, ..full }) < none, "{}", model.name);
    }
    // With a small batch, the states of the optimizer take more memory than the adapters' activations.
    let small = Training { batch: 1, ..FULL };
    assert!(peak(Training { lora: true, ..small }) < peak(small));
}

/// A recorded job: its model, and the contents of its trace (PyTorch 2.11 on an H200).
struct Recorded {
    plan: Training,
    lengths: &'static [u64],
    allocations: u64,
    peak: u64,
    small_percent: u64,
}

const LENGTHS: [u64; 10] = [1088, 1852, 1161, 382, 830, 1347, 1295, 1129, 921, 1276];

#[test]
fn generated_jobs_resemble_the_recorded_ones() {
    let recorded = [
        Recorded {
            plan: Training { model: &models::GPT2_XL, ..FULL },
            lengths: &[896, 896, 512, 768, 1024, 896],
            allocations: 25_999,
            peak: 51_448_320_266,
            small_percent: 36,
        },
        Recorded {
            plan: Training { recompute: true, batch: 16, ..FULL },
            lengths: &LENGTHS,
            allocations: 28_732,
            peak: 29_614_053_386,
            small_percent: 38,
        },
        Recorded {
            plan: Training { model: &models::OPT_13B, recompute: true, lora: true, batch: 12, ..FULL },
            lengths: &LENGTHS[..8],
            allocations: 37_050,
            peak: 49_413_794_698,
            small_percent: 27,
        },
    ];
    for real in recorded {
        let name = real.plan.model.name;
        let trace = train(&real.plan, real.lengths);
        let allocations = sizes_of(&trace).count() as u64;
        let small = sizes_of(&trace).filter(|size| *size <= 1 << 20).count() as u64 * 100 / allocations;
        let peak = peak_of(&trace);
        assert!(allocations.abs_diff(real.allocations) * 10 < real.allocations, "{name}: {allocations} allocations");
        assert!(peak.abs_diff(real.peak) * 20 < real.peak, "{name}: peak {peak}");
        assert!(small.abs_diff(real.small_percent) <= 3, "{name}: {small}% small");
    }
}

/// The test fails on any change of a generator. If the change is intended, the list must be replaced by the one that
/// the test prints.
#[test]
fn traces_at_seed_0_are_the_golden_ones() {
    let ours: Vec<(&str, u64)> =
        catalogue().iter().map(|w| (w.name, hash_of(&w.generate(0, TWO_STEPS).unwrap()))).collect();
    if ours != GOLDEN {
        let lines: String = ours.iter().map(|(name, hash)| format!("    (\"{name}\", {hash:#018x}),\n")).collect();
        panic!("the traces have changed:\n{lines}");
    }
}

const GOLDEN: [(&str, u64); 54] = [
    ("gpt2-xl-N", 0x74a0_cd88_2b23_1c20),
    ("gpt2-xl-R", 0xa953_a33b_cd49_04cc),
    ("gpt2-xl-L", 0x494e_3b5e_7b1e_e5ec),
    ("gpt2-xl-O", 0xc3f1_cca9_aec9_299e),
    ("gpt2-xl-LR", 0x8e9b_1772_0333_7e64),
    ("gpt2-xl-RO", 0x887c_f263_4aea_0c2c),
    ("gpt2-xl-LO", 0x5722_b0fa_63d5_bfd4),
    ("gpt2-xl-LRO", 0xa2e3_3e8e_8ff1_4d4e),
    ("opt-1.3b-N", 0xe890_646b_bb5e_2b28),
    ("opt-1.3b-R", 0x2fb9_6c9f_3862_906e),
    ("opt-1.3b-L", 0xd9e5_7bf2_0e41_5728),
    ("opt-1.3b-O", 0x4dbf_eda7_c247_70c2),
    ("opt-1.3b-LR", 0x73b4_7321_516c_1226),
    ("opt-1.3b-RO", 0xcf6b_b9cd_2d02_8408),
    ("opt-1.3b-LO", 0x7077_e972_0abf_c5a6),
    ("opt-1.3b-LRO", 0xc89f_e733_40a9_64da),
    ("opt-13b-N", 0x27cc_ad0d_abd5_16ae),
    ("opt-13b-R", 0x4c22_9161_e4b6_ea9a),
    ("opt-13b-L", 0xca42_e504_1861_8acc),
    ("opt-13b-O", 0xd7ef_a63e_2e3f_7ee0),
    ("opt-13b-LR", 0x9af9_3e0a_0a02_6cb7),
    ("opt-13b-RO", 0xf099_5802_666f_c204),
    ("opt-13b-LO", 0x0485_272a_7f1c_c2ca),
    ("opt-13b-LRO", 0x5257_f5ac_1f41_66a5),
    ("gpt-neox-20b-N", 0x85b5_3dd3_5943_ab83),
    ("gpt-neox-20b-R", 0x5b1d_5a8f_b63a_21dc),
    ("gpt-neox-20b-L", 0x2256_982e_601b_b90e),
    ("gpt-neox-20b-O", 0x286c_3092_051c_7860),
    ("gpt-neox-20b-LR", 0xcfd1_297a_ca25_26c8),
    ("gpt-neox-20b-RO", 0x0f53_909d_ec92_f2f0),
    ("gpt-neox-20b-LO", 0x316d_1b5a_ed6a_73f2),
    ("gpt-neox-20b-LRO", 0xb746_48de_b1e2_5ce9),
    ("llama-8b-N", 0x4297_16f4_4a96_ccfd),
    ("llama-8b-R", 0xd5f2_2c21_17a1_d6ae),
    ("llama-8b-L", 0xd148_22b4_a8f4_3b6c),
    ("llama-8b-O", 0x1c30_db00_64d0_1f32),
    ("llama-8b-LR", 0xdd9b_6e33_cfaa_b53e),
    ("llama-8b-RO", 0x4987_236b_42de_96d0),
    ("llama-8b-LO", 0x9041_8388_bf55_aa00),
    ("llama-8b-LRO", 0x544b_b15f_81c6_0fcc),
    ("qwen-moe-R", 0xb988_f459_4daa_fc3b),
    ("qwen-moe-LR", 0xd50e_c1bb_5858_3d16),
    ("dtr-chain", 0xd6dd_4dfa_e8f7_40aa),
    ("dtr-tree", 0x9c2b_86ad_18da_92f5),
    ("kv-batch", 0xc0b6_0480_a97f_a50b),
    ("kv-requests", 0x9f20_49fc_a174_f560),
    ("resnet-152", 0x1555_7380_9c8e_760d),
    ("llama-1b-rlhf", 0x247f_155f_6caa_7a2e),
    ("llama-8b-fsdp", 0x0a21_9211_3e9d_2360),
    ("prefetch", 0xd193_5946_ef9d_0162),
    ("comb", 0x272d_3940_5453_6aa2),
    ("sawtooth", 0xc1f5_1d9f_8276_a166),
    ("creeping", 0x7597_d893_4178_a86f),
    ("ping-pong", 0x3d92_c9e1_05ee_af0c),
];

#[test]
#[ignore = "prints the table of workloads; run it with --nocapture in release"]
fn table() {
    println!(
        "| workload | default set | events | peak live GiB | distinct sizes | up to 1 MiB | allocations a step | ms |"
    );
    for workload in catalogue() {
        let start = std::time::Instant::now();
        let trace = workload.generate(0, Scale::default()).unwrap();
        let took = start.elapsed();
        let allocations = sizes_of(&trace).count();
        println!(
            "| {} | {} | {} | {:.1} | {} | {}% | {} | {:.1} |",
            workload.name,
            if workload.in_default_set { "yes" } else { "" },
            trace.events.len(),
            peak_of(&trace) as f64 / GIB as f64,
            sizes_of(&trace).collect::<HashSet<u64>>().len(),
            sizes_of(&trace).filter(|size| *size <= 1 << 20).count() * 100 / allocations,
            allocations / workload.default_steps as usize,
            took.as_secs_f64() * 1e3
        );
    }
}
