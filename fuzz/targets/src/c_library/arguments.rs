//! The arguments that a call is given, made of an input's bytes.
//!
//! Owns: the allocators, blocks and pools of an input, and the memory that pointers lead to.

use super::check::check;
use arbitrary::{Arbitrary, Unstructured};
use seamalloc_c_library::allocator::seam_create;
use seamalloc_c_library::ids::Pool;
use seamalloc_c_library::status::Status;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

/// Allocators at a time.
const MAX_ALLOCATORS: usize = 4;
/// Bytes that a pointer leads to: as many as any struct of the library's may say that it has.
pub(super) const MEMORY: usize = 64 << 10;
/// Buffers that pointers lead to, of one call.
const BUFFERS: usize = 3;

const DEVICES: [&CStr; 6] =
    [c"sim:h200,capacity=64MiB", c"sim:h200,capacity=1GiB", c"sim:h200", c"sim:", c"cuda:9", c"\xff"];
const OPTIONS: [&CStr; 8] = [
    c"",
    c"strategy:caching",
    c"strategy:gmlake",
    c"expandable_segments:True",
    c"strategy:stitch,max_views:3",
    c"memory_limit:40MiB",
    c"bad",
    c"strategy:\xff",
];
/// The devices of an attack.
const WIDE_DEVICES: [&CStr; 12] = [
    c"sim:h200,capacity=64MiB",
    c"sim:h200,capacity=64MiB,host=64MiB",
    c"sim:h200,capacity=256MiB,host=64MiB",
    c"sim:h200,capacity=256MiB",
    c"sim:h200,vmm=no,capacity=128MiB",
    c"host:64MiB",
    c"sim:h200,capacity=1GiB",
    c"cuda:9",
    c"pinned:0",
    c"host:1B",
    c"",
    c"\xff",
];
/// The number of devices, from the first on, on which an allocator can be made.
const WIDE_GOOD: usize = 6;
const WIDE_OPTIONS: [&str; 39] = [
    "strategy:caching",
    "strategy:gmlake",
    "strategy:expandable",
    "strategy:malloc-async",
    "strategy:buddy",
    "strategy:slab",
    "strategy:tiny",
    "strategy:exact",
    "strategy:paddle-vmm",
    "strategy:paddle-auto-growth",
    "sharing:wait",
    "sharing:never",
    "spill:host=32MiB",
    "spill:host=2MiB",
    "split:before_growth",
    "split:last_resort",
    "headroom:2MiB",
    "headroom:1TiB",
    "chunk_size_mb:2",
    "chunk_size_mb:16",
    "guard:all",
    "guard:page",
    "guard_sample:3",
    "idle_release_s:1",
    "flight_recorder:0",
    "broker:/nowhere/broker.sock",
    "memory_limit:40MiB",
    "backup_cache:0B",
    "max_views:2",
    "max_view_mappings:4",
    "wait_ms:0",
    "per_process_memory_fraction:0.5",
    "garbage_collection_threshold:0.5",
    "expandable_segments:True",
    "backend:cudaMallocAsync",
    "flight_dump:/nowhere/{pid}",
    "roundup_power2_divisions:4",
    "large_segment_size_mb:12",
    "bogus:1",
];
/// Files that cannot be written, so that nothing is left behind, and one that takes all.
const PATHS: [&CStr; 6] =
    [c"", c"/dev/null", c"/nowhere/x.seam", c"/nowhere/x.csv", c"/nowhere/x.unknown", c"/nowhere/\xff"];
const NUMBERS: [u64; 12] = [0, 1, 2, 511, 512, 1 << 20, (1 << 20) + 1, 30 << 20, 1 << 32, 1 << 47, 1 << 60, u64::MAX];

pub(super) struct Arguments<'a> {
    bytes: Unstructured<'a>,
    /// Whether devices and options are those of an attack.
    pub(super) wide: bool,
    pub(super) allocators: Vec<u64>,
    pub(super) destroyed: Vec<u64>,
    /// Blocks that were handed out, by whom.
    pub(super) blocks: Vec<(u64, *mut c_void)>,
    /// The allocations that grow, in an attack.
    pub(super) growing: Vec<(u64, *mut c_void)>,
    /// Blocks of `seamalloc_malloc`, with their device.
    pub(super) plugged: Vec<(c_int, *mut c_void)>,
    /// Pools that were made, and by whom.
    pub(super) pools: Vec<(u64, Pool)>,
    pub(super) callbacks: Vec<u64>,
    buffers: Box<[[u64; MEMORY / 8]; BUFFERS]>,
    next: usize,
    texts: Vec<CString>,
    /// Where a call writes an address, a handle or a pool, and of which allocator.
    pub(super) address: *mut c_void,
    pub(super) asked: u64,
    pub(super) handle: u64,
    pub(super) pool_made: Pool,
    pub(super) callback: u64,
}

impl<'a> Arguments<'a> {
    pub(super) fn new(bytes: Unstructured<'a>) -> Self {
        let no_pool = Pool { first: 0, second: 0 };
        Self {
            bytes,
            wide: false,
            allocators: Vec::new(),
            destroyed: Vec::new(),
            blocks: Vec::new(),
            growing: Vec::new(),
            plugged: Vec::new(),
            pools: Vec::new(),
            callbacks: Vec::new(),
            buffers: vec![[0; MEMORY / 8]; BUFFERS].try_into().expect("as many as were made"),
            next: 0,
            texts: Vec::new(),
            address: ptr::null_mut(),
            asked: 0,
            handle: 0,
            pool_made: no_pool,
            callback: 0,
        }
    }

    /// A value of the bytes; the smallest once they are used up.
    fn any<T: Arbitrary<'a> + Default>(&mut self) -> T {
        self.bytes.arbitrary().unwrap_or_default()
    }

    /// Which function is called; `None` at the end of the bytes.
    pub(super) fn function(&mut self, functions: usize) -> Option<usize> {
        (!self.bytes.is_empty()).then(|| usize::from(self.any::<u8>()) % functions)
    }

    /// An allocator as a program makes one.
    pub(super) fn create(&mut self) {
        if self.wide {
            let device = WIDE_DEVICES[usize::from(self.any::<u8>()) % WIDE_GOOD];
            let options = self.wide_options();
            // Options may contradict each other.
            self.allocators.extend(create(device, &options));
            return;
        }
        let (device, options) =
            (DEVICES[usize::from(self.any::<u8>()) % 2], OPTIONS[usize::from(self.any::<u8>()) % 5]);
        if self.allocators.len() < MAX_ALLOCATORS {
            self.allocators.extend(create(device, options));
        }
    }

    /// Takes up what the last call made, and forgets its texts.
    pub(super) fn learn(&mut self) {
        if !self.address.is_null() {
            self.blocks.push((self.asked, self.address));
            self.address = ptr::null_mut();
        }
        if self.handle != 0 {
            self.allocators.push(self.handle);
            self.handle = 0;
        }
        if self.pool_made.second != 0 {
            self.pools.push((self.asked, self.pool_made));
            self.pool_made.second = 0;
        }
        if self.callback != 0 {
            self.callbacks.push(self.callback);
            self.callback = 0;
        }
        let destroyed = &self.destroyed;
        self.allocators.retain(|allocator| !destroyed.contains(allocator));
        self.blocks.retain(|(allocator, _)| !destroyed.contains(allocator));
        if self.allocators.is_empty() {
            self.create();
        }
        (self.next, self.texts) = (0, Vec::new());
    }

    /// A block is not live any more.
    pub(super) fn freed(&mut self, allocator: u64, address: *mut c_void) {
        self.blocks.retain(|block| *block != (allocator, address));
    }

    pub(super) fn may_create(&self) -> bool {
        self.allocators.len() < MAX_ALLOCATORS
    }

    /// Mostly one that exists; some that were destroyed, and some that never were.
    pub(super) fn allocator(&mut self) -> u64 {
        let (kind, at) = (self.any::<u8>(), usize::from(self.any::<u8>()));
        self.asked = match kind {
            0..16 => self.destroyed.get(at % self.destroyed.len().max(1)).copied().unwrap_or(0),
            16..24 => self.any(),
            24..32 => self.allocators.first().map_or(0, |allocator| allocator ^ (1 << (at % 64))),
            _ => self.allocators.get(at % self.allocators.len().max(1)).copied().unwrap_or(0),
        };
        self.asked
    }

    /// Mostly a block, of any allocator; some beside one, NULL, and any.
    pub(super) fn block(&mut self) -> *mut c_void {
        let (kind, at) = (self.any::<u8>(), usize::from(self.any::<u8>()));
        let block = one_of(&self.blocks, at, self.own(kind)).unwrap_or(ptr::null_mut());
        match kind {
            0..16 => ptr::null_mut(),
            16..24 => ptr::without_provenance_mut(self.any()),
            24..40 => ptr::without_provenance_mut(block.addr().wrapping_add(512)),
            _ => block,
        }
    }

    /// A block that grows, in an attack mostly; else any.
    pub(super) fn growing(&mut self) -> *mut c_void {
        let (wide, at) = (self.is_lenient(), if self.wide { self.index(1 << 16) } else { 0 });
        let grows = one_of(&self.growing, at, Some(self.asked)).filter(|_| wide);
        grows.unwrap_or_else(|| self.block())
    }

    /// The allocator that a call names, where an attack gives it what is its own.
    fn own(&self, kind: u8) -> Option<u64> {
        (self.wide && kind >= 96).then_some(self.asked)
    }

    pub(super) fn stream(&mut self) -> *mut c_void {
        let stream = match self.any::<u8>() {
            // The default stream by two names, and one that differs by thread.
            stream @ 0..128 => usize::from(stream % 3),
            stream @ 128..248 => 64 * usize::from(stream % 5 + 1),
            _ => self.any(),
        };
        ptr::without_provenance_mut(stream)
    }

    pub(super) fn pool(&mut self) -> Pool {
        let (kind, at) = (self.any::<u8>(), usize::from(self.any::<u8>()));
        match kind {
            0..32 => Pool { first: 0, second: at as u64 % 4 },
            32..48 => Pool { first: self.any(), second: self.any() },
            _ => one_of(&self.pools, at, self.own(kind)).unwrap_or(Pool { first: 0, second: 1 }),
        }
    }

    /// A size of a request: what a device has, mostly.
    pub(super) fn size(&mut self) -> usize {
        match self.any::<u8>() {
            0..100 => usize::from(self.any::<u16>()),
            100..220 => usize::from(self.any::<u16>()) << 9,
            _ => self.number() as usize,
        }
    }

    pub(super) fn number(&mut self) -> u64 {
        match self.any::<u8>() {
            at @ 0..200 => NUMBERS[usize::from(at) % NUMBERS.len()],
            _ => self.any(),
        }
    }

    /// A limit, of which an attack's are mostly none, so that memory is handed out.
    pub(super) fn limit(&mut self) -> u64 {
        if self.is_lenient() { u64::MAX } else { self.number() }
    }

    fn is_lenient(&mut self) -> bool {
        self.wide && self.any::<u8>() > 32
    }

    /// An index into a list of so many.
    pub(super) fn index(&mut self, length: usize) -> usize {
        usize::from(self.any::<u16>()) % length
    }

    pub(super) fn int(&mut self) -> c_int {
        c_int::from(self.any::<i8>() % 3)
    }

    pub(super) fn small(&mut self) -> u32 {
        u32::from(self.any::<u8>() % 4)
    }

    pub(super) fn flag(&mut self) -> bool {
        self.any()
    }

    pub(super) fn fraction(&mut self) -> f64 {
        if self.is_lenient() {
            return 1.0;
        }
        const FRACTIONS: [f64; 8] = [0.0, 0.5, 1.0, -1.0, 1.5, f64::NAN, f64::INFINITY, 1e-300];
        FRACTIONS[usize::from(self.any::<u8>()) % FRACTIONS.len()]
    }

    /// NULL, or memory of [`MEMORY`] bytes that no other argument of the call has.
    pub(super) fn memory<T>(&mut self) -> *mut T {
        let (kind, first) = (self.any::<u8>(), self.number());
        if kind < 32 {
            return ptr::null_mut();
        }
        let buffer = &mut self.buffers[self.next % BUFFERS];
        self.next += 1;
        // The size of a struct, or the first of a list.
        buffer[0] = if kind < 128 { [8, 16, 64, 120, MEMORY as u64][usize::from(kind) % 5] } else { first };
        buffer.as_mut_ptr().cast()
    }

    /// How much of [`Self::memory`] a call may use, in elements of `size` bytes.
    pub(super) fn capacity(&mut self, size: usize) -> usize {
        [0, 1, 2, 16, 100, MEMORY / size][usize::from(self.any::<u8>()) % 6].min(MEMORY / size)
    }

    pub(super) fn device(&mut self) -> *const c_char {
        if self.wide {
            return self.text(&WIDE_DEVICES);
        }
        self.text(&DEVICES)
    }

    /// Up to four options at once.
    fn wide_options(&mut self) -> CString {
        let mut options = String::new();
        for _ in 0..self.any::<u8>() % 5 {
            options += WIDE_OPTIONS[usize::from(self.any::<u8>()) % WIDE_OPTIONS.len()];
            options.push(',');
        }
        CString::new(options.trim_end_matches(',')).unwrap_or_default()
    }

    pub(super) fn options(&mut self) -> *const c_char {
        if self.wide && self.any::<u8>() > 16 {
            let options = self.wide_options();
            self.texts.push(options);
            return self.texts.last().map_or(ptr::null(), |text| text.as_ptr());
        }
        self.text(&OPTIONS)
    }

    pub(super) fn path(&mut self) -> *const c_char {
        // Another text would be a file's name.
        match self.any::<u8>() {
            0..32 => ptr::null(),
            at => PATHS[usize::from(at) % PATHS.len()].as_ptr(),
        }
    }

    fn text(&mut self, known: &[&'static CStr]) -> *const c_char {
        match self.any::<u8>() {
            0..16 => ptr::null(),
            at @ 16..224 => known[usize::from(at) % known.len()].as_ptr(),
            _ => {
                let bytes: [u8; 24] = self.any();
                let text = CString::new(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).unwrap_or_default();
                self.texts.push(text);
                self.texts.last().map_or(ptr::null(), |text| text.as_ptr())
            }
        }
    }
}

/// Returns one of a list, of a certain allocator if one is named and has any.
fn one_of<T: Copy>(list: &[(u64, T)], at: usize, of: Option<u64>) -> Option<T> {
    let own: Vec<T> = list.iter().filter(|(by, _)| Some(*by) == of).map(|(_, one)| *one).collect();
    match own.is_empty() {
        true => list.get(at % list.len().max(1)).map(|(_, one)| *one),
        false => own.get(at % own.len()).copied(),
    }
}

/// An allocator on a small simulated device.
fn create(device: &CStr, options: &CStr) -> Option<u64> {
    let mut allocator = 0;
    // SAFETY: texts that end, and a place to write to.
    let status = unsafe { seam_create(device.as_ptr(), options.as_ptr(), &mut allocator) };
    check("seam_create", status);
    (status == Status::Ok).then_some(allocator)
}
