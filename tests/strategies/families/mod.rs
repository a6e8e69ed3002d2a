//! The classic allocators and Paddle's: against independent models of them, by the sums of their authors, and in what the
//! contract suite counts in bytes of its own.

mod model;
mod safety;
mod stream_safe;
mod sums;
mod vmm;

use crate::random::Random;
use model::{MIB, Model, Rules};
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::driver::{Call, Driver, StreamId};
use seamalloc::{Allocator, Config};
use std::sync::Arc;

const MAIN: StreamId = StreamId::DEFAULT;
const STEPS: u64 = if cfg!(feature = "paranoid") { 400 } else { 3000 };

fn gpu(device: &str) -> SimGpu {
    SimGpu::new(SimConfig::parse(device).unwrap()).unwrap()
}

fn on(device: &str, options: &str) -> (Arc<SimGpu>, Allocator) {
    let gpu = Arc::new(gpu(device));
    let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::parse(options).unwrap()).unwrap();
    (gpu, allocator)
}

fn held(allocator: &Allocator) -> u64 {
    allocator.stats().reserved_bytes.all.current
}

/// Runs a random program on both, and compares every answer: addresses too, so that both have made the same calls.
fn agrees(options: &str, rules: Rules, least: u64) {
    for (seed, capacity) in [(1, "64GiB"), (2, "2GiB"), (3, "600MiB"), (4, "200MiB")] {
        let device = format!("sim:h200,capacity={capacity}");
        let (_, allocator) = on(&device, options);
        let mut model = Model::new(rules, gpu(&device));
        let (mut random, mut live) = (Random(seed), Vec::new());
        let mut refused = 0;
        for step in 0..STEPS {
            let name = format!("{options}, {capacity}, step {step}");
            match random.below(20) {
                0 if step % 50 == 0 => {
                    allocator.empty_cache().unwrap();
                    model.release();
                }
                0..12 => {
                    let most = [3000, 200 << 10, 3 * MIB, 12 * MIB, 90 * MIB][random.below(5) as usize];
                    let size = least + random.below(most);
                    let got = allocator.allocate(size, MAIN);
                    assert_eq!(got.as_ref().ok().copied(), model.allocate(size), "{name}: {size} bytes: {got:?}");
                    match got {
                        Ok(address) => {
                            assert_eq!(allocator.reports().size_of(address).unwrap(), model.size_of(address), "{name}");
                            live.push(address);
                        }
                        Err(_) => refused += 1,
                    }
                }
                _ if live.is_empty() => {}
                _ => {
                    let address = live.swap_remove(random.below(live.len() as u64) as usize);
                    allocator.free(address).unwrap();
                    model.free(address);
                }
            }
            assert_eq!(held(&allocator), model.held(), "{name}");
        }
        assert_eq!(refused > 0, capacity != "64GiB", "{options}, {capacity}: {refused} requests were refused");
        live.into_iter().for_each(|address| allocator.free(address).unwrap());
        allocator.empty_cache().unwrap();
        assert_eq!(held(&allocator), 0);
        allocator.reports().check().unwrap();
    }
}

#[test]
fn exact_is_the_tutorials_second_allocator() {
    for buffer in [5120, 64, 2] {
        agrees(&format!("strategy:exact,exact_buffer_mb:{buffer}"), Rules::Exact { buffer: buffer * MIB }, 1);
    }
}

#[test]
fn buddy_is_the_tutorials_third_allocator() {
    for tree in [4096, 128, 2] {
        agrees(&format!("strategy:buddy,buddy_capacity_mb:{tree}"), Rules::Buddy { tree: tree * MIB }, 1);
    }
}

#[test]
fn slab_is_bonwicks() {
    agrees("strategy:slab", Rules::Slab, 32 << 10);
}

#[test]
fn tiny_is_tinytorchs() {
    agrees("strategy:tiny", Rules::Tiny, 1);
    // No option of PyTorch changes it.
    agrees("strategy:tiny,max_split_size_mb:20,roundup_power2_divisions:4,large_segment_size_mb:12", Rules::Tiny, 1);
}

#[test]
fn paddles_auto_growth_is_paddles_by_every_flag() {
    for bits in 0..16u64 {
        let flag = |bit: u64| bits >> bit & 1 == 1;
        let [chunk, small_pool] = [u64::from(flag(0)) * 16, u64::from(flag(1))];
        let [small_chunk, large_chunk] = [2, 32];
        let (idle_goes, miss_frees) = (flag(2), flag(3));
        let options = format!(
            "strategy:paddle-auto-growth,FLAGS_auto_growth_chunk_size_in_mb:{chunk},\
             FLAGS_small_pool_size_in_mb:{small_pool},FLAGS_small_pool_auto_growth_chunk_size_in_mb:{small_chunk},\
             FLAGS_large_pool_auto_growth_chunk_size_in_mb:{large_chunk},FLAGS_free_idle_chunk:{idle_goes},\
             FLAGS_free_when_no_cache_hit:{miss_frees}"
        );
        let [chunk, small_pool, small_chunk, large_chunk] =
            [chunk, small_pool, small_chunk, large_chunk].map(|size| size * MIB);
        agrees(&options, Rules::AutoGrowth { chunk, small_pool, small_chunk, large_chunk, idle_goes, miss_frees }, 1);
    }
}

#[test]
fn paddles_naive_best_fit_is_paddles() {
    for (initial, later) in [(64, 16), (8, 40)] {
        for kind in ["paddle-naive-best-fit", "paddle-thread-local"] {
            let flags = format!("FLAGS_initial_gpu_memory_in_mb:{initial},FLAGS_reallocate_gpu_memory_in_mb:{later}");
            let rules = Rules::NaiveBestFit { initial: initial * MIB, later: later * MIB };
            agrees(&format!("strategy:{kind},{flags}"), rules, 1);
        }
    }
}

/// A first chunk of 92% of 95% of the device, and a second one of as much of the rest.
#[test]
fn paddles_chunks_are_a_fraction_of_what_is_free() {
    let (gpu, allocator) = on("sim:h200,capacity=1000MiB", "strategy:paddle-naive-best-fit");
    allocator.allocate(MIB, MAIN).unwrap();
    let whole = |bytes: f64| (bytes as u64) / (2 * MIB) * 2 * MIB;
    let first = whole(1000.0 * MIB as f64 * 0.95 * 0.92);
    assert_eq!(held(&allocator), first);
    allocator.allocate(MIB, StreamId(8)).unwrap();
    assert_eq!(held(&allocator), first + whole((1000 * MIB - first) as f64 * 0.95 * 0.92));
    assert_eq!(gpu.call_stats().get(Call::Malloc).count, 2);
    let (_, allocator) =
        on("sim:h200,capacity=1000MiB", "strategy:paddle-thread-local,FLAGS_fraction_of_gpu_memory_to_use:0.5");
    allocator.allocate(MIB, MAIN).unwrap();
    assert_eq!(held(&allocator), whole(1000.0 * MIB as f64 * 0.95 * 0.5));
}
