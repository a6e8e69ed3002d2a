//! A key-value cache of 40 GiB grows by tokens at one address: seconds, microseconds a call, bytes held, and every word of it, beside
//! what programs do today, which is to copy into a larger allocation.
//!
//! ```text
//! cargo run --release --example growth -- cuda:0
//! cargo run --release --example growth -- sim:h200 40960     # MiB; no contents on a simulated GPU
//! cargo run --release --example growth -- host:1GiB 600
//! ```
//!
//! One line of JSON for each way:
//! - `reserved`: `Growing::new`, on a device with nothing else;
//! - `stitched`: the same, through what every other block of 100 MiB left free, as after a model has gone;
//! - `shrunk and grown`: back to a tenth and up again, where chunks are still mapped;
//! - `doubling`: `cuMemAlloc` of twice the size and a copy, whenever it is full, up to where both copies fit;
//! - `by GiB`: the same with one GiB more each time (a `torch.cat` each GiB).
//!
//! Every token is written as the cache grows, and every word of it is read at the end. `us` are a call's microseconds, on the CPU;
//! `held` are bytes of the device at the peak, `utilization` is what the cache, and live blocks beside it, hold of them. Exit code 1: a word is wrong, or an address
//! changed; 2: no such device.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the command line")]

use seamalloc::driver::Driver;
use seamalloc::{Allocator, Error, Growing, StreamId};
use std::process::ExitCode;
use std::time::Instant;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Bytes of a token: 80 layers of 8 heads of 128, keys and values, in 16 bits.
const TOKEN: u64 = 320 << 10;
/// Bytes of the blocks of the model that has gone.
const BLOCK: u64 = 100 * MIB;
const STREAM: StreamId = StreamId::DEFAULT;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let device = arguments.next().unwrap_or_else(|| "cuda:0".to_owned());
    let size = arguments.next().and_then(|mib| mib.parse().ok()).unwrap_or(40_960) * MIB / TOKEN * TOKEN;
    match Program::new(&device, size).and_then(|program| program.run()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

struct Program {
    device: String,
    size: u64,
    allocator: Allocator,
    /// Whether the device keeps what is written.
    has_contents: bool,
}

/// Returns the words of a token, but for its number: every word differs from every other.
fn blank() -> Vec<u8> {
    (0..TOKEN / 8).flat_map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1).to_le_bytes()).collect()
}

/// Writes the number of a token into each of its pages of 4 KiB. Writing all words of 40 GiB would take the CPU longer than all else.
fn number(token: u64, words: &mut [u8]) {
    words.chunks_mut(4096).for_each(|page| page[..8].copy_from_slice(&(token + 1).to_le_bytes()));
}

impl Program {
    fn new(device: &str, size: u64) -> Result<Self, Error> {
        let allocator = Allocator::open(device, "")?;
        let has_contents = !device.starts_with("sim");
        Ok(Self { device: device.to_owned(), size, allocator, has_contents })
    }

    fn driver(&self) -> &dyn Driver {
        &**self.allocator.driver()
    }

    fn run(&self) -> Result<bool, Error> {
        // The first call of a process makes the context.
        self.allocator.free(self.allocator.allocate(MIB, STREAM)?)?;
        self.allocator.empty_cache()?;
        let mut right = true;
        let mut cache = Growing::new(&self.allocator, self.size, STREAM)?;
        right &= self.grow("reserved", &mut cache, 0, 0)?;
        cache.shrink(self.size / 10 / TOKEN * TOKEN)?;
        let from = cache.len() / TOKEN;
        right &= self.grow("shrunk and grown", &mut cache, 0, from)?;
        drop(cache);
        self.allocator.empty_cache()?;
        right &= self.grow_in_pieces()?;
        self.allocator.empty_cache()?;
        for (way, next) in [("doubling", None), ("by GiB", Some(GIB))] {
            right &= self.copy(way, next)?;
        }
        Ok(right)
    }

    /// Grows through free memory between live blocks.
    fn grow_in_pieces(&self) -> Result<bool, Error> {
        // So many live blocks and as much free between them, half of the cache.
        let count = (self.size / 2 / BLOCK).max(1);
        let blocks = (0..2 * count).map(|_| self.allocator.allocate(BLOCK, STREAM)).collect::<Result<Vec<u64>, _>>()?;
        blocks.iter().step_by(2).try_for_each(|address| self.allocator.free(*address))?;
        let mut cache = Growing::new(&self.allocator, self.size, STREAM)?;
        let right = self.grow("stitched", &mut cache, count * BLOCK, 0)?;
        drop(cache);
        blocks.iter().skip(1).step_by(2).try_for_each(|address| self.allocator.free(*address))?;
        Ok(right)
    }

    /// Grows a cache by tokens from one on, and reads all of it. `others` are live bytes beside it.
    fn grow(&self, way: &str, cache: &mut Growing<&Allocator>, others: u64, from: u64) -> Result<bool, Error> {
        let address = cache.address();
        self.allocator.reports().reset_peaks();
        let (mut us, mut words, mut lowest) = (Vec::new(), blank(), 1.0_f64);
        let (calls, tokens) = (self.driver().call_stats(), self.size / TOKEN);
        let began = Instant::now();
        for token in from..tokens {
            let call = Instant::now();
            cache.grow((token + 1) * TOKEN)?;
            us.push(call.elapsed().as_nanos() as u64);
            if cache.len() >= 256 * MIB {
                lowest = lowest.min(cache.len() as f64 / cache.mapped() as f64);
            }
            if self.has_contents {
                number(token, &mut words);
                self.driver().write(address + token * TOKEN, &words)?;
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        let calls = self.driver().call_stats().since(&calls);
        let wrong = if self.has_contents { self.wrong_words(address)? } else { 0 };
        let stats = self.allocator.stats();
        let held = stats.reserved_bytes.all.peak;
        let grow_s = us.iter().sum::<u64>() as f64 / 1e9;
        let made = || calls.iter().filter(|(call, stat)| stat.count > 0 && !matches!(call.name(), "write" | "read"));
        let driver: serde_json::Map<_, _> =
            made().map(|(call, stat)| (call.name().to_owned(), stat.count.into())).collect();
        let driver_ns = made().map(|(_, stat)| stat.total_ns).sum::<u64>();
        let right = wrong == 0 && cache.address() == address && self.allocator.reports().check().is_ok();
        let copied = if calls.get(seamalloc::driver::Call::Copy).count == 0 { 0 } else { self.size };
        println!(
            "{}",
            serde_json::json!({
                "device": self.device, "way": way, "bytes": self.size, "tokens": us.len(), "right": right,
                "wrong_words": wrong, "words_read": if self.has_contents { self.size / 8 } else { 0 },
                "address_changed": cache.address() != address, "copied": copied, "held": held,
                "utilization": (cache.len() + others) as f64 / held as f64, "lowest_from_256_mib": lowest, "seconds": seconds, "grow_seconds": grow_s,
                "grow_seconds_per_gib": grow_s / ((tokens - from) * TOKEN) as f64 * GIB as f64,
                "driver_ms": driver_ns as f64 / 1e6, "driver_calls": driver, "us": summary(&mut us),
            })
        );
        Ok(right)
    }

    /// Copies into a larger allocation whenever the one there is is full, as long as the device has room for both.
    fn copy(&self, way: &str, step: Option<u64>) -> Result<bool, Error> {
        let driver = self.driver();
        let (mut held, mut copied, mut us) = (0, 0, Vec::new());
        let (mut address, mut size) = (0, 0);
        let began = Instant::now();
        while size < self.size {
            let next = step.map_or_else(|| (2 * size).max(GIB.min(self.size)), |step| size + step).min(self.size);
            let free = driver.memory_info()?.free;
            if free < next + 64 * MIB {
                break;
            }
            let call = Instant::now();
            let larger = driver.malloc(next)?;
            if size > 0 {
                driver.copy(address, larger, size)?;
                driver.free(address)?;
            }
            us.push(call.elapsed().as_nanos() as u64);
            held = held.max(size + next);
            copied += size;
            (address, size) = (larger, next);
        }
        driver.free(address)?;
        println!(
            "{}",
            serde_json::json!({
                "device": self.device, "way": way, "bytes": size, "right": true, "address_changed": true, "copied": copied,
                "held": held, "utilization": size as f64 / held.max(1) as f64, "seconds": began.elapsed().as_secs_f64(),
                "grow_seconds_per_gib": began.elapsed().as_secs_f64() / size.max(1) as f64 * GIB as f64, "us": summary(&mut us),
            })
        );
        Ok(true)
    }

    /// Reads the whole cache. Returns how many words are not their own.
    fn wrong_words(&self, address: u64) -> Result<u64, Error> {
        /// Tokens that are read at once.
        const AT_ONCE: u64 = 64;
        let (mut found, mut expected) = (vec![0; (AT_ONCE * TOKEN) as usize], blank());
        let (tokens, mut wrong, mut token) = (self.size / TOKEN, 0, 0);
        while token < tokens {
            let count = AT_ONCE.min(tokens - token);
            let bytes = (count * TOKEN) as usize;
            self.driver().read(address + token * TOKEN, &mut found[..bytes])?;
            for (of, read) in (token..).zip(found[..bytes].chunks_exact(TOKEN as usize)) {
                number(of, &mut expected);
                if read != expected.as_slice() {
                    wrong += read.chunks_exact(8).zip(expected.chunks_exact(8)).filter(|(a, b)| a != b).count() as u64;
                }
            }
            token += count;
        }
        Ok(wrong)
    }
}

/// Microseconds of calls: how many, half, 99 of 100, and the longest.
fn summary(ns: &mut [u64]) -> serde_json::Value {
    ns.sort_unstable();
    let at =
        |part: f64| ns.get(((ns.len() as f64 * part) as usize).min(ns.len().saturating_sub(1))).copied().unwrap_or(0);
    let us = |ns: u64| ns as f64 / 1e3;
    let mean = ns.iter().sum::<u64>() as f64 / 1e3 / ns.len().max(1) as f64;
    serde_json::json!({"calls": ns.len(), "mean": mean, "p50": us(at(0.5)), "p99": us(at(0.99)), "most": us(at(1.0))})
}
