//! Eight threads and one allocator: every operation at once, on shared streams, pools and addresses, under every strategy.
//!
//! The sanitizers run it too (`.ci/sanitize`). `tests/contract/threads.rs` knows who has which physical memory; here the
//! operations are more, and addresses pass from thread to thread without a lock.

use crate::random::Random;
use crate::simulated;
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::SimGpu;
use seamalloc::{Allocator, Config, Error, Route, StrategyKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const MIB: u64 = 1 << 20;
const DEVICE: &str = "sim:h200,capacity=512MiB";
const THREADS: u64 = 8;
/// Operations of each thread.
const OPS: u64 = if cfg!(feature = "paranoid") { 200 } else { 1_500 };
const STREAMS: u64 = 6;
/// Places where threads leave addresses for each other.
const SLOTS: u64 = 64;
/// Private pools that a thread keeps at once.
const POOLS: usize = 3;

struct Shared {
    gpu: Arc<SimGpu>,
    allocator: Allocator,
    slots: [AtomicU64; SLOTS as usize],
}

impl Shared {
    /// Takes what is in a slot, and leaves this.
    fn swap(&self, slot: u64, address: u64) -> Option<u64> {
        let taken = self.slots[(slot % SLOTS) as usize].swap(address, Ordering::AcqRel);
        (taken != 0).then_some(taken)
    }

    fn free(&self, address: u64, stream: StreamId, random: &mut Random) {
        match random.below(4) {
            0 => {
                self.allocator.record_stream(address, stream).unwrap();
                self.allocator.free(address).unwrap();
            }
            1 => self.allocator.free_on(address, stream).unwrap(),
            2 => self.allocator.free_with_current_stream(address, stream).unwrap(),
            _ => self.allocator.free(address).unwrap(),
        }
    }
}

/// The figures of one moment agree with each other: they are read under one lock.
fn figures_agree(allocator: &Allocator) {
    let now = allocator.reports().fragmentation();
    assert_eq!(now.allocated + now.pending + now.free + now.unsettled, now.reserved);
    let stats = allocator.stats();
    let [live, active, reserved] = [&stats.allocated_bytes, &stats.active_bytes, &stats.reserved_bytes];
    assert!(live.all.current <= active.all.current && active.all.current <= reserved.all.current);
    for stat in [live, active, reserved] {
        assert_eq!(stat.all.allocated - stat.all.freed, stat.all.current);
        assert_eq!(stat.small_pool.current + stat.large_pool.current, stat.all.current);
        assert!(stat.all.peak >= stat.all.current);
    }
}

fn work(shared: &Shared, number: u64, seed: u64) {
    let Shared { gpu, allocator, .. } = shared;
    let mut random = Random(seed * THREADS + number);
    let pool = allocator.pools().create();
    let routed = number.is_multiple_of(2);
    if routed {
        allocator.pools().begin(pool, Route::this_thread()).unwrap();
    }
    let mut pools = Vec::new();
    for _ in 0..OPS {
        let stream = StreamId(random.below(STREAMS));
        let slot = random.below(SLOTS);
        match random.below(22) {
            0..8 => {
                let most = [4 << 10, MIB, 8 * MIB, 50 * MIB][random.below(4) as usize];
                let size = 1 + random.below(most);
                let own = random.below(4) == 0;
                let got =
                    if own { allocator.pools().allocate(pool, size, stream) } else { allocator.allocate(size, stream) };
                match got {
                    Ok(address) => {
                        assert!(allocator.reports().size_of(address).unwrap() >= size);
                        if let Some(old) = shared.swap(slot, address) {
                            allocator.free(old).unwrap();
                        }
                    }
                    Err(Error::OutOfMemory(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            8..13 => {
                if let Some(address) = shared.swap(slot, 0) {
                    shared.free(address, stream, &mut random);
                }
            }
            13 => figures_agree(allocator),
            14 => {
                for segment in allocator.reports().snapshot().segments {
                    assert_eq!(segment.blocks.iter().map(|block| block.size).sum::<u64>(), segment.total_size);
                }
            }
            15 => drop(allocator.empty_cache().unwrap()),
            16 => drop(allocator.trim(random.below(512) * MIB).unwrap()),
            17 if random.below(10) == 0 => allocator.streams().forget(stream).unwrap(),
            18 => {
                gpu.advance(10_000);
                pools.push(allocator.pools().create());
                if pools.len() > POOLS {
                    allocator.pools().release(pools.remove(0)).unwrap();
                }
            }
            19 if random.below(5) == 0 => {
                let limit = (random.below(2) == 0).then_some(300 * MIB);
                allocator.limits().set_bytes(limit).unwrap();
                allocator.reports().check().unwrap();
            }
            // Other threads ask for the descriptors, while this one may already have freed the memory.
            // A driver's pool is not shared.
            20 if cfg!(target_os = "linux") && allocator.config().strategy != StrategyKind::MallocAsync => {
                if let Some(address) = shared.swap(slot, 0) {
                    let name = allocator.sharing().export(address).unwrap();
                    assert_eq!(allocator.sharing().export(address).unwrap(), name);
                    if let Some(other) = shared.swap(slot, address) {
                        shared.free(other, stream, &mut random);
                    }
                    if let Ok(opened) = allocator.sharing().open(&name.handle) {
                        allocator.sharing().close(opened).unwrap();
                    }
                }
            }
            _ => {}
        }
    }
    pools.into_iter().for_each(|pool| allocator.pools().release(pool).unwrap());
    if routed {
        allocator.pools().end(pool).unwrap();
    }
    allocator.pools().release(pool).unwrap();
}

fn eight_threads(kind: StrategyKind) {
    let (gpu, allocator) = simulated::on(DEVICE, Config::with_strategy(kind));
    let slots = std::array::from_fn(|_| AtomicU64::new(0));
    let shared = Arc::new(Shared { gpu, allocator, slots });
    let weak = Arc::downgrade(&shared);
    let callback = shared.allocator.limits().on_pressure(move |pressure| {
        let Some(shared) = weak.upgrade() else { return false };
        shared.swap(pressure.requested, 0).is_some_and(|address| shared.allocator.free(address).is_ok())
    });
    std::thread::scope(|scope| {
        let shared = &shared;
        let start = |number| scope.spawn(move || work(shared, number, kind as u64 + 1));
        // Joined one by one, which ThreadSanitizer sees; what the scope does at its end it does not.
        let all: Vec<_> = (0..THREADS).map(start).collect();
        all.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let Shared { gpu, allocator, .. } = &*shared;
    (0..SLOTS).filter_map(|slot| shared.swap(slot, 0)).for_each(|address| allocator.free(address).unwrap());
    assert!(allocator.limits().remove_callback(callback));
    allocator.limits().set_bytes(None).unwrap();
    allocator.empty_cache().unwrap();
    allocator.reports().check().unwrap();
    assert_eq!((allocator.reports().reserved(), allocator.stats().allocated_bytes.all.current), (0, 0));
    let gpu = Arc::clone(gpu);
    drop(shared);
    assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
    assert_eq!(gpu.faults(), []);
}

#[test]
fn everything_at_once() {
    for kind in StrategyKind::ALL {
        eight_threads(kind);
    }
}
