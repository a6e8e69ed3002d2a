//! An attack on the C library: random calls of every function by several threads, which share allocators, blocks and pools and destroy them
//! under one another, while callbacks call back.
//!
//! Owns: what the threads share, and which functions were reached. Which calls a thread makes follows from the seed; how the threads meet
//! does not.

use super::arguments::Arguments;
use super::callbacks::{ATTACK, Attack};
use super::calls;
use super::check::check;
use super::process::{begin, end};
use arbitrary::Unstructured;
use parking_lot::{Mutex, MutexGuard};
use seamalloc_c_library::allocator::seam_check;
use seamalloc_c_library::ids::Pool;
use seamalloc_c_library::status::Status;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ptr;
use std::thread::JoinHandle;

/// The depth of calls within calls at most.
const DEPTH: u32 = 2;
/// Random bytes of a round of calls, and calls of a round at most.
const BYTES: usize = 2_000;
const ROUND: u64 = 64;
/// Blocks and pools that the threads share at most.
const MAX_BLOCKS: usize = 300;
const MAX_POOLS: usize = 24;
/// Functions that most calls are of, so that there is memory for the others.
const OFTEN: [&str; 16] = [
    "seam_malloc",
    "seam_malloc",
    "seam_malloc",
    "seam_malloc",
    "seam_malloc",
    "seam_free",
    "seam_free",
    "seam_free",
    "seam_pool_malloc",
    "seam_pool_create_tag",
    "seam_pool_sleep",
    "seam_pool_wake",
    "seam_reserve",
    "seam_grow",
    "seam_advise",
    "seam_pool_malloc",
];
/// Functions whose answer is no status, and which are called whenever they are chosen.
const WITHOUT_STATUS: [&str; 16] = [
    "seam_abi_version",
    "seam_version",
    "seam_last_error",
    "seam_last_error_text",
    "seam_last_driver_status",
    "seam_clear_last_error",
    "seam_status_name",
    "seamalloc_malloc",
    "seamalloc_free",
    "seamalloc_record_stream",
    "seamalloc_empty_cache",
    "seamalloc_set_memory_fraction",
    "seamalloc_begin_pool",
    "seamalloc_end_pool",
    "seamalloc_release_pool",
    "seam_set_message_handler",
];

/// How often each function was called, and how often it did as asked.
pub type Reached = BTreeMap<&'static str, (u64, u64)>;

/// The allocators, blocks and pools that the threads share. Addresses are numbers here, since the program never looks behind them.
#[derive(Default)]
struct Table {
    allocators: Vec<u64>,
    destroyed: Vec<u64>,
    blocks: Vec<(u64, usize)>,
    growing: Vec<(u64, usize)>,
    pools: Vec<(u64, Pool)>,
    callbacks: Vec<u64>,
    plugged: Vec<(c_int, usize)>,
    reached: Reached,
}

static TABLE: Mutex<Option<Table>> = Mutex::new(None);

thread_local! {
    static DEEP: Cell<u32> = const { Cell::new(0) };
    static SEED: Cell<u64> = const { Cell::new(0) };
}

/// Makes `calls` calls in all, in so many threads.
///
/// # Panics
/// An answer is wrong.
pub fn attack(seed: u64, calls: u64, threads: u64) -> Reached {
    let _alone = begin();
    *table() = Some(Table::default());
    *ATTACK.lock() = Some(Attack { call_back, is_refused });
    let started = (0..threads).map(|thread| {
        std::thread::spawn(move || {
            SEED.set(seed.wrapping_mul(1_000_003).wrapping_add(thread));
            let mut made = 0;
            while made < calls / threads {
                made += round(ROUND.min(calls / threads - made));
            }
        })
    });
    let started: Vec<JoinHandle<()>> = started.collect();
    let ended: Vec<std::thread::Result<()>> = started.into_iter().map(JoinHandle::join).collect();
    if let Some(Err(found)) = ended.into_iter().find(Result::is_err) {
        std::panic::resume_unwind(found);
    }
    *ATTACK.lock() = None;
    let table = table().take().unwrap_or_default();
    let mut rest = Arguments::new(Unstructured::new(&[]));
    rest.allocators = table.allocators;
    rest.blocks = table.blocks.into_iter().map(|(of, block)| (of, ptr::without_provenance_mut(block))).collect();
    rest.plugged = table.plugged.into_iter().map(|(of, block)| (of, ptr::without_provenance_mut(block))).collect();
    end(rest);
    table.reached
}

fn table() -> MutexGuard<'static, Option<Table>> {
    TABLE.lock()
}

/// Returns random bytes, in the order of this thread.
fn random_bytes() -> Vec<u8> {
    let mut state = SEED.get();
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = state;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ (x >> 31)).to_le_bytes()
    };
    let bytes = (0..BYTES / 8).flat_map(|_| next()).collect();
    SEED.set(state);
    bytes
}

/// Makes up to so many calls with what is shared. Returns how many.
fn round(most: u64) -> u64 {
    let bytes = random_bytes();
    let mut a = Arguments::new(Unstructured::new(&bytes));
    a.wide = true;
    for made in 0..most {
        take_up(&mut a);
        let often = a.small() < 2;
        let name = OFTEN[a.index(OFTEN.len())];
        let call = if often { calls::make_named(&mut a, name) } else { calls::make(&mut a) };
        let Some((name, answer)) = call else { return made.max(1) };
        if let Some(status) = answer {
            check(name, status);
        }
        a.learn();
        publish(&mut a, name, answer);
    }
    most.max(1)
}

/// Copies the table into the arguments of a call.
fn take_up(a: &mut Arguments<'_>) {
    let guard = table();
    let Some(table) = &*guard else { return };
    a.allocators.clone_from(&table.allocators);
    a.destroyed.clone_from(&table.destroyed);
    a.blocks = table.blocks.iter().map(|(of, block)| (*of, ptr::without_provenance_mut(*block))).collect();
    a.growing = table.growing.iter().map(|(of, block)| (*of, ptr::without_provenance_mut(*block))).collect();
    a.pools.clone_from(&table.pools);
    a.callbacks.clone_from(&table.callbacks);
    a.plugged = table.plugged.iter().map(|(of, block)| (*of, ptr::without_provenance_mut(*block))).collect();
}

/// Adds to the table what a call made, and removes what it destroyed.
fn publish(a: &mut Arguments<'_>, name: &'static str, answer: Option<Status>) {
    let mut guard = table();
    let Some(table) = &mut *guard else { return };
    let reached = table.reached.entry(name).or_default();
    reached.0 += u64::from(answer.is_some() || WITHOUT_STATUS.contains(&name));
    reached.1 += u64::from(answer == Some(Status::Ok));
    // Each call adds one of a kind at most, at the end.
    let new = |from: &[u64], to: &mut Vec<u64>| to.extend(from.last().filter(|last| !to.contains(*last)).copied());
    new(&a.destroyed, &mut table.destroyed);
    new(&a.allocators, &mut table.allocators);
    new(&a.callbacks, &mut table.callbacks);
    table.allocators.retain(|allocator| !table.destroyed.contains(allocator));
    let blocks = || a.blocks.iter().map(|(of, block)| (*of, block.addr()));
    match name {
        // Another thread may free the same block, and is refused.
        "seam_free" | "seam_free_on" | "seam_free_under" if answer == Some(Status::Ok) => {
            table.blocks.retain(|block| blocks().any(|other| other == *block));
            table.growing.retain(|block| blocks().any(|other| other == *block));
        }
        "seam_reserve" | "seam_pool_reserve" if answer == Some(Status::Ok) => {
            table.growing.extend(blocks().next_back());
            table.blocks.extend(blocks().next_back());
        }
        _ => table.blocks.extend(blocks().next_back().filter(|last| !table.blocks.contains(last))),
    }
    if let Some(pool) = a.pools.last() {
        let name = |pool: &(u64, Pool)| (pool.0, pool.1.first, pool.1.second);
        let known = table.pools.iter().any(|other| name(other) == name(pool));
        table.pools.extend((!known).then_some(*pool));
    }
    if name.starts_with("seamalloc_") {
        table.plugged = a.plugged.iter().map(|(of, block)| (*of, block.addr())).collect();
    }
    let blocks = table.blocks.len().saturating_sub(MAX_BLOCKS);
    table.blocks.drain(..blocks);
    let pools = table.pools.len().saturating_sub(MAX_POOLS);
    table.pools.drain(..pools);
    let callbacks = table.callbacks.len().saturating_sub(MAX_POOLS);
    table.callbacks.drain(..callbacks);
}

/// Calls some functions from a callback that may call every one.
fn call_back(user: u64) {
    if DEEP.get() >= DEPTH {
        return;
    }
    // One call in four calls back, so that callbacks of callbacks are few.
    let often = SEED.get().wrapping_add(user).is_multiple_of(4);
    SEED.set(SEED.get().wrapping_add(1));
    if !often {
        return;
    }
    DEEP.set(DEEP.get() + 1);
    round(1 + user % 4);
    DEEP.set(DEEP.get() - 1);
}

/// Checks that functions called under the allocator's lock are refused, whatever allocator they name.
fn is_refused() {
    let allocators = table().as_ref().map(|table| table.allocators.clone()).unwrap_or_default();
    for allocator in allocators.into_iter().take(2) {
        let answer = seam_check(allocator);
        assert!(answer == Status::Reentrant || answer == Status::InvalidHandle, "under the lock: {answer:?}");
    }
}
