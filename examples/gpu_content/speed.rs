//! How fast kernels run on stitched memory, beside one block of `cudaMalloc`.
//!
//! Owns: the layouts that are compared. All of them are there at once and take turns, so that whatever slows the GPU down
//! slows them all. A copy is checked word for word once.

use crate::cuda::Cuda;
use crate::gpu::{Gpu, Kernel, Outcome, WORD, Words};
use seamalloc::driver::StreamId;
use seamalloc::{Allocator, Config};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
/// Bytes that a kernel reads; a copy writes as many.
const SIZE: u64 = 4 << 30;
/// Bytes that a random read fetches: what the memory of a GPU gives at least.
const SECTOR: u64 = 32;
/// Rounds that are counted, after one that is not.
const ROUNDS: usize = 31;
/// Chunks of physical memory, in MiB.
const CHUNKS: [u64; 2] = [2, 20];

/// Two stretches of memory of [`SIZE`] bytes.
struct Layout {
    name: &'static str,
    chunk_mib: Option<u64>,
    from: u64,
    to: u64,
    /// Chunks that the two consist of, by the allocator's own count.
    mappings: u64,
    copies: Vec<f64>,
    gathers: Vec<f64>,
}

/// Measures every layout, and says one line of each.
pub(crate) fn measure(gpu: &Cuda, mut say: impl FnMut(Value)) -> Outcome<()> {
    let stream = gpu.create_stream()?;
    let driver = gpu.driver();
    let mut layouts = vec![layout("cudaMalloc", None, driver.malloc(SIZE)?, driver.malloc(SIZE)?)];
    let mut allocators = Vec::new();
    for mib in CHUNKS {
        let config = || Config::parse(&format!("strategy:stitch,chunk_size_mb:{mib}"));
        let allocator = Allocator::new(gpu.driver(), config()?)?;
        let (from, to) = (allocator.allocate(SIZE, stream)?, allocator.allocate(SIZE, stream)?);
        let mappings = allocator.stats().mappings;
        layouts.push(Layout { mappings, ..layout("one range of home", Some(mib), from, to) });
        allocators.push(allocator);

        let allocator = Allocator::new(gpu.driver(), config()?)?;
        let (from, to) = scattered(&allocator, mib * MIB, stream)?;
        let stats = allocator.stats();
        if stats.views_built != 2 {
            return Err(format!("{} views were built, not two", stats.views_built).into());
        }
        layouts.push(Layout {
            mappings: stats.view_mappings,
            ..layout("a view of scattered chunks", Some(mib), from, to)
        });
        allocators.push(allocator);
    }
    let mut words = 0;
    for round in 0..=ROUNDS {
        for layout in &mut layouts {
            let from = Words { address: layout.from, count: SIZE / WORD };
            if round == 0 {
                gpu.launch(stream, Kernel::Fill { to: from, tag: 1 })?;
            }
            let copy = gpu.time(stream, || gpu.launch(stream, Kernel::Copy { from, to: layout.to }))?;
            if round == 0 {
                gpu.launch(stream, Kernel::Check { of: Words { address: layout.to, ..from }, tag: 1 })?;
                words += from.count;
            }
            let log2_sectors = (SIZE / SECTOR).ilog2();
            let gather = gpu.time(stream, || gpu.gather(stream, layout.to, layout.from, log2_sectors, round as u64))?;
            if round > 0 {
                layout.copies.push(copy);
                layout.gathers.push(gather);
            }
        }
    }
    let findings = gpu.findings()?;
    if findings.wrong > 0 || findings.checked != words {
        return Err(format!("{} of {} words are wrong after a copy", findings.wrong, findings.checked).into());
    }
    let (copy, gather) = (median(&layouts[0].copies), median(&layouts[0].gathers));
    for layout in &layouts {
        say(line(layout, copy, gather));
    }
    Ok(())
}

fn layout(name: &'static str, chunk_mib: Option<u64>, from: u64, to: u64) -> Layout {
    Layout { name, chunk_mib, from, to, mappings: 0, copies: Vec::new(), gathers: Vec::new() }
}

/// Two blocks, each a view over chunks of which no two are neighbours at home.
fn scattered(allocator: &Allocator, chunk: u64, stream: StreamId) -> Outcome<(u64, u64)> {
    let count = SIZE.div_ceil(chunk) * 4 + 4;
    let blocks = (0..count).map(|_| allocator.allocate(chunk, stream)).collect::<Result<Vec<_>, _>>()?;
    blocks.iter().step_by(2).try_for_each(|block| allocator.free(*block))?;
    Ok((allocator.allocate(SIZE, stream)?, allocator.allocate(SIZE, stream)?))
}

fn median(of: &[f64]) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

fn line(layout: &Layout, malloc_copy: f64, malloc_gather: f64) -> Value {
    let (copy, gather) = (median(&layout.copies), median(&layout.gathers));
    let spread = |of: &[f64]| {
        let least = of.iter().copied().fold(f64::INFINITY, f64::min);
        of.iter().copied().fold(0.0, f64::max) / least
    };
    json!({
        "memory": layout.name,
        "chunk_mib": layout.chunk_mib,
        "bytes": SIZE,
        "mappings": layout.mappings,
        "rounds": layout.copies.len(),
        // Read and written.
        "copy_gb_per_s": 2.0 * SIZE as f64 / copy,
        "gather_gb_per_s": SIZE as f64 / gather,
        "copy_speed": malloc_copy / copy,
        "gather_speed": malloc_gather / gather,
        "copy_slowest_by_fastest": spread(&layout.copies),
        "gather_slowest_by_fastest": spread(&layout.gathers),
    })
}
