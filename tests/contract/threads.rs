//! One allocator, many threads: blocks of shared and own streams, freed by whichever thread has them. Where other memory may
//! come under live addresses, the book that all threads share is of addresses.

use crate::random::Random;
use crate::simulated::Device;
use crate::{MIB, SHORTER, Subject, on};
use parking_lot::Mutex;
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::Range;
use seamalloc::{Allocator, Error};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

const THREADS: u64 = 8;
const OPS: u64 = 1_500 / SHORTER;

/// The state that all threads share: the allocator, and which memory is in someone's hands.
struct Shared {
    gpu: Arc<Device>,
    allocator: Allocator,
    exchanges: bool,
    /// From where to where: physical memory and the offset there, or addresses, with 0 in the place of the memory.
    /// Not the standard library's lock: under contention that one calls compiled code, in which ThreadSanitizer sees no order.
    taken: Mutex<BTreeMap<(u64, u64), u64>>,
}

impl Shared {
    /// The parts of a block, for the book.
    fn parts(&self, address: u64) -> Vec<((u64, u64), u64)> {
        let range = Range { address, size: self.allocator.reports().size_of(address).unwrap() };
        if self.exchanges {
            return vec![((0, address), address + range.size)];
        }
        let pieces = self.gpu.physical(range);
        assert_eq!(pieces.iter().map(|piece| piece.size).sum::<u64>(), range.size);
        pieces.iter().map(|piece| ((piece.memory, piece.offset), piece.offset + piece.size)).collect()
    }

    fn take(&self, address: u64) {
        let parts = self.parts(address);
        let mut taken = self.taken.lock();
        for ((memory, from), end) in parts {
            let before = taken.range(..(memory, end)).next_back();
            let clash = before.is_some_and(|((of, _), to)| *of == memory && *to > from);
            assert!(!clash, "{from:#x} to {end:#x} of memory {memory} is in another thread's hands");
            taken.insert((memory, from), end);
        }
    }

    fn free(&self, address: u64) {
        for (from, _) in self.parts(address) {
            self.taken.lock().remove(&from).unwrap();
        }
        self.allocator.free(address).unwrap();
    }
}

fn work(shared: &Shared, number: u64, out: &Sender<u64>, inbox: &Receiver<u64>) {
    let mut random = Random(number);
    let mut live = Vec::new();
    let stream = |random: &mut Random| StreamId([0, 1, 100 + number][random.below(3) as usize]);
    for _ in 0..OPS {
        match random.below(40) {
            0..18 => {
                let most = [900, 500 << 10, 4 * MIB, 30 * MIB][random.below(4) as usize];
                match shared.allocator.allocate(1 + random.below(most), stream(&mut random)) {
                    Ok(address) => {
                        shared.take(address);
                        live.push(address);
                    }
                    Err(Error::OutOfMemory(_)) => live.drain(..).for_each(|address| shared.free(address)),
                    Err(error) => panic!("{error}"),
                }
            }
            18..34 if !live.is_empty() => {
                let address = live.swap_remove(random.below(live.len() as u64) as usize);
                let range = Range { address, size: 1 };
                match random.below(3) {
                    0 => {
                        let user = stream(&mut random);
                        shared.allocator.record_stream(address, user).unwrap();
                        shared.gpu.launch(user, &[range], 50_000).unwrap();
                        shared.free(address);
                    }
                    1 => shared.free(address),
                    _ => out.send(address).unwrap(),
                }
            }
            34 => drop(shared.allocator.empty_cache().unwrap()),
            35 => shared.allocator.reports().check().unwrap(),
            36 => {
                for segment in shared.allocator.reports().snapshot().segments {
                    assert_eq!(segment.blocks.iter().map(|block| block.size).sum::<u64>(), segment.total_size);
                }
            }
            37 => shared.allocator.limits().set_fraction([0.7, 1.0][random.below(2) as usize]).unwrap(),
            _ => {
                // What others have sent is freed here.
                inbox.try_iter().for_each(|address| shared.free(address));
                assert!(shared.allocator.stats().allocation.all.peak > 0 || live.is_empty());
            }
        }
    }
    live.into_iter().for_each(|address| shared.free(address));
}

pub(crate) fn eight_threads_share_an_allocator(Subject { kind, exchanges, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200,capacity=700MiB");
    let shared = Shared { gpu, allocator, exchanges, taken: Mutex::default() };
    let (senders, inboxes): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| channel()).unzip();
    let left = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(inboxes)
            .map(|(number, inbox)| {
                let out = senders[(number as usize + 1) % senders.len()].clone();
                let shared = &shared;
                scope.spawn(move || {
                    work(shared, number, &out, &inbox);
                    drop(out);
                    inbox
                })
            })
            .collect();
        drop(senders);
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<u64>>()
    });
    left.into_iter().for_each(|address| shared.free(address));
    let Shared { gpu, allocator, taken, .. } = shared;
    assert!(taken.lock().is_empty());
    assert_eq!(allocator.stats().splits.chunks > 0, exchanges, "too tame to show anything");
    allocator.reports().check().unwrap();
    assert_eq!(allocator.stats().allocated_bytes.all.current, 0);
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.stats().reserved_bytes.all.current, 0);
    drop(allocator);
    assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
    assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
}

pub(crate) fn threads_may_share_an_allocator(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200");
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let allocator = &allocator;
            scope.spawn(move || {
                for round in 0..500 {
                    let stream = StreamId(thread);
                    let a = allocator.allocate((round % 37 + 1) * 100_000, stream).unwrap();
                    let b = allocator.allocate(700, stream).unwrap();
                    allocator.free(a).unwrap();
                    allocator.free(b).unwrap();
                }
            });
        }
    });
    allocator.reports().check().unwrap();
    assert_eq!(allocator.stats().allocation.all.current, 0);
    assert_eq!(allocator.stats().allocation.all.allocated, 4000);
    assert!(gpu.faults().is_empty());
}
