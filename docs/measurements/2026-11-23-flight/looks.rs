use seamalloc::driver::sim::*;
use seamalloc::driver::*;
use seamalloc::*;
use std::sync::Arc;
use std::time::*;
fn main() {
    let g = Arc::new(SimGpu::new(SimConfig::parse("sim:h200").unwrap()).unwrap());
    let a = Allocator::new(g, Config::parse(&std::env::var("CONF").unwrap_or_default()).unwrap()).unwrap();
    let mut live: Vec<u64> = Vec::new();
    let mut x = 88172645463325252u64;
    let mut r = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    for _ in 0..100000 {
        if live.len() < 3000 {
            let v = r();
            live.push(
                a.allocate(if v % 3 == 0 { (1 << 20) + v % (16 << 20) } else { 600 + v % 65536 }, StreamId(v % 4))
                    .unwrap(),
            );
        } else {
            let i = (r() % 3000) as usize;
            a.free(live.swap_remove(i)).unwrap();
        }
    }
    for name in ["stats", "fragmentation", "flight"] {
        let mut best = f64::MAX;
        for _ in 0..50 {
            let t = Instant::now();
            match name {
                "stats" => drop(a.stats()),
                "fragmentation" => drop(a.fragmentation()),
                _ => drop(a.flight().unwrap()),
            }
            best = best.min(t.elapsed().as_secs_f64() * 1e6);
        }
        println!("{name}: {best:.1} us");
    }
    let f = a.flight().unwrap();
    println!(
        "free ranges {}, events {}, operations {}, overwritten {}",
        a.fragmentation().pools.iter().map(|p| p.ranges).sum::<u64>(),
        f.events.len(),
        f.operations,
        f.overwritten
    );
}
