//! An attack on the public interface: random programs in which every option, operation and failure may meet every other, judged by
//! physical bytes.
//!
//! Two live blocks never share a byte; no memory is reused before the streams that used it have passed; no memory is unmapped in
//! use; the books of the device and the machine agree with the allocator's to the byte after every operation, failed ones included;
//! at the end there is no leak. Callbacks change the allocator in the middle of a request, driver calls fail.
//!
//! ```text
//! setup      the device, the options and the habits of a program
//! world      its state, the checks and the end
//! steps      operations on blocks
//! pools      operations on private pools, captures and tags
//! callbacks  what callbacks do
//! oracle     who lies where in physical memory, and which kernels use it
//! ```
//!
//! Each operation is drawn from a number of its own and from what is there when it runs, so that a program stays one when operations
//! are left out. So a program that finds something is shortened before it is printed. `SEAMALLOC_ATTACK_SEED` and
//! `SEAMALLOC_ATTACK_OPERATIONS` choose the first program and how many operations there are in all (`.ci/attack rust`).

mod callbacks;
mod dice;
mod oracle;
mod pools;
mod setup;
mod steps;
mod world;

use crate::length::rounds;
use dice::Dice;
use setup::Setup;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use world::{Tally, World};

/// The number of operations of a program.
const PROGRAM: u64 = 1_500;
/// Operations of all programs together, in the short form and in the long one.
const SHORT: u64 = if cfg!(feature = "paranoid") { 9_000 } else { 45_000 };
const LONG: u64 = 1_000_000;
/// Programs after which a long run says how far it is.
const PROGRESS: u64 = 200;
/// Runs for which a program is shortened at most.
const SHORTENINGS: u32 = 3_000;

/// Returns the program of a seed: its surroundings and the numbers of its operations, which mostly repeat themselves as training steps do.
fn program(seed: u64) -> (Setup, Vec<u64>) {
    let dice = &mut Dice::new(seed.wrapping_mul(0x0123_4567_89AB));
    // Options that contradict each other are drawn again.
    let setup = loop {
        let setup = Setup::random(seed, dice);
        if World::new(&setup, None).is_some() {
            break setup;
        }
    };
    let step: Vec<u64> = (0..20 + dice.below(200)).map(|_| dice.next()).collect();
    let noise = dice.pick(&[1, 1, 2, 10, 40]);
    let operation = |at: u64| if dice.one_in(noise) { dice.next() } else { step[at as usize % step.len()] };
    (setup.clone(), (0..PROGRAM).map(operation).collect())
}

/// The finding of a program, and after how many operations.
struct Finding {
    what: String,
    operations: usize,
}

type Log = Arc<Mutex<Vec<String>>>;

/// Runs a program. One whose options contradict each other, which only a shortened one's can, finds nothing.
fn run(setup: &Setup, operations: &[u64], log: Option<Log>) -> Result<Tally, Finding> {
    let mut done = 0;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let Some(mut world) = World::new(setup, log) else { return Tally::new() };
        for operation in operations {
            done += 1;
            world.step(*operation);
        }
        world.finish()
    }));
    outcome.map_err(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        let what = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Finding { what: what.unwrap_or_default(), operations: done }
    })
}

/// Leaves operations out of a program, and options, as long as it finds something.
fn shorten(setup: &mut Setup, operations: &mut Vec<u64>) {
    let mut runs = 0;
    let mut finds = |setup: &Setup, operations: &[u64]| {
        runs += 1;
        (runs <= SHORTENINGS).then(|| run(setup, operations, None).err()).flatten()
    };
    let habits: [fn(&mut Setup) -> &mut bool; 5] = [
        |setup| &mut setup.faulty,
        |setup| &mut setup.pressure,
        |setup| &mut setup.sleep_callback,
        |setup| &mut setup.lender,
        |setup| &mut setup.odd_policy,
    ];
    for habit in habits {
        let mut without = setup.clone();
        *habit(&mut without) = false;
        if let Some(finding) = finds(&without, operations) {
            *setup = without;
            operations.truncate(finding.operations);
        }
    }
    let mut length = operations.len().div_ceil(2);
    while length > 0 {
        let mut from = 0;
        while from < operations.len() {
            let without = [&operations[..from], &operations[(from + length).min(operations.len())..]].concat();
            match finds(setup, &without) {
                Some(finding) => {
                    *operations = without;
                    operations.truncate(finding.operations);
                }
                None => from += length,
            }
        }
        length /= 2;
    }
    for at in (1..setup.options.len()).rev() {
        let mut without = setup.clone();
        without.options.remove(at);
        if finds(&without, operations).is_some() {
            *setup = without;
        }
    }
}

/// Tells of a finding: how it is repeated, and a short program that finds something too.
fn tell(seed: u64, finding: &Finding) -> ! {
    let (mut setup, mut operations) = program(seed);
    let repeated = format!("SEAMALLOC_ATTACK_SEED={seed} SEAMALLOC_ATTACK_OPERATIONS={PROGRAM} .ci/attack rust");
    let whole = format!("{setup}");
    operations.truncate(finding.operations);
    shorten(&mut setup, &mut operations);
    let log = Log::default();
    let short = run(&setup, &operations, Some(Arc::clone(&log)));
    let lines = log.lock().unwrap_or_else(PoisonError::into_inner).join("\n");
    let short = short.err().map_or_else(|| "nothing any more".to_owned(), |finding| finding.what);
    panic!(
        "after {} operations: {}\nrepeat it: {repeated}\n{whole}\n\nshortened to {} operations it finds: {short}\n{setup}\n{lines}",
        finding.operations,
        finding.what,
        operations.len(),
    );
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.replace('_', "").parse().unwrap())
}

#[test]
fn nothing_is_shared_early_or_lost_whatever_is_combined() {
    let first = number("SEAMALLOC_ATTACK_SEED").unwrap_or(1);
    let operations = number("SEAMALLOC_ATTACK_OPERATIONS").unwrap_or(rounds(SHORT, LONG));
    let mut tally = Tally::new();
    for seed in first..first + operations.div_ceil(PROGRAM) {
        if seed > first && (seed - first).is_multiple_of(PROGRESS) {
            println!("{} operations", (seed - first) * PROGRAM);
        }
        let (setup, operations) = program(seed);
        match run(&setup, &operations, None) {
            Ok(more) => more.into_iter().for_each(|(what, times)| *tally.entry(what).or_default() += times),
            Err(finding) => tell(seed, &finding),
        }
    }
    println!("programs from {first} on, {operations} operations: {tally:#?}");
    // Otherwise the programs would be too tame to show anything.
    if operations >= SHORT && !cfg!(feature = "paranoid") {
        for (what, least) in [
            ("blocks handed out", 5_000),
            ("handed out before the GPU was done", 500),
            ("freed under another stream", 300),
            ("refused for want of memory", 2_000),
            ("failed calls that were told", 60),
            ("growths", 80),
            ("chunks split", 10),
            ("chunks spilled", 50),
            ("sleeps", 80),
            ("captures", 100),
            ("blocks of graphs", 150),
            ("replays", 80),
            ("checkpoints brought back", 30),
            ("views built", 500),
            ("waits on the GPU", 200),
            ("calls of callbacks", 1_500),
        ] {
            let times = tally.get(what).copied().unwrap_or(0);
            assert!(times >= least, "{what}: {times} times, of at least {least}: {tally:#?}");
        }
    }
}
