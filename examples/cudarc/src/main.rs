//! cudarc's streams, kernels and copies over memory of seamalloc's: fragments it until a request must be stitched, hands the
//! result from stream to stream, and checks every word on the host.
//!
//! ```text
//! cargo run --release -p seamalloc-cudarc --bin seamalloc-cudarc
//! ```
//!
//! Exit code 1: a word was wrong, or a call failed. 2: there is no driver or no GPU.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the command line")]

use std::error::Error;
use std::process::ExitCode;

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use seamalloc::{Allocator, CudaBlock, Stream};

const MIB: u64 = 1 << 20;
const SEED: u32 = 0x9E37_79B9;
/// Words of the stitched block: 160 MiB.
const WORDS: u32 = 40 << 20;

fn main() -> ExitCode {
    // cudarc panics without a driver, so seamalloc asks first.
    //
    // SAFETY: all streams are cudarc's, of the same primary context, and held by a `Stream`, which has them forgotten first.
    let allocator = match unsafe { Allocator::open_trusting("cuda:0", "") } {
        Ok(allocator) => allocator,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    match run(&allocator) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(allocator: &Allocator) -> Result<(), Box<dyn Error>> {
    let context = CudaContext::new(0)?;
    let module = context.load_module(Ptx::from_src(include_str!("kernels.ptx")))?;
    let (fill, rewrite) = (module.load_function("fill")?, module.load_function("rewrite")?);
    let streams = [context.new_stream()?, context.new_stream()?].map(|stream| Stream::of_cudarc(allocator, stream));
    let [first, second] = streams.each_ref().map(Stream::held);
    println!("{} on {}", context.name()?, allocator.driver().properties().name);

    // Eight blocks of 40 MiB, of which every other one is freed: 160 MiB are free, and no 41 of them in a row.
    let mut blocks = Vec::new();
    for _ in 0..8 {
        blocks.push(CudaBlock::<u32, _>::zeroed(allocator, first, WORDS as usize / 4)?);
    }
    let mut at = 0;
    blocks.retain(|_| {
        at += 1;
        at % 2 == 0
    });
    let before = allocator.stats();
    // SAFETY: the kernel writes every word before anything reads one.
    let mut stitched = unsafe { CudaBlock::uninit(allocator, first, WORDS as usize) }?;
    let after = allocator.stats();
    let grown = after.reserved_bytes.all.current - before.reserved_bytes.all.current;
    println!("160 MiB stitched: {} MiB of new memory, {} views", grown / MIB, after.views);

    let shape = LaunchConfig::for_num_elems(WORDS);
    let mut launch = first.launch_builder(&fill);
    // SAFETY: the kernel takes an address of that many words, their number and a word.
    unsafe { launch.arg(&mut stitched).arg(&WORDS).arg(&SEED).launch(shape) }?;
    wrong_words("filled on one stream", &first.clone_dtoh(&stitched)?, |i| i ^ SEED)?;

    // The other stream reads it. cudarc's events have its own stream wait for that before it is freed.
    // SAFETY: as above.
    let mut result = unsafe { CudaBlock::uninit(allocator, second, WORDS as usize) }?;
    let mut launch = second.launch_builder(&rewrite);
    // SAFETY: the kernel takes two addresses of that many words, and their number.
    unsafe { launch.arg(&stitched).arg(&mut result).arg(&WORDS).launch(shape) }?;
    drop(stitched);
    // What was freed is overwritten at once, in the order of its stream.
    let overwritten = CudaBlock::<u32, _>::zeroed(allocator, first, WORDS as usize)?;
    wrong_words("rewritten on another", &second.clone_dtoh(&result)?, |i| (i ^ SEED).wrapping_mul(3).wrapping_add(i))?;

    drop((overwritten, result, blocks, streams));
    let given = allocator.empty_cache()?;
    println!("given back: {} MiB of {} MiB", given / MIB, allocator.stats().reserved_bytes.all.peak / MIB);
    match allocator.reports().reserved() {
        0 => Ok(()),
        left => Err(format!("{left} bytes were not given back").into()),
    }
}

/// Compares on the host, word by word.
fn wrong_words(what: &str, found: &[u32], expected: impl Fn(u32) -> u32) -> Result<(), Box<dyn Error>> {
    let wrong = (0..).zip(found).filter(|(at, word)| **word != expected(*at)).count();
    println!("{what}: {} words checked on the host, {wrong} wrong", found.len());
    if wrong == 0 { Ok(()) } else { Err(format!("{what}: {wrong} wrong words").into()) }
}
