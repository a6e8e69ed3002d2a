//! A user's program: it knows the documentation alone, and names everything by the shortest path.

use cudarc::driver::{CudaStream, DevicePtrMut, DeviceSlice, LaunchArgs, PushKernelArg};
use seamalloc::driver::{CallStats, Device, Driver, OpenError};
use seamalloc::observer::{Action, Event, Observer};
use seamalloc::{
    Allocator, Block, Config, CudaBlock, CudaBlockError, Error, Fragmentation, HostPool, Pool, PoolRoute, RawBlock, Route, Stats,
    StrategyKind, Stream, StreamId,
};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const MIB: u64 = 1 << 20;

/// A tensor of a library: it owns its memory and goes anywhere.
struct Tensor {
    data: Block,
    shape: [u64; 2],
}

impl Tensor {
    fn new(allocator: &Arc<Allocator>, shape: [u64; 2], stream: StreamId) -> Result<Self, Error> {
        Ok(Self { data: Block::new(Arc::clone(allocator), 4 * shape[0] * shape[1], stream)?, shape })
    }
}

thread_local! {
    static CACHE: RefCell<Vec<Tensor>> = const { RefCell::new(Vec::new()) };
}

struct Allocations(Arc<AtomicU64>);

impl Observer for Allocations {
    fn event(&mut self, event: &Event) {
        // A new version may have new actions.
        match event.action {
            Action::Alloc => self.0.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
    }
}

/// The code that a user writes over cudarc: it compiles, whether or not there is a GPU.
#[allow(dead_code)]
fn on_a_gpu(allocator: &Allocator, stream: Arc<CudaStream>, kernel: &mut LaunchArgs<'_>) -> Result<(), CudaBlockError> {
    let stream = Stream::of_cudarc(allocator, stream);
    let input = CudaBlock::from_host(allocator, stream.held(), &[1.0f32, 2.0])?;
    let mut output = CudaBlock::<f32, _>::zeroed(allocator, stream.held(), input.len())?;
    input.block().record_stream(StreamId::from(stream.held()))?;
    stream.held().memcpy_dtod(&input, &mut output).map_err(CudaBlockError::Cuda)?;
    let (_address, _sync) = output.device_ptr_mut(stream.held());
    drop(_sync);
    let (first, mut rest) = (input.as_view(), output.as_view_mut());
    let _ = (first.len(), rest.slice_mut(1..).len());
    let _ = kernel;
    Ok(())
}

/// A kernel's arguments.
#[allow(dead_code)]
fn arguments<'a>(launch: &mut LaunchArgs<'a>, from: &'a CudaBlock<f32>, to: &'a mut CudaBlock<f32>) {
    launch.arg(from).arg(to);
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Opening.
    let allocator = Arc::new(Allocator::open("sim:h200,capacity=4GiB", "memory_limit:2GiB")?);
    assert_eq!(allocator.config().strategy, StrategyKind::Stitch);
    let refused = Allocator::open("gpu:0", "").err();
    assert!(matches!(&refused, Some(Error::Open(why)) if matches!(**why, OpenError::Unknown { .. })), "{refused:?}");
    let device: Device = "host:64MiB".parse()?;
    let host = Allocator::new(device.open()?.driver, Config::parse("strategy:caching")?)?;
    let pinned = HostPool::open("host:64MiB", "")?;
    pinned.free(pinned.allocate(MIB)?)?;

    // Observers, several at once.
    let counts: [Arc<AtomicU64>; 2] = Default::default();
    let ids = [0, 1].map(|at| allocator.reports().add_observer(Box::new(Allocations(Arc::clone(&counts[at])))));

    // Streams by handle.
    let (compute, copies) = (Stream::new(&*allocator, 7 as *mut u8), StreamId(8));

    // Blocks: borrowed, counted, sent, raw, of the host.
    let scratch = allocator.block(10 * MIB, &compute)?;
    let mut tensor = Tensor::new(&allocator, [1024, 1024], copies)?;
    tensor.data.set_last_use(&compute);
    assert_eq!((tensor.data.len(), tensor.shape), (4 * MIB, [1024; 2]));
    let elsewhere = Arc::clone(&allocator);
    std::thread::spawn(move || CACHE.with_borrow_mut(|cache| cache.push(tensor))).join().map_err(|_| "it panicked")?;
    assert_eq!(elsewhere.stats().allocation.all.current, 1, "the thread's tensors went with it");
    let RawBlock { address, size, stream } = scratch.into_raw();
    drop(Block::from_raw(&*allocator, RawBlock { address, size, stream }));
    drop(host.block(MIB, StreamId::DEFAULT)?);

    // Unwinding.
    std::panic::set_hook(Box::new(|_| {}));
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let _blocks = [1, 2, 3].map(|mib| allocator.block(mib * MIB, &compute));
        panic!("on purpose");
    }));
    drop(std::panic::take_hook());
    assert!(unwound.is_err());
    assert_eq!(allocator.stats().allocation.all.current, 0);

    // Pools and routes.
    let pool = Pool::create(Arc::clone(&allocator))?;
    let route: PoolRoute = pool.route(Route::stream(copies))?;
    let (routed, named) = (allocator.block(MIB, copies)?, pool.block(MIB, compute.id())?);
    assert_eq!(pool.stats()?.allocations, 2);
    route.end()?;
    drop((routed, named, pool));

    // A refusal is data, and says what would have helped.
    let too_much = allocator.block(3 << 30, &compute).map(drop);
    let Err(Error::OutOfMemory(report)) = too_much else { return Err("3 GiB are more than the limit".into()) };
    assert!(serde_json::to_value(&report)?["advice"].is_array());
    println!("{report}");

    // Figures as text and as data.
    let (stats, memory): (Stats, Fragmentation) = (allocator.stats(), allocator.reports().fragmentation());
    println!("{stats}\n{memory}");
    let calls: CallStats = allocator.driver().call_stats();
    println!("{}", serde_json::json!({ "stats": stats, "memory": memory, "calls": calls, "snapshot": allocator.reports().snapshot() }));

    let [first, second] = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    assert!(first == second && first >= 7, "{first} and {second}");
    for id in ids {
        assert!(allocator.reports().remove_observer(id?).is_some());
    }

    // A trace, recorded here and replayed elsewhere.
    let (recorder, observer) = seamalloc_trace::Recorder::new(1000);
    let id = allocator.reports().add_observer(observer)?;
    for mib in 1..20 {
        drop(allocator.block(mib * MIB, &compute)?);
    }
    allocator.reports().remove_observer(id);
    let trace = recorder.to_trace("downstream", None)?;
    assert!(trace.events.len() >= 38, "{} events", trace.events.len());

    // At the end: a block in the main thread's cache, whose drop ends the allocator.
    let last = Tensor::new(&allocator, [16, 16], copies)?;
    CACHE.with_borrow_mut(|cache| cache.push(last));
    drop(compute);
    println!("done");
    Ok(())
}
