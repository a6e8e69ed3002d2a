//! Memory of one process in another, with real bytes: what one writes, the other reads, through host memory and the
//! server of descriptors.

#![allow(clippy::print_stdout, reason = "processes tell each other, and a test what it came to")]

use crate::shared_blocks::blocks;
use seamalloc::driver::host::{HostConfig, HostDriver, HostWork, Range};
use seamalloc::driver::{Driver, StreamId};
use seamalloc::{Allocator, Config, StrategyKind};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const MIB: u64 = 1 << 20;
const S: StreamId = StreamId(3);
/// Set in the process that `another_process_reads_and_writes_it` starts: the blocks, one behind the other.
const BLOCKS: &str = "SEAMALLOC_TEST_HOST_BLOCKS";

fn of(kind: StrategyKind) -> (Arc<HostDriver>, Allocator) {
    let device = Arc::new(HostDriver::new(HostConfig { capacity: 512 * MIB }).unwrap());
    let config = Config { strategy: kind, ..Config::parse("chunk_size_mb:8").unwrap() };
    let allocator = Allocator::new(Arc::clone(&device) as Arc<dyn Driver>, config).unwrap();
    (device, allocator)
}

/// Word `i` becomes `first + i`.
fn fill(device: &HostDriver, to: Range, first: u64) {
    let words = move |at, words: &mut [u64]| words.iter_mut().zip(first + at..).for_each(|(word, value)| *word = value);
    device.launch(S, HostWork::Fill { to, words: Arc::new(words) }).unwrap();
}

/// How many words are not `first + i`.
fn wrong_words(device: &HostDriver, at: Range, first: u64) -> u64 {
    let wrong = Arc::new(AtomicU64::new(0));
    let found = Arc::clone(&wrong);
    let see = move |at, words: &[u64]| {
        let differ = words.iter().zip(first + at..).filter(|(word, value)| **word != *value).count();
        found.fetch_add(differ as u64, Ordering::Relaxed);
    };
    device.launch(S, HostWork::Look { at, see: Arc::new(see) }).unwrap();
    device.synchronize().unwrap();
    wrong.load(Ordering::Relaxed)
}

/// The first word of a block, as its owner writes it, and as the other process does.
fn first_word(block: u64, by_the_other: bool) -> u64 {
    (block + 1) << 40 | u64::from(by_the_other) << 39
}

#[test]
fn another_process_reads_and_writes_it() {
    if std::env::var_os(BLOCKS).is_some() {
        return;
    }
    let mut words = 0;
    for kind in StrategyKind::MAIN {
        let (device, allocator) = of(kind);
        let live = blocks(&allocator);
        let range = |address| Range { address, size: allocator.reports().size_of(address).unwrap() };
        let mut described = kind.name().to_owned();
        for (block, address) in (0..).zip(&live) {
            fill(&device, range(*address), first_word(block, false));
            let shared = allocator.sharing().export(*address).unwrap();
            let name: String = shared.handle.iter().map(|byte| format!("{byte:02x}")).collect();
            described.push_str(&format!(";{name}:{}:{}", shared.offset, range(*address).size));
            words += 2 * range(*address).size / 8;
        }
        device.synchronize().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "host_sharing::the_other_process", "--nocapture"]).env(BLOCKS, described);
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.by_ref().any(|line| line.unwrap() == "written"), "{kind}: {:?}", child.wait());
        for (block, address) in (0..).zip(&live) {
            assert_eq!(wrong_words(&device, range(*address), first_word(block, true)), 0, "{kind}, block {block}");
        }
        // What processes have mapped outlives its owner. Of plain memory CUDA does not promise that.
        if kind != StrategyKind::Caching {
            live.iter().for_each(|address| allocator.free(*address).unwrap());
            drop(allocator);
            assert!(device.leaks().is_empty(), "{kind}: {}", device.leaks());
            drop(device);
        }
        writeln!(child.stdin.take().unwrap(), "go on").unwrap();
        assert!(lines.any(|line| line.unwrap() == "right to the end"), "{kind}");
        assert!(child.wait().unwrap().success(), "{kind}");
    }
    println!("{words} words checked across two processes");
}

#[test]
fn the_other_process() {
    let Ok(described) = std::env::var(BLOCKS) else { return };
    let mut parts = described.split(';');
    let kind: StrategyKind = parts.next().unwrap().parse().unwrap();
    let (device, allocator) = of(kind);
    let opened: Vec<(u64, Range)> = parts
        .map(|part| {
            let mut fields = part.split(':');
            let digits: Vec<char> = fields.next().unwrap().chars().collect();
            let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
            let handle: Vec<u8> = digits.chunks(2).map(byte).collect();
            let [offset, size] = [0; 2].map(|_| fields.next().unwrap().parse::<u64>().unwrap());
            let opened = allocator.sharing().open(&handle).unwrap();
            (opened, Range { address: opened + offset, size })
        })
        .collect();
    for (block, (_, range)) in (0..).zip(&opened) {
        assert_eq!(wrong_words(&device, *range, first_word(block, false)), 0, "block {block}");
        fill(&device, *range, first_word(block, true));
    }
    device.synchronize().unwrap();
    assert_eq!(device.leaks().bytes, 0, "it is the other's");
    println!("\nwritten");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    for (block, (_, range)) in (0..).zip(&opened) {
        assert_eq!(wrong_words(&device, *range, first_word(block, true)), 0, "block {block}, at the end");
    }
    opened.iter().for_each(|(opened, _)| allocator.sharing().close(*opened).unwrap());
    assert!(device.leaks().is_empty(), "{}", device.leaks());
    println!("right to the end");
}
