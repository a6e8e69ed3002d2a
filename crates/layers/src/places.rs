//! The allocators of one device, made when they are first used: one for all requests, one for each stream, or one for
//! each thread.
//!
//! Owns: which allocator serves a request, and to which allocator a block goes back. The rules are those of Paddle's
//! facade (`allocator_facade.cc`, commit 05a90fc):
//! - `GetAllocator(place, stream, create_if_not_found)`: one allocator for each stream, made at the stream's first
//!   request and looked up under a lock that readers share;
//! - `ZeroSizeAllocator`: a request for 0 bytes gets address 0 and no allocator;
//! - `StreamSafeCUDAAllocator::AllocateImpl` and `ReleaseImpl` (`stream_safe_cuda_allocator.cc`, commit 02a5e4e):
//!   before a request is refused, the allocators of all streams give back their free memory, and the request is tried
//!   once more; not during a capture;
//! - `ThreadLocalCUDAAllocatorPool` (`thread_local_allocator.h`, commit 3c0becf): one allocator for each thread; a
//!   block keeps its allocator alive, and goes back to it, whichever thread frees the block.

use crate::contract::{MemoryResource, PrivatePools};
use crate::error::{ResourceError, Result};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use seamalloc::Allocator;
use seamalloc::Config;
use seamalloc::RawBlock;
use seamalloc::Route;
use seamalloc::driver::{Driver, MemoryInfo};
use seamalloc::{PoolId, StreamId};
use seamalloc_driver::fallible::{TryPush, try_insert};
use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};

/// A resource that several owners share. A [`Facade`](crate::Facade) stacks such resources.
pub type SharedResource = Arc<dyn PrivatePools>;

/// The division of a device of a [`Facade`](crate::Facade) among allocators. Each allocator has options, limits and
/// statistics of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Spread {
    /// One allocator for the device, which knows all streams.
    #[default]
    Device,
    /// One allocator for each stream, as Paddle's facade with `auto_growth`.
    Stream,
    /// One allocator for each thread, as Paddle's `thread_local`. A block goes back to the allocator of the thread that
    /// allocated it.
    Thread,
}

/// The key by which the allocator of a request is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    All,
    Stream(StreamId),
    Thread(ThreadId),
}

/// An allocator, and the layers around it.
pub(super) struct Served {
    allocator: Arc<Allocator>,
    resource: SharedResource,
}

#[derive(Default)]
struct State {
    /// The allocators by key. If one stream has several handles, all of them lead to the same allocator.
    served: FxHashMap<Key, Arc<Served>>,
    /// The private pools, which every allocator has.
    pools: Vec<PoolId>,
    captures: Vec<(PoolId, StreamId)>,
    next_pool: u64,
}

type Wrap = Arc<dyn Fn(SharedResource) -> SharedResource + Send + Sync>;

/// The allocators of one device.
pub(super) struct Places {
    driver: Arc<dyn Driver>,
    config: Config,
    spread: Spread,
    around: Vec<Wrap>,
    state: RwLock<State>,
    /// The owners (allocators) of live blocks if each thread has its own allocator. Otherwise the device or the block's
    /// stream has only one owner.
    owners: Mutex<Owners>,
}

#[derive(Default)]
struct Owners {
    /// The owner and the number of each allocation, by address.
    of: FxHashMap<u64, (Arc<Served>, u64)>,
    count: u64,
}

/// The number of the first private pool that is made here. The pools of programs have small numbers.
const FIRST_POOL: u64 = 1 << 63;

impl Places {
    pub(super) fn new(driver: Arc<dyn Driver>, config: Config, spread: Spread, around: Vec<Wrap>) -> Arc<Self> {
        let state = RwLock::new(State { next_pool: FIRST_POOL, ..State::default() });
        Arc::new(Self { driver, config, spread, around, state, owners: Mutex::default() })
    }

    fn key(&self, stream: StreamId) -> Key {
        match self.spread {
            Spread::Device => Key::All,
            Spread::Stream => Key::Stream(stream),
            Spread::Thread => Key::Thread(thread::current().id()),
        }
    }

    /// Returns the allocator for requests of this thread for a stream. The allocator is made now if there is none.
    fn for_request(self: &Arc<Self>, stream: StreamId) -> Result<Arc<Served>> {
        let key = self.key(stream);
        if let Some(served) = self.state.read().served.get(&key) {
            return Ok(Arc::clone(served));
        }
        let canonical = match key {
            Key::Stream(stream) => Key::Stream(self.driver.canonical_stream(stream)?),
            key => key,
        };
        let state = &mut *self.state.write();
        state.served.try_reserve(2)?;
        let served = match state.served.get(&canonical) {
            Some(served) => Arc::clone(served),
            None => Arc::new(self.make(state)?),
        };
        if self.spread == Spread::Thread {
            note_end_of_thread(self)?;
        }
        for key in [canonical, key] {
            state.served.insert(key, Arc::clone(&served));
        }
        Ok(served)
    }

    /// Makes an allocator, with the private pools and the captures of the other allocators.
    fn make(&self, state: &State) -> Result<Served> {
        let allocator = Arc::new(Allocator::new(Arc::clone(&self.driver), self.config.clone())?);
        for pool in &state.pools {
            allocator.pools().open(*pool)?;
        }
        for (pool, stream) in &state.captures {
            allocator.pools().begin(*pool, Route::stream(*stream).capturing())?;
        }
        let bottom: SharedResource = Arc::<Allocator>::clone(&allocator);
        let resource = self.around.iter().fold(bottom, |resource, wrap| wrap(resource));
        Ok(Served { allocator, resource })
    }

    /// Returns the allocator that a block came from.
    fn of_block(&self, block: RawBlock) -> Result<Arc<Served>> {
        let found = match self.spread {
            Spread::Thread => self.owner_of(block).map(|(owner, _)| owner),
            Spread::Device => self.state.read().served.get(&Key::All).cloned(),
            Spread::Stream => self.state.read().served.get(&Key::Stream(block.stream)).cloned(),
        };
        found.ok_or(ResourceError::UnknownBlock { address: block.address })
    }

    fn owner_of(&self, block: RawBlock) -> Option<(Arc<Served>, u64)> {
        self.owners.lock().of.get(&block.address).cloned()
    }

    /// Notes the owner of a new block, its allocator. A block that is just being freed may have had the same address.
    fn note_owner(&self, block: RawBlock, owner: &Arc<Served>) -> Result<()> {
        let owners = &mut *self.owners.lock();
        let before = try_insert(&mut owners.of, block.address, (Arc::clone(owner), owners.count))?;
        owners.count += 1;
        // This drop ends no allocator under the lock: the thread that frees the earlier block holds its owner too.
        drop(before);
        Ok(())
    }

    /// Forgets the owner of a block that was freed, unless another block has the address by now.
    fn forget_owner(&self, block: RawBlock, number: u64) {
        let owners = &mut self.owners.lock().of;
        if owners.get(&block.address).is_some_and(|(_, of)| *of == number) {
            owners.remove(&block.address);
        }
    }

    /// Returns every allocator once.
    fn all(&self) -> Result<Vec<Arc<Served>>> {
        distinct(&self.state.read())
    }

    pub(super) fn allocators(&self) -> Result<Vec<Arc<Allocator>>> {
        Ok(self.all()?.iter().map(|served| Arc::clone(&served.allocator)).collect())
    }

    /// Forgets a stream that the program is about to destroy; with one allocator for each stream, the stream's
    /// allocator ends with its last block.
    pub(super) fn forget_stream(&self, stream: StreamId) -> Result<()> {
        let all = self.all()?;
        for served in &all {
            served.allocator.streams().forget(stream)?;
        }
        drop(all);
        if self.spread != Spread::Stream {
            return Ok(());
        }
        let state = &mut *self.state.write();
        let Some(served) = state.served.get(&Key::Stream(stream)).cloned() else { return Ok(()) };
        let names = state.served.values().filter(|other| Arc::ptr_eq(other, &served)).count();
        // No other thread is about to use the allocator, and no block will come back.
        if Arc::strong_count(&served) == names + 1 && served.allocator.stats().allocated_bytes.all.current == 0 {
            state.served.retain(|_, other| !Arc::ptr_eq(other, &served));
        }
        Ok(())
    }

    /// Forgets the allocator of a thread that has ended. The allocator lives on while it has live blocks.
    fn end_thread(&self, thread: ThreadId) {
        let ended = self.state.write().served.remove(&Key::Thread(thread));
        drop(ended);
    }

    /// Gives back the free memory of every allocator, and logs failures.
    fn release_all(&self) -> Result<u64> {
        if !self.state.read().captures.is_empty() {
            return Ok(0);
        }
        let (mut released, mut failed) = (0, None);
        for served in self.all()? {
            match served.resource.release() {
                Ok(bytes) => released += bytes,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(released), Err)
    }

    fn allocate_from(&self, served: &Arc<Served>, size: u64, stream: StreamId) -> Result<RawBlock> {
        if self.spread != Spread::Thread {
            return served.resource.allocate(size, stream);
        }
        let block = served.resource.allocate(size, stream)?;
        if let Err(error) = self.note_owner(block, served) {
            served.resource.deallocate(block, stream)?;
            return Err(error);
        }
        Ok(block)
    }

    /// Applies a step to the allocators one by one. If the step fails for an allocator, it is undone for the earlier
    /// allocators.
    fn for_each(
        state: &State,
        run: impl Fn(&Allocator) -> seamalloc::Result<()>,
        undo: impl Fn(&Allocator) -> seamalloc::Result<()>,
    ) -> Result<()> {
        let all = distinct(state)?;
        for (at, served) in all.iter().enumerate() {
            if let Err(error) = run(&served.allocator) {
                for undone in all.iter().take(at) {
                    if let Err(error) = undo(&undone.allocator) {
                        tracing::error!(%error, "an allocator keeps what others undid");
                    }
                }
                return Err(error.into());
            }
        }
        Ok(())
    }
}

fn distinct(state: &State) -> Result<Vec<Arc<Served>>> {
    let mut all: Vec<Arc<Served>> = Vec::new();
    for served in state.served.values() {
        if !all.iter().any(|other| Arc::ptr_eq(other, served)) {
            all.try_push(Arc::clone(served))?;
        }
    }
    Ok(all)
}

thread_local! {
    /// The [`Places`] that have an allocator of this thread.
    static ENDS: RefCell<EndOfThread> = const { RefCell::new(EndOfThread(Vec::new())) };
}

struct EndOfThread(Vec<Weak<Places>>);

impl Drop for EndOfThread {
    fn drop(&mut self) {
        let thread = thread::current().id();
        self.0.iter().filter_map(Weak::upgrade).for_each(|places| places.end_thread(thread));
    }
}

/// Registers `places` to be told of the end of this thread.
fn note_end_of_thread(places: &Arc<Places>) -> Result<()> {
    let noted = ENDS.try_with(|ends| {
        let Ok(mut ends) = ends.try_borrow_mut() else { return Ok(()) };
        ends.0.retain(|of| of.strong_count() > 0);
        ends.0.try_push(Arc::downgrade(places))
    });
    // If this thread is ending already, its end is not noticed, and its allocator stays.
    Ok(noted.unwrap_or(Ok(()))?)
}

/// The allocators of a device as one resource.
#[derive(Clone)]
pub(super) struct Device(pub(super) Arc<Places>);

impl MemoryResource for Device {
    fn allocate(&self, size: u64, stream: StreamId) -> Result<RawBlock> {
        if size == 0 {
            return Ok(RawBlock::empty(stream));
        }
        let places = &self.0;
        let served = places.for_request(stream)?;
        match places.allocate_from(&served, size, stream) {
            // The only allocator of a device has given back its free memory itself, before it refused the request.
            Err(error) if error.is_out_of_memory() && places.spread != Spread::Device => {
                if let Err(error) = places.release_all() {
                    tracing::warn!(%error, "free memory of other allocators could not be given back");
                }
                places.allocate_from(&served, size, stream)
            }
            done => done,
        }
    }

    fn deallocate(&self, block: RawBlock, stream: StreamId) -> Result<()> {
        if block.is_empty() {
            return Ok(());
        }
        let places = &self.0;
        if places.spread != Spread::Thread {
            return places.of_block(block)?.resource.deallocate(block, stream);
        }
        let owner = places.owner_of(block);
        let (owner, number) = owner.ok_or(ResourceError::UnknownBlock { address: block.address })?;
        owner.resource.deallocate(block, stream)?;
        // `owner` lives until here: an allocator whose thread has ended may end with `owner`, outside of the lock.
        places.forget_owner(block, number);
        Ok(())
    }

    fn record_stream(&self, block: RawBlock, stream: StreamId) -> Result<()> {
        if block.is_empty() { Ok(()) } else { self.0.of_block(block)?.resource.record_stream(block, stream) }
    }

    fn erase_stream(&self, block: RawBlock, stream: StreamId) -> Result<()> {
        if block.is_empty() { Ok(()) } else { self.0.of_block(block)?.resource.erase_stream(block, stream) }
    }

    fn release(&self) -> Result<u64> {
        self.0.release_all()
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        Ok(self.0.driver.memory_info()?)
    }

    fn is_capturing(&self, stream: StreamId) -> Result<bool> {
        let stream = self.0.driver.canonical_stream(stream)?;
        Ok(self.0.driver.is_capturing(stream)?)
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = match self.0.spread {
            Spread::Device => "device",
            Spread::Stream => "stream",
            Spread::Thread => "thread",
        };
        write!(f, "{} by {each}", self.0.config.strategy)
    }
}

impl PrivatePools for Device {
    fn create_pool(&self) -> Result<PoolId> {
        let state = &mut *self.0.state.write();
        let pool = PoolId(state.next_pool, 0);
        state.pools.try_reserve(1)?;
        Places::for_each(state, |of| of.pools().open(pool), |of| of.pools().release(pool))?;
        state.next_pool += 1;
        state.pools.push(pool);
        Ok(pool)
    }

    fn release_pool(&self, pool: PoolId) -> Result<()> {
        let state = &mut *self.0.state.write();
        Places::for_each(state, |of| of.pools().release(pool), |of| of.pools().open(pool))?;
        state.pools.retain(|of| *of != pool);
        Ok(())
    }

    fn begin_capture(&self, pool: PoolId, stream: StreamId) -> Result<()> {
        let state = &mut *self.0.state.write();
        state.captures.try_reserve(1)?;
        let begin = |of: &Allocator| of.pools().begin(pool, Route::stream(stream).capturing());
        Places::for_each(state, begin, |of| of.pools().end(pool))?;
        state.captures.push((pool, stream));
        Ok(())
    }

    fn end_capture(&self, pool: PoolId) -> Result<()> {
        let state = &mut *self.0.state.write();
        let Some((_, stream)) = state.captures.iter().copied().find(|(of, _)| *of == pool) else {
            return Err(seamalloc::Error::PoolNotRouted { pool }.into());
        };
        let begin = |of: &Allocator| of.pools().begin(pool, Route::stream(stream).capturing());
        Places::for_each(state, |of| of.pools().end(pool), begin)?;
        state.captures.retain(|(of, _)| *of != pool);
        Ok(())
    }
}
