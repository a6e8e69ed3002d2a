//! Guard mode (the option `guard:on`): the allocation at an address, the mistakes found, and a program's notes on its
//! streams.

use crate::boundary::{self, call, optional_out, write_text};
use crate::ids::{AllocatorId, Stream};
use crate::registry::borrow;
use crate::status::{Failure, Outcome, Status};
use seamalloc::Finding;
use serde_json::{Value, json};
use std::ffi::{c_char, c_void};
use std::slice;

/// Describes an address in a sentence: the allocation, live or freed, in which or at whose edge the address lies, with
/// its size, streams and number. The text is "" if no such allocation is known, or guard mode is off. The function
/// works after an illegal address was used, when every call of CUDA fails. The buffer is as in `seam_stats_json`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_explain(
    allocator: AllocatorId,
    address: *const c_void,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    let look = || {
        let found = borrow(allocator)?.allocator.guard().explain(address.addr() as u64);
        Ok(found.map_or_else(String::new, |found| found.to_string()))
    };
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { write_text(buffer, capacity, length, look) }
}

/// Writes the mistakes of the program that guard mode has found, the first 1000, oldest first, as a JSON array of
/// objects: `kind` (`double_free`, `wrong_free`, `overrun`, `underrun`, `write_after_free`, `missing_record_stream`),
/// `text`, and the `address`, `size` in bytes, `number` and `stream` of the allocation. The buffer is as in
/// `seam_stats_json`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_findings_json(
    allocator: AllocatorId,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    let look = || {
        let found: Vec<Value> = borrow(allocator)?.allocator.guard().findings().iter().map(finding).collect();
        Ok(Value::from(found).to_string())
    };
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { write_text(buffer, capacity, length, look) }
}

fn finding(finding: &Finding) -> Value {
    let of = finding.allocation();
    json!({
        "kind": finding.name(),
        "text": finding.to_string(),
        "address": of.address,
        "size": of.size,
        "number": of.number,
        "stream": of.stream.0,
    })
}

/// Waits for the device, and looks for bytes that were written around live allocations and into freed memory.
/// `findings` gets the number of mistakes found so far; it may be NULL. Without guard mode the function does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_check_guards(allocator: AllocatorId, findings: *mut u64) -> Status {
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { optional_out(findings, 0, || Ok(borrow(allocator)?.allocator.guard().check()?)) }
}

/// Says that the latest work given to `stream` uses the allocations in which these `count` addresses lie. Guard mode
/// then reports a free before the end of this work, if neither `seam_record_stream` named the stream nor the
/// allocation's own stream waits for the work. Addresses outside of live allocations are ignored. Without guard mode
/// the function does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_note_uses(
    allocator: AllocatorId,
    addresses: *const *const c_void,
    count: usize,
    stream: Stream,
) -> Status {
    call(|| {
        if count == 0 {
            return Ok(());
        }
        if addresses.is_null() {
            return Err(Failure::argument("addresses is NULL"));
        }
        // SAFETY: as for every function (see the top of `seamalloc.h`): as many addresses lie there.
        let addresses = unsafe { slice::from_raw_parts(addresses, count) };
        let addresses: Vec<u64> = addresses.iter().map(|address| address.addr() as u64).collect();
        Ok(borrow(allocator)?.allocator.guard().record_access(&addresses, boundary::stream(stream)?)?)
    })
}

/// Says that the program recorded an event on `stream`. `event` is any number that the program has chosen for the
/// event. A second record of the same number replaces the first.
#[unsafe(no_mangle)]
pub extern "C" fn seam_note_event(allocator: AllocatorId, event: u64, stream: Stream) -> Status {
    noted(allocator, stream, |instance, stream| instance.guard().record_event(event, stream))
}

/// Says that the program lets later work of `stream` wait for an event that `seam_note_event` has noted.
#[unsafe(no_mangle)]
pub extern "C" fn seam_note_wait(allocator: AllocatorId, stream: Stream, event: u64) -> Status {
    noted(allocator, stream, |instance, stream| instance.guard().record_wait(stream, event))
}

fn noted(
    allocator: AllocatorId,
    stream: Stream,
    note: impl FnOnce(&seamalloc::Allocator, seamalloc::driver::StreamId) -> seamalloc::Result<()>,
) -> Status {
    call(|| -> Outcome<()> { Ok(note(&borrow(allocator)?.allocator, boundary::stream(stream)?)?) })
}
