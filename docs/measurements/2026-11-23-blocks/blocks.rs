//! What a block that frees itself costs over the raw calls: `blocks ROUNDS raw|noted|block|arc scope|table small|mixed`.
use seamalloc::{Allocator, Block, RawBlock, StreamId};
use std::ops::Deref;
use std::sync::Arc;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn size(mixed: bool, v: u64) -> u64 {
    if mixed && v % 3 == 0 { (1 << 20) + v % (32 << 20) } else { 600 + v % 65536 }
}

const S: StreamId = StreamId::DEFAULT;
const LIVE: usize = 200;

#[inline(never)]
fn raw(a: &Allocator, rounds: u64, table: bool, mixed: bool, x: &mut Random) {
    if table {
        let mut live: Vec<u64> = (0..LIVE).map(|_| a.allocate(size(mixed, x.next()), S).unwrap()).collect();
        for _ in 0..rounds {
            let i = (x.next() % LIVE as u64) as usize;
            a.free(live[i]).unwrap();
            live[i] = a.allocate(size(mixed, x.next()), S).unwrap();
        }
        live.into_iter().for_each(|address| a.free(address).unwrap());
    } else {
        for _ in 0..rounds {
            let address = a.allocate(size(mixed, x.next()), S).unwrap();
            std::hint::black_box(address);
            a.free(address).unwrap();
        }
    }
}

/// As `raw`, by a program that notes the size and the stream beside the address.
#[inline(never)]
fn noted(a: &Allocator, rounds: u64, table: bool, mixed: bool, x: &mut Random) {
    let new = |size| RawBlock { address: a.allocate(size, S).unwrap(), size, stream: S };
    if table {
        let mut live: Vec<Option<RawBlock>> = (0..LIVE).map(|_| Some(new(size(mixed, x.next())))).collect();
        for _ in 0..rounds {
            let i = (x.next() % LIVE as u64) as usize;
            if let Some(block) = live[i].take() {
                a.free(block.address).unwrap();
            }
            live[i] = Some(new(size(mixed, x.next())));
        }
        live.into_iter().flatten().for_each(|block| a.free(block.address).unwrap());
    } else {
        for _ in 0..rounds {
            let block = new(size(mixed, x.next()));
            std::hint::black_box(block.address);
            a.free(block.address).unwrap();
        }
    }
}

#[inline(never)]
fn owned<A: Deref<Target = Allocator> + Clone>(a: &A, rounds: u64, table: bool, mixed: bool, x: &mut Random) {
    let new = |size| Block::new(A::clone(a), size, S).unwrap();
    if table {
        let mut live: Vec<Option<Block<A>>> = (0..LIVE).map(|_| Some(new(size(mixed, x.next())))).collect();
        for _ in 0..rounds {
            let i = (x.next() % LIVE as u64) as usize;
            live[i] = None;
            live[i] = Some(new(size(mixed, x.next())));
        }
    } else {
        for _ in 0..rounds {
            let block = new(size(mixed, x.next()));
            std::hint::black_box(block.address());
        }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let rounds: u64 = args[1].parse().unwrap();
    let (table, mixed) = (args[3] == "table", args[4] == "mixed");
    let a = Arc::new(Allocator::open("sim:h200", "").unwrap());
    let x = &mut Random(88172645463325252);
    let run = |rounds, x: &mut Random| match args[2].as_str() {
        "raw" => raw(&a, rounds, table, mixed, x),
        "noted" => noted(&a, rounds, table, mixed, x),
        "block" => owned(&&*a, rounds, table, mixed, x),
        _ => owned(&a, rounds, table, mixed, x),
    };
    run(20_000, x);
    let start = std::time::Instant::now();
    run(rounds, x);
    println!("{:.1} ns an operation", start.elapsed().as_secs_f64() * 1e9 / rounds as f64 / 2.0);
}
