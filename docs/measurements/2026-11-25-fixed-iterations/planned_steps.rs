//! What each step of a trace costs: peak, memory held, driver calls, views, and how many requests had their places.
//!
//! `planned_steps TRACE STRATEGY [CONF]`, `PASSES=n`: tab-separated, a line a step of the plans (or of 1/16 of the trace).
use seamalloc::driver::Driver;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::{Allocator, Config};
use seamalloc_plan::online::Inline;
use seamalloc_trace::read_path;
use seamalloc_trace::replay::{Replayer, Step, Watcher};
use std::sync::Arc;

#[derive(Default, Clone)]
struct Window {
    peak: u64,
    held: u64,
    waste: String,
}
struct Look {
    gpu: Arc<SimGpu>,
    by_call: Vec<u64>,
    last: seamalloc::PlanStats,
    calls: u64,
    views: u64,
    now: Window,
    step: u64,
    every: usize,
    from: usize,
    top: u64,
}
impl Look {
    fn calls(&self) -> u64 {
        self.gpu.call_stats().iter().map(|(_, c)| c.count).sum()
    }
}
impl Watcher for Look {
    fn step(&mut self, step: &Step<'_>) {
        let stats = step.allocator.stats();
        let live = stats.allocated_bytes.all.current;
        let held = stats.reserved_bytes.all.current;
        self.now.held = self.now.held.max(held);
        if step.event >= self.from && live > self.top {
            self.top = live;
            let f = step.allocator.fragmentation();
            let small: u64 = f.pools.iter().filter(|p| p.small).map(|p| p.free).sum();
            let large: u64 = f.pools.iter().filter(|p| !p.small).map(|p| p.free).sum();
            self.now.waste = format!(
                "free_small={:.1} free_large={:.1} landlocked={:.1} largest={:.1} pending={:.1}",
                small as f64 / 1048576.,
                large as f64 / 1048576.,
                f.landlocked_bytes as f64 / 1048576.,
                f.largest_free() as f64 / 1048576.,
                f.pending as f64 / 1048576.
            );
        }
        if live > self.now.peak {
            self.now.peak = live;
        }
        let plans = stats.plans;
        let over =
            if self.every > 0 { step.event % self.every == self.every - 1 } else { plans.steps != self.last.steps };
        if over {
            let calls = self.calls();
            self.step += 1;
            let w = std::mem::take(&mut self.now);
            let by_call: Vec<(String, u64)> =
                self.gpu.call_stats().iter().map(|(call, of)| (format!("{call:?}"), of.count)).collect();
            self.by_call.resize(by_call.len(), 0);
            let mut made = String::new();
            for ((name, count), before) in by_call.into_iter().zip(&mut self.by_call) {
                if count > *before {
                    made += &format!("{name} {} ", count - *before);
                }
                *before = count;
            }
            println!(
                "{}\t{}\tpeak {:.1}\theld {:.1}\tutil {:.3}\tcalls {}\tviews {}\tplaced {}\tdeparted {}\tplans {}\t{made}\t{}",
                self.step,
                step.event,
                w.peak as f64 / 1048576.,
                w.held as f64 / 1048576.,
                100. * w.peak as f64 / w.held as f64,
                calls - self.calls,
                stats.views_built - self.views,
                plans.placed - self.last.placed,
                plans.departures - self.last.departures,
                plans.plans - self.last.plans,
                w.waste
            );
            (self.calls, self.views, self.last) = (calls, stats.views_built, plans);
        }
    }
    fn end(&mut self, _: &Allocator) {}
}
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let trace = match seamalloc_trace::recorded::find(&args[1]) {
        Some(job) => job.load().unwrap(),
        None => read_path(std::path::Path::new(&args[1])).unwrap().remove(0),
    };
    let gpu = Arc::new(
        SimGpu::new(SimConfig { calls_advance_clock: false, ..SimConfig::parse("sim:h200").unwrap() }).unwrap(),
    );
    let driver: Arc<dyn Driver> = gpu.clone();
    let conf = format!("strategy:{}{}", args[2], args.get(3).map_or(String::new(), |c| format!(",{c}")));
    let allocator = Allocator::new(driver, Config::parse(&conf).unwrap()).unwrap();
    allocator.set_planner(Box::<Inline>::default());
    let mut replayer = Replayer::new(&trace, allocator, gpu.clone());
    let events = trace.events.len();
    let mut look = Look {
        gpu,
        by_call: Vec::new(),
        last: Default::default(),
        calls: 0,
        views: 0,
        now: Window::default(),

        step: 0,
        every: if args[2] == "planned" { 0 } else { events / 16 },
        from: events * 3 / 4,
        top: 0,
    };
    let passes: u32 = std::env::var("PASSES").map_or(1, |n| n.parse().unwrap());
    for pass in 1..=passes {
        let r = replayer.watched_pass(pass, &mut look, &mut |_| {}).unwrap();
        look.top = 0;
        println!("PASS {pass} util {:.3} views {}", 100. * r.utilization(), r.views_built);
    }
}
