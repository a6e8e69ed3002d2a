//! A pool for a captured graph: what the capture allocates comes from the pool and stays where it is, so that the graph can be launched
//! again and again, while other streams allocate and free.
//!
//! ```text
//! cargo run --release -p seamalloc-cudarc --bin graph
//! ```
//!
//! Exit code 1: a word was wrong, or a call failed. 2: there is no driver or no GPU.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the command line")]

use std::error::Error;
use std::process::ExitCode;

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg, sys};
use cudarc::nvrtc::Ptx;
use seamalloc::{Allocator, Pool, Stream};

const WORDS: u32 = 1 << 20;
const LAUNCHES: u32 = 50;

fn main() -> ExitCode {
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
    // In a capture no events of others may be recorded, and here each stream has memory of its own.
    // SAFETY: nothing of cudarc's is used on two streams.
    unsafe { context.disable_event_tracking() };
    let module = context.load_module(Ptx::from_src(include_str!("../kernels.ptx")))?;
    let (fill, rewrite) = (module.load_function("fill")?, module.load_function("rewrite")?);
    let streams = [context.new_stream()?, context.new_stream()?].map(|stream| Stream::of_cudarc(allocator, stream));
    let [captured, beside] = streams.each_ref().map(Stream::held);
    let (bytes, shape) = (4 * u64::from(WORDS), LaunchConfig::for_num_elems(WORDS));

    let pool = Pool::create(allocator)?;
    let route = pool.capture(&streams[0])?;
    captured.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    // Both come from the pool. The first is freed in the capture, and what comes after it there may have its memory.
    let scratch = allocator.block(bytes, &streams[0])?;
    let result = allocator.block(bytes, &streams[0])?;
    let (from, to, seed) = (scratch.address(), result.address(), 7u32);
    // SAFETY: the kernels take addresses of that many words, and their number.
    unsafe {
        captured.launch_builder(&fill).arg(&from).arg(&WORDS).arg(&seed).launch(shape)?;
        captured.launch_builder(&rewrite).arg(&from).arg(&to).arg(&WORDS).launch(shape)?;
    }
    drop(scratch);
    let graph = captured.end_capture(sys::CUgraphInstantiate_flags(0))?.ok_or("the capture has no graph")?;
    route.end()?;
    println!("captured; the pool: {}", pool.stats()?);

    for _ in 0..LAUNCHES {
        // Another stream takes and overwrites all that it can get. Nothing of it is the pool's.
        let others: Vec<_> = (0..8).map(|_| allocator.block(bytes, &streams[1])).collect::<Result<_, _>>()?;
        for other in &others {
            let (address, junk) = (other.address(), 0xDEAD_BEEF_u32);
            // SAFETY: as above.
            unsafe { beside.launch_builder(&fill).arg(&address).arg(&WORDS).arg(&junk).launch(shape) }?;
        }
        graph.launch()?;
    }
    captured.synchronize()?;
    beside.synchronize()?;
    let mut words = vec![0u32; WORDS as usize];
    // SAFETY: the block is live and has that many words.
    let slice = unsafe { captured.upgrade_device_ptr::<u32>(result.address(), WORDS as usize) };
    captured.memcpy_dtoh(&slice, &mut words)?;
    captured.synchronize()?;
    slice.leak();
    let wrong = (0..).zip(&words).filter(|(i, word)| **word != (i ^ seed).wrapping_mul(3).wrapping_add(*i)).count();
    println!("{LAUNCHES} launches: {} words checked on the host, {wrong} wrong", words.len());

    // No launch comes after this.
    drop((graph, result, pool));
    drop(streams);
    allocator.empty_cache()?;
    match (wrong, allocator.reports().reserved()) {
        (0, 0) => Ok(()),
        (0, left) => Err(format!("{left} bytes were not given back").into()),
        _ => Err(format!("{wrong} wrong words").into()),
    }
}
