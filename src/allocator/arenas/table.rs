//! Which arena a stream has, and which one has the memory at an address.
//!
//! Owns: both tables. They are read without a lock, and written under the allocator's lock. What is read may be out of date:
//! the reader takes the lock of the arena that it finds, and looks whether that still has what it should.
//! `tests/arena_schedules.rs` tries every order in which threads may take these steps.

use super::primitive::{AtomicU8, AtomicU64, MappedMutexGuard, Mutex, MutexGuard, Ordering};
use crate::error::Result;
use crate::fallible::with_room;
use crate::heap::GRANULE;
use crate::ids::StreamId;
use crate::span::Span;

/// The most streams with arenas. A power of two.
pub(super) const LANES: usize = 64;
/// A stream has one of so many lanes: a search looks at no more.
const PROBES: usize = 8;
/// No stream has this handle.
const NO_STREAM: u64 = u64::MAX;

/// What has memory at times.
pub(super) trait Formed {
    fn is_formed(&self) -> bool;
}

/// A place for an arena, on cache lines of its own.
#[repr(align(128))]
pub(super) struct Lane<A> {
    pub(super) arena: Mutex<Option<A>>,
}

impl<A: Formed> Lane<A> {
    /// Takes the lock of the arena. Returns `None` if it has no memory.
    #[inline]
    pub(super) fn lock(&self) -> Option<MappedMutexGuard<'_, A>> {
        MutexGuard::try_map(self.arena.lock(), formed).ok()
    }
}

/// Returns the arena, if it has memory.
#[inline]
pub(super) fn formed<A: Formed>(arena: &mut Option<A>) -> Option<&mut A> {
    arena.as_mut().filter(|arena| arena.is_formed())
}

pub(super) struct Tables<A> {
    pub(super) lanes: Box<[Lane<A>]>,
    /// The stream of each lane. Who looks for one reads those of others: they are not beside the locks, which are written.
    streams: Box<[AtomicU64]>,
    /// The first byte of home.
    home: AtomicU64,
    /// For each granule of home the number of its lane plus one, or 0.
    owners: Box<[AtomicU8]>,
}

impl<A: Formed> Tables<A> {
    /// Makes the tables for a home of this size.
    pub(super) fn new(home: Span) -> Result<Self> {
        let mut lanes = with_room(LANES)?;
        lanes.resize_with(LANES, || Lane { arena: Mutex::new(None) });
        let mut streams = with_room(LANES)?;
        streams.resize_with(LANES, || AtomicU64::new(NO_STREAM));
        let granules = (home.size / GRANULE) as usize;
        let mut owners = with_room(granules)?;
        owners.resize_with(granules, AtomicU8::default);
        let home = AtomicU64::new(home.start);
        let (lanes, streams, owners) =
            (lanes.into_boxed_slice(), streams.into_boxed_slice(), owners.into_boxed_slice());
        Ok(Self { lanes, streams, home, owners })
    }

    pub(super) fn host_bytes(&self) -> usize {
        self.lanes.len() * (size_of::<Lane<A>>() + size_of::<AtomicU64>()) + self.owners.len()
    }

    /// Notes where home is. Returns whether the tables cover it. No arena has memory.
    pub(super) fn place(&self, home: Span) -> bool {
        self.home.store(home.start, Ordering::Release);
        home.size / GRANULE <= self.owners.len() as u64
    }

    /// Returns the lane of a stream.
    #[inline]
    pub(super) fn lane_of(&self, stream: StreamId) -> Option<&Lane<A>> {
        let is_its = |at: &usize| self.streams.get(*at).is_some_and(|other| other.load(Ordering::Acquire) == stream.0);
        probes(stream).find(is_its).and_then(|at| self.lanes.get(at))
    }

    /// Returns the lane of a stream, or one that it may take: one whose arena has no memory.
    pub(super) fn lane_for(&self, stream: StreamId) -> Option<&Lane<A>> {
        let is_vacant = |lane: &&Lane<A>| lane.lock().is_none();
        self.lane_of(stream).or_else(|| probes(stream).filter_map(|at| self.lanes.get(at)).find(is_vacant))
    }

    /// Gives the lane to a stream.
    pub(super) fn assign(&self, lane: &Lane<A>, stream: StreamId) {
        if let Some(of_lane) = self.number_of(lane).and_then(|at| self.streams.get(at)) {
            of_lane.store(stream.0, Ordering::Release);
        }
    }

    fn number_of(&self, lane: &Lane<A>) -> Option<usize> {
        self.lanes.iter().position(|other| std::ptr::eq(other, lane))
    }

    /// Returns the lane that may have the memory at an address.
    #[inline]
    pub(super) fn lane_at(&self, address: u64) -> Option<&Lane<A>> {
        let granule = address.wrapping_sub(self.home.load(Ordering::Acquire)) / GRANULE;
        let owner = self.owners.get(usize::try_from(granule).ok()?)?.load(Ordering::Acquire);
        self.lanes.get(usize::from(owner).checked_sub(1)?)
    }

    /// Notes that a lane has the memory of a span, or that none has.
    pub(super) fn set_owner(&self, span: Span, lane: Option<&Lane<A>>) {
        let owner = lane.and_then(|lane| self.number_of(lane)).map_or(0, |at| at as u8 + 1);
        let first = (span.start.wrapping_sub(self.home.load(Ordering::Relaxed)) / GRANULE) as usize;
        let granules = self.owners.iter().skip(first).take((span.size / GRANULE) as usize);
        granules.for_each(|granule| granule.store(owner, Ordering::Release));
    }
}

/// The lanes that a stream may have.
#[inline]
fn probes(stream: StreamId) -> impl Iterator<Item = usize> {
    // Fibonacci hashing: handles are often multiples of a power of two.
    let first = (stream.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize;
    (first..first + PROBES).map(|at| at % LANES)
}

const _: () = assert!(LANES.is_power_of_two() && LANES < u8::MAX as usize);
