//! Live memory that is spilled to host memory.

use crate::answers::bytes_of;
use crate::boundary::call;
use crate::ids::AllocatorId;
use crate::registry::borrow;
use crate::status::{Failure, Status};
use seamalloc::Advice;
use std::ffi::c_void;

/// For `advice` of `seam_advise`: the allocation is not used for a while, and is spilled first.
pub const ADVICE_COLD: u32 = 0;
/// No access advice has been given for the allocation.
pub const ADVICE_NORMAL: u32 = 1;
/// The allocation is used all the time: it is spilled last, and comes back to the device at once if there is room.
pub const ADVICE_HOT: u32 = 2;

/// Says how the program uses a live allocation from now on (`SEAM_ADVICE_COLD`, `SEAM_ADVICE_NORMAL`,
/// `SEAM_ADVICE_HOT`). The advice matters only with the option `spill:host=SIZE`, with which live memory that does not
/// fit the device lies in host memory.
#[unsafe(no_mangle)]
pub extern "C" fn seam_advise(allocator: AllocatorId, address: *mut c_void, advice: u32) -> Status {
    call(|| {
        let advice = match advice {
            ADVICE_COLD => Advice::Cold,
            ADVICE_NORMAL => Advice::Normal,
            ADVICE_HOT => Advice::Hot,
            _ => return Err(Failure::argument(format_args!("advice is {advice}, which is no SEAM_ADVICE_*"))),
        };
        Ok(borrow(allocator)?.allocator.spill().advise(address.addr() as u64, advice)?)
    })
}

/// Lets spilled memory come back to the device, as far as there is room; free memory is given back for this. `returned`
/// gets the number of bytes that came back; it may be NULL. The CPU waits for the device. Until the call has returned,
/// no thread may give the device work that uses memory of the allocator. During a stream capture no memory comes back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_unspill(allocator: AllocatorId, returned: *mut u64) -> Status {
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { bytes_of(allocator, returned, |allocator| allocator.spill().restore()) }
}
