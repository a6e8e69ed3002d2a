//! Guard mode (the option `guard:on`): what an address belongs to, mistakes found, and what a program says of its streams.

use crate::boundary::{self, call, optional_out, write_text};
use crate::ids::{AllocatorId, Stream};
use crate::registry::borrow;
use crate::status::{Failure, Outcome, Status};
use seamalloc::Finding;
use serde_json::{Value, json};
use std::ffi::{c_char, c_void};
use std::slice;

/// Describes an address, as a sentence: the allocation that it lies in, live or freed, or at whose edge; its size,
/// streams and number. "" where that is not known, or guard mode is off. Works after an illegal address was used, when
/// every call of CUDA fails. The buffer is as in `seam_stats_json`.
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
    // SAFETY: as for every function (see the header).
    unsafe { write_text(buffer, capacity, length, look) }
}

/// The mistakes of the program that guard mode has found, the first 1000, oldest first, as a JSON array of objects: `kind`
/// (`double_free`, `wrong_free`, `overrun`, `underrun`, `write_after_free`, `missing_record_stream`), `text`, and of the
/// allocation its `address`, `size` in bytes, `number` and `stream`. The buffer is as in `seam_stats_json`.
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
    // SAFETY: as for every function (see the header).
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

/// Waits for the device, and looks for bytes that were written around live allocations, and in freed memory. `findings` gets
/// how many mistakes were found so far; it may be NULL. Without guard mode it does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_check_guards(allocator: AllocatorId, findings: *mut u64) -> Status {
    // SAFETY: as for every function (see the header).
    unsafe { optional_out(findings, 0, || Ok(borrow(allocator)?.allocator.guard().check()?)) }
}

/// Says that the work which was given to `stream` last uses the allocations in which these `count` addresses lie. Guard mode
/// then finds a free before that work ends, if neither `seam_record_stream` named the stream nor the allocation's own stream
/// waits for it. Addresses of no live allocation are ignored. Without guard mode it does nothing.
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
        // SAFETY: as for every function (see the header): there are so many.
        let addresses = unsafe { slice::from_raw_parts(addresses, count) };
        let addresses: Vec<u64> = addresses.iter().map(|address| address.addr() as u64).collect();
        Ok(borrow(allocator)?.allocator.guard().record_access(&addresses, boundary::stream(stream)?)?)
    })
}

/// Says that the program recorded an event on `stream`. `event` is whatever number the program has for it; recording it again
/// forgets the earlier record.
#[unsafe(no_mangle)]
pub extern "C" fn seam_note_event(allocator: AllocatorId, event: u64, stream: Stream) -> Status {
    noted(allocator, stream, |instance, stream| instance.guard().record_event(event, stream))
}

/// Says that the program lets later work of `stream` wait for an event of `seam_note_event`.
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
