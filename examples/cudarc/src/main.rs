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
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::process::ExitCode;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use seamalloc::driver::StreamId;
use seamalloc::{Allocator, Config};

const MIB: u64 = 1 << 20;
const SEED: u32 = 0x9E37_79B9;
/// Words of the stitched block: 160 MiB.
const WORDS: u32 = 40 << 20;

fn main() -> ExitCode {
    // cudarc panics without a driver, so seamalloc asks first.
    //
    // SAFETY: all streams are cudarc's, of the same primary context; each is forgotten before it is dropped.
    let allocator = match unsafe { Allocator::cuda(0, Config::default()) } {
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

/// A `cudarc` slice whose memory is seamalloc's: freed to its allocator, in the order of its stream.
struct Buffer<'a> {
    slice: ManuallyDrop<CudaSlice<u32>>,
    address: u64,
    allocator: &'a Allocator,
}

impl<'a> Buffer<'a> {
    fn new(allocator: &'a Allocator, stream: &Arc<CudaStream>, words: u32) -> Result<Self, seamalloc::Error> {
        let address = allocator.allocate(4 * u64::from(words), id(stream))?;
        // SAFETY: the address has memory for that many words, and any bits are a word.
        let slice = unsafe { stream.upgrade_device_ptr(address, words as usize) };
        Ok(Self { slice: ManuallyDrop::new(slice), address, allocator })
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        // SAFETY: nobody takes the slice twice: this is the end of the buffer.
        unsafe { ManuallyDrop::take(&mut self.slice) }.leak();
        if let Err(error) = self.allocator.free(self.address) {
            eprintln!("{error}");
        }
    }
}

impl Deref for Buffer<'_> {
    type Target = CudaSlice<u32>;

    fn deref(&self) -> &CudaSlice<u32> {
        &self.slice
    }
}

impl DerefMut for Buffer<'_> {
    fn deref_mut(&mut self) -> &mut CudaSlice<u32> {
        &mut self.slice
    }
}

fn id(stream: &CudaStream) -> StreamId {
    StreamId::from_raw(stream.cu_stream())
}

fn run(allocator: &Allocator) -> Result<(), Box<dyn Error>> {
    let context = CudaContext::new(0)?;
    let module = context.load_module(Ptx::from_src(include_str!("kernels.ptx")))?;
    let (fill, rewrite) = (module.load_function("fill")?, module.load_function("rewrite")?);
    let (first, second) = (context.new_stream()?, context.new_stream()?);
    println!("{} on {}", context.name()?, allocator.driver().properties().name);

    // Eight blocks of 40 MiB, of which every other one is freed: 160 MiB are free, and no 41 of them in a row.
    let mut blocks = Vec::new();
    for _ in 0..8 {
        blocks.push(Buffer::new(allocator, &first, WORDS / 4)?);
    }
    let mut at = 0;
    blocks.retain(|_| {
        at += 1;
        at % 2 == 0
    });
    let before = allocator.stats();
    let mut stitched = Buffer::new(allocator, &first, WORDS)?;
    let after = allocator.stats();
    let grown = after.reserved_bytes.all.current - before.reserved_bytes.all.current;
    println!("160 MiB stitched: {} MiB of new memory, {} views", grown / MIB, after.views);

    launch_fill(&first, &fill, &mut stitched)?;
    wrong_words("filled on one stream", &first.clone_dtoh(&*stitched)?, |i| i ^ SEED)?;

    // The other stream reads it, and is waited for once it is freed.
    second.join(&first)?;
    allocator.record_stream(stitched.address, id(&second))?;
    let mut result = Buffer::new(allocator, &second, WORDS)?;
    let shape = LaunchConfig::for_num_elems(WORDS);
    let mut launch = second.launch_builder(&rewrite);
    // SAFETY: the kernel takes two addresses of that many words, and their number.
    unsafe { launch.arg(&*stitched).arg(&mut *result).arg(&WORDS).launch(shape) }?;
    drop(stitched);
    wrong_words("rewritten on another", &second.clone_dtoh(&*result)?, |i| (i ^ SEED).wrapping_mul(3).wrapping_add(i))?;

    drop((result, blocks));
    for stream in [first, second] {
        allocator.forget_stream(id(&stream))?;
    }
    let given = allocator.empty_cache()?;
    println!("given back: {} MiB of {} MiB", given / MIB, allocator.stats().reserved_bytes.all.peak / MIB);
    match allocator.reserved() {
        0 => Ok(()),
        left => Err(format!("{left} bytes were not given back").into()),
    }
}

fn launch_fill(stream: &Arc<CudaStream>, fill: &CudaFunction, buffer: &mut Buffer<'_>) -> Result<(), Box<dyn Error>> {
    let words = u32::try_from(buffer.len())?;
    let mut launch = stream.launch_builder(fill);
    // SAFETY: the kernel takes an address of that many words, their number and a word.
    unsafe { launch.arg(&mut **buffer).arg(&words).arg(&SEED).launch(LaunchConfig::for_num_elems(words)) }?;
    Ok(())
}

/// Compares on the host, word by word.
fn wrong_words(what: &str, found: &[u32], expected: impl Fn(u32) -> u32) -> Result<(), Box<dyn Error>> {
    let wrong = (0..).zip(found).filter(|(at, word)| **word != expected(*at)).count();
    println!("{what}: {} words checked on the host, {wrong} wrong", found.len());
    if wrong == 0 { Ok(()) } else { Err(format!("{what}: {wrong} wrong words").into()) }
}
