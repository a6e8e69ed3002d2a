//! Callbacks of the program that change the allocator in the middle of a request: for memory pressure, for tags that sleep and
//! wake, and a lender. They tell the program's book what they did.

use super::dice::Dice;
use super::setup::MIB;
use seamalloc::driver::StreamId;
use seamalloc::{Allocator, Backup, Lender, Lent, PoolId, Shortage, SpillCandidate, SpillPolicy};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The depth of callbacks within callbacks at most.
const DEPTH: u32 = 2;

/// Changes that a callback made, and that the book has to follow.
pub(super) enum Act {
    Freed(u64),
    Forgot(StreamId),
    Released(PoolId),
}

/// State that the program and its callbacks share.
#[derive(Default)]
pub(super) struct Shared {
    /// The seed of the callbacks' dice. Each operation sets it, so that the operations that a shortened program keeps do the same.
    pub(super) seed: u64,
    pub(super) depth: u32,
    pub(super) capturing: bool,
    /// Blocks that the callback for pressure may free.
    pub(super) may_free: Vec<u64>,
    /// Pools with one use.
    pub(super) pools: Vec<PoolId>,
    pub(super) acts: Vec<Act>,
    /// Blocks of callbacks that could not be freed.
    pub(super) left: Vec<u64>,
    pub(super) calls: u64,
}

#[derive(Clone, Default)]
pub(super) struct Desk(Arc<Mutex<Shared>>);

impl Desk {
    pub(super) fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a callback, with dice of its own; `None` where callbacks are nested too deeply.
    fn enter(&self) -> Option<Dice> {
        let shared = &mut *self.lock();
        if shared.depth >= DEPTH {
            return None;
        }
        shared.depth += 1;
        shared.calls += 1;
        shared.seed = shared.seed.wrapping_add(0x51_7C_C1);
        Some(Dice::new(shared.seed))
    }

    fn leave(&self) {
        self.lock().depth -= 1;
    }

    fn note(&self, act: Act) {
        self.lock().acts.push(act);
    }

    /// Makes one to three changes of the allocator.
    fn meddle(&self, allocator: &Allocator, dice: &mut Dice, stream: StreamId, may_allocate: bool) {
        for _ in 0..1 + dice.below(3) {
            let (capturing, pool) = {
                let shared = self.lock();
                (shared.capturing, dice.index(shared.pools.len()).map(|at| shared.pools[at]))
            };
            let done = match dice.below(16) {
                0 if !capturing && stream != StreamId::DEFAULT => {
                    allocator.streams().forget(stream).map(|()| self.note(Act::Forgot(stream)))
                }
                1 if !capturing => match pool {
                    Some(pool) => allocator.pools().release(pool).map(|()| {
                        self.lock().pools.retain(|other| *other != pool);
                        self.note(Act::Released(pool));
                    }),
                    None => Ok(()),
                },
                2 => pool.map_or(Ok(()), |pool| allocator.tags().sleep(pool, &Backup::Host).map(drop)),
                3 => pool.map_or(Ok(()), |pool| allocator.tags().wake(pool).map(drop)),
                4 => allocator.empty_cache().map(drop),
                5 => allocator.spill().restore().map(drop),
                6 => allocator.limits().set_bytes(None),
                7 => allocator.trim(dice.below(256 * MIB)).map(drop),
                8 => allocator.tags().release_backups().map(drop),
                9 => allocator.lending().lend(16 * MIB).map(drop),
                10 => allocator.limits().set_bytes(Some(dice.below(256 * MIB))),
                11 => allocator.lending().enforce_headroom().map(drop),
                12 => allocator.reports().try_snapshot().map(drop),
                13 if may_allocate => allocator.allocate(1 + dice.below(8 * MIB), stream).map(|block| {
                    self.give_back(allocator, block);
                }),
                14 if may_allocate => allocator.growing().reserve(30 * MIB, stream).map(|block| {
                    drop((allocator.growing().grow(block, 3 * MIB), allocator.growing().shrink(block, 1)));
                    self.give_back(allocator, block);
                }),
                _ if may_allocate => {
                    let pool = allocator.pools().create();
                    if let Ok(block) = allocator.pools().allocate(pool, 2 * MIB, stream) {
                        self.give_back(allocator, block);
                    }
                    allocator.pools().release(pool)
                }
                _ => allocator.reports().try_fragmentation().map(drop),
            };
            // A refusal is one of the answers. What it may not change, the checks of the operation see.
            drop(done);
        }
    }

    fn give_back(&self, allocator: &Allocator, block: u64) {
        if allocator.free(block).is_err() {
            self.lock().left.push(block);
        }
    }

    pub(super) fn add_pressure(&self, allocator: &Arc<Allocator>) {
        let (desk, allocator_of) = (self.clone(), Arc::downgrade(allocator));
        allocator.limits().on_pressure(move |pressure| {
            let Some(allocator) = allocator_of.upgrade() else { return false };
            let Some(mut dice) = desk.enter() else { return false };
            let block = desk.lock().may_free.pop();
            let freed = block.filter(|block| allocator.free(*block).is_ok());
            freed.into_iter().for_each(|block| desk.note(Act::Freed(block)));
            if dice.one_in(2) {
                desk.meddle(&allocator, &mut dice, pressure.stream, true);
            }
            desk.leave();
            freed.is_some() || dice.one_in(8)
        });
    }

    pub(super) fn add_sleep(&self, allocator: &Arc<Allocator>) {
        let (desk, allocator_of) = (self.clone(), Arc::downgrade(allocator));
        let added = allocator.tags().on_change(move |_| {
            let Some(allocator) = allocator_of.upgrade() else { return true };
            let Some(mut dice) = desk.enter() else { return true };
            if dice.one_in(3) {
                desk.meddle(&allocator, &mut dice, StreamId(7), true);
            }
            desk.leave();
            !dice.one_in(5)
        });
        drop(added);
    }

    pub(super) fn add_lender(&self, allocator: &Arc<Allocator>) {
        let lender = Meddler { desk: self.clone(), allocator: Arc::downgrade(allocator) };
        allocator.lending().set_lender(Some(Arc::new(lender)));
    }
}

struct Meddler {
    desk: Desk,
    allocator: Weak<Allocator>,
}

impl Lender for Meddler {
    fn ask(&self, _: &Shortage) -> Lent {
        let (Some(allocator), Some(mut dice)) = (self.allocator.upgrade(), self.desk.enter()) else {
            return Lent::default();
        };
        // A lender may not allocate from the allocator.
        self.desk.meddle(&allocator, &mut dice, StreamId(7), false);
        self.desk.leave();
        Lent { processes: 1, given: dice.below(2) * dice.next(), again: dice.one_in(3), ..Lent::default() }
    }
}

/// A policy that answers anything.
pub(super) struct OddPolicy(pub(super) Mutex<Dice>);

impl SpillPolicy for OddPolicy {
    fn name(&self) -> &'static str {
        "odd"
    }

    fn coldness(&self, _: &SpillCandidate) -> Option<u64> {
        let mut dice = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if dice.one_in(5) { None } else { Some(dice.next() >> dice.below(64)) }
    }
}
