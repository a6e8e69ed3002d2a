//! Tags: private pools that sleep and wake.

use crate::boundary::{call, file, optional_out, out_param};
use crate::ids::{AllocatorId, Pool};
use crate::registry::borrow;
use crate::status::{Failure, Outcome, Status};
use seamalloc::Backup;
use std::ffi::c_char;

/// For `backup` of `seam_pool_sleep`: what live blocks hold is kept in the host's memory.
pub const BACKUP_HOST: u32 = 0;
/// It is lost: live blocks keep their addresses, and hold anything after waking.
pub const BACKUP_DISCARD: u32 = 1;
/// It is kept in a file, which must not exist.
pub const BACKUP_FILE: u32 = 2;

/// A new tag, used once: a private pool as by `seam_pool_create`, with chunks of physical memory of its own, so that it can
/// sleep. Only with the strategies `stitch` and `planned` (`SEAM_STATUS_NOT_SLEEPABLE`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_pool_create_tag(allocator: AllocatorId, pool: *mut Pool) -> Status {
    let create = || Ok(borrow(allocator)?.allocator.create_tag()?.into());
    // SAFETY: as for every function (see the header).
    unsafe { out_param(pool, Pool { first: 0, second: 0 }, "pool", create) }
}

/// Uses the tag of that name once more, or makes it. `SEAM_STATUS_POOL_IN_USE`: there is a private pool of that name which was
/// used already and is no tag.
#[unsafe(no_mangle)]
pub extern "C" fn seam_pool_open_tag(allocator: AllocatorId, pool: Pool) -> Status {
    call(|| Ok(borrow(allocator)?.allocator.open_tag(pool.id())?))
}

/// Waits for the device, keeps what the live blocks of a tag hold as `backup` says (`SEAM_BACKUP_HOST`, `SEAM_BACKUP_DISCARD`,
/// `SEAM_BACKUP_FILE` with the file's name in `path`, which is NULL otherwise), and gives all of the tag's physical memory back.
/// `given` gets the bytes given back; it may be NULL. Addresses stay. Until `seam_pool_wake` has returned, no work of any
/// stream, device or process may use the tag's memory; blocks can be freed, and requests for the tag are
/// `SEAM_STATUS_POOL_ASLEEP`. Where it fails, everything is as before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_pool_sleep(
    allocator: AllocatorId,
    pool: Pool,
    backup: u32,
    path: *const c_char,
    given: *mut u64,
) -> Status {
    let sleep = || {
        // SAFETY: as for every function (see the header).
        let backup = unsafe { backup_of(backup, path) }?;
        Ok(borrow(allocator)?.allocator.sleep(pool.id(), &backup)?)
    };
    // SAFETY: as above.
    unsafe { optional_out(given, 0, sleep) }
}

/// # Safety
/// As [`file`] for the path, where it is not NULL.
unsafe fn backup_of(backup: u32, path: *const c_char) -> Outcome<Backup> {
    match backup {
        // SAFETY: the caller's promise.
        BACKUP_FILE => Ok(Backup::File(unsafe { file(path) }?.to_path_buf())),
        BACKUP_HOST | BACKUP_DISCARD if !path.is_null() => {
            Err(Failure::argument("path is not NULL, and backup is not SEAM_BACKUP_FILE"))
        }
        BACKUP_HOST => Ok(Backup::Host),
        BACKUP_DISCARD => Ok(Backup::Discard),
        _ => Err(Failure::argument(format_args!("backup is {backup}, which is no SEAM_BACKUP_*"))),
    }
}

/// Gives a tag that sleeps its memory again, at the same addresses, and what its live blocks held. `taken` gets the bytes, 0 if
/// it does not sleep; it may be NULL. Where it fails, the tag sleeps on with all that was kept, and it can be tried again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_pool_wake(allocator: AllocatorId, pool: Pool, taken: *mut u64) -> Status {
    // SAFETY: as for every function (see the header).
    unsafe { optional_out(taken, 0, || Ok(borrow(allocator)?.allocator.wake(pool.id())?)) }
}
