//! Address space that runs out, or that the driver gives in small ranges alone.

use super::{MAIN, MIB, on, sound};
use crate::log;
use crate::random::Random;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::driver::{Call, Driver, DriverError, DriverResult, ForwardingDriver, Status, StreamId};
use seamalloc::out_of_memory::{Advice, Cause};
use seamalloc::{Allocator, Config, Error, StrategyKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const GIB: u64 = 1 << 30;

/// A device with memory, and few addresses: ranges above a size are refused, and so are those beyond a sum.
struct FewAddresses {
    gpu: SimGpu,
    /// The most bytes of a range, and of all ranges.
    one: AtomicU64,
    all: u64,
    held: AtomicU64,
}

impl FewAddresses {
    fn new(device: &str, one: u64, all: u64) -> Arc<Self> {
        let gpu = SimGpu::new(SimConfig::parse(device).unwrap()).unwrap();
        Arc::new(Self { gpu, one: one.into(), all, held: 0.into() })
    }

    fn allocator(self: &Arc<Self>, options: &str) -> Allocator {
        Allocator::new(Arc::<Self>::clone(self) as Arc<dyn Driver>, Config::parse(options).unwrap()).unwrap()
    }
}

impl ForwardingDriver for FewAddresses {
    fn inner(&self) -> &dyn Driver {
        &self.gpu
    }

    fn reserve(&self, size: u64, alignment: u64) -> DriverResult<u64> {
        if size > self.one.load(Relaxed) || self.held.load(Relaxed) + size > self.all {
            return Err(DriverError::new(Call::Reserve, Status::OUT_OF_MEMORY, "no addresses".to_owned()));
        }
        let address = self.inner().reserve(size, alignment)?;
        self.held.fetch_add(size, Relaxed);
        Ok(address)
    }

    fn address_free(&self, address: u64, size: u64) -> DriverResult<()> {
        self.inner().address_free(address, size)?;
        self.held.fetch_sub(size, Relaxed);
        Ok(())
    }
}

/// The options with which addresses are reserved, and ranges that a driver may give: at most so many bytes in one, and in all.
const STRATEGIES: [&str; 5] = ["", "strategy:stitch", "strategy:expandable", "strategy:gmlake", "strategy:paddle-vmm"];
const RANGES: [(u64, u64); 5] =
    [(16 * GIB, u64::MAX), (u64::MAX, 70 * GIB), (2 * GIB, u64::MAX), (20 * GIB, 66 * GIB), (5 * GIB, 40 * GIB)];

/// llama.cpp 29142, 27918, 4680: one large reservation is refused (Jetson, WSL, processes with little address space), and the program
/// ends although memory is there.
#[test]
fn few_addresses_serve_what_the_memory_serves() {
    for options in STRATEGIES {
        for (one, all) in RANGES {
            let device = FewAddresses::new("sim:h100,capacity=62GiB", one, all);
            let allocator = device.allocator(options);
            let mut live: Vec<u64> = Vec::new();
            for nth in 0..20 {
                let served = allocator.allocate(GIB, MAIN);
                live.push(served.unwrap_or_else(|error| panic!("{options:?}, {one}, {all}, request {nth}: {error}")));
            }
            assert_eq!(allocator.reports().fallback_from(), None, "{options:?}, {one}");
            sound(&device.gpu, &allocator);
            live.drain(..).for_each(|address| allocator.free(address).unwrap());
            allocator.empty_cache().unwrap();
            assert_eq!((allocator.reports().reserved(), device.gpu.leaks().reservations), (0, 0), "{options:?}, {one}");
        }
    }
}

/// Memory is joined, split and given back in a home of many ranges as in one.
#[test]
fn a_home_of_many_ranges_keeps_every_rule() {
    for options in ["sharing:wait", "split:last_resort", "spill:host=1GiB", "strategy:gmlake"] {
        let device = FewAddresses::new("sim:h100,capacity=2GiB", 256 * MIB, u64::MAX);
        let allocator = device.allocator(options);
        let mut random = Random(7);
        let mut live: Vec<u64> = Vec::new();
        let mut peak = (0, 0);
        for step in 0..1500 {
            let stream = StreamId(random.below(2));
            let most = if random.below(3) == 0 { 200 * MIB } else { 8 * MIB };
            let size = 1 + random.below(most);
            if live.len() < 60 && random.below(5) > 1 {
                match allocator.allocate(size, stream) {
                    Ok(address) => live.push(address),
                    Err(error) => assert!(error.is_out_of_memory(), "{options}: {error}"),
                }
            } else if !live.is_empty() {
                let at = random.below(live.len() as u64) as usize;
                allocator.free(live.swap_remove(at)).unwrap();
            }
            peak = peak.max((allocator.reports().reserved(), device.gpu.leaks().reservations));
            if step % 50 == 0 {
                sound(&device.gpu, &allocator);
            }
            if step % 400 == 399 {
                allocator.empty_cache().unwrap();
            }
        }
        assert!(peak.0 > GIB && peak.1 > 4, "{options}: memory in more than four ranges: {peak:?}");
        live.into_iter().for_each(|address| allocator.free(address).unwrap());
        allocator.empty_cache().unwrap();
        sound(&device.gpu, &allocator);
        assert_eq!((allocator.reports().reserved(), device.gpu.leaks().reservations), (0, 0), "{options}");
    }
}

/// Where no range can be had, plain memory takes the place of the default; a strategy that was named is refused, with the advice.
#[test]
fn without_addresses_plain_memory_serves_or_is_advised() {
    let device = FewAddresses::new("sim:h100,capacity=62GiB", 64 * MIB, u64::MAX);
    let allocator = device.allocator("split:last_resort");
    assert_eq!(allocator.reports().fallback_from(), None, "the driver was not asked yet");
    let mut live: Vec<u64> = Vec::new();
    let warnings = log::warnings(|| live.extend((0..20).map(|_| allocator.allocate(GIB, MAIN).unwrap())));
    let told = warnings.iter().filter(|line| line.contains("`caching` takes its place")).count();
    assert_eq!(told, 1, "{warnings:?}");
    live.push(allocator.allocate(100, StreamId(3)).unwrap());
    assert_eq!(
        (allocator.config().strategy, allocator.reports().fallback_from()),
        (StrategyKind::Caching, Some(StrategyKind::Stitch))
    );
    sound(&device.gpu, &allocator);
    let Err(Error::OutOfMemory(report)) = allocator.allocate(50 * GIB, MAIN) else { panic!("62 GiB") };
    assert!(report.to_string().contains("too few addresses or no virtual memory, which `stitch` needs"), "{report}");
    live.into_iter().for_each(|address| allocator.free(address).unwrap());
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.reports().reserved(), 0);

    for kind in [StrategyKind::Stitch, StrategyKind::Gmlake, StrategyKind::Expandable] {
        let allocator = device.allocator(&format!("strategy:{kind}"));
        let Err(Error::OutOfMemory(report)) = allocator.allocate(GIB, MAIN) else { panic!("{kind} has addresses") };
        assert_eq!((report.cause, &report.advice[..]), (Cause::Refused, &[Advice::PlainMemory][..]), "{kind}");
        assert!(report.to_string().contains("strategy:caching"), "{report}");
        assert_eq!((allocator.reports().reserved(), device.gpu.leaks().reservations), (0, 0), "{kind}");
        sound(&device.gpu, &allocator);
    }
    device.allocator("strategy:caching").allocate(GIB, MAIN).unwrap();
}

/// Pools that depend on the strategy keep it: tags have chunks of their own.
#[test]
fn a_tag_keeps_the_strategy_without_addresses() {
    let device = FewAddresses::new("sim:h100,capacity=62GiB", 0, u64::MAX);
    let allocator = device.allocator("");
    let tag = allocator.tags().create().unwrap();
    let refused = allocator.pools().allocate(tag, GIB, MAIN);
    assert!(refused.is_err_and(|error| error.is_out_of_memory()));
    assert_eq!(allocator.reports().fallback_from(), None);
    device.one.store(u64::MAX, Relaxed);
    allocator.pools().allocate(tag, GIB, MAIN).unwrap();
    sound(&device.gpu, &allocator);
}

/// Whichever reservation fails, and however, all is as before, and the next request is served.
#[test]
fn a_failed_reservation_leaves_all_as_it_was() {
    for options in STRATEGIES {
        for nth in 1..=12 {
            for status in [Status::OUT_OF_MEMORY, Status::UNKNOWN] {
                let device = FewAddresses::new("sim:h100,capacity=4GiB", GIB, u64::MAX);
                let allocator = device.allocator(options);
                device.gpu.fail_nth(Call::Reserve, nth, status);
                device.gpu.fail_nth(Call::AddressFree, 1, status);
                let mut live = Vec::new();
                for _ in 0..5 {
                    let (held, ranges) = (allocator.reports().reserved(), device.gpu.leaks().reservations);
                    match allocator.allocate(700 * MIB, MAIN) {
                        Ok(address) => live.push(address),
                        Err(_) => {
                            assert_eq!(allocator.reports().reserved(), held, "{options:?}, {nth}");
                            assert!(device.gpu.leaks().reservations <= ranges, "{options:?}, {nth}");
                        }
                    }
                    sound(&device.gpu, &allocator);
                }
                device.gpu.fail_no_more();
                live.into_iter().for_each(|address| allocator.free(address).unwrap());
                allocator.allocate(700 * MIB, MAIN).unwrap();
                sound(&device.gpu, &allocator);
            }
        }
    }
}

/// PyTorch 192269: each stream's expandable segment reserves more than the device has, and keeps it. With many streams, and
/// devices, no addresses are left, though hardly any memory is in use.
#[test]
fn streams_that_come_and_go_do_not_use_up_the_addresses() {
    for kind in StrategyKind::MAIN {
        // A segment's addresses are nine eighths of the device, and there are 64 TiB of them: enough for seven segments.
        let (gpu, allocator) = on(kind, "sim:h200,capacity=8TiB");
        let mut kept = Vec::new();
        for number in 1..=100 {
            let stream = StreamId(number);
            let blocks = [3 * MIB, 700, 30 * MIB].map(|size| allocator.allocate(size, stream).unwrap());
            // One stream keeps what it has.
            match number {
                1 => kept.extend(blocks),
                _ => blocks.iter().for_each(|address| allocator.free(*address).unwrap()),
            }
        }
        sound(&gpu, &allocator);
        kept.iter().for_each(|address| allocator.free(*address).unwrap());
        allocator.empty_cache().unwrap();
        assert_eq!((allocator.reports().reserved(), gpu.leaks().reservations), (0, 0), "{kind}");
    }
}
