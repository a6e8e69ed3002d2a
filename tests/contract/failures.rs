//! Every driver call can fail, at any time: afterwards the allocator is as it was, to the byte, and goes on working.

use crate::length::{is_long, rounds};
use crate::simulated::Device;
use crate::{MIB, SHORTER, Subject, balanced, on};
use seamalloc::driver::{Call, Driver, Status, StreamId};
use seamalloc::{Allocator, Error, Stats, StrategyKind};
use std::sync::Arc;

/// Returns about how many calls of one kind fail, of all that are made.
fn calls() -> u64 {
    rounds(12, 40) / SHORTER
}

/// The figures that a failed operation may not change. Bytes reserved are not among them: what was given back on the
/// way to an error stays given back, and what could not be undone at once is still held, which `balanced` checks.
fn held(stats: &Stats) -> [u64; 5] {
    [
        stats.allocation.all.current,
        stats.allocated_bytes.all.current,
        stats.active_bytes.all.current,
        stats.requested_bytes.all.current,
        stats.requested_bytes.all.allocated,
    ]
}

struct Script {
    gpu: Arc<Device>,
    allocator: Allocator,
    live: Vec<u64>,
}

impl Script {
    fn new(kind: StrategyKind, device: &str) -> Self {
        let (gpu, allocator) = on(kind, device);
        Self { gpu, allocator, live: Vec::new() }
    }

    /// Runs a fixed series of operations that makes every call of every strategy, the `nth` call of one kind failing.
    /// How many operations failed.
    fn run(&mut self) -> u32 {
        let mut failed = 0;
        for step in 0..60u64 {
            let before = held(&self.allocator.stats());
            let stream = StreamId(step % 3);
            let result = match step % 6 {
                0..=2 => {
                    let size = [90 * MIB, 3 * MIB, 700, 45 * MIB][(step % 4) as usize] + step * 4096;
                    self.allocator.allocate(size, stream).map(|address| self.live.push(address))
                }
                3 | 4 if !self.live.is_empty() => {
                    let at = (step as usize * 7) % self.live.len();
                    let address = self.live[at];
                    self.allocator.record_stream(address, StreamId(9)).unwrap();
                    let freed = self.allocator.free(address);
                    if freed.is_ok() {
                        self.live.swap_remove(at);
                    }
                    freed
                }
                5 => self.allocator.empty_cache().map(|_| ()),
                _ => Ok(()),
            };
            match result {
                Ok(()) => {}
                Err(Error::Driver(_) | Error::OutOfMemory(_)) => {
                    failed += 1;
                    let stats = self.allocator.stats();
                    // Frees that completed on the way are no change of the failed operation's own.
                    let after = held(&stats);
                    assert_eq!(before[..2], after[..2], "step {step}");
                    assert!(after[2] <= before[2] && after[3] <= before[3], "step {step}");
                }
                Err(error) => panic!("step {step}: {error}"),
            }
            balanced(&self.gpu, &self.allocator);
        }
        failed
    }
}

/// Lets each call of the series fail in turn, and hands over how many more operations of the series then failed.
fn each_failure(kind: StrategyKind, device: &str, status: Status, mut failed: impl FnMut(&str, i64)) {
    let mut plain = Script::new(kind, device);
    let baseline = i64::from(plain.run());
    for call in Call::ALL {
        // Memory is asked for by this test itself, and by reports, which do without an answer.
        let made = if call == Call::MemoryInfo { 0 } else { plain.gpu.call_stats().get(call).count };
        let step = (made / calls()).max(1);
        // In the short form the last one too.
        let last = (!is_long() && made > 1 && !(made - 1).is_multiple_of(step)).then_some(made);
        for nth in (1..=made).step_by(step as usize).chain(last) {
            let name = format!("{kind}: {call} number {nth}");
            let mut script = Script::new(kind, device);
            script.gpu.fail_nth(call, nth, status);
            failed(&name, i64::from(script.run()) - baseline);
            for address in std::mem::take(&mut script.live) {
                script.allocator.free(address).unwrap();
            }
            script.allocator.empty_cache().unwrap_or_else(|error| panic!("{name}: {error}"));
            balanced(&script.gpu, &script.allocator);
            assert_eq!(script.allocator.stats().reserved_bytes.all.current, 0, "{name}");
            drop(script.allocator);
            assert!(script.gpu.leaks().is_empty(), "{name}: {}", script.gpu.leaks());
            assert!(script.gpu.faults().is_empty(), "{name}");
        }
    }
}

pub(crate) fn any_call_may_fail_at_any_time(Subject { kind, maps, mallocs, looks_without_need, .. }: Subject) {
    let mut plain = Script::new(kind, "sim:h200");
    assert_eq!(plain.run(), 0, "{kind}: with plenty of memory and no failure, all goes well");
    for call in [Call::Malloc, Call::Free, Call::Create, Call::Map, Call::SetAccess, Call::Reserve, Call::Release] {
        let made = plain.gpu.call_stats().get(call).count > 0;
        let expected = match call {
            Call::Malloc | Call::Free => mallocs,
            _ => maps,
        };
        assert_eq!(made, expected, "{kind} and {call}: not as the test means it");
    }
    each_failure(kind, "sim:h200", Status::UNKNOWN, |name, failed| {
        // Only an answer that fails twice is done without.
        let is_asked_again = name.contains(": cuMemPoolGetAttribute");
        // A look at a free asks streams who they are, too.
        let is_of_a_look = ["cuEvent", "cuStreamGetId", "cuStreamIsCapturing"].iter().any(|call| name.contains(call));
        let may_do_without = is_asked_again || looks_without_need && is_of_a_look;
        assert!(
            failed == 1 || failed == 0 && may_do_without,
            "{name}: the operation that made the call fails: {failed}"
        );
    });
}

pub(crate) fn any_call_may_be_out_of_memory_at_any_time(Subject { kind, .. }: Subject) {
    // Short of memory, so that everything is given back and tried again; many of these failures are overcome.
    let mut overcome = 0;
    each_failure(kind, "sim:h200,capacity=400MiB", Status::OUT_OF_MEMORY, |_, failed| {
        overcome += u32::from(failed <= 0)
    });
    assert!(overcome > 0, "giving back and trying again never helped");
}
