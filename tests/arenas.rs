//! Heaps of single streams: who gets one, when it ends, and that nobody can tell by what the allocator says or gives.
//!
//! `tests/contract/arenas.rs` holds all of the contract's promises with them; here is what they alone do.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

mod random;
mod simulated;

use parking_lot::Mutex;
use random::Random;
use seamalloc::driver::sim::{Range, SimGpu};
use seamalloc::driver::{Call, Driver, StreamId};
use seamalloc::observer::{Event, Observer};
use seamalloc::{Allocator, Config, Error, Route, Stat, StatByPool};
use std::collections::{BTreeMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

const MIB: u64 = 1 << 20;
const A: StreamId = StreamId(0x100);
const B: StreamId = StreamId(0x200);

fn on(device: &str, options: &str) -> (Arc<SimGpu>, Allocator) {
    simulated::on(device, Config::parse(options).unwrap())
}

/// Streams with a heap of their own at present.
fn arenas(allocator: &Allocator) -> u64 {
    allocator.stats().arenas.now
}

/// Has a stream get an arena: its first request makes home, and the second one finds that there is something to lend.
fn form(allocator: &Allocator, stream: StreamId) -> u64 {
    let address = allocator.allocate(8 * MIB, stream).unwrap();
    allocator.free(address).unwrap();
    while allocator.allocate(8 * MIB, stream).map(|again| allocator.free(again)).is_ok() {
        if allocator.stats().arenas.now > 0 {
            break;
        }
    }
    address
}

#[test]
fn a_stream_gets_one_and_keeps_its_addresses() {
    let (gpu, allocator) = on("sim:h200", "arenas:always");
    let address = form(&allocator, A);
    assert_eq!(arenas(&allocator), 1);
    let calls = gpu.call_stats();
    let got = [8, 3, 5].map(|mib| {
        let got = allocator.allocate(mib * MIB, A);
        allocator.free(got.clone().unwrap()).unwrap();
        got.unwrap()
    });
    assert_eq!(got, [address; 3]);
    // A hit calls no driver, and a view of all memory finds everything where it was.
    for call in Call::ALL {
        assert_eq!(gpu.call_stats().get(call).count, calls.get(call).count, "{call:?}");
    }
    assert_eq!(arenas(&allocator), 1);
    allocator.check().unwrap();
    assert_eq!(arenas(&allocator), 0);
    assert_eq!(allocator.allocate(8 * MIB, A).unwrap(), address);
}

#[test]
fn with_one_thread_nobody_gets_one() {
    let (_, allocator) = on("sim:h200", "");
    for round in 0..2000 {
        let address = allocator.allocate(1 + round * 1000, StreamId(round % 3)).unwrap();
        allocator.free(address).unwrap();
    }
    assert_eq!(allocator.stats().arenas, Default::default());
}

#[test]
fn what_forbids_them_ends_them_too() {
    let cases: [fn(&Allocator); 6] = [
        |allocator| drop(allocator.snapshot()),
        |allocator| assert!(allocator.empty_cache().unwrap() > 0),
        |allocator| allocator.set_memory_limit(Some(1 << 30)).unwrap(),
        |allocator| allocator.forget_stream(A).unwrap(),
        |allocator| allocator.set_borrowed(A).unwrap(),
        |allocator| {
            let pool = allocator.create_pool();
            allocator.begin_allocate_to_pool(pool, Route::stream(B)).unwrap();
        },
    ];
    for ends in cases {
        let (_, allocator) = on("sim:h200", "arenas:always");
        form(&allocator, A);
        assert_eq!(arenas(&allocator), 1);
        ends(&allocator);
        assert_eq!(arenas(&allocator), 0);
        allocator.check().unwrap();
    }
    for options in
        ["sharing:wait", "sharing:completed", "strategy:caching", "max_split_size_mb:32", "guard:on", "arenas:off"]
    {
        let (_, allocator) = on("sim:h200", &format!("arenas:always,{options}"));
        for _ in 0..20 {
            let address = allocator.allocate(8 * MIB, A).unwrap();
            allocator.free(address).unwrap();
        }
        assert_eq!(allocator.stats().arenas.formed, 0, "{options}");
    }
}

struct Nothing;

impl Observer for Nothing {
    fn event(&mut self, _: &Event) {}
}

/// Every change is told, so every request takes the allocator's lock.
#[test]
fn while_changes_are_observed_nobody_gets_one() {
    let (_, allocator) = on("sim:h200", "arenas:always");
    for observer in [Some(Box::new(Nothing) as Box<dyn Observer>), None] {
        let formed = observer.is_none();
        allocator.observe(observer);
        for _ in 0..20 {
            let address = allocator.allocate(8 * MIB, A).unwrap();
            allocator.free(address).unwrap();
        }
        assert_eq!(allocator.stats().arenas.formed > 0, formed);
    }
}

#[test]
fn other_streams_of_a_block_are_waited_for() {
    for uses in [
        (|allocator, address| Allocator::record_stream(allocator, address, B).and_then(|()| allocator.free(address)))
            as fn(&Allocator, u64) -> Result<(), Error>,
        |allocator, address| allocator.free_on(address, B),
    ] {
        let (gpu, allocator) = on("sim:h200", "arenas:always,sharing:never");
        form(&allocator, A);
        let address = allocator.allocate(8 * MIB, A).unwrap();
        gpu.launch(B, &[], 1_000_000_000).unwrap();
        uses(&allocator, address).unwrap();
        assert_ne!(allocator.allocate(8 * MIB, A).unwrap(), address);
        allocator.check().unwrap();
    }
}

/// Memory that becomes short is one heap again: what a stream has free serves another.
#[test]
fn short_of_memory_all_is_one_heap() {
    let (_, allocator) = on("sim:h200", "arenas:always,memory_limit:100MiB");
    let held = allocator.allocate(60 * MIB, A).unwrap();
    allocator.free(held).unwrap();
    let small = allocator.allocate(8 * MIB, A).unwrap();
    let again = allocator.allocate(8 * MIB, A).unwrap();
    assert!(arenas(&allocator) > 0, "{:?}", allocator.stats().arenas);
    let other = allocator.allocate(80 * MIB, B).unwrap();
    assert!(allocator.stats().shortage.is_short);
    assert_eq!(arenas(&allocator), 0);
    [small, again, other].into_iter().for_each(|address| allocator.free(address).unwrap());
    allocator.check().unwrap();
    // While it is short, nobody gets one.
    for _ in 0..50 {
        let address = allocator.allocate(MIB, A).unwrap();
        allocator.free(address).unwrap();
    }
    assert_eq!(arenas(&allocator), 0);
}

#[test]
fn wrong_addresses_are_errors() {
    let (_, allocator) = on("sim:h200", "arenas:always");
    let address = form(&allocator, A);
    let live = allocator.allocate(2 * MIB, A).unwrap();
    assert_eq!(live, address);
    for wrong in [live + 512, live + 4 * MIB, 1 << 50, 7] {
        assert_eq!(allocator.free(wrong), Err(Error::InvalidAddress { address: wrong }));
        assert!(!allocator.owns(wrong));
    }
    assert_eq!((allocator.size_of(live), allocator.owns(live)), (Ok(2 * MIB), true));
    allocator.free(live).unwrap();
    assert_eq!(allocator.free(live), Err(Error::InvalidAddress { address: live }));
    assert_eq!(allocator.free_under(live, A), Err(Error::InvalidAddress { address: live }));
}

/// What is counted by hand of every block, by class.
#[derive(Default)]
struct Count {
    current: [u64; 2],
    peak: [u64; 3],
    added: u64,
}

impl Count {
    fn add(&mut self, class: usize, amount: u64) {
        self.current[class] += amount;
        self.added += amount;
        let all = self.current[0] + self.current[1];
        for (peak, current) in self.peak.iter_mut().zip([self.current[0], self.current[1], all]) {
            *peak = (*peak).max(current);
        }
    }

    fn agrees(&self, stat: StatByPool) {
        let [large, small] = self.current;
        let stat_of = |current, peak| (current, peak);
        let found =
            [stat.large_pool, stat.small_pool, stat.all].map(|Stat { current, peak, .. }| stat_of(current, peak));
        let all = large + small;
        assert_eq!(found, [(large, self.peak[0]), (small, self.peak[1]), (all, self.peak[2])]);
        assert_eq!((stat.all.allocated, stat.all.freed), (self.added, self.added - all));
    }
}

/// Peaks of a sum over heaps are those of one heap, after each operation.
#[test]
fn every_figure_is_that_of_one_heap() {
    for seed in 0..6 {
        let (_, allocator) = on("sim:h200", "arenas:always");
        let (mut random, mut live) = (Random(seed), Vec::new());
        let [mut count, mut bytes, mut requested] = [(); 3].map(|()| Count::default());
        let most_live = 20 + 40 * (seed as usize % 3);
        for step in 0..4000 {
            let stream = StreamId(0x100 * (1 + random.below(4)));
            if live.len() > most_live || (random.below(3) == 0 && !live.is_empty()) {
                let (address, class, size, asked) = live.swap_remove(random.below(live.len() as u64) as usize);
                allocator.free(address).unwrap();
                let [of_count, of_bytes, of_requested] = [&mut count, &mut bytes, &mut requested];
                of_count.current[class] -= 1;
                of_bytes.current[class] -= size;
                of_requested.current[class] -= asked;
            } else {
                let most = [4 << 10, MIB, 30 * MIB][random.below(3) as usize];
                let asked = 1 + random.below(most);
                let address = allocator.allocate(asked, stream).unwrap();
                let size = allocator.size_of(address).unwrap();
                let class = usize::from(asked.next_multiple_of(512) <= MIB);
                count.add(class, 1);
                bytes.add(class, size);
                requested.add(class, asked);
                live.push((address, class, size, asked));
            }
            if step % 7 == 0 {
                let stats = allocator.stats();
                count.agrees(stats.allocation);
                count.agrees(stats.active);
                bytes.agrees(stats.allocated_bytes);
                bytes.agrees(stats.active_bytes);
                requested.agrees(stats.requested_bytes);
            }
        }
        assert!(allocator.stats().arenas.formed > 10, "{:?}", allocator.stats().arenas);
        allocator.check().unwrap();
    }
}

/// Holds every figure of a stat to its rule: what is there is never more than the peak.
fn no_more_than_the_peak(stat: StatByPool) {
    for Stat { current, peak, .. } in [stat.all, stat.small_pool, stat.large_pool] {
        assert!(current <= peak, "{stat:?}");
    }
}

/// The figures of one moment: a thread that frees a block of one stream before it takes one of another never has two, and what
/// there is was never more than the peak.
#[test]
fn statistics_are_those_of_one_moment() {
    for most in [1, 12] {
        let (_, allocator) = on("sim:h200", "arenas:always");
        let streams = [0x100, 0x200, 0x300, 0x400].map(StreamId);
        for stream in streams {
            // They rise below this peak without a look at each other.
            let held: Vec<u64> = (0..20 / most).map(|_| allocator.allocate(8 * MIB, stream).unwrap()).collect();
            held.into_iter().for_each(|address| allocator.free(address).unwrap());
            form(&allocator, stream);
        }
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let mut live = VecDeque::new();
                while !done.load(Ordering::Relaxed) {
                    for stream in streams {
                        while live.len() >= most {
                            allocator.free(live.pop_front().unwrap()).unwrap();
                        }
                        live.push_back(allocator.allocate(8 * MIB, stream).unwrap());
                    }
                }
            });
            let looked = std::panic::catch_unwind(AssertUnwindSafe(|| {
                for _ in 0..100_000 {
                    let stats = allocator.stats();
                    assert!(stats.allocation.all.current <= most as u64, "{:?}", stats.allocation);
                    no_more_than_the_peak(stats.allocation);
                    no_more_than_the_peak(stats.allocated_bytes);
                    no_more_than_the_peak(stats.requested_bytes);
                }
            }));
            done.store(true, Ordering::Relaxed);
            worker.join().unwrap();
            looked.unwrap();
        });
        assert!(allocator.stats().arenas.now > 0);
    }
}

/// Blocks that wait for another stream count as active. Once they do not, what is allocated may rise, and its peak is seen.
#[test]
fn peaks_are_seen_once_blocks_do_not_wait_any_more() {
    let (gpu, allocator) = on("sim:h200", "arenas:always");
    let other = StreamId(0x300);
    // A borrowed stream has no arena.
    allocator.set_borrowed(B).unwrap();
    let of_beside = |count: u64| (0..count).map(|_| allocator.allocate(2 * MIB, B).unwrap()).collect::<Vec<_>>();
    let free = |blocks: Vec<u64>| blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    free(of_beside(200));
    let used = of_beside(80);
    form(&allocator, A);
    let held = [(); 10].map(|()| allocator.allocate(2 * MIB, A).unwrap());
    allocator.reset_peak_stats();
    form(&allocator, A);
    gpu.launch(other, &[], 1_000_000_000).unwrap();
    used.iter().for_each(|block| allocator.record_stream(*block, other).unwrap());
    let (first, last) = used.split_at(60);
    free(first.to_vec());
    free(of_beside(50));
    let stats = allocator.stats();
    assert_eq!((stats.allocation.all.current, stats.active.all.current, stats.arenas.now), (30, 90, 1));
    let active = stats.active.all.peak;
    gpu.synchronize().unwrap();
    // So many wait now that the next request looks at them.
    free(last.to_vec());
    free(of_beside(110));
    let stats = allocator.stats();
    assert_eq!((stats.allocation.all.peak, stats.active.all.peak, stats.arenas.now), (120, active, 1));
    free(held.to_vec());
}

/// A wait's distance is told in operations, which arenas count as well.
#[test]
fn the_clock_of_waits_goes_on() {
    let (gpu, allocator) = on("sim:h200", "arenas:always,memory_limit:3GiB");
    let waits = StreamId(0x300);
    allocator.set_borrowed(B).unwrap();
    let passed = allocator.allocate(1 << 30, B).unwrap();
    form(&allocator, A);
    let many: Vec<u64> = (0..4).map(|_| allocator.allocate(2 * MIB, A).unwrap()).collect();
    // They are lent as live blocks.
    allocator.check().unwrap();
    form(&allocator, A);
    assert_eq!(arenas(&allocator), 1);
    gpu.launch(B, &[], 1_000_000_000).unwrap();
    allocator.free_under(passed, B).unwrap();
    let short = allocator.allocate(2 << 30, waits).unwrap();
    let stats = allocator.stats();
    assert!(stats.shortage.is_short && stats.stream_waits > 0, "{stats:?}");
    assert!(stats.waits.age_most <= 100, "{:?}", stats.waits);
    many.into_iter().chain([short]).for_each(|block| allocator.free(block).unwrap());
}

/// A request that an arena has too little for is not one more arena.
#[test]
fn each_arena_is_counted_once() {
    let (_, allocator) = on("sim:h200", "arenas:always");
    form(&allocator, A);
    let formed = allocator.stats().arenas.formed;
    let address = allocator.allocate(64 * MIB, A).unwrap();
    let arenas = allocator.stats().arenas;
    assert_eq!((arenas.now, arenas.formed), (0, formed));
    allocator.free(address).unwrap();
}

/// To form an arena, all blocks are looked at: a stream with few of them gets one less often, the more others have.
#[test]
fn a_program_with_many_blocks_does_not_look_at_them_all_the_time() {
    let (_, allocator) = on("sim:h200", "arenas:always");
    let held: Vec<u64> = (0..20_000).map(|_| allocator.allocate(2 * MIB, B).unwrap()).collect();
    let before = allocator.stats().arenas.formed;
    for _ in 0..200 {
        for _ in 0..100 {
            let address = allocator.allocate(8 * MIB, A).unwrap();
            allocator.free(address).unwrap();
        }
        let address = allocator.allocate(8 * MIB, A).unwrap();
        allocator.record_stream(address, A).unwrap();
        allocator.free(address).unwrap();
    }
    let formed = allocator.stats().arenas.formed - before;
    assert!(formed <= 30, "{formed} times, {} blocks were looked at for 20,000 requests", held.len() as u64 * formed);
}

/// Who has which physical memory, by address of the chunk.
type Taken = Mutex<BTreeMap<(u64, u64), u64>>;

fn take(gpu: &SimGpu, taken: &Taken, address: u64, size: u64) {
    let pieces = gpu.physical(Range { address, size });
    let mut taken = taken.lock();
    for piece in pieces {
        let end = piece.offset + piece.size;
        let before = taken.range(..(piece.memory, end)).next_back();
        let clash = before.is_some_and(|((memory, _), to)| *memory == piece.memory && *to > piece.offset);
        assert!(!clash, "{piece:?} is in someone's hands");
        taken.insert((piece.memory, piece.offset), end);
    }
}

fn leave(gpu: &SimGpu, taken: &Taken, address: u64, size: u64) {
    for piece in gpu.physical(Range { address, size }) {
        taken.lock().remove(&(piece.memory, piece.offset)).unwrap();
    }
}

/// Threads with a stream each, which hand a part of their blocks to another thread to be freed, while memory becomes short and
/// plentiful again: no byte is in two hands, and all of it is there in the end.
#[test]
fn threads_share_no_byte_while_memory_comes_and_goes() {
    const THREADS: u64 = 6;
    let rounds: u64 = std::env::var("SEAMALLOC_ROUNDS").map_or(4000, |rounds| rounds.parse().unwrap());
    for options in ["arenas:always", "arenas:always,memory_limit:400MiB", ""] {
        let (gpu, allocator) = on("sim:h200", options);
        let (taken, gpu) = (Taken::default(), &*gpu);
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| channel::<(u64, u64)>()).unzip();
        let (allocator, taken) = (&allocator, &taken);
        let free = |(address, size): (u64, u64), stream: StreamId, how: u64| {
            leave(gpu, taken, address, size);
            match how {
                0 => allocator.free_under(address, stream).unwrap(),
                1 => allocator.free_on(address, stream).unwrap(),
                _ => allocator.free(address).unwrap(),
            }
        };
        std::thread::scope(|scope| {
            let mut workers = Vec::new();
            for (number, inbox) in (0..THREADS).zip(receivers) {
                let outbox = senders[(number as usize + 1) % senders.len()].clone();
                workers.push(scope.spawn(move || {
                    let (mut random, mut live) = (Random(number), Vec::new());
                    let stream = StreamId(0x100 * (number + 1));
                    for round in 0..rounds {
                        // Now much is live, now little.
                        let most = if round / 500 % 2 == 0 { 24 } else { 4 };
                        while live.len() > most {
                            let block = live.swap_remove(random.below(live.len() as u64) as usize);
                            match random.below(8) {
                                0 => outbox.send(block).unwrap(),
                                how => free(block, stream, how),
                            }
                        }
                        inbox.try_iter().for_each(|block| free(block, stream, random.below(3)));
                        let most = [4 << 10, MIB, 12 * MIB][random.below(3) as usize];
                        let asked = 1 + random.below(most);
                        match allocator.allocate(asked, stream) {
                            Ok(address) => {
                                let size = allocator.size_of(address).unwrap();
                                take(gpu, taken, address, size);
                                live.push((address, size));
                            }
                            Err(Error::OutOfMemory(_)) => {
                                live.drain(..live.len() / 2).for_each(|block| free(block, stream, 2));
                            }
                            Err(error) => panic!("{error}"),
                        }
                        if random.below(300) == 0 {
                            allocator.check().unwrap();
                        }
                    }
                    drop(outbox);
                    live.into_iter().for_each(|block| free(block, stream, 2));
                    // Of those that are in the inbox and will be.
                    inbox.iter().for_each(|block| free(block, stream, 2));
                }));
            }
            drop(senders);
            // What watches threads (.ci/sanitize) does not see how a scope ends.
            workers.into_iter().for_each(|worker| worker.join().unwrap());
        });
        allocator.check().unwrap();
        let stats = allocator.stats();
        assert_eq!((stats.allocated_bytes.all.current, taken.lock().len()), (0, 0));
        assert!(options.is_empty() || stats.arenas.formed > 0);
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.reserved(), 0, "{options}");
    }
}
