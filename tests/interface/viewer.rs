//! Every snapshot can be opened in PyTorch's viewer (torch/utils/viz/MemoryViz.js, "Allocator State History"), which plays
//! the history backwards from the snapshot: by its rules each event finds the segment that it is about, every live block
//! lies in a segment at every event, and what is held at any time is what was held then.

use super::viewer_rules::{Viewer, coverage, live};
use crate::random::Random;
use crate::simulated;
use seamalloc::driver::sim::{Range, SimGpu};
use seamalloc::driver::{PlainMemory, StreamId};
use seamalloc::observer::{Action, Event, Observer};
use seamalloc::snapshot::Snapshot;
use seamalloc::{Allocator, Backup, Config, Flight, PoolBlock, PoolId, Segments, StrategyKind};
use std::sync::{Arc, Mutex};

const MIB: u64 = 1 << 20;
const DEVICE: &str = "sim:h200,capacity=3GiB";

#[derive(Clone, Default)]
struct Tape(Arc<Mutex<Vec<Event>>>);

impl Observer for Tape {
    fn event(&mut self, event: &Event) {
        self.0.lock().unwrap().push(*event);
    }
}

impl Tape {
    fn events(&self) -> Vec<Event> {
        self.0.lock().unwrap().clone()
    }
}

/// A random program: blocks of all sizes on several streams, some in private pools, which come and go.
struct Program {
    gpu: Arc<SimGpu>,
    allocator: Allocator,
    random: Random,
    live: Vec<(u64, u64, PoolId)>,
    pools: Vec<PoolId>,
    opened: u64,
    checkpoint: Option<(PoolId, Vec<PoolBlock>)>,
}

impl Program {
    fn step(&mut self) {
        match self.random.below(100) {
            0..=54 => self.allocate(),
            55..=91 => self.free(),
            92..=93 => {
                let bytes = [10 * MIB, 100 * MIB, u64::MAX][self.random.below(3) as usize];
                self.allocator.trim(bytes).unwrap();
            }
            94 => self.allocator.streams().forget(StreamId(1 + self.random.below(3))).unwrap(),
            95..=96 if self.pools.len() < 4 => {
                self.opened += 1;
                let pool = PoolId(1, self.opened);
                match self.random.below(3) {
                    0 => self.allocator.pools().open_with(pool, Segments::by_malloc()).unwrap(),
                    _ => self.allocator.pools().open(pool).unwrap(),
                }
                self.pools.push(pool);
            }
            97 if !self.pools.is_empty() => {
                let at = self.random.below(self.pools.len() as u64) as usize;
                let pool = self.pools.swap_remove(at);
                self.allocator.pools().release(pool).unwrap();
                self.checkpoint.take_if(|(of, _)| *of == pool);
                for block in self.live.iter_mut().filter(|block| block.2 == pool) {
                    block.2 = PoolId::NONE;
                }
            }
            98 if !self.pools.is_empty() => {
                let pool = self.pools[self.random.below(self.pools.len() as u64) as usize];
                self.checkpoint = self.allocator.pools().blocks(pool).ok().map(|blocks| (pool, blocks));
            }
            _ => self.restore(),
        }
    }

    fn allocate(&mut self) {
        let most = [2000, 900 << 10, 9 * MIB, 60 * MIB, 400 * MIB][self.random.below(5) as usize];
        let size = 1 + self.random.below(most);
        let stream = StreamId(self.random.below(4));
        let pool = match self.random.below(3) {
            0 if !self.pools.is_empty() => self.pools[self.random.below(self.pools.len() as u64) as usize],
            _ => PoolId::NONE,
        };
        let address = match pool {
            PoolId::NONE => self.allocator.allocate(size, stream),
            pool => self.allocator.pools().allocate(pool, size, stream),
        };
        match address {
            Ok(address) => self.live.push((address, size, pool)),
            // The device is small; what is live goes.
            Err(_) => (0..self.live.len() / 2).for_each(|_| self.free()),
        }
    }

    fn free(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let at = self.random.below(self.live.len() as u64) as usize;
        let (address, size, _) = self.live.swap_remove(at);
        if self.random.below(4) == 0 {
            let stream = StreamId(self.random.below(4));
            self.gpu.launch(stream, &[Range { address, size }], 3_000_000).unwrap();
            self.allocator.record_stream(address, stream).unwrap();
        }
        self.allocator.free(address).unwrap();
    }

    fn restore(&mut self) {
        let Some((pool, blocks)) = self.checkpoint.take() else { return };
        for (address, ..) in self.live.extract_if(.., |block| block.2 == pool) {
            self.allocator.free(address).unwrap();
        }
        if self.allocator.pools().restore(pool, &blocks).is_ok() {
            self.live.extend(blocks.iter().map(|block| (block.address, block.requested, pool)));
        }
    }
}

fn watched(conf: &str, seed: u64, before: u64) -> (Program, Tape) {
    let (gpu, allocator) = simulated::on(DEVICE, Config::parse(conf).unwrap());
    // The viewer takes a segment by `malloc` that touches mapped memory of its stream for a part of it, PyTorch's own too.
    // Here the two regions of addresses touch in this place alone.
    gpu.malloc(32 * MIB).unwrap();
    let random = Random(seed);
    let mut program =
        Program { gpu, allocator, random, live: Vec::new(), pools: Vec::new(), opened: 0, checkpoint: None };
    // A recording may begin at any time.
    (0..before).for_each(|_| program.step());
    let tape = Tape::default();
    program.allocator.reports().set_observer(Some(Box::new(tape.clone())));
    (program, tape)
}

fn configurations() -> Vec<String> {
    let mut all: Vec<String> = StrategyKind::MAIN.map(|strategy| format!("strategy:{strategy}")).to_vec();
    all.extend(["strategy:stitch,sharing:completed", "strategy:stitch,sharing:never"].map(str::to_owned));
    all
}

#[test]
fn every_history_plays_back_from_its_snapshot() {
    for conf in configurations() {
        let mut moved = 0;
        for seed in 0..12 {
            let (mut program, tape) = watched(&conf, seed, 100 * (seed % 3));
            let mut seen: Vec<(usize, Snapshot)> = Vec::new();
            for _ in 0..500 {
                program.step();
                seen.push((tape.events().len(), program.allocator.reports().snapshot()));
            }
            program.allocator.reports().check().unwrap();
            let events = tape.events();
            moved += events.iter().filter(|event| event.action == Action::SegmentJoined).count();
            let mut viewer = Viewer::open(&seen.last().unwrap().1);
            let mut back = events.len();
            for (length, snapshot) in seen.iter().rev() {
                while back > *length {
                    back -= 1;
                    let event = &events[back];
                    viewer
                        .undo(event)
                        .unwrap_or_else(|why| panic!("{conf}, seed {seed}, event {back} {event:?}: {why}"));
                }
                assert_eq!(viewer.coverage(), coverage(snapshot), "{conf}, seed {seed}, after event {length}");
                assert_eq!(viewer.live(), live(snapshot), "{conf}, seed {seed}, after event {length}");
            }
        }
        // Else the program was too tame to show anything.
        let stitches = conf.contains("stitch") || conf.contains("gmlake");
        assert!(if stitches { moved > 1000 } else { moved == 0 }, "{conf}: {moved} ranges joined a segment");
    }
}

#[test]
fn what_is_live_in_a_private_pool_stays_where_it_is_when_that_ends() {
    let (gpu, allocator) = simulated::on(DEVICE, Config::default());
    drop(gpu);
    let tape = Tape::default();
    allocator.reports().set_observer(Some(Box::new(tape.clone())));
    let pool = allocator.pools().create();
    let whole = allocator.pools().allocate(pool, 40 * MIB, StreamId(3)).unwrap();
    allocator.free(whole).unwrap();
    assert_eq!(allocator.pools().allocate(pool, 10 * MIB, StreamId(3)).unwrap(), whole);
    allocator.pools().release(pool).unwrap();
    let mut viewer = Viewer::open(&allocator.reports().snapshot());
    for event in tape.events().iter().rev() {
        viewer.undo(event).unwrap();
    }
    assert_eq!(viewer.coverage(), []);
}

/// Memory that is spilled or sleeps stays in its segments, and the viewer, which is told neither, plays the history back all the same.
#[test]
fn what_is_spilled_or_sleeps_is_shown_as_that_and_plays_back() {
    let config = Config::parse("chunk_size_mb:8,spill:host=1GiB").unwrap();
    let (gpu, allocator) = simulated::on("sim:h200,capacity=64MiB", config);
    let tape = Tape::default();
    allocator.reports().set_observer(Some(Box::new(tape.clone())));
    let told = |action| -> Vec<(u64, u64)> {
        let events = tape.events();
        events.iter().filter(|event| event.action == action).map(|event| (event.address, event.size)).collect()
    };
    let spilled = |address: Option<u64>| -> u64 {
        let segments = allocator.reports().snapshot().segments;
        let blocks = segments.iter().flat_map(|segment| &segment.blocks);
        blocks.filter(|block| address.is_none_or(|of| of == block.address)).map(|block| block.spilled).sum()
    };
    let plays_back = || {
        let flight = allocator.reports().flight().unwrap();
        let mut viewer = Viewer::open(&allocator.reports().snapshot());
        assert_eq!(viewer.live(), live(&flight.snapshot));
        for event in tape.events().iter().rev().filter(|event| event.action.is_of_pytorch()) {
            viewer.undo(event).unwrap_or_else(|why| panic!("{event:?}: {why}"));
        }
        assert_eq!(viewer.coverage(), []);
        assert_eq!(flown(&flight), kept(&tape.events()));
    };
    let [old, stays] = [24, 24].map(|mib| allocator.allocate(mib * MIB, StreamId(3)).unwrap());
    let new = allocator.allocate(32 * MIB, StreamId(3)).unwrap();
    assert_eq!((spilled(Some(old)), spilled(Some(stays)), spilled(None)), (16 * MIB, 0, 16 * MIB));
    let ranges = told(Action::Spilled);
    assert_eq!(ranges.iter().map(|range| range.1).collect::<Vec<_>>(), [8 * MIB, 8 * MIB]);
    assert!(ranges.iter().all(|range| (old..old + 24 * MIB).contains(&range.0)), "{ranges:x?}, {old:x}");
    plays_back();
    allocator.free(new).unwrap();
    allocator.spill().restore().unwrap();
    assert_eq!((spilled(None), told(Action::Returned).len()), (0, 2));
    // What is spilled when it is freed leaves its segment.
    let new = allocator.allocate(32 * MIB, StreamId(3)).unwrap();
    assert_eq!(told(Action::Spilled).len(), 4);
    allocator.free(old).unwrap();
    seamalloc::driver::Driver::synchronize(&*gpu).unwrap();
    allocator.trim(0).unwrap();
    assert_eq!(spilled(None), 0);
    plays_back();
    [new, stays].into_iter().for_each(|address| allocator.free(address).unwrap());
    let tag = allocator.tags().create().unwrap();
    let [block, gone] = [16, 8].map(|mib| allocator.pools().allocate(tag, mib * MIB, StreamId(3)).unwrap());
    allocator.free(gone).unwrap();
    let asleep = || {
        let segments = allocator.reports().snapshot().segments;
        let blocks = segments.iter().flat_map(|segment| &segment.blocks).filter(|block| block.asleep);
        blocks.map(|block| (block.address, block.size)).collect::<Vec<_>>()
    };
    allocator.tags().sleep(tag, &Backup::Host).unwrap();
    assert_eq!(asleep(), [(block, 16 * MIB), (gone, 8 * MIB)], "what is free in it too");
    assert_eq!(told(Action::Asleep), [(block, 8 * MIB), (block + 8 * MIB, 8 * MIB), (gone, 8 * MIB)]);
    plays_back();
    allocator.tags().wake(tag).unwrap();
    assert_eq!((asleep(), told(Action::Awake)), (vec![], told(Action::Asleep)));
    allocator.tags().sleep(tag, &Backup::Discard).unwrap();
    allocator.free(block).unwrap();
    allocator.pools().release(tag).unwrap();
    allocator.empty_cache().unwrap();
    plays_back();
    assert_eq!(allocator.reports().snapshot().segments, []);
}

/// Returns the part of events that the flight recorder kept: all but the private pool, which may have ended since.
fn kept(events: &[Event]) -> Vec<Event> {
    events.iter().map(|event| Event { pool: PoolId::NONE, ..*event }).collect()
}

fn flown(flight: &Flight) -> Vec<Event> {
    let events: Vec<Event> = flight.events.iter().map(|timed| timed.event).collect();
    kept(&events)
}

#[test]
fn the_flight_recorder_keeps_what_an_observer_is_told() {
    for conf in configurations() {
        for (seed, before) in [(0, 0), (1, 150)] {
            let (mut program, tape) = watched(&format!("{conf},flight_recorder:65536"), seed, before);
            (0..600).for_each(|_| program.step());
            let (flown, told) = (flown(&program.allocator.reports().flight().unwrap()), kept(&tape.events()));
            let last = &flown[flown.len() - told.len()..];
            assert!(last == told, "{conf}, seed {seed}");
            assert!(before > 0 || flown.len() == told.len());
        }
    }
}

#[test]
fn every_flight_plays_back_from_its_snapshot_also_one_that_was_overwritten() {
    for conf in configurations() {
        let (mut program, _) = watched(&format!("{conf},flight_recorder:300"), 5, 0);
        program.allocator.reports().set_observer(None);
        let mut overwritten = 0;
        for _ in 0..40 {
            (0..25).for_each(|_| program.step());
            let flight = program.allocator.reports().flight().unwrap();
            let mut viewer = Viewer::open(&flight.snapshot);
            for (nth, event) in flown(&flight).iter().enumerate().rev() {
                viewer.undo(event).unwrap_or_else(|why| panic!("{conf}, event {nth} {event:?}: {why}"));
            }
            assert!(flight.events.is_sorted_by_key(|timed| timed.time_us), "{conf}");
            overwritten = flight.overwritten;
        }
        assert!(overwritten > 300, "{conf}: {overwritten}");
    }
}
