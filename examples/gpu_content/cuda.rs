//! A real GPU that runs the kernels of kernels.ptx.
//!
//! Owns: every call of libcuda that is not the allocator's driver's, and with them all `unsafe` code of this example
//! beside calls.rs. What it makes (module, streams, graphs, counters) lives as long as the process.

use crate::calls::{Calls, RawStatus};
use crate::gpu::{Findings, Gpu, GraphId, Kernel, Key, Outcome, Words, WrongWord};
use parking_lot::Mutex;
use seamalloc::driver::cuda::CudaDriver;
use seamalloc::driver::{CaptureMode, Driver, Status, StreamId, Streams};
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

const KERNELS: &str = concat!(include_str!("kernels.ptx"), "\0");
/// Threads of a block.
const BLOCK: u32 = 256;
/// Blocks that a multiprocessor runs at a time: all 2,048 threads of it.
const BLOCKS_PER_PROCESSOR: u32 = 8;
/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
const ATTRIBUTE_PROCESSORS: c_uint = 16;
/// A pause ends after so many looks at the clock, whatever that says: a second, about.
const MOST_LOOKS: u64 = 10_000_000;
/// 64-bit counters of the kernel `check`.
const COUNTERS: usize = 4;

/// Functions of the module, in this order.
const NAMES: [&CStr; 5] = [c"fill", c"check", c"copy", c"spin", c"gather"];
const FILL: usize = 0;
const CHECK: usize = 1;
const COPY: usize = 2;
const SPIN: usize = 3;
const GATHER: usize = 4;

/// An NVIDIA GPU.
pub(crate) struct Cuda {
    driver: Arc<CudaDriver>,
    calls: Calls,
    context: u64,
    functions: [u64; NAMES.len()],
    /// Blocks that all multiprocessors together run at a time.
    most_blocks: u32,
    /// Device memory.
    counters: u64,
    /// Page-locked host memory to which the counters are copied, as an address.
    glanced: usize,
    /// The stream of these copies.
    watch: StreamId,
    graphs: Mutex<Vec<u64>>,
}

impl Cuda {
    pub(crate) fn open(name: &str) -> Outcome<Self> {
        let ordinal = CudaDriver::parse_ordinal(name)?;
        let driver = Arc::new(CudaDriver::open(ordinal)?);
        let watch = driver.create_stream()?;
        let mut cuda = Self {
            calls: Calls::load()?,
            driver,
            context: 0,
            functions: [0; NAMES.len()],
            most_blocks: 0,
            counters: 0,
            glanced: 0,
            watch,
            graphs: Mutex::default(),
        };
        let mut device: c_int = 0;
        // SAFETY: the pointer is to a live integer.
        cuda.done("cuDeviceGet", unsafe { (cuda.calls.device_get)(&mut device, c_int::try_from(ordinal)?) })?;
        let mut processors: c_int = 0;
        // SAFETY: as above.
        let status = unsafe { (cuda.calls.device_get_attribute)(&mut processors, ATTRIBUTE_PROCESSORS, device) };
        cuda.done("cuDeviceGetAttribute", status)?;
        cuda.most_blocks = BLOCKS_PER_PROCESSOR * u32::try_from(processors)?;
        let mut context = 0;
        // SAFETY: as above. The context is never released: this example ends with the process.
        cuda.done("cuDevicePrimaryCtxRetain", unsafe { (cuda.calls.primary_ctx_retain)(&mut context, device) })?;
        cuda.context = context;
        cuda.enter()?;
        cuda.load()?;
        cuda.make_counters()?;
        Ok(cuda)
    }

    fn load(&mut self) -> Outcome<()> {
        let mut module = 0;
        // SAFETY: the text ends with a zero byte, the pointer is to a live integer.
        let status = unsafe { (self.calls.module_load_data)(&mut module, KERNELS.as_ptr().cast()) };
        self.done("cuModuleLoadData", status)?;
        for (at, name) in NAMES.iter().enumerate() {
            let mut function = 0;
            // SAFETY: the module is loaded, the name ends with a zero byte, the pointer is to a live integer.
            let status = unsafe { (self.calls.module_get_function)(&mut function, module, name.as_ptr()) };
            self.done("cuModuleGetFunction", status)?;
            self.functions[at] = function;
        }
        Ok(())
    }

    fn make_counters(&mut self) -> Outcome<()> {
        let bytes = COUNTERS * size_of::<u64>();
        let (mut counters, mut glanced) = (0, ptr::null_mut());
        // SAFETY: the pointer is to a live integer.
        self.done("cuMemAlloc", unsafe { (self.calls.mem_alloc)(&mut counters, bytes) })?;
        self.counters = counters;
        // SAFETY: the pointer is to a live pointer.
        self.done("cuMemHostAlloc", unsafe { (self.calls.mem_host_alloc)(&mut glanced, bytes, 0) })?;
        // SAFETY: page-locked memory of so many bytes, that nobody else knows yet.
        unsafe { ptr::write_bytes(glanced.cast::<u8>(), 0, bytes) };
        self.glanced = glanced.expose_provenance();
        self.clear_counters()?;
        // A first launch may load code, which waits for the GPU and is forbidden in a capture.
        let words = Words { address: self.counters, count: 0 };
        for kernel in [
            Kernel::Fill { to: words, tag: 0 },
            Kernel::Check { of: words, tag: 0 },
            Kernel::Copy { from: words, to: self.counters },
            Kernel::Spin { ns: 0 },
        ] {
            self.launch(self.watch, kernel)?;
        }
        Ok(self.driver.synchronize()?)
    }

    fn clear_counters(&self) -> Outcome<()> {
        let bytes = COUNTERS * size_of::<u64>();
        // SAFETY: the counters are device memory of so many bytes.
        let status = unsafe { (self.calls.memset_d8_async)(self.counters, 0, bytes, self.watch.0) };
        self.done("cuMemsetD8Async", status)
    }

    fn copy_counters(&self) -> Outcome<()> {
        let (to, bytes) = (ptr::with_exposed_provenance_mut::<c_void>(self.glanced), COUNTERS * size_of::<u64>());
        // SAFETY: both sides have so many bytes and live as long as the process.
        let status = unsafe { (self.calls.memcpy_dtoh_async)(to, self.counters, bytes, self.watch.0) };
        self.done("cuMemcpyDtoHAsync", status)
    }

    fn counter(&self, number: usize) -> u64 {
        let counters = ptr::with_exposed_provenance::<u64>(self.glanced);
        // SAFETY: there are COUNTERS of them; volatile, for the GPU writes there.
        unsafe { counters.add(number.min(COUNTERS - 1)).read_volatile() }
    }

    /// Random reads of 32 bytes, `2^log2_sectors` of them out of as many; each leaves a word at `to`.
    pub(crate) fn gather(&self, stream: StreamId, to: u64, from: u64, log2_sectors: u32, seed: u64) -> Outcome<()> {
        let sectors = 1 << log2_sectors;
        self.start(GATHER, self.blocks(sectors), stream, &mut [to, from, sectors, seed])
    }

    /// How long the GPU takes for what `give` gives to the stream, in nanoseconds. The CPU waits for it.
    pub(crate) fn time(&self, stream: StreamId, give: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
        let (begun, ended) = (self.timing_event()?, self.timing_event()?);
        // SAFETY: stream and event are live.
        self.done("cuEventRecord", unsafe { (self.calls.event_record)(begun, stream.0) })?;
        give()?;
        // SAFETY: as above.
        self.done("cuEventRecord", unsafe { (self.calls.event_record)(ended, stream.0) })?;
        // SAFETY: as above.
        self.done("cuEventSynchronize", unsafe { (self.calls.event_synchronize)(ended) })?;
        let mut ms = 0.0_f32;
        // SAFETY: the pointer is to a live number, both events are recorded and complete.
        self.done("cuEventElapsedTime", unsafe { (self.calls.event_elapsed_time)(&mut ms, begun, ended) })?;
        Ok(f64::from(ms) * 1e6)
    }

    fn timing_event(&self) -> Outcome<u64> {
        let mut event = 0;
        // SAFETY: the pointer is to a live integer; flags 0 are the defaults, with timing.
        self.done("cuEventCreate", unsafe { (self.calls.event_create)(&mut event, 0) })?;
        Ok(event)
    }

    /// Blocks for that many threads' work.
    fn blocks(&self, work: u64) -> u32 {
        u32::try_from(work.div_ceil(u64::from(BLOCK))).unwrap_or(u32::MAX).clamp(1, self.most_blocks)
    }

    fn start(&self, function: usize, blocks: u32, stream: StreamId, arguments: &mut [u64]) -> Outcome<()> {
        let threads = if function == SPIN { 1 } else { BLOCK };
        let mut pointers: Vec<*mut c_void> =
            arguments.iter_mut().map(|argument| ptr::from_mut(argument).cast()).collect();
        // SAFETY: the function takes as many 64-bit arguments, which are copied before the call returns; stream and
        // function are live. What the kernel does with addresses is the program's matter: that is the test.
        let status = unsafe {
            (self.calls.launch_kernel)(
                self.functions[function],
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream.0,
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        self.done("cuLaunchKernel", status)
    }

    fn done(&self, call: &str, status: RawStatus) -> Outcome<()> {
        match Status(status) {
            Status::SUCCESS => Ok(()),
            status => Err(format!("{call} failed with {}", self.driver.api().error_name(status)).into()),
        }
    }
}

impl Gpu for Cuda {
    fn driver(&self) -> Arc<dyn Driver> {
        Arc::<CudaDriver>::clone(&self.driver)
    }

    fn enter(&self) -> Outcome<()> {
        // SAFETY: the context is retained.
        self.done("cuCtxSetCurrent", unsafe { (self.calls.ctx_set_current)(self.context) })
    }

    fn create_stream(&self) -> Outcome<StreamId> {
        Ok(self.driver.create_stream()?)
    }

    fn launch(&self, stream: StreamId, kernel: Kernel) -> Outcome<()> {
        let key = |tag| Key::new(tag, 0).0;
        match kernel {
            Kernel::Fill { to, tag } => {
                self.start(FILL, self.blocks(to.count), stream, &mut [to.address, to.count, key(tag)])
            }
            Kernel::Check { of, tag } => {
                let arguments = &mut [of.address, of.count, key(tag), self.counters];
                self.start(CHECK, self.blocks(of.count), stream, arguments)
            }
            Kernel::Copy { from, to } => {
                self.start(COPY, self.blocks(from.count / 2), stream, &mut [to, from.address, from.count])
            }
            Kernel::Spin { ns } => self.start(SPIN, 1, stream, &mut [ns, MOST_LOOKS]),
        }
    }

    fn begin_capture(&self, stream: StreamId, mode: CaptureMode) -> Outcome<()> {
        // CU_STREAM_CAPTURE_MODE_*
        let mode = match mode {
            CaptureMode::Global => 0,
            CaptureMode::ThreadLocal => 1,
            CaptureMode::Relaxed => 2,
        };
        // SAFETY: the stream is live.
        self.done("cuStreamBeginCapture", unsafe { (self.calls.stream_begin_capture)(stream.0, mode) })
    }

    fn end_capture(&self, stream: StreamId) -> Outcome<GraphId> {
        let (mut graph, mut executable) = (0, 0);
        // SAFETY: the stream is live, the pointer is to a live integer.
        self.done("cuStreamEndCapture", unsafe { (self.calls.stream_end_capture)(stream.0, &mut graph) })?;
        // SAFETY: the graph is live, the pointer is to a live integer; no flags.
        let status = unsafe { (self.calls.graph_instantiate)(&mut executable, graph, 0) };
        self.done("cuGraphInstantiateWithFlags", status)?;
        // SAFETY: the graph is live and used nowhere else; what was instantiated of it stands alone.
        self.done("cuGraphDestroy", unsafe { (self.calls.graph_destroy)(graph) })?;
        let graphs = &mut *self.graphs.lock();
        graphs.push(executable);
        Ok(GraphId(graphs.len() - 1))
    }

    fn replay(&self, GraphId(graph): GraphId, stream: StreamId) -> Outcome<()> {
        let executable = self.graphs.lock().get(graph).copied().ok_or("no such graph")?;
        // SAFETY: both are live.
        self.done("cuGraphLaunch", unsafe { (self.calls.graph_launch)(executable, stream.0) })
    }

    fn glance(&self) -> Outcome<u64> {
        let wrong = self.counter(0);
        self.copy_counters()?;
        Ok(wrong)
    }

    fn findings(&self) -> Outcome<Findings> {
        self.driver.synchronize()?;
        self.copy_counters()?;
        self.driver.stream_synchronize(self.watch)?;
        let wrong = self.counter(0);
        let first = || WrongWord { expected: Key(self.counter(2)), found: Key::of(self.counter(3)) };
        Ok(Findings { checked: self.counter(1), wrong, first: (wrong > 0).then(first), faults: Vec::new() })
    }
}
