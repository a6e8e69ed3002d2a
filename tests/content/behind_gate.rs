//! Threads that launch work at any time, on eight streams, while chunks are split for another thread's requests: every word is
//! right, on host memory.
//!
//! A block is written and read on its own stream alone, in the order of that stream. So each look knows the words that it must
//! find, whenever the stream comes to it and whatever memory is behind the block by then.

use crate::random::Random;
use parking_lot::Mutex;
use seamalloc::driver::StreamId;
use seamalloc::driver::host::{HostConfig, HostDriver, HostWork, Range};
use seamalloc::driver::prelude::*;
use seamalloc::{Allocator, Config};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const MIB: u64 = 1 << 20;
const THREADS: u64 = 4;
const STREAMS: u64 = 8;
/// Bytes that a kernel writes or reads.
const CELL: u64 = 32 << 10;
/// Kernels that a thread launches before it waits for one of its streams, so that no stream is far behind.
const AHEAD: u64 = 16;
/// Allocators, one after the other.
const ROUNDS: u64 = 6;
/// Bytes of a chunk, and of the blocks that it is filled with. Of these the second one is freed.
const CHUNK: u64 = 20 * MIB;
const IN_CHUNK: [u64; 3] = [6 * MIB, 8 * MIB, 6 * MIB];
/// The device has room for so many chunks, and perhaps for the copy of one.
const CHUNKS: u64 = 5;

struct Block {
    address: u64,
    stream: StreamId,
    /// The key of the words that each cell was given last; 0 before.
    cells: Vec<u64>,
}

/// The blocks that a thread works on.
type Blocks = Mutex<Vec<Block>>;

struct Device {
    host: Arc<HostDriver>,
    keys: AtomicU64,
    wrong: Arc<AtomicU64>,
    looked_at: Arc<AtomicU64>,
}

impl Device {
    /// Writes a cell, or looks at the words that it was given last.
    fn launch(&self, block: &mut Block, cell: usize, writes: bool) {
        let range = Range { address: block.address + CELL * cell as u64, size: CELL };
        let key = &mut block.cells[cell];
        let work = if writes || *key == 0 {
            *key = (1 + self.keys.fetch_add(1, Ordering::Relaxed)) << 32;
            let first = *key;
            let words = move |at, words: &mut [u64]| {
                words.iter_mut().zip(first + at..).for_each(|(word, value)| *word = value);
            };
            HostWork::Fill { to: range, words: Arc::new(words) }
        } else {
            let (first, wrong, looked_at) = (*key, Arc::clone(&self.wrong), Arc::clone(&self.looked_at));
            let see = move |at, words: &[u64]| {
                let found = words.iter().zip(first + at..).filter(|(word, value)| **word != *value).count();
                wrong.fetch_add(found as u64, Ordering::Relaxed);
                looked_at.fetch_add(words.len() as u64, Ordering::Relaxed);
            };
            HostWork::Look { at: range, see: Arc::new(see) }
        };
        self.host.launch(block.stream, work).unwrap();
    }

    /// Launches work on random cells until the end.
    fn work(&self, thread: u64, blocks: &Blocks, is_over: &AtomicBool) {
        let mut random = Random(thread);
        let mut launched = 0;
        while !is_over.load(Ordering::Acquire) {
            let stream = {
                let blocks = &mut *blocks.lock();
                let at = random.below(blocks.len() as u64) as usize;
                blocks.get_mut(at).map(|block| {
                    let cell = random.below(block.cells.len() as u64) as usize;
                    self.launch(block, cell, random.below(2) == 0);
                    block.stream
                })
            };
            let Some(stream) = stream else {
                std::thread::yield_now();
                continue;
            };
            launched += 1;
            if launched % AHEAD == 0 {
                self.host.stream_synchronize(stream).unwrap();
            }
        }
    }
}

/// The thread that allocates and frees.
struct Owner<'a> {
    device: &'a Device,
    allocator: Allocator,
    blocks: &'a [Blocks],
    random: Random,
}

impl Owner<'_> {
    fn stream(&mut self) -> StreamId {
        StreamId(1 + self.random.below(STREAMS))
    }

    fn blocks_of(&self, stream: StreamId) -> &Blocks {
        &self.blocks[(stream.0 % THREADS) as usize]
    }

    /// Allocates a block and gives it to the thread of its stream.
    fn allocate(&mut self, size: u64) -> (u64, StreamId) {
        let stream = self.stream();
        let address = self.allocator.allocate(size, stream).unwrap();
        let mut block = Block { address, stream, cells: vec![0; (size / CELL) as usize] };
        for cell in 0..block.cells.len() {
            if self.random.below(4) == 0 {
                self.device.launch(&mut block, cell, true);
            }
        }
        self.blocks_of(stream).lock().push(block);
        (address, stream)
    }

    /// Takes a block from its thread, and frees it.
    fn free(&mut self, (address, stream): (u64, StreamId)) {
        self.blocks_of(stream).lock().retain(|block| block.address != address);
        self.allocator.free(address).unwrap();
    }

    /// Fills chunks with blocks, frees one in the middle of each, and asks for most of that in one piece. Returns how many
    /// chunks were split.
    fn run(mut self) -> u64 {
        let whole = self.allocator.allocate(CHUNKS * CHUNK, StreamId::DEFAULT).unwrap();
        self.allocator.free(whole).unwrap();
        let mut middle = Vec::new();
        for _ in 0..CHUNKS {
            let [_, block, _] = IN_CHUNK.map(|size| self.allocate(size));
            middle.push(block);
        }
        for block in middle {
            self.free(block);
        }
        self.allocate((CHUNKS - 1) * IN_CHUNK[1]);
        // All words that were written last are there.
        for blocks in self.blocks {
            for mut block in std::mem::take(&mut *blocks.lock()) {
                (0..block.cells.len()).for_each(|cell| self.device.launch(&mut block, cell, false));
                self.allocator.free(block.address).unwrap();
            }
        }
        self.device.host.synchronize().unwrap();
        self.allocator.stats().splits.chunks
    }
}

#[test]
fn every_word_is_right_while_other_threads_launch_work() {
    every_word_is_right(CHUNK);
}

/// The first chunk of each request is split through host memory.
#[test]
fn every_word_is_right_without_room_for_copies() {
    every_word_is_right(0);
}

fn every_word_is_right(room: u64) {
    let host = Arc::new(HostDriver::new(HostConfig { capacity: CHUNKS * CHUNK + room }).unwrap());
    let device = Device { host, keys: AtomicU64::new(0), wrong: Arc::default(), looked_at: Arc::default() };
    let blocks: Vec<Blocks> = (0..THREADS).map(|_| Mutex::default()).collect();
    let is_over = AtomicBool::new(false);
    let mut splits = 0;
    std::thread::scope(|scope| {
        let end = End(&is_over);
        for (thread, blocks) in (0..).zip(&blocks) {
            let (device, is_over) = (&device, &is_over);
            scope.spawn(move || device.work(thread, blocks, is_over));
        }
        for seed in 0..ROUNDS {
            let allocator = Allocator::new(Arc::<HostDriver>::clone(&device.host), Config::default()).unwrap();
            splits += Owner { device: &device, allocator, blocks: &blocks, random: Random(seed) }.run();
        }
        drop(end);
    });
    let [wrong, looked_at] = [&device.wrong, &device.looked_at].map(|words| words.load(Ordering::Relaxed));
    assert_eq!((wrong, device.host.faults()), (0, Vec::new()), "of {looked_at} words");
    assert!(
        splits >= ROUNDS && looked_at > 1 << 20,
        "{splits} chunks were split, {looked_at} words looked at: too tame"
    );
    assert!(device.host.leaks().is_empty(), "{}", device.host.leaks());
}

/// Ends the other threads, also if the test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
