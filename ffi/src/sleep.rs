//! Tags: private pools that sleep and wake.

use crate::answers::{bytes_of, removed};
use crate::boundary::{User, call, file, optional_out, out_param};
use crate::ids::{AllocatorId, Pool};
use crate::registry::borrow;
use crate::status::{Failure, Outcome, Status};
use seamalloc::{Backup, SleepNotice as Notice, SleepStage};
use std::ffi::{c_char, c_void};

/// For `backup` of `seam_pool_sleep`: the contents of live blocks are kept in host memory.
pub const BACKUP_HOST: u32 = 0;
/// The contents of live blocks are lost: the blocks keep their addresses, and hold anything after waking.
pub const BACKUP_DISCARD: u32 = 1;
/// The contents of live blocks are kept in a file, which must not exist.
pub const BACKUP_FILE: u32 = 2;
/// The contents of live blocks are kept in page-locked host memory. Copies to and from this memory run at the speed of
/// the link to the GPU. The memory is kept for the next sleep.
pub const BACKUP_PINNED: u32 = 3;

/// For `stage` of `seam_sleep_notice`: a tag is about to sleep.
pub const SLEEP_BEFORE: u32 = 0;
/// The tag sleeps: it fell asleep, or waking it failed.
pub const SLEEP_ASLEEP: u32 = 1;
/// The tag is about to wake.
pub const SLEEP_BEFORE_WAKE: u32 = 2;
/// The tag is awake: it woke, or sleeping failed.
pub const SLEEP_AWAKE: u32 = 3;

/// The message about a tag that a callback gets.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SleepNotice {
    /// The size of this struct.
    pub size: usize,
    /// The stage, one of `SEAM_SLEEP_*`.
    pub stage: u32,
    /// The tag that changes.
    pub tag: Pool,
    /// The bytes of physical memory that the tag has while it is awake.
    pub bytes: u64,
}

/// Receives a notice about a tag. Before a change, the return value says whether the callback agrees to the change;
/// after a change, it is ignored. The function is called without a lock of the library, in the thread that makes the
/// change. It must return (no exception, no longjmp).
pub type SleepCallback = Option<unsafe extern "C" fn(notice: *const SleepNotice, user: *mut c_void) -> bool>;

/// From now on `callback` is called before and after each change of a tag between awake and asleep. If a callback
/// returns false before a change, the change is not made (`SEAM_STATUS_NOT_SLEEPABLE`). Each callback that agreed
/// receives the result of the change, even if the change failed. `id` gets a number by which the callback can be
/// removed; it may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_on_sleep(
    allocator: AllocatorId,
    callback: SleepCallback,
    user: *mut c_void,
    id: *mut u64,
) -> Status {
    let add = || {
        let callback = callback.ok_or_else(|| Failure::argument("callback is NULL"))?;
        let user = User::new(user);
        let callback = move |notice: &Notice| {
            let stage = match notice.stage {
                SleepStage::BeforeSleep => SLEEP_BEFORE,
                SleepStage::Asleep => SLEEP_ASLEEP,
                SleepStage::BeforeWake => SLEEP_BEFORE_WAKE,
                _ => SLEEP_AWAKE,
            };
            let notice =
                SleepNotice { size: size_of::<SleepNotice>(), stage, tag: notice.tag.into(), bytes: notice.bytes };
            // SAFETY: the caller promised that this call is allowed until the callback is removed.
            unsafe { callback(&raw const notice, user.get()) }
        };
        Ok(borrow(allocator)?.allocator.tags().on_change(callback)?.number())
    };
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { optional_out(id, 0, add) }
}

/// Removes a callback of `seam_on_sleep`. A change that is under way still calls it. Returns
/// `SEAM_STATUS_INVALID_ARGUMENT` if no callback has this number.
#[unsafe(no_mangle)]
pub extern "C" fn seam_remove_sleep_callback(allocator: AllocatorId, id: u64) -> Status {
    removed(allocator, id, |allocator, id| allocator.tags().remove_callback(id))
}

/// Gives back to the host the page-locked memory that was kept for backups and that no sleeping tag needs. `released`
/// gets the number of bytes; it may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_release_backups(allocator: AllocatorId, released: *mut u64) -> Status {
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { bytes_of(allocator, released, |allocator| allocator.tags().release_backups()) }
}

/// Creates a tag with one use: a private pool as by `seam_pool_create`, with chunks of physical memory of its own, so
/// that it can sleep. Only the strategy `stitch` has tags (`SEAM_STATUS_NOT_SLEEPABLE` otherwise).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_pool_create_tag(allocator: AllocatorId, pool: *mut Pool) -> Status {
    let create = || Ok(borrow(allocator)?.allocator.tags().create()?.into());
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { out_param(pool, Pool { first: 0, second: 0 }, "pool", create) }
}

/// Adds one use to the tag of this name, or creates the tag. Returns `SEAM_STATUS_POOL_IN_USE` if a private pool of
/// this name was used already and is no tag.
#[unsafe(no_mangle)]
pub extern "C" fn seam_pool_open_tag(allocator: AllocatorId, pool: Pool) -> Status {
    call(|| Ok(borrow(allocator)?.allocator.tags().open(pool.id())?))
}

/// Waits for the device, keeps the contents of the tag's live blocks as `backup` says (`SEAM_BACKUP_HOST`,
/// `SEAM_BACKUP_PINNED`, `SEAM_BACKUP_DISCARD`, `SEAM_BACKUP_FILE` with the file's name in `path`, which is NULL
/// otherwise), and gives all of the tag's physical memory back. `given` gets the number of bytes given back; it may be
/// NULL. The blocks keep their addresses. Until `seam_pool_wake` has returned, no work of any stream, device or process
/// may use the tag's memory. While the tag sleeps, blocks can be freed, and requests for the tag return
/// `SEAM_STATUS_POOL_ASLEEP`. After a failure everything is as before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_pool_sleep(
    allocator: AllocatorId,
    pool: Pool,
    backup: u32,
    path: *const c_char,
    given: *mut u64,
) -> Status {
    let sleep = || {
        // SAFETY: as for every function (see the top of `seamalloc.h`).
        let backup = unsafe { backup_of(backup, path) }?;
        Ok(borrow(allocator)?.allocator.tags().sleep(pool.id(), &backup)?)
    };
    // SAFETY: as above.
    unsafe { optional_out(given, 0, sleep) }
}

/// # Safety
/// The conditions of [`file`] for the path, if the path is not NULL.
unsafe fn backup_of(backup: u32, path: *const c_char) -> Outcome<Backup> {
    match backup {
        // SAFETY: the caller's promise.
        BACKUP_FILE => Ok(Backup::File(unsafe { file(path) }?.to_path_buf())),
        BACKUP_HOST | BACKUP_DISCARD | BACKUP_PINNED if !path.is_null() => {
            Err(Failure::argument("path is not NULL, and backup is not SEAM_BACKUP_FILE"))
        }
        BACKUP_HOST => Ok(Backup::Host),
        BACKUP_PINNED => Ok(Backup::Pinned),
        BACKUP_DISCARD => Ok(Backup::Discard),
        _ => Err(Failure::argument(format_args!("backup is {backup}, which is no SEAM_BACKUP_*"))),
    }
}

/// Gives memory to a sleeping tag again, at the same addresses and with the contents of its live blocks. `taken` gets
/// the number of bytes, 0 if the tag does not sleep; it may be NULL. After a failure the tag still sleeps and keeps its
/// backup, so the call can be repeated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_pool_wake(allocator: AllocatorId, pool: Pool, taken: *mut u64) -> Status {
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { bytes_of(allocator, taken, |allocator| allocator.tags().wake(pool.id())) }
}
