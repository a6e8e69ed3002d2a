//! Tags: private pools that sleep and wake.

use crate::answers::{bytes_of, removed};
use crate::boundary::{User, call, file, optional_out, out_param};
use crate::ids::{AllocatorId, Pool};
use crate::registry::borrow;
use crate::status::{Failure, Outcome, Status};
use seamalloc::{Backup, SleepNotice as Notice, SleepStage};
use std::ffi::{c_char, c_void};

/// For `backup` of `seam_pool_sleep`: what live blocks hold is kept in host memory.
pub const BACKUP_HOST: u32 = 0;
/// The contents of live blocks are lost: the blocks keep their addresses, and hold anything after waking.
pub const BACKUP_DISCARD: u32 = 1;
/// The contents of live blocks are kept in a file, which must not exist.
pub const BACKUP_FILE: u32 = 2;
/// The contents of live blocks are kept in page-locked host memory, which is copied to and from at the speed of
/// the link, and kept for the next sleep.
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
    /// Of this struct.
    pub size: usize,
    /// `SEAM_SLEEP_*`.
    pub stage: u32,
    /// The tag.
    pub tag: Pool,
    /// The physical memory that it has while it is awake.
    pub bytes: u64,
}

/// Is told of a tag, and answers whether it agrees to what is about to be done; its answer does not count afterwards. Called without
/// a lock of the library, in the thread that makes the change. It must return (no exception, no longjmp).
pub type SleepCallback = Option<unsafe extern "C" fn(notice: *const SleepNotice, user: *mut c_void) -> bool>;

/// From now on `callback` is called before and after each change of a tag between awake and asleep. Where it answers false before
/// one, it is not made (`SEAM_STATUS_NOT_SLEEPABLE`). Each that agreed is told how the change came out, also where it failed. `id`
/// gets a number to remove it by; it may be NULL.
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
    // SAFETY: as for every function (see the header).
    unsafe { optional_out(id, 0, add) }
}

/// Removes a callback of `seam_on_sleep`. A change that is under way still calls it. `SEAM_STATUS_INVALID_ARGUMENT` if there is none
/// of that number.
#[unsafe(no_mangle)]
pub extern "C" fn seam_remove_sleep_callback(allocator: AllocatorId, id: u64) -> Status {
    removed(allocator, id, |allocator, id| allocator.tags().remove_callback(id))
}

/// Gives page-locked memory back to the host that was kept for backups, and that no tag which sleeps needs. `released` gets the
/// bytes; it may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_release_backups(allocator: AllocatorId, released: *mut u64) -> Status {
    // SAFETY: as for every function (see the header).
    unsafe { bytes_of(allocator, released, |allocator| allocator.tags().release_backups()) }
}

/// A new tag, used once: a private pool as by `seam_pool_create`, with chunks of physical memory of its own, so that it can
/// sleep. Only with the strategy `stitch` (`SEAM_STATUS_NOT_SLEEPABLE`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_pool_create_tag(allocator: AllocatorId, pool: *mut Pool) -> Status {
    let create = || Ok(borrow(allocator)?.allocator.tags().create()?.into());
    // SAFETY: as for every function (see the header).
    unsafe { out_param(pool, Pool { first: 0, second: 0 }, "pool", create) }
}

/// Uses the tag of that name once more, or makes it. `SEAM_STATUS_POOL_IN_USE`: there is a private pool of that name which was
/// used already and is no tag.
#[unsafe(no_mangle)]
pub extern "C" fn seam_pool_open_tag(allocator: AllocatorId, pool: Pool) -> Status {
    call(|| Ok(borrow(allocator)?.allocator.tags().open(pool.id())?))
}

/// Waits for the device, keeps what the live blocks of a tag hold as `backup` says (`SEAM_BACKUP_HOST`, `SEAM_BACKUP_PINNED`,
/// `SEAM_BACKUP_DISCARD`, `SEAM_BACKUP_FILE` with the file's name in `path`, which is NULL otherwise), and gives all of the tag's physical memory back.
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
        Ok(borrow(allocator)?.allocator.tags().sleep(pool.id(), &backup)?)
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
        BACKUP_HOST | BACKUP_DISCARD | BACKUP_PINNED if !path.is_null() => {
            Err(Failure::argument("path is not NULL, and backup is not SEAM_BACKUP_FILE"))
        }
        BACKUP_HOST => Ok(Backup::Host),
        BACKUP_PINNED => Ok(Backup::Pinned),
        BACKUP_DISCARD => Ok(Backup::Discard),
        _ => Err(Failure::argument(format_args!("backup is {backup}, which is no SEAM_BACKUP_*"))),
    }
}

/// Gives a tag that sleeps its memory again, at the same addresses, and what its live blocks held. `taken` gets the bytes, 0 if
/// it does not sleep; it may be NULL. Where it fails, the tag sleeps on with all that was kept, and it can be tried again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_pool_wake(allocator: AllocatorId, pool: Pool, taken: *mut u64) -> Status {
    // SAFETY: as for every function (see the header).
    unsafe { bytes_of(allocator, taken, |allocator| allocator.tags().wake(pool.id())) }
}
