//! Memory that allocators on one device lend each other, with a lender in the place of a broker: the other allocator of the test.

use parking_lot::Mutex;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::driver::{Call, Driver, PlainMemory, Status, StreamId};
use seamalloc::{Allocator, Backup, Config, Error, Growing, Lender, Lent, Shortage, StrategyKind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const STREAM: StreamId = StreamId(7);

/// Takes memory of other allocators.
#[derive(Default)]
struct From {
    others: Vec<Weak<Allocator>>,
    asked: Mutex<Vec<Shortage>>,
    /// How often to ask again although nothing came.
    again: u32,
}

impl From {
    fn of(others: &[&Arc<Allocator>]) -> Arc<Self> {
        Arc::new(Self { others: others.iter().map(|other| Arc::downgrade(other)).collect(), ..Self::default() })
    }
}

impl Lender for From {
    fn ask(&self, shortage: &Shortage) -> Lent {
        self.asked.lock().push(*shortage);
        let mut lent = Lent::default();
        for other in self.others.iter().filter_map(Weak::upgrade) {
            lent.processes += 1;
            lent.given += other.lending().lend(shortage.missing - lent.given.min(shortage.missing)).unwrap_or(0);
            let spare = other.lending().lendable();
            (lent.held, lent.live) = (lent.held + spare.held, lent.live + spare.live);
        }
        lent.again = lent.given > 0 || (self.asked.lock().len() as u32) <= self.again;
        lent
    }
}

fn device(mib: u64) -> Arc<SimGpu> {
    Arc::new(SimGpu::new(SimConfig { capacity: mib * MIB, ..SimConfig::default() }).unwrap())
}

fn on(gpu: &Arc<SimGpu>, options: &str) -> Arc<Allocator> {
    Arc::new(Allocator::new(gpu.clone(), Config::parse(options).unwrap()).unwrap())
}

/// Two allocators on one device, of which the second may ask the first.
fn pair(options: &str) -> (Arc<SimGpu>, Arc<Allocator>, Arc<Allocator>, Arc<From>) {
    let gpu = device(200);
    let (one, two) = (on(&gpu, options), on(&gpu, options));
    let lender = From::of(&[&one]);
    two.lending().set_lender(Some(lender.clone()));
    (gpu, one, two, lender)
}

fn held(gpu: &SimGpu) -> u64 {
    let info = gpu.memory_info().unwrap();
    info.total - info.free
}

#[test]
fn what_one_has_free_serves_another_and_what_it_uses_stays() {
    for kind in [StrategyKind::Stitch, StrategyKind::Caching, StrategyKind::Expandable, StrategyKind::Gmlake] {
        let (gpu, one, two, lender) = pair(&format!("strategy:{kind}"));
        let kept = one.allocate(20 * MIB, STREAM).unwrap();
        let freed = [30, 50, 60].map(|size| one.allocate(size * MIB, STREAM).unwrap());
        freed.iter().for_each(|address| one.free(*address).unwrap());
        let before = one.lending().lendable();
        assert_eq!((before.live, before.free), (20 * MIB, before.held - 20 * MIB), "{kind}");
        let taken = two.allocate(100 * MIB, STREAM).unwrap();
        assert!(!lender.asked.lock().is_empty(), "{kind}");
        assert_eq!(held(&gpu), one.reports().reserved() + two.reports().reserved(), "{kind}");
        assert!(one.reports().reserved() < before.held && one.reports().owns(kept), "{kind}");
        one.free(kept).unwrap();
        two.free(taken).unwrap();
        for allocator in [&one, &two] {
            allocator.empty_cache().unwrap();
            assert_eq!(allocator.reports().reserved(), 0, "{kind}");
        }
        drop((one, two, lender));
        assert!(gpu.leaks().is_empty(), "{kind}: {:?}", gpu.leaks());
    }
}

#[test]
fn no_more_is_asked_for_than_is_missing_or_an_eighth_of_what_is_held() {
    let (_gpu, one, two, lender) = pair("chunk_size_mb:2");
    one.free(one.allocate(150 * MIB, STREAM).unwrap()).unwrap();
    let _some = two.allocate(40 * MIB, STREAM).unwrap();
    let _more = two.allocate(30 * MIB, STREAM).unwrap();
    let asked = lender.asked.lock().clone();
    assert_eq!(asked.len(), 1);
    assert_eq!((asked[0].missing, asked[0].wanted, asked[0].held), (20 * MIB, 20 * MIB, 40 * MIB));
    let _little = two.allocate(2 * MIB, STREAM).unwrap();
    let asked = lender.asked.lock().clone();
    assert_eq!((asked[1].missing, asked[1].wanted), (2 * MIB, 70 * MIB / 8));
    assert_eq!(
        one.reports().reserved() + two.reports().reserved(),
        200 * MIB,
        "a byte of free memory is left on the device, or too much went"
    );
}

#[test]
fn a_refusal_says_what_others_gave_and_hold() {
    let (_gpu, one, two, lender) = pair("chunk_size_mb:2");
    let _kept = one.allocate(120 * MIB, STREAM).unwrap();
    one.free(one.allocate(30 * MIB, STREAM).unwrap()).unwrap();
    let error = two.allocate(100 * MIB, STREAM).unwrap_err();
    let Error::OutOfMemory(report) = &error else { panic!("{error}") };
    let told = report.lending.unwrap();
    assert_eq!((told.missing, told.processes, told.given), (50 * MIB, 1, 30 * MIB));
    assert_eq!((told.held, told.live), (120 * MIB, 120 * MIB));
    assert!(error.to_string().contains("Other processes (1) gave back 30.00 MiB of 50.00 MiB"), "{error}");
    // The next refusal is told of itself alone.
    two.lending().set_lender(None);
    let Error::OutOfMemory(report) = two.allocate(100 * MIB, STREAM).unwrap_err() else { panic!() };
    assert_eq!(report.lending, None);
    assert!(lender.asked.lock().len() >= 2);
}

#[test]
fn nobody_is_asked_where_more_memory_would_not_help() {
    let (_gpu, one, two, lender) = pair("memory_limit:60MiB");
    one.free(one.allocate(50 * MIB, STREAM).unwrap()).unwrap();
    assert!(two.allocate(80 * MIB, STREAM).unwrap_err().is_out_of_memory());
    // More than the device has.
    let (_gpu, _one, other, of_other) = pair("");
    assert!(other.allocate(300 * MIB, STREAM).is_err());
    assert_eq!((lender.asked.lock().len(), of_other.asked.lock().len()), (0, 0));
}

/// A lender that gives a little, and says that more may come; meanwhile another thread frees a block of the asker.
struct Frees {
    asker: Weak<Allocator>,
    block: Mutex<Option<u64>>,
    other: Arc<Allocator>,
    asked: AtomicU32,
}

impl Lender for Frees {
    fn ask(&self, _: &Shortage) -> Lent {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        if let Some(block) = self.block.lock().take() {
            self.asker.upgrade().unwrap().free(block).unwrap();
        }
        Lent { processes: 1, given: self.other.lending().lend(2 * MIB).unwrap(), again: asked < 10, ..Lent::default() }
    }
}

/// Memory that became free in the asker while others gave is had by its own means: here its cached segment goes back to the device.
#[test]
fn after_others_gave_all_own_means_are_tried() {
    let gpu = device(200);
    let (one, two) = (on(&gpu, "strategy:caching"), on(&gpu, "strategy:caching"));
    let _kept = one.allocate(100 * MIB, STREAM).unwrap();
    one.free(one.allocate(12 * MIB, STREAM).unwrap()).unwrap();
    let block = Mutex::new(Some(two.allocate(60 * MIB, STREAM).unwrap()));
    let asker = Arc::downgrade(&two);
    let lender = Arc::new(Frees { asker, block, other: one, asked: AtomicU32::new(0) });
    two.lending().set_lender(Some(lender.clone()));
    two.free(two.allocate(90 * MIB, STREAM).unwrap()).unwrap();
    assert_eq!(lender.asked.load(Ordering::Relaxed), 1, "it is asked again for what its own means would have had");
}

/// As a GPU's driver takes time to take memory back.
#[test]
fn it_is_asked_again_for_as_long_as_it_says() {
    let gpu = device(200);
    let (one, two) = (on(&gpu, ""), on(&gpu, ""));
    let lender = Arc::new(From { others: Vec::new(), again: 5, ..From::default() });
    two.lending().set_lender(Some(lender.clone()));
    let address = one.allocate(150 * MIB, STREAM).unwrap();
    assert!(two.allocate(100 * MIB, STREAM).is_err());
    assert_eq!(lender.asked.lock().len(), 6);
    // Each time a little more, in case the driver keeps some for itself.
    let wanted: Vec<u64> = lender.asked.lock().iter().map(|shortage| shortage.wanted / MIB).collect();
    assert_eq!(wanted, [50, 82, 114, 146, 178, 210]);
    one.free(address).unwrap();
}

#[test]
fn memory_that_the_gpu_uses_is_not_waited_for() {
    let gpu = device(200);
    let one = on(&gpu, "");
    let address = one.allocate(100 * MIB, STREAM).unwrap();
    gpu.launch(STREAM, &[seamalloc::driver::sim::Range { address, size: 100 * MIB }], 1_000_000_000).unwrap();
    one.free(address).unwrap();
    let begun = gpu.now_ns();
    assert_eq!(one.lending().lend(50 * MIB).unwrap(), 0);
    assert_eq!(one.lending().lend(50 * MIB).unwrap(), 0);
    assert!(gpu.now_ns() - begun < 500_000_000, "it waited for the kernel");
    gpu.advance(2_000_000_000);
    let given = one.lending().lend(50 * MIB).unwrap();
    assert!((50 * MIB..=80 * MIB).contains(&given), "{given}");
    assert_eq!(held(&gpu), 100 * MIB - given);
}

/// Each is asked while it asks: neither holds a lock meanwhile.
#[test]
fn two_that_ask_each_other_at_once_both_get_on() {
    let gpu = device(200);
    let (one, two) = (on(&gpu, "chunk_size_mb:2"), on(&gpu, "chunk_size_mb:2"));
    one.lending().set_lender(Some(Arc::new(From { again: u32::MAX, ..Arc::into_inner(From::of(&[&two])).unwrap() })));
    two.lending().set_lender(Some(Arc::new(From { again: u32::MAX, ..Arc::into_inner(From::of(&[&one])).unwrap() })));
    let done = Arc::new(AtomicU32::new(0));
    let threads: Vec<_> = [(one, 1), (two, 2)]
        .map(|(allocator, stream)| {
            let done = done.clone();
            thread::spawn(move || {
                for size in (0..200).map(|round| (90 + round % 50) * MIB) {
                    // One block at a time: who is short waits until the other has freed its own.
                    let address = allocator.allocate(size, StreamId(stream)).unwrap();
                    allocator.free(address).unwrap();
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .into();
    let begun = std::time::Instant::now();
    while threads.iter().any(|thread| !thread.is_finished()) {
        assert!(begun.elapsed() < Duration::from_secs(120), "they wait for each other: {done:?} of 400");
        thread::sleep(Duration::from_millis(5));
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(done.load(Ordering::Relaxed), 400);
}

#[test]
fn a_lender_that_panics_costs_a_refusal() {
    struct Bomb;
    impl Lender for Bomb {
        fn ask(&self, _: &Shortage) -> Lent {
            panic!("on purpose");
        }
    }
    let gpu = device(100);
    let allocator = on(&gpu, "");
    allocator.lending().set_lender(Some(Arc::new(Bomb)));
    let kept = allocator.allocate(60 * MIB, STREAM).unwrap();
    assert!(matches!(allocator.allocate(60 * MIB, STREAM), Err(Error::OutOfMemory(_))));
    allocator.free(kept).unwrap();
    allocator.allocate(90 * MIB, STREAM).unwrap();
}

#[test]
fn a_driver_that_fails_leaves_both_as_they_were() {
    for call in
        [Call::Unmap, Call::Release, Call::Create, Call::Map, Call::SetAccess, Call::MemoryInfo, Call::EventRecord]
    {
        for nth in 1..12 {
            let (gpu, one, two, _lender) = pair("chunk_size_mb:2");
            let kept = [&one, &two].map(|allocator| allocator.allocate(20 * MIB, STREAM).unwrap());
            one.free(one.allocate(120 * MIB, StreamId(8)).unwrap()).unwrap();
            gpu.fail_nth(call, nth, Status(999));
            // It is served, or fails with what the driver said, or with what is short without it.
            let served = two.allocate(100 * MIB, STREAM);
            gpu.fail_no_more();
            for (allocator, address) in [&one, &two].into_iter().zip(kept) {
                assert!(allocator.reports().owns(address));
                let stats = allocator.stats();
                assert_eq!(stats.reserved_bytes.all.current, allocator.reports().reserved());
                allocator.trim(0).unwrap();
            }
            assert_eq!(held(&gpu), one.reports().reserved() + two.reports().reserved(), "{call:?} {nth}: {served:?}");
            if let Ok(address) = served {
                two.free(address).unwrap();
            }
            // Afterwards it works as before.
            let again = two.allocate(100 * MIB, STREAM).unwrap();
            two.free(again).unwrap();
            one.free(kept[0]).unwrap();
            two.free(kept[1]).unwrap();
            drop((one, two));
            assert!(gpu.leaks().is_empty(), "{call:?} {nth}: {:?}", gpu.leaks());
        }
    }
}

#[test]
fn a_tag_that_wakes_asks_too() {
    let (gpu, one, two, lender) = pair("");
    let tag = two.tags().create().unwrap();
    let address = two.pools().allocate(tag, 150 * MIB, STREAM).unwrap();
    two.tags().sleep(tag, &Backup::Discard).unwrap();
    assert_eq!((two.lending().lendable().held, two.lending().lendable().live), (0, 0));
    let other = one.allocate(150 * MIB, STREAM).unwrap();
    assert!(matches!(two.tags().wake(tag), Err(Error::OutOfMemory(report)) if report.lending.is_some()));
    assert!(two.tags().is_asleep(tag));
    one.free(other).unwrap();
    let asked = lender.asked.lock().len();
    assert!(two.tags().wake(tag).unwrap() >= 150 * MIB);
    assert!(lender.asked.lock().len() > asked && held(&gpu) == one.reports().reserved() + two.reports().reserved());
    two.free(address).unwrap();
}

/// Gives a little whenever it is asked, which somebody else takes: the device stays full.
struct Sieve {
    asked: AtomicU32,
    again: bool,
}

/// A lender that would be asked for ever by now.
const ENDLESS: u32 = 1_000;

impl Lender for Sieve {
    fn ask(&self, _: &Shortage) -> Lent {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        // So that a loop without a bound fails instead of hanging.
        let is_open = asked < ENDLESS;
        Lent { processes: 1, given: u64::from(is_open), again: is_open && self.again, ..Lent::default() }
    }
}

#[test]
fn who_always_gives_while_the_device_stays_full_is_not_asked_without_end() {
    type Ask = fn(&SimGpu, &Arc<Allocator>) -> seamalloc::Result<()>;
    let ways: [(&str, Ask); 4] = [
        ("allocate", |_, allocator| allocator.allocate(60 * MIB, STREAM).map(drop)),
        ("allocate_in", |_, allocator| {
            allocator.pools().allocate(allocator.pools().create(), 60 * MIB, STREAM).map(drop)
        }),
        ("grow", |_, allocator| Growing::new(&**allocator, 60 * MIB, STREAM)?.grow(60 * MIB)),
        ("wake", |gpu, allocator| {
            let tag = allocator.tags().create()?;
            allocator.pools().allocate(tag, 10 * MIB, STREAM)?;
            allocator.tags().sleep(tag, &Backup::Discard)?;
            gpu.malloc(20 * MIB)?;
            allocator.tags().wake(tag).map(drop)
        }),
    ];
    // A lender that says so is asked for as long as a request may wait.
    for (options, again) in [("", false), ("broker_wait_ms:0", false), ("broker_wait_ms:0", true)] {
        for (way, ask) in ways {
            let gpu = device(64);
            let allocator = on(&gpu, options);
            let sieve = Arc::new(Sieve { asked: AtomicU32::new(0), again });
            allocator.lending().set_lender(Some(sieve.clone()));
            allocator.allocate(40 * MIB, STREAM).unwrap();
            let refused = ask(&gpu, &allocator).unwrap_err();
            let Error::OutOfMemory(report) = &refused else { panic!("{way}: {refused}") };
            assert_eq!(report.lending.map(|lending| lending.rounds), Some(1), "{way}, {options}, again {again}");
            assert_eq!(sieve.asked.load(Ordering::Relaxed), 1, "{way}, {options}, again {again}");
            allocator.reports().check().unwrap();
        }
    }
}

/// No memory is asked for: no call is made. In a capture, nothing goes.
#[test]
fn nothing_is_lent_where_nothing_is_asked_for_and_in_a_capture() {
    for options in ["", "strategy:caching"] {
        let gpu = device(200);
        let one = on(&gpu, options);
        one.free(one.allocate(50 * MIB, STREAM).unwrap()).unwrap();
        let calls = gpu.call_stats();
        assert_eq!((one.lending().lend(0), gpu.call_stats()), (Ok(0), calls), "{options}");
        let pool = one.pools().create();
        one.pools().begin(pool, seamalloc::Route::stream(StreamId(9)).capturing()).unwrap();
        let calls = gpu.call_stats();
        assert_eq!((one.lending().lend(MIB), gpu.call_stats()), (Ok(0), calls), "{options}");
        one.pools().end(pool).unwrap();
        assert!(one.lending().lend(MIB).unwrap() >= MIB, "{options}");
    }
}

/// Says that more may come, so often, and gives nothing.
struct Promises {
    again: u32,
    asked: AtomicU32,
    takes: Duration,
}

impl Lender for Promises {
    fn ask(&self, _: &Shortage) -> Lent {
        thread::sleep(self.takes);
        let asked = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        Lent { processes: 1, again: asked <= self.again, ..Lent::default() }
    }
}

/// All cached memory is given back once before others are asked, and once when they have given for the last time.
#[test]
fn own_means_are_not_tried_after_each_answer_by_which_nothing_came() {
    for (again, wait_ms, takes) in [(5, 10_000, 0), (5, 1, 5), (0, 10_000, 0)] {
        let gpu = device(64);
        let allocator = on(&gpu, &format!("strategy:caching,broker_wait_ms:{wait_ms}"));
        let promises = Arc::new(Promises { again, asked: AtomicU32::new(0), takes: Duration::from_millis(takes) });
        allocator.lending().set_lender(Some(promises.clone()));
        allocator.allocate(40 * MIB, STREAM).unwrap();
        assert!(allocator.allocate(60 * MIB, STREAM).unwrap_err().is_out_of_memory());
        let asked = if takes > 0 { 1 } else { again + 1 };
        assert_eq!(
            (promises.asked.load(Ordering::Relaxed), allocator.stats().num_alloc_retries),
            (asked, 2),
            "{again}"
        );
    }
}
