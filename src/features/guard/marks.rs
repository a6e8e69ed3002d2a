//! Bytes that guard mode writes and later checks: canaries around live memory, and poison in freed memory.
//!
//! Owns: the filled bytes, their value, and the mistake that a changed byte shows.

use super::records::Record;
use crate::driver::{Driver, DriverResult};
use crate::ids::StreamId;
use crate::report::guard::{Explanation, Finding, GuardedAllocation, Place};

/// The value of the bytes before and after an allocation.
const CANARY: u8 = 0xc5;
/// The value of the bytes of freed memory: NaN as a floating-point number of any width, -1 as an integer.
const POISON: u8 = 0xff;
/// The most bytes that are filled before an allocation, in the memory of its mapping that serves no request (the
/// slack).
const CANARY_BEFORE: u64 = 4096;
/// Freed memory of up to this many bytes is checked completely. Larger memory is checked at both ends only, since each
/// byte is copied to the CPU.
const LOOKED_AT_WHOLE: u64 = 64 << 10;
const LOOKED_AT_EACH_END: u64 = 4 << 10;

/// Fills the bytes before and after an allocation.
pub(super) fn fill_canary(
    driver: &dyn Driver,
    allocation: &GuardedAllocation,
    slack: u64,
    stream: StreamId,
) -> DriverResult<()> {
    let ranges = canaries(allocation, slack);
    ranges.into_iter().filter(|(_, size)| *size > 0).try_for_each(|(at, size)| driver.fill(at, size, CANARY, stream))
}

/// Fills freed memory, after the work of its stream.
pub(super) fn fill_poison(driver: &dyn Driver, allocation: &GuardedAllocation, stream: StreamId) -> DriverResult<()> {
    driver.fill(allocation.address, allocation.size, POISON, stream)
}

/// Checks the bytes around an allocation. All work that uses them must be done.
pub(super) fn check_canary(driver: &dyn Driver, record: &Record) -> DriverResult<Vec<Finding>> {
    let allocation = record.allocation;
    let [before, behind] = canaries(&allocation, record.slack);
    let mut found = Vec::new();
    if let Some(last) = changed(driver, before, CANARY)?.map(|(_, last)| last) {
        let place = Place::Before(allocation.address - last);
        found.push(Finding::Underrun(Explanation { address: last, place, allocation }));
    }
    if let Some(first) = changed(driver, behind, CANARY)?.map(|(first, _)| first) {
        let place = Place::Behind(first - allocation.address - allocation.size);
        found.push(Finding::Overrun(Explanation { address: first, place, allocation }));
    }
    Ok(found)
}

/// Checks freed memory that was filled. All work that uses it must be done.
pub(super) fn check_poison(driver: &dyn Driver, allocation: GuardedAllocation) -> DriverResult<Option<Finding>> {
    let GuardedAllocation { address, size, .. } = allocation;
    let ranges = match size {
        0..=LOOKED_AT_WHOLE => [(address, size), (address, 0)],
        _ => [(address, LOOKED_AT_EACH_END), (address + size - LOOKED_AT_EACH_END, LOOKED_AT_EACH_END)],
    };
    for range in ranges {
        if let Some((first, _)) = changed(driver, range, POISON)? {
            let place = Place::Inside(first - address);
            return Ok(Some(Finding::WriteAfterFree(Explanation { address: first, place, allocation })));
        }
    }
    Ok(None)
}

/// Returns the filled ranges before and after an allocation, as addresses and sizes. A size may be 0.
fn canaries(allocation: &GuardedAllocation, slack: u64) -> [(u64, u64); 2] {
    let GuardedAllocation { address, size, rounded, .. } = *allocation;
    let before = slack.min(CANARY_BEFORE);
    [(address - before, before), (address + size, rounded - size)]
}

/// Returns the addresses of the first and the last byte in a range that differ from `value`; `None` if no byte differs.
fn changed(driver: &dyn Driver, (address, size): (u64, u64), value: u8) -> DriverResult<Option<(u64, u64)>> {
    if size == 0 {
        return Ok(None);
    }
    let mut bytes = vec![0; size as usize];
    driver.read(address, &mut bytes)?;
    // Whole pages are compared first. Without optimization, comparing byte by byte takes most of a guarded program's
    // time.
    let expected = [value; 4096];
    if bytes.chunks(expected.len()).all(|part| part == &expected[..part.len()]) {
        return Ok(None);
    }
    let differs = |byte: &u8| *byte != value;
    let first = bytes.iter().position(differs);
    let last = bytes.iter().rposition(differs);
    Ok(first.zip(last).map(|(first, last)| (address + first as u64, address + last as u64)))
}
