//! One run: an allocator, a program in some threads, and what came of it.

use crate::faults::Failing;
use crate::gpu::{Findings, Gpu, Outcome};
use crate::program::{Program, Shared, Tally};
use crate::sabotage::{self, Sabotage};
use seamalloc::driver::StreamId;
use seamalloc::{Allocator, Config, Stats};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Operations between two looks at what the checks have found.
const GLANCE: u64 = 256;
/// Operations between two checks of all the allocator's tables.
const CHECK: u64 = 5_000;

/// How long a program runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// By the host's clock.
    Passed(Duration),
    /// Of each thread: with one thread, on the simulated GPU, a run is the same every time.
    Operations(u64),
}

/// The parameters of a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) config: Config,
    pub(crate) seed: u64,
    pub(crate) threads: u64,
    /// Of each thread. The first one has the default stream besides.
    pub(crate) streams: u64,
    /// Bytes that all threads together hold at most.
    pub(crate) live: u64,
    pub(crate) until: Until,
    pub(crate) sabotage: Option<Sabotage>,
    /// Whether driver calls of the allocator fail at random.
    pub(crate) faults: bool,
}

/// The result of a run.
pub(crate) struct Report {
    pub(crate) tally: Tally,
    pub(crate) findings: Findings,
    /// Of the allocator, when all is freed and before anything is given back.
    pub(crate) stats: Stats,
    /// Bytes that could not be given back in the end.
    pub(crate) left: u64,
}

impl Report {
    /// Whether every word was what it had to be, and every word was looked at.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        let Findings { checked, wrong, first, faults } = &self.findings;
        if *wrong > 0 {
            let first = first.map_or_else(String::new, |first| format!(": {first}"));
            return Err(format!("{wrong} of {checked} words are wrong{first}"));
        }
        if let Some(fault) = faults.first() {
            return Err(format!("{} faults: {fault}", faults.len()));
        }
        if *checked != self.tally.words {
            return Err(format!("kernels were to check {} words, and checked {checked}", self.tally.words));
        }
        if self.left > 0 {
            return Err(format!("{} bytes could not be given back", self.left));
        }
        Ok(())
    }
}

/// Runs a program on a device that nothing ran on before, to its end or until a word is wrong.
pub(crate) fn run(gpu: &Arc<dyn Gpu>, plan: &Plan) -> Outcome<Report> {
    gpu.enter()?;
    let driver = sabotage::driver(plan.sabotage, gpu.driver());
    let driver = if plan.faults { Arc::new(Failing(driver)) } else { driver };
    let allocator = Allocator::new(driver, plan.config.clone())?;
    let shared = Arc::new(Shared::new(Arc::clone(gpu), allocator, plan.sabotage, plan.faults));
    // Before any thread runs: none makes streams while another one captures.
    let programs = (0..plan.threads).map(|number| program(&shared, plan, number)).collect::<Outcome<Vec<_>>>()?;
    let (start, ends) = (Instant::now(), AtomicBool::new(false));
    let tally = thread::scope(|scope| {
        let threads: Vec<_> = programs
            .into_iter()
            .map(|program| {
                scope.spawn(|| {
                    let result = one_thread(program, plan, start, &ends);
                    if result.is_err() {
                        ends.store(true, Ordering::Relaxed);
                    }
                    result
                })
            })
            .collect();
        let mut sum = Tally::default();
        for thread in threads {
            sum.add(&thread.join().map_err(|_| "a thread panicked")??);
        }
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(sum)
    })?;
    let findings = gpu.findings()?;
    let stats = shared.allocator.stats();
    shared.allocator.empty_cache()?;
    shared.allocator.reports().check()?;
    Ok(Report { tally, findings, stats, left: shared.allocator.reports().reserved() })
}

fn program(shared: &Arc<Shared>, plan: &Plan, number: u64) -> Outcome<Program> {
    let mut streams = vec![StreamId::DEFAULT; usize::from(number == 0)];
    for _ in 0..plan.streams {
        streams.push(shared.gpu.create_stream()?);
    }
    let seed = plan.seed * plan.threads + number;
    Program::new(Arc::clone(shared), streams, plan.live / plan.threads, seed)
}

fn one_thread(mut program: Program, plan: &Plan, start: Instant, ends: &AtomicBool) -> Outcome<Tally> {
    let shared = Arc::clone(&program.shared);
    shared.gpu.enter()?;
    for operation in 1.. {
        program.step()?;
        let done = match plan.until {
            Until::Passed(time) => start.elapsed() >= time,
            Until::Operations(most) => operation >= most,
        };
        if done || ends.load(Ordering::Relaxed) {
            break;
        }
        if operation % GLANCE == 0 && !shared.capturing.load(Ordering::Relaxed) && shared.gpu.glance()? > 0 {
            ends.store(true, Ordering::Relaxed);
        }
        if operation % CHECK == 0 {
            shared.allocator.reports().check()?;
        }
    }
    program.finish()
}
