//! A program that takes all that it can get, beside another that needs memory of the same device now and then: how often the
//! other is refused, and how little was free, without a headroom and with one.
//!
//! `headroom DEVICE [SECONDS]`: `cuda:0`, where the other is a process of its own, or `sim:h200`, where it is a thread. Prints a line
//! of JSON for each headroom. Ends with 1 if the other was refused with a headroom as large as what it needs.
//!
//! The program goes through phases as training and evaluation do: it fills the device with tensors of any size until that is refused,
//! frees them, and goes on with a third of the memory, of which requests of new sizes are misses.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

use seamalloc::driver::{Device, Driver, StreamId};
use seamalloc::{Allocator, Config, Error, Headroom};
use std::error::Error as AnyError;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn AnyError>>;

const MIB: u64 = 1 << 20;
/// The bytes that the other program needs at once, and the headroom.
const NEEDED: u64 = 3 << 30;
const HEADROOM: u64 = 4 << 30;
/// The other holds it for so long, and then does without.
const HOLDS: Duration = Duration::from_millis(150);
/// Tensors of the program.
const LARGEST: u64 = 512 * MIB;
/// Requests of a phase with a third of the memory.
const REQUESTS: u32 = 4000;

/// A generator of random numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % bound
    }
}

/// The results of the other program.
#[derive(Debug, Default)]
struct Other {
    served: u64,
    refused: u64,
    least_free: u64,
}

/// Needs memory every now and then, until it is told to end.
fn other(driver: &dyn Driver, ends: &AtomicBool) -> Outcome<Other> {
    let mut seen = Other { least_free: u64::MAX, ..Other::default() };
    while !ends.load(Ordering::Relaxed) {
        let taken = match driver.malloc(NEEDED) {
            Ok(address) => {
                seen.served += 1;
                Some(address)
            }
            Err(error) if error.is_out_of_memory() => {
                seen.refused += 1;
                None
            }
            Err(error) => return Err(error.into()),
        };
        if taken.is_none() {
            seen.least_free = seen.least_free.min(driver.memory_info()?.free);
        }
        thread::sleep(HOLDS);
        if let Some(address) = taken {
            driver.free(address)?;
        }
        let until = Instant::now() + HOLDS;
        while Instant::now() < until {
            seen.least_free = seen.least_free.min(driver.memory_info()?.free);
            thread::sleep(Duration::from_millis(2));
        }
    }
    Ok(seen)
}

/// The other as a process: it says that it is there, ends with its input, and says what became of it.
fn child(device: &str) -> Outcome<()> {
    let driver = Device::parse(device)?.open()?.driver;
    driver.memory_info()?;
    println!("ready");
    let ends = AtomicBool::new(false);
    let seen = thread::scope(|scope| {
        scope.spawn(|| {
            let _ = std::io::stdin().read(&mut [0]);
            ends.store(true, Ordering::Relaxed);
        });
        other(&*driver, &ends).map_err(|error| error.to_string())
    })?;
    println!("{} {} {}", seen.served, seen.refused, seen.least_free);
    Ok(())
}

/// The results of the program.
#[derive(Debug, Default)]
struct Program {
    phases: u64,
    refused: u64,
    most_held: u64,
}

/// Runs the program for so long.
fn program(allocator: &Allocator, lasts: Duration) -> Outcome<Program> {
    let (mut random, mut done, begin) = (Random(7), Program::default(), Instant::now());
    let mut live: Vec<(u64, u64)> = Vec::new();
    while begin.elapsed() < lasts {
        while let Some(block) = request(allocator, &mut random)? {
            live.push(block);
        }
        done.refused += 1;
        done.phases += 1;
        done.most_held = done.most_held.max(allocator.reports().reserved());
        free_down_to(allocator, &mut random, &mut live, 0)?;
        let part = allocator.driver().memory_info()?.total / 3;
        for _ in 0..REQUESTS {
            free_down_to(allocator, &mut random, &mut live, part)?;
            match request(allocator, &mut random)? {
                Some(block) => live.push(block),
                None => done.refused += 1,
            }
            thread::sleep(Duration::from_micros(200));
        }
    }
    free_down_to(allocator, &mut random, &mut live, 0)?;
    Ok(done)
}

/// Asks for a tensor of any size. Returns its address and size, or nothing if it is refused.
fn request(allocator: &Allocator, random: &mut Random) -> Outcome<Option<(u64, u64)>> {
    let size = 1 + random.below(LARGEST);
    match allocator.allocate(size, StreamId::DEFAULT) {
        Ok(address) => Ok(Some((address, size))),
        Err(Error::OutOfMemory(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Frees tensors at random until no more than so many bytes are live.
fn free_down_to(allocator: &Allocator, random: &mut Random, live: &mut Vec<(u64, u64)>, bytes: u64) -> Outcome<()> {
    while !live.is_empty() && live.iter().map(|(_, size)| size).sum::<u64>() > bytes {
        let (address, _) = live.swap_remove(random.below(live.len() as u64) as usize);
        allocator.free(address)?;
    }
    Ok(())
}

/// Runs both beside each other. Returns what became of them.
fn beside(device: &str, allocator: &Allocator, lasts: Duration) -> Outcome<(Program, Other)> {
    if !device.starts_with("cuda") {
        let ends = AtomicBool::new(false);
        return thread::scope(|scope| {
            let driver = Arc::clone(allocator.driver());
            let ends = &ends;
            let beside = scope.spawn(move || other(&*driver, ends).map_err(|error| error.to_string()));
            let done = program(allocator, lasts);
            ends.store(true, Ordering::Relaxed);
            let seen = beside.join().map_err(|_| "the other has panicked")?;
            Ok((done?, seen?))
        });
    }
    let own = std::env::current_exe()?;
    let mut beside =
        Command::new(own).args(["--other", device]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(beside.stdout.take().ok_or("no output")?).lines();
    lines.next().ok_or("the other process did not begin")??;
    let done = program(allocator, lasts);
    drop(beside.stdin.take());
    let said = lines.next().ok_or("the other process has failed")??;
    beside.wait()?;
    let figures: Vec<u64> = said.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    let [served, refused, least_free] = figures[..] else { return Err("the other process said something else".into()) };
    Ok((done?, Other { served, refused, least_free }))
}

fn run() -> Outcome<bool> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, device] = &arguments[..]
        && flag == "--other"
    {
        child(device)?;
        return Ok(true);
    }
    let device = arguments.first().map_or("sim:h200", String::as_str);
    let seconds: u64 = arguments.get(1).map_or(Ok(12), |text| text.parse())?;
    let mut good = true;
    for headroom in [0, HEADROOM] {
        let config = Config { headroom: Headroom::kept(headroom), ..Config::default() };
        let driver = Device::parse(device)?.open()?.driver;
        let allocator = Allocator::new(driver, config)?;
        let (done, seen) = beside(device, &allocator, Duration::from_secs(seconds))?;
        allocator.empty_cache()?;
        let (stats, calls) = (allocator.stats(), allocator.driver().call_stats());
        let asked = calls.get(seamalloc::driver::Call::MemoryInfo);
        println!(
            "{{\"device\":\"{device}\",\"headroom\":{headroom},\"other_served\":{},\"other_refused\":{},\"least_free\":{},\
             \"phases\":{},\"refused\":{},\"most_held\":{},\"requests\":{},\"looks\":{},\"short\":{},\"yields\":{},\
             \"yielded_bytes\":{},\"memory_info_calls\":{},\"memory_info_ns\":{},\"driver_ns\":{}}}",
            seen.served,
            seen.refused,
            seen.least_free,
            done.phases,
            done.refused,
            done.most_held,
            stats.allocation.all.allocated,
            stats.headroom.looks,
            stats.headroom.short,
            stats.headroom.yields,
            stats.headroom.yielded_bytes,
            asked.count,
            asked.total_ns,
            stats.stalls.total_ns,
        );
        good &= headroom < NEEDED || seen.refused == 0;
    }
    Ok(good)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
