//! The costs of driver calls on a simulated GPU: profiles, and the time of each call.
//!
//! Owns: the measured tables, and the interpolation between their rows. Addresses and streams are in other files.
//!
//! Times are nanoseconds of the calling CPU. Sizes are bytes.

use seamalloc_driver::{Call, Status};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The cost of each call for one handle (one allocation) of `size` bytes, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Row {
    size: u64,
    create: u64,
    map: u64,
    set_access: u64,
    unmap: u64,
    release: u64,
    reserve: u64,
    address_free: u64,
    malloc: u64,
    free: u64,
}

impl Row {
    /// Returns the figure of `call`; `None` if the table has no figure of this call.
    const fn figure(&self, call: Call) -> Option<u64> {
        Some(match call {
            Call::Create => self.create,
            Call::Map => self.map,
            Call::SetAccess => self.set_access,
            Call::Unmap => self.unmap,
            Call::Release => self.release,
            Call::Reserve => self.reserve,
            Call::AddressFree => self.address_free,
            Call::Malloc => self.malloc,
            Call::Free => self.free,
            _ => return None,
        })
    }
}

/// Times of calls on an H200, driver 580.159. The mean time of each call was measured while the memory of recorded jobs
/// grew, and divided among the sizes in proportion to medians of single calls. During growth the driver's code and
/// tables are not in the caches. Each time includes seamalloc's own part of the call: making the context current, and
/// reading the clock. For 1 and 4 GiB there are only medians of single calls.
#[rustfmt::skip]
const H200_ROWS: [Row; 8] = [
    Row { size: 2 * MIB, create: 8_300, map: 1_000, set_access: 21_000, unmap: 17_500, release: 8_500, reserve: 4_500, address_free: 400, malloc: 36_500, free: 27_000 },
    Row { size: 24 * MIB, create: 8_300, map: 1_000, set_access: 21_000, unmap: 17_000, release: 15_400, reserve: 4_500, address_free: 400, malloc: 40_000, free: 35_000 },
    Row { size: 32 * MIB, create: 11_400, map: 1_000, set_access: 21_000, unmap: 17_000, release: 16_600, reserve: 5_500, address_free: 1_500, malloc: 41_000, free: 37_500 },
    Row { size: 64 * MIB, create: 8_900, map: 1_000, set_access: 21_000, unmap: 17_000, release: 22_000, reserve: 6_000, address_free: 2_400, malloc: 42_000, free: 42_000 },
    Row { size: 128 * MIB, create: 9_400, map: 1_000, set_access: 22_000, unmap: 17_500, release: 42_000, reserve: 6_500, address_free: 4_200, malloc: 45_000, free: 62_000 },
    Row { size: 512 * MIB, create: 12_700, map: 1_000, set_access: 39_000, unmap: 24_000, release: 130_000, reserve: 8_500, address_free: 15_000, malloc: 62_000, free: 150_000 },
    Row { size: GIB, create: 13_300, map: 1_000, set_access: 51_200, unmap: 27_000, release: 197_000, reserve: 10_000, address_free: 15_000, malloc: 64_100, free: 251_000 },
    Row { size: 4 * GIB, create: 99_600, map: 1_000, set_access: 121_000, unmap: 51_200, release: 793_000, reserve: 10_000, address_free: 15_000, malloc: 218_000, free: 836_000 },
];

/// The time of the first mapping of a handle of any size.
const H200_FIRST_MAP_NS: u64 = 4_600;

/// The time of set-access for each further handle of a call over several handles, by the handle's size. 22 to 26 us
/// were measured in jobs.
const H200_FURTHER_ACCESS: [(u64, u64); 2] = [(64 * MIB, 22_500), (128 * MIB, 25_000)];

/// The time of unmap for each further handle of a call over several handles, up to [`FURTHER_LIMIT`]. 13 to 16 us were
/// measured.
const H200_FURTHER_UNMAP_NS: u64 = 15_000;

/// The largest handle for which calls over several handles were measured. Each larger handle costs as much as in a call
/// of its own.
const FURTHER_LIMIT: u64 = 128 * MIB;

/// The time of copies inside of the device's memory, including the CPU's wait: 1.3 ms for 1 GiB.
const COPY_NS_PER_MIB: u64 = 1_270;

/// The time to create page-locked host memory (`HOST_NUMA`). On an H200, exchanging 1 GiB for such memory, in chunks of
/// 2 and 4 MiB, took 0.28 to 0.5 s in all. The measured times include the copy, which is counted separately here.
const CREATE_ON_HOST_NS_PER_MIB: u64 = 340_000;

/// The time of copies between the device's memory and page-locked host memory, or chunks in host memory: 55.3 GB/s in
/// each direction on an H200.
const LINK_NS_PER_MIB: u64 = 18_960;

/// The time to page-lock host memory by populating and registering its huge pages. On the machine of an H100, one
/// thread locked 8 GiB in 1.173 s and unlocked them in 0.143 s (docs/measurements/2026-11-25-page-locking).
/// `cuMemHostAlloc` took 0.355 ms a MiB there.
const LOCK_NS_PER_MIB: u64 = 143_000;
const UNLOCK_NS_PER_MIB: u64 = 17_500;

/// Returns the time of a call that no table has, waiting excluded. Only copies and calls for page-locked memory depend
/// on the size. The times are medians of 3,000 calls from Python on an H200 with idle streams, less the 0.2 us of the
/// cheapest call.
const fn flat(call: Call, size: u64) -> u64 {
    match call {
        Call::MemoryInfo => 3_400,
        Call::EventCreate => 500,
        Call::EventDestroy => 150,
        Call::EventRecord | Call::StreamWait => 250,
        Call::IsCapturing => 100,
        // The time was not measured.
        Call::StreamNumber => 0,
        // Only the link between CPU and GPU was measured. A fill is assumed to take as long as a kernel's launch, and a
        // read or write as long as a launch, the copy and the wait for the copy.
        Call::Fill => 2_500,
        Call::Read | Call::Write => 12_000_u64.saturating_add(link(size)),
        // The times were not measured. Each time is that of a call that gives a stream work, and of recording an event
        // after the work.
        Call::CopyOut | Call::CopyIn => 2_500,
        Call::HostMalloc => size.saturating_mul(LOCK_NS_PER_MIB) / MIB,
        Call::HostFree => size.saturating_mul(UNLOCK_NS_PER_MIB) / MIB,
        // The time is the mean over the second passes of four traces. An operation of these traces through PyTorch's
        // cudaMallocAsync backend takes 781, 962, 871 and 736 ns, including the backend's own tables, on an H200 with
        // driver 580. Allocations and frees were not measured separately.
        Call::PoolMalloc | Call::PoolFree => 840,
        // The time was not measured.
        Call::PoolAttribute => 100,
        // The times were not measured. A pool is assumed to cost as much as a reservation of addresses, and about as
        // much as creating a stream.
        Call::PoolCreate | Call::PoolDestroy | Call::PoolTrim => 10_000,
        Call::StreamCreate | Call::StreamDestroy => 5_000,
        Call::CreateOnHost => 8_300_u64.saturating_add(size.saturating_mul(CREATE_ON_HOST_NS_PER_MIB) / MIB),
        Call::Copy => 12_000_u64.saturating_add(size.saturating_mul(COPY_NS_PER_MIB) / MIB),
        // The time was measured on another day, also from Python: 330 ns, less 160 ns for the same loop without the
        // call.
        Call::ExchangeCaptureMode => 170,
        // The times are medians over 100 handles of 2 to 128 MiB measured on another day: 20 to 30 us for an export,
        // and 16 to 25 us for an import.
        Call::Export => 25_000,
        Call::Import => 20_000,
        _ => 200,
    }
}

const fn link(size: u64) -> u64 {
    size.saturating_mul(LINK_NS_PER_MIB) / MIB
}

/// The time of a call with a bad argument, measured with `map` as the times in [`flat`] were. All other refusals are
/// assumed to take as long.
pub(super) const REFUSED_NS: u64 = 1_300;

/// The time until `create` refuses for lack of memory, by the requested size, measured on an H200 that was nearly full.
/// The refusal of a size that no device has takes the driver longest.
const H200_CREATE_REFUSED: [(u64, u64); 4] =
    [(2 * MIB, 38_000), (8 * GIB, 44_000), (256 * GIB, 97_000), (4096 * GIB, 1_711_000)];
/// The time until `malloc` refuses for lack of memory, by the requested size.
const H200_MALLOC_REFUSED: [(u64, u64); 4] =
    [(2 * MIB, 75_000), (8 * GIB, 95_000), (256 * GIB, 189_000), (4096 * GIB, 3_463_000)];

/// The time of a pool's first growth, beyond its other costs. The first `cudaMallocAsync` of a process took 6.8 ms on
/// an H200.
const FIRST_OF_POOL_NS: u64 = 6_800_000;

/// A model of a GPU: its memory, and the costs of its driver's calls.
///
/// The costs of every profile were measured on an H200; profiles of other cards differ in capacity alone. Others have
/// published figures of an A100 for 2 MiB: `cuMemCreate` 193 us, `cuMemMap` 1.45, `cuMemSetAccess` 36 and `cuMemUnmap`
/// 26 (means of [kvcached](https://github.com/ovg-project/kvcached)'s `bench_vmm`). The H200 has 8.3, 1.0, 21 and 17.5,
/// so growth may take several times as long on an A100. No such figures are known here for the L40S, the RTX 4090 and
/// the B200.
#[derive(Clone, Copy)]
pub struct Profile(&'static Data);

struct Data {
    name: &'static str,
    memory: u64,
    rows: &'static [Row],
    first_map: u64,
    further_access: &'static [(u64, u64)],
    further_unmap: u64,
    create_refused: &'static [(u64, u64)],
    malloc_refused: &'static [(u64, u64)],
}

const fn costs_of_h200(name: &'static str, memory: u64) -> Data {
    Data {
        name,
        memory,
        rows: &H200_ROWS,
        first_map: H200_FIRST_MAP_NS,
        further_access: &H200_FURTHER_ACCESS,
        further_unmap: H200_FURTHER_UNMAP_NS,
        create_refused: &H200_CREATE_REFUSED,
        malloc_refused: &H200_MALLOC_REFUSED,
    }
}

static H200: Data = costs_of_h200("h200", 150_109_880_320);
static H100: Data = costs_of_h200("h100", 85_017_493_504);
static A100_80GB: Data = costs_of_h200("a100-80gb", 80 * GIB);
static A100_40GB: Data = costs_of_h200("a100-40gb", 40 * GIB);
static L40S: Data = costs_of_h200("l40s", 48 * GIB);
static RTX4090: Data = costs_of_h200("rtx4090", 24 * GIB);
static B200: Data = costs_of_h200("b200", 180 * GIB);

impl Profile {
    /// NVIDIA H200: 139.8 GiB, as its driver reports, and costs measured on an H200.
    pub const H200: Self = Self(&H200);
    /// NVIDIA H100 with nominally 80 GB: 79.18 GiB, as its driver reports, with the costs of an H200.
    pub const H100: Self = Self(&H100);
    /// The nominal capacity of the larger A100, 80 GiB, with the costs of an H200.
    pub const A100_80GB: Self = Self(&A100_80GB);
    /// The nominal capacity of the smaller A100, 40 GiB, with the costs of an H200.
    pub const A100_40GB: Self = Self(&A100_40GB);
    /// The nominal capacity of an L40S, 48 GiB, with the costs of an H200. With error correction on, the card has some
    /// 45 GiB.
    pub const L40S: Self = Self(&L40S);
    /// The nominal capacity of a GeForce RTX 4090, 24 GiB, with the costs of an H200.
    pub const RTX4090: Self = Self(&RTX4090);
    /// The capacity of one B200 of a DGX B200, 180 GiB (nominally 1,440 GB for eight), with the costs of an H200.
    pub const B200: Self = Self(&B200);
    /// Every profile.
    pub const ALL: [Self; 7] =
        [Self::H200, Self::H100, Self::A100_80GB, Self::A100_40GB, Self::L40S, Self::RTX4090, Self::B200];

    /// Returns the profile with this name, as in `sim:h200`; `None` for other names.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.name() == name)
    }

    /// Returns the profile's name, as in `sim:h200`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Returns the physical memory of the card, in bytes.
    #[must_use]
    pub fn memory(self) -> u64 {
        self.0.memory
    }

    /// Returns the time of one call for one handle, allocation or reservation of `size` bytes. Waits for the GPU are
    /// not included. The time is interpolated linearly between two measured sizes. The time is constant below the
    /// smallest size. Beyond the largest size, the line through the last two sizes is extended. Calls of events and
    /// streams do not depend on `size`.
    #[must_use]
    pub fn cost(self, call: Call, size: u64) -> u64 {
        let figure = |row: &Row| row.figure(call).unwrap_or_else(|| flat(call, size));
        match self.0.rows {
            [] => flat(call, size),
            [only] => figure(only),
            [first, ..] if size <= first.size => figure(first),
            [.., low, high] if size >= high.size => line((low.size, figure(low)), (high.size, figure(high)), size),
            rows => {
                let at = rows.partition_point(|row| row.size <= size);
                match (at.checked_sub(1).and_then(|at| rows.get(at)), rows.get(at)) {
                    (Some(low), Some(high)) => line((low.size, figure(low)), (high.size, figure(high)), size),
                    (Some(row), None) | (None, Some(row)) => figure(row),
                    (None, None) => 0,
                }
            }
        }
    }

    /// Returns the time of a copy of this many bytes between the device and page-locked host memory.
    #[must_use]
    pub fn link(self, size: u64) -> u64 {
        link(size)
    }

    /// Returns the time until a call for `size` bytes is refused with `status`.
    #[must_use]
    pub fn refused(self, call: Call, status: Status, size: u64) -> u64 {
        match (call, status) {
            (Call::Create, Status::OUT_OF_MEMORY) => between(self.0.create_refused, size),
            (Call::Malloc | Call::PoolMalloc, Status::OUT_OF_MEMORY) => between(self.0.malloc_refused, size),
            _ => REFUSED_NS,
        }
    }

    /// Returns the time of one `pool_malloc` whose pool grows by `steps` steps of `step` bytes. Each step is assumed to
    /// cost as much as the virtual-memory calls for as many bytes, which was not measured. The `first` growth of a pool
    /// costs more.
    #[must_use]
    pub fn pool_malloc(self, steps: u64, step: u64, first: bool) -> u64 {
        let each = self.cost(Call::Create, step) + self.map(step, true) + self.cost(Call::SetAccess, step);
        let growth = steps.saturating_mul(each) + if first { FIRST_OF_POOL_NS } else { 0 };
        self.cost(Call::PoolMalloc, 0).saturating_add(growth)
    }

    /// Returns the time that a pool takes to move `pages` pages of `page` bytes. Each page is assumed to cost as much
    /// as the virtual-memory calls that unmap a handle and map it elsewhere, which was not measured.
    #[must_use]
    pub fn pool_moves(self, pages: u64, page: u64) -> u64 {
        let each = self.cost(Call::Unmap, page) + self.map(page, false) + self.cost(Call::SetAccess, page);
        pages.saturating_mul(each)
    }

    /// Returns the time of a call that takes `steps` steps of 32 MiB from a pool. Each step costs as much as unmapping
    /// and releasing a handle of 32 MiB.
    #[must_use]
    pub fn pool_shrinks(self, call: Call, steps: u64) -> u64 {
        const STEP: u64 = 32 * MIB;
        let each = self.cost(Call::Unmap, STEP) + self.cost(Call::Release, STEP);
        self.cost(call, 0).saturating_add(steps.saturating_mul(each))
    }

    /// Returns the time of one copy: inside of the device's memory, or (`over_bus`) between the device and the host.
    #[must_use]
    pub fn copy(self, size: u64, over_bus: bool) -> u64 {
        // A copy over the bus costs as much as a copy to page-locked memory for which the CPU waits.
        self.cost(if over_bus { Call::Read } else { Call::Copy }, size)
    }

    /// Returns the time of one `map`. The `first` map of a handle costs more than later ones.
    #[must_use]
    pub fn map(self, size: u64, first: bool) -> u64 {
        if first { self.0.first_map } else { self.cost(Call::Map, size) }
    }

    /// Returns the time of one `set_access` over handles of these sizes. The cost depends mainly on the number of
    /// handles, and little on their bytes.
    #[must_use]
    pub fn set_access(self, handles: impl IntoIterator<Item = u64>) -> u64 {
        over_handles(handles, |size| self.cost(Call::SetAccess, size), |size| between(self.0.further_access, size))
    }

    /// Returns the time of [`Self::set_access`] with `peers` further devices in the access list. Each of them adds four
    /// fifths of the time without peers. On an H200, 512 handles of 2 MiB took 11.6 ms alone, and 20.9 ms with one
    /// peer.
    #[must_use]
    pub fn set_access_for(self, handles: impl IntoIterator<Item = u64>, peers: u64) -> u64 {
        let alone = self.set_access(handles);
        alone.saturating_add(alone.saturating_mul(peers) / 5 * 4)
    }

    /// Returns the time of one `unmap` over handles of these sizes.
    #[must_use]
    pub fn unmap(self, handles: impl IntoIterator<Item = u64>) -> u64 {
        over_handles(handles, |size| self.cost(Call::Unmap, size), |_| self.0.further_unmap)
    }
}

impl PartialEq for Profile {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Profile {}

impl std::fmt::Debug for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Profile({})", self.name())
    }
}

/// Sums the costs of handles. The first handle, and each handle larger than [`FURTHER_LIMIT`], costs as much as in a
/// call of its own. The others cost less.
fn over_handles(
    handles: impl IntoIterator<Item = u64>,
    alone: impl Fn(u64) -> u64,
    further: impl Fn(u64) -> u64,
) -> u64 {
    let mut handles = handles.into_iter();
    let first = handles.next().map_or(0, &alone);
    handles.fold(first, |sum, size| sum.saturating_add(if size > FURTHER_LIMIT { alone(size) } else { further(size) }))
}

/// Returns the figure for `size`, interpolated between points in ascending order, and constant beyond the first and the
/// last point.
fn between(points: &[(u64, u64)], size: u64) -> u64 {
    let above = points.partition_point(|point| point.0 < size);
    match (above.checked_sub(1).and_then(|at| points.get(at)), points.get(above)) {
        (Some(&low), Some(&high)) => line(low, high, size),
        (None, Some(&(_, figure))) | (Some(&(_, figure)), None) => figure,
        (None, None) => 0,
    }
}

/// Returns the value at `x` of the straight line through two points, but at least 0. The arithmetic uses 128 bits,
/// since any size is possible.
fn line((x0, y0): (u64, u64), (x1, y1): (u64, u64), x: u64) -> u64 {
    let [x0, y0, x1, y1, x] = [x0, y0, x1, y1, x].map(i128::from);
    if x1 == x0 {
        return u64::try_from(y0).unwrap_or(0);
    }
    let y = y0 + (y1 - y0) * (x - x0) / (x1 - x0);
    u64::try_from(y.max(0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: Profile = Profile::H200;

    #[test]
    fn gives_the_measured_figures_at_the_measured_sizes() {
        for row in &H200_ROWS {
            let size = row.size;
            for call in Call::ALL {
                assert_eq!(P.cost(call, size), row.figure(call).unwrap_or(flat(call, size)), "{call} of {size}");
            }
            assert_eq!(P.set_access([size]), row.set_access);
            assert_eq!(P.unmap([size]), row.unmap);
        }
        let of = |call, size| P.cost(call, size);
        assert_eq!(
            (of(Call::Create, 4 * GIB), of(Call::Malloc, 2 * MIB), of(Call::Free, GIB)),
            (99_600, 36_500, 251_000)
        );
        assert_eq!((of(Call::Release, 512 * MIB), of(Call::Reserve, 32 * MIB)), (130_000, 5_500));
        assert_eq!((P.map(2 * MIB, true), P.map(GIB, true), P.map(GIB, false)), (4_600, 4_600, 1_000));
    }

    #[test]
    fn finds_times_between_below_and_beyond_the_rows() {
        assert_eq!(P.cost(Call::Malloc, 1), 36_500);
        assert_eq!(P.cost(Call::Create, 768 * MIB), (12_700 + 13_300) / 2);
        let slope_per_gib = (793_000 - 197_000) / 3;
        assert!(P.cost(Call::Release, 8 * GIB).abs_diff(793_000 + 4 * slope_per_gib) <= 4);
        assert!(P.cost(Call::Release, u64::MAX) > P.cost(Call::Release, 1 << 60));
        assert_eq!(P.cost(Call::Reserve, 1 << 47), 10_000, "addresses cost no more the more there are");
        assert_eq!(P.cost(Call::Create, 48 * MIB), 10_150, "a falling line");
    }

    #[test]
    fn stitching_costs_per_handle() {
        let stitch = |handle: u64| {
            let n = GIB / handle;
            P.cost(Call::Map, handle) * n + P.set_access((0..n).map(|_| handle))
        };
        let small = stitch(2 * MIB);
        let large = stitch(32 * MIB);
        assert!((11_500_000..12_500_000).contains(&small), "1 GiB of 2 MB handles: about 12 ms, is {small} ns");
        assert!((700_000..800_000).contains(&large), "1 GiB of 32 MB handles: about 0.75 ms, is {large} ns");
        assert_eq!(P.set_access([64 * MIB, 64 * MIB]) - P.set_access([64 * MIB]), 22_500);
        assert_eq!(P.set_access([2 * MIB, 128 * MIB]) - P.set_access([2 * MIB]), 25_000);
        assert_eq!(P.set_access([GIB, GIB]), 2 * 51_200, "beyond what was measured in bulk: as alone");
        assert_eq!(P.unmap([2 * MIB, 2 * MIB, 2 * MIB]), 17_500 + 2 * 15_000);
        assert_eq!(P.unmap([GIB, GIB]), 2 * 27_000);
        assert_eq!(P.set_access([]), 0);
    }

    #[test]
    fn running_out_of_memory_takes_time_too() {
        assert_eq!(P.refused(Call::Create, Status::OUT_OF_MEMORY, 2 * MIB), 38_000);
        assert_eq!(P.refused(Call::Malloc, Status::OUT_OF_MEMORY, 8 * GIB), 95_000);
        assert_eq!(P.refused(Call::Malloc, Status::OUT_OF_MEMORY, u64::MAX), 3_463_000);
        assert_eq!(P.refused(Call::Reserve, Status::OUT_OF_MEMORY, GIB), REFUSED_NS);
        assert_eq!(P.refused(Call::Create, Status::INVALID_VALUE, 0), REFUSED_NS);
    }

    #[test]
    fn profiles_are_found_by_name() {
        for profile in Profile::ALL {
            assert_eq!(Profile::named(profile.name()), Some(profile));
            assert!(profile.memory() >= 24 * GIB);
        }
        assert_eq!(Profile::named("H200"), None);
        assert_eq!(Profile::H200.memory(), 150_109_880_320);
    }
}
