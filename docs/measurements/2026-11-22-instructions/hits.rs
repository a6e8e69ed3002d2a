use seamalloc::driver::sim::*;
use seamalloc::driver::*;
use seamalloc::*;
use std::sync::Arc;
use std::time::*;
fn main() {
    let n: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    let kind = std::env::args().nth(2).unwrap();
    let g = Arc::new(SimGpu::new(SimConfig::parse("sim:h200").unwrap()).unwrap());
    let a = Allocator::new(g, Config::default()).unwrap();
    let mut live: Vec<u64> = Vec::new();
    let mut x = 88172645463325252u64;
    let mut r = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    let size = |v: u64| match kind.as_str() {
        "small" => 600 + v % 65536,
        "large" => (1 << 20) + v % (64 << 20),
        _ => {
            if v % 3 == 0 {
                (1 << 20) + v % (32 << 20)
            } else {
                600 + v % 65536
            }
        }
    };
    // warm up
    for _ in 0..20000 {
        if live.len() < 200 {
            live.push(a.allocate(size(r()), StreamId(0)).unwrap());
        } else {
            let i = (r() % 200) as usize;
            a.free(live.swap_remove(i)).unwrap();
        }
    }
    let mut best = f64::MAX;
    for _ in 0..5 {
        let t = Instant::now();
        for _ in 0..n {
            let i = (r() % live.len() as u64) as usize;
            a.free(live[i]).unwrap();
            live[i] = a.allocate(size(r()), StreamId(0)).unwrap();
        }
        best = best.min(t.elapsed().as_secs_f64() * 1e9 / n as f64 / 2.0);
    }
    println!("{kind}: {best:.1} ns/op, stalls {}", a.stats().stalls.count);
}
