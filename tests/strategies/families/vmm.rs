//! Paddle's allocator over virtual memory: handles that are moved together, and what becomes of a move that fails.

use super::model::MIB;
use super::{MAIN, held, on};
use crate::random::Random;
use seamalloc::Allocator;
use seamalloc::driver::sim::{Range, SimGpu};
use seamalloc::driver::{Call, Driver, Status};
use std::collections::BTreeMap;
use std::sync::Arc;

const SMALL_HANDLES: &str = "strategy:paddle-vmm,FLAGS_vmm_v2_large_pool_handle_size_in_mb:2";

/// A device of 200 MiB, full of blocks of 20, of which every other one was freed. Returns the live ones.
fn with_holes(options: &str) -> (Arc<SimGpu>, Allocator, Vec<u64>) {
    let (gpu, allocator) = on("sim:h200,capacity=200MiB", options);
    let mut blocks: Vec<u64> = (0..10).map(|_| allocator.allocate(20 * MIB, MAIN).unwrap()).collect();
    let live = blocks.split_off(0).into_iter().enumerate().filter_map(|(at, address)| {
        let kept = at % 2 == 1;
        if !kept {
            allocator.free(address).unwrap();
        }
        kept.then_some(address)
    });
    let live = live.collect();
    (gpu, allocator, live)
}

fn physical(gpu: &SimGpu, address: u64, size: u64) -> u64 {
    gpu.physical(Range { address, size }).iter().map(|piece| piece.size).sum()
}

/// An independent model of a pool while memory is plentiful: what lies where, from the first address on.
struct Pool {
    handle: u64,
    start: Option<u64>,
    mapped: u64,
    /// Bytes, and whether they are free, by their distance from the start.
    blocks: BTreeMap<u64, (u64, bool)>,
}

impl Pool {
    fn allocate(&mut self, size: u64) -> u64 {
        let fits = self.blocks.iter().filter(|(_, (bytes, free))| *free && *bytes >= size);
        let at = match fits.map(|(at, (bytes, _))| (*bytes, *at)).min() {
            Some((_, at)) => at,
            None => {
                // A free block in front of the new memory stays as it is.
                let at = self.mapped;
                let grown = size.div_ceil(self.handle) * self.handle;
                self.mapped += grown;
                self.blocks.insert(at, (grown, true));
                at
            }
        };
        let (bytes, _) = self.blocks[&at];
        self.blocks.insert(at, (size, false));
        if bytes > size {
            self.blocks.insert(at + size, (bytes - size, true));
        }
        at
    }

    fn free(&mut self, at: u64) {
        let (mut at, (mut bytes, _)) = (at, self.blocks[&at]);
        if let Some((bytes_behind, true)) = self.blocks.get(&(at + bytes)).copied() {
            self.blocks.remove(&(at + bytes));
            bytes += bytes_behind;
        }
        if let Some((before, (bytes_before, true))) = self.blocks.range(..at).next_back().map(|(at, of)| (*at, *of)) {
            self.blocks.remove(&at);
            at = before;
            bytes += bytes_before;
        }
        self.blocks.insert(at, (bytes, true));
    }
}

#[test]
fn while_memory_is_plentiful_it_is_as_an_independent_model_has_it() {
    for large in [20, 2, 4] {
        let flags = format!("strategy:paddle-vmm,FLAGS_vmm_v2_large_pool_handle_size_in_mb:{large}");
        for seed in 0..4 {
            let (_, allocator) = on("sim:h200", &flags);
            let pool = |handle: u64| Pool { handle: handle * MIB, start: None, mapped: 0, blocks: BTreeMap::new() };
            let mut pools = [pool(2), pool(large)];
            let (mut random, mut live) = (Random(seed), Vec::new());
            for step in 0..super::STEPS {
                if random.below(20) < 12 || live.is_empty() {
                    let most = [3000, 200 << 10, 3 * MIB, 12 * MIB, 90 * MIB][random.below(5) as usize];
                    let asked = 1 + random.below(most);
                    let size = asked.next_multiple_of(512);
                    let of = usize::from(size >= 2 * MIB);
                    let address = allocator.allocate(asked, MAIN).unwrap();
                    let at = pools[of].allocate(size);
                    let start = *pools[of].start.get_or_insert(address);
                    assert_eq!(address - start, at, "{flags}, seed {seed}, step {step}: {asked} bytes");
                    assert_eq!(allocator.reports().size_of(address), Ok(size));
                    live.push((of, at, address));
                } else {
                    let (of, at, address) = live.swap_remove(random.below(live.len() as u64) as usize);
                    allocator.free(address).unwrap();
                    pools[of].free(at);
                }
                assert_eq!(held(&allocator), pools.iter().map(|pool| pool.mapped).sum::<u64>());
            }
            allocator.reports().check().unwrap();
        }
    }
}

#[test]
fn handles_are_moved_together_as_far_as_a_request_needs() {
    let (gpu, allocator, live) = with_holes(SMALL_HANDLES);
    let before = gpu.call_stats();
    let address = allocator.allocate(61 * MIB, MAIN).unwrap();
    let made = gpu.call_stats().since(&before);
    let counts = [Call::Map, Call::Unmap, Call::Create, Call::Release].map(|call| made.get(call).count);
    // One handle is asked for first, and refused.
    assert_eq!(counts, [31, 31, 1, 0], "31 handles are 62 MiB");
    assert_eq!(physical(&gpu, address, 62 * MIB), 62 * MIB);
    assert!(live.iter().all(|block| physical(&gpu, *block, 20 * MIB) == 20 * MIB), "what is live stays");
    assert_eq!(held(&allocator), 200 * MIB);
    allocator.reports().check().unwrap();
    // All of it can be freed and given back.
    live.iter().chain([&address]).for_each(|block| allocator.free(*block).unwrap());
    allocator.empty_cache().unwrap();
    assert_eq!(held(&allocator), 0);
    drop(allocator);
    assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
}

/// Handles partly in use stay, and then there are too few: nothing moves.
#[test]
fn a_move_that_would_not_be_enough_is_not_begun() {
    let (gpu, allocator) = on("sim:h200,capacity=200MiB", "strategy:paddle-vmm");
    let blocks: Vec<u64> = (0..20).map(|_| allocator.allocate(10 * MIB, MAIN).unwrap()).collect();
    assert_eq!(held(&allocator), 200 * MIB, "a block of 10 MiB is half of a handle");
    blocks.iter().step_by(2).for_each(|address| allocator.free(*address).unwrap());
    let before = gpu.call_stats();
    assert!(allocator.allocate(30 * MIB, MAIN).unwrap_err().is_out_of_memory());
    assert_eq!(gpu.call_stats().since(&before).get(Call::Unmap).count, 0);
}

#[test]
fn a_move_may_fail_at_any_call() {
    let (gpu, allocator, _) = with_holes(SMALL_HANDLES);
    let before = gpu.call_stats();
    allocator.allocate(61 * MIB, MAIN).unwrap();
    let made = gpu.call_stats().since(&before);
    let mut tried = 0;
    for call in [Call::Map, Call::SetAccess, Call::Unmap, Call::StreamSynchronize] {
        for nth in 1..=made.get(call).count {
            for twice in [false, true] {
                let name = format!("{call} number {nth}, {twice}");
                let (gpu, allocator, live) = with_holes(SMALL_HANDLES);
                gpu.fail_nth(call, nth, Status::UNKNOWN);
                if twice {
                    // The undoing fails as well.
                    gpu.fail_nth(Call::Unmap, if call == Call::Unmap { nth + 1 } else { 1 }, Status::UNKNOWN);
                }
                let failed = allocator.allocate(61 * MIB, MAIN);
                assert!(failed.is_err(), "{name}");
                allocator.reports().check().unwrap_or_else(|broken| panic!("{name}: {broken}"));
                let info = gpu.memory_info().unwrap();
                assert_eq!(info.total - info.free, held(&allocator), "{name}");
                assert!(live.iter().all(|block| physical(&gpu, *block, 20 * MIB) == 20 * MIB), "{name}");
                // The same request is served once no call fails. There was nothing to undo where the first map failed.
                let again = allocator.allocate(61 * MIB, MAIN).or_else(|_| allocator.allocate(61 * MIB, MAIN));
                let address = again.unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(physical(&gpu, address, 62 * MIB), 62 * MIB, "{name}");
                allocator.reports().check().unwrap();
                live.iter().chain([&address]).for_each(|block| allocator.free(*block).unwrap());
                allocator.empty_cache().unwrap();
                assert_eq!(held(&allocator), 0, "{name}");
                drop(allocator);
                assert!(gpu.leaks().is_empty(), "{name}: {}", gpu.leaks());
                tried += 1;
            }
        }
    }
    assert!(tried > 100, "{tried} failures were tried");
}
