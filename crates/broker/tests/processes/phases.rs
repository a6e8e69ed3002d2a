//! Processes whose phases take turns on one device, of which each needs more than a share: with a broker none runs out of memory, also where
//! one is killed in the middle of a phase; without one it does. The memory is the machine's, so that every byte that is checked is real.

use crate::harness::{LONG, Process};
use crate::shared_device::SharedDevice;
use seamalloc::driver::host::{HostConfig, HostDriver};
use seamalloc::driver::{Driver, StreamId};
use seamalloc::{Allocator, Config};
use seamalloc_broker::{Broker, Membership, Running, Terms, status};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const CAPACITY: u64 = 256 * MIB;
const FOLDER: &str = "SEAMALLOC_TEST_FOLDER";
const OPTIONS: &str = "SEAMALLOC_TEST_OPTIONS";

/// Numbers that are the same on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// An allocator on the shared device.
struct Job {
    device: Arc<SharedDevice>,
    allocator: Arc<Allocator>,
    membership: Option<Membership>,
}

impl Job {
    fn new(folder: &Path, options: &str) -> Self {
        let host = HostDriver::new(HostConfig { capacity: CAPACITY }).unwrap();
        let device = Arc::new(SharedDevice::open(Box::new(host), &folder.join("device")).unwrap());
        let driver: Arc<dyn Driver> = device.clone();
        let allocator = Arc::new(Allocator::new(driver, Config::parse(options).unwrap()).unwrap());
        let membership = Terms::of(&allocator).map(|terms| {
            let membership = Membership::start(terms, Arc::downgrade(&allocator)).unwrap();
            allocator.lending().set_lender(Some(membership.lender()));
            membership
        });
        Self { device, allocator, membership }
    }

    /// Takes so many bytes in blocks, writes to all, finds what was written, and frees all.
    fn phase(&self, bytes: u64, seed: u64) -> Result<(), String> {
        let mut random = Random(seed);
        let (mut blocks, mut left) = (Vec::new(), bytes);
        let stream = StreamId::DEFAULT;
        while left > 0 {
            let size = (MIB * (1 + random.below(48))).min(left);
            left -= size;
            let address = self.allocator.allocate(size, stream).map_err(|error| error.to_string())?;
            let mark = random.below(u64::MAX >> 33).to_le_bytes().repeat(512);
            for at in [address, address + size - mark.len() as u64] {
                self.allocator.driver().write(at, &mark).map_err(|error| error.to_string())?;
            }
            blocks.push((address, size, mark));
        }
        let live = self.allocator.stats().allocated_bytes.all.current;
        if live < bytes {
            return Err(format!("{live} of {bytes} bytes are live"));
        }
        for (address, size, mark) in blocks {
            let mut found = vec![0; mark.len()];
            for at in [address, address + size - mark.len() as u64] {
                self.allocator.driver().read(at, &mut found).map_err(|error| error.to_string())?;
                if found != mark {
                    return Err(format!("{size} bytes at {address:#x} have changed"));
                }
            }
            self.allocator.free(address).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// Runs a process of these tests: a phase for each line of standard input, with its bytes and its seed.
#[test]
fn process_of_a_test() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let job = Job::new(Path::new(&folder), &std::env::var(OPTIONS).unwrap());
    if let Some(membership) = &job.membership {
        assert!(membership.wait_joined(LONG));
    }
    println!("\nready");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (bytes, seed) = line.split_once(' ').unwrap();
        match job.phase(bytes.parse().unwrap(), seed.parse().unwrap()) {
            Ok(()) => println!("\ndone {}", job.allocator.reports().reserved()),
            Err(error) => println!("\nfailed {}", error.replace('\n', " ")),
        }
    }
    drop(job.membership);
    job.allocator.empty_cache().unwrap();
    assert_eq!(job.allocator.reports().reserved(), 0);
    let info = seamalloc::driver::ForwardingDriver::inner(&*job.device).memory_info().unwrap();
    assert_eq!(info.free, info.total, "memory is left behind");
}

/// A process with an allocator on the shared device.
fn process(folder: &Path, options: &str) -> Process {
    Process::ready("phases::process_of_a_test", [(FOLDER, folder.as_os_str()), (OPTIONS, options.as_ref())])
}

/// The line that has a process go through a phase.
fn phase(bytes: u64, seed: u64) -> String {
    format!("{bytes} {seed}")
}

struct World {
    folder: TempDir,
    broker: Option<Running>,
    options: String,
}

impl World {
    fn new(more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("broker.sock");
        let options = format!("chunk_size_mb:4,broker:{},{more}", socket.display());
        let broker = Some(Broker::start(&socket).unwrap());
        Self { folder, broker, options }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("broker.sock")
    }

    fn process(&self, more: &str) -> Process {
        process(self.folder.path(), &format!("{},{more}", self.options))
    }

    /// Nobody holds anything, once the last process has ended and its memory was taken back.
    fn is_empty(&self) {
        let host = HostDriver::new(HostConfig { capacity: CAPACITY }).unwrap();
        let device = SharedDevice::open(Box::new(host), &self.folder.path().join("device")).unwrap();
        let begun = Instant::now();
        while device.in_use() > 0 {
            assert!(begun.elapsed() < LONG, "{} bytes are held", device.in_use());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// So many processes take turns; now and then the one whose turn it is is killed, and comes again later.
fn take_turns(count: usize, rounds: u64, part: u64, seed: u64) {
    let world = World::new("");
    let mut random = Random(seed);
    let mut processes: Vec<Process> = (0..count).map(|_| world.process("")).collect();
    let (mut phases, mut killed) = (0, 0);
    for round in 0..rounds {
        for at in 0..count {
            let bytes = CAPACITY / 100 * part;
            if random.below(4) == 0 {
                processes[at].begin(&phase(bytes, round));
                std::thread::sleep(Duration::from_millis(random.below(25)));
                processes.remove(at).kill();
                killed += 1;
                // The next one begins at once, when the driver has not yet taken back what this one held.
                let next = at % (count - 1).max(1);
                let answer = processes[next].does(&phase(bytes, round));
                assert!(answer.starts_with("done"), "after a kill: {answer}");
                processes.insert(at, world.process(""));
            }
            let answer = processes[at].does(&phase(bytes, round));
            assert!(answer.starts_with("done"), "round {round}, process {at}: {answer}");
            phases += 1;
        }
    }
    assert!(killed > 0 && phases == rounds * count as u64);
    processes.into_iter().for_each(Process::end);
    world.is_empty();
}

#[test]
fn two_take_turns_and_one_is_killed_now_and_then() {
    take_turns(2, 10, 70, 1);
}

#[test]
fn four_take_turns_and_one_is_killed_now_and_then() {
    take_turns(4, 5, 80, 7);
}

#[test]
fn without_a_broker_the_second_runs_out_of_memory_as_before() {
    let world = World::new("");
    let options = "chunk_size_mb:4";
    let mut one = process(world.folder.path(), options);
    let mut two = process(world.folder.path(), options);
    assert!(one.does(&phase(CAPACITY / 10 * 7, 1)).starts_with("done"));
    let answer = two.does(&phase(CAPACITY / 10 * 7, 1));
    assert!(answer.starts_with("failed") && answer.contains("out of memory"), "{answer}");
    assert!(!answer.contains("processes (") && !answer.contains("option broker)"), "{answer}");
    drop(one);
}

/// Each takes all that it needs at once and whenever it likes: who is short waits until another has freed its own.
#[test]
fn three_that_do_not_take_turns_wait_for_each_other() {
    let world = World::new("broker_wait_ms:60000");
    let mut processes: Vec<Process> = (0..3).map(|_| world.process("")).collect();
    let part = 40 * MIB;
    for process in &mut processes {
        for seed in 0..6 {
            process.begin(&phase(part, seed));
        }
    }
    for process in &mut processes {
        for _ in 0..6 {
            let answer = process.next();
            assert!(answer.starts_with("done"), "{answer}");
        }
    }
    processes.into_iter().for_each(Process::end);
}

#[test]
fn guarantees_are_kept_and_a_refusal_says_what_others_have() {
    let world = World::new("broker_wait_ms:100");
    let mut keeps = world.process("broker_guarantee:160MiB");
    assert_eq!(keeps.does(&phase(180 * MIB, 1)), format!("done {}", 180 * MIB));
    let mut short = world.process("");
    // 76 MiB are free, and up to 20 MiB go: whole chunks of 4 MiB.
    let answer = short.does(&phase(93 * MIB, 1));
    assert!(answer.starts_with("done"), "{answer}");
    let members = status::members(&world.socket()).unwrap();
    let (held, given) = (members[0].held, members[0].given);
    assert!((160 * MIB..=164 * MIB).contains(&held) && held + given == 180 * MIB, "{held} {given}");
    assert!(members[1].was_short > 0 && members[1].received == given, "{members:?}");
    let answer = short.does(&phase(120 * MIB, 1));
    for part in ["failed out of memory", "Other processes (1) gave back ", "160.00 MiB is guaranteed"] {
        assert!(answer.contains(part), "{part} is missing in {answer}");
    }
    // What it has it uses again, without anybody's help.
    assert!(keeps.does(&phase(160 * MIB, 2)).starts_with("done"));
}

#[test]
fn what_is_left_is_divided_equally() {
    let world = World::new("broker_wait_ms:100");
    let (mut one, mut other) = (world.process(""), world.process(""));
    for process in [&mut one, &mut other] {
        assert!(process.does(&phase(120 * MIB, 1)).starts_with("done"));
    }
    // 16 MiB are free. 128 MiB more come from both, and up to an eighth beyond: 56 MiB of each stay, or less.
    let mut short = world.process("");
    let answer = short.does(&phase(144 * MIB, 1));
    assert!(answer.starts_with("done"), "{answer}");
    let members = status::members(&world.socket()).unwrap();
    let (one, other) = (members[0].held / MIB, members[1].held / MIB);
    assert!(one + other <= 112 && one + other >= 90, "{one} {other}");
    assert!(one.abs_diff(other) <= 6, "{one} {other}");
}

#[test]
fn a_broker_that_is_killed_and_comes_back_is_joined_again() {
    let mut world = World::new("");
    let (mut one, mut two) = (world.process(""), world.process(""));
    assert!(one.does(&phase(180 * MIB, 1)).starts_with("done"));
    world.broker = None;
    assert!(!world.socket().exists());
    // Without it what a process has still serves it.
    assert!(one.does(&phase(180 * MIB, 2)).starts_with("done"));
    two.begin(&phase(180 * MIB, 1));
    std::thread::sleep(Duration::from_millis(200));
    world.broker = Some(Broker::start(&world.socket()).unwrap());
    let answer = two.next();
    assert!(answer.starts_with("done"), "it waits for the broker to come back: {answer}");
    assert_eq!(status::members(&world.socket()).unwrap().len(), 2);
    assert!(one.does(&phase(180 * MIB, 3)).starts_with("done"));
}
