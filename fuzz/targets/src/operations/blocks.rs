//! Operations on blocks: handed out, used by kernels, freed in every way.

use super::book::{Live, Use};
use super::program::{How, Kernel, MIB, Size, Which, too_large};
use super::trail::Line;
use super::world::{Captured, FREED, World};
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::Range;
use seamalloc::{Error, PoolId};

/// Blocks live at most: more take longer to look at than they show.
const MAX_BLOCKS: usize = 100;
/// The alignment of every address, in bytes.
const ALIGNMENT: u64 = 512;

impl World {
    /// Requested bytes.
    fn bytes(&self, size: Size) -> u64 {
        let freed = |nth: usize| self.freed.get(nth).copied().unwrap_or(4 * MIB);
        let around = |middle: u64, by: u8| (middle + u64::from(by) * 8).saturating_sub(1024);
        match size {
            Size::Tiny(n) => 1 + u64::from(n) * 4,
            Size::Small(n) => 1 + u64::from(n) * 4096,
            Size::AroundOneMib(by) => around(MIB, by),
            Size::AroundTenMib(by) => around(10 * MIB, by),
            Size::Chunks(n) => 2 * MIB * (1 + u64::from(n) % 24),
            Size::Part(n) => self.capacity / 64 * (1 + u64::from(n)),
            Size::Odd(n, m) => 1 + (u64::from(n) + u64::from(m) * 256) * 512,
            Size::Freed(nth) => freed(nth.into()),
            Size::TwoFreed(nth) => freed(nth.into()) + freed(usize::from(nth) + 1),
            Size::ManyFreed(n) => (0..2 + usize::from(n % 4)).map(freed).sum(),
            Size::HalfFreed => freed(0) / 2,
            Size::Rest(n) => ((self.capacity - self.live_bytes().min(self.capacity)) >> n).max(1),
        }
    }

    pub(super) fn allocate(&mut self, size: Size, stream: u8, kernel: Kernel) {
        if self.live.len() >= MAX_BLOCKS {
            return;
        }
        let (size, stream) = (self.bytes(size), self.stream(stream));
        let done = self.allocator.allocate(size, stream);
        self.callback_freed();
        match done {
            // It may have been routed to the pool of a capture; so may one of another stream have been, to a pool.
            Ok(address) => self.handed_out(address, size, stream, self.routed_to(stream), kernel),
            Err(error) => {
                if error.is_out_of_memory() && self.refusal_is_wrong(size) {
                    panic!("{size} bytes were refused, although the device has them: {error}");
                }
                self.refused(&error);
            }
        }
    }

    pub(super) fn allocate_in(&mut self, pool: u8, size: Size, stream: u8, kernel: Kernel, only_held: bool) {
        let Some(at) = self.pool(pool).filter(|_| self.live.len() < MAX_BLOCKS) else { return };
        let (pool, size, stream) = (self.pools[at].id, self.bytes(size), self.stream(stream));
        let done = match only_held {
            true => self.allocator.pools().allocate_held(pool, size, stream),
            false => self.allocator.pools().allocate(pool, size, stream).map(Some),
        };
        self.callback_freed();
        match done {
            Ok(Some(address)) => self.handed_out(address, size, stream, Some(pool), kernel),
            Ok(None) => {}
            Err(error) => self.refused(&error),
        }
    }

    /// A request that no device can meet.
    pub(super) fn allocate_too_much(&mut self, which: u8, stream: u8) {
        let (size, stream) = (too_large(which), self.stream(stream));
        let done = self.allocator.allocate(size, stream);
        self.callback_freed();
        match done {
            Ok(address) => panic!("{size} bytes were handed out at {address:#x}"),
            Err(error) => self.refused(&error),
        }
    }

    fn handed_out(&mut self, address: u64, requested: u64, stream: StreamId, pool: Option<PoolId>, kernel: Kernel) {
        let size = self.allocator.reports().size_of(address).expect("it was just handed out");
        assert!(size >= requested && address.is_multiple_of(ALIGNMENT), "{requested} bytes, at {address:#x}: {size}");
        assert!(!self.live.contains_key(&address), "{address:#x} is live already");
        let pieces = self.gpu.physical(Range { address, size });
        assert_eq!(
            pieces.iter().map(|piece| piece.size).sum::<u64>(),
            size,
            "memory behind every byte of {address:#x}"
        );
        self.taken.take(address, &pieces);
        let captured = self.capture.is_some_and(|capture| capture.stream == stream);
        self.note(Line::HandedOut(address, size, pool));
        let live = Live {
            size,
            stream: Some(stream),
            handle: Some(stream),
            pieces: pieces.clone(),
            pool,
            captured,
            used_until: 0,
            used_by_other: false,
        };
        self.live.insert(address, live);
        self.order.push(address);
        self.last = Some(address);
        if captured {
            let pool = pool.expect("what is captured is of a private pool");
            if let Some(by) = self.uses.in_capture(&pieces, (stream, pool), self.gpu.now_ns()) {
                panic!("a capture of stream {stream} gets {address:#x}, and it is still used: {by:?}");
            }
            self.capturing.push(Captured { pool, range: Range { address, size }, pieces });
            return;
        }
        self.is_free_of_kernels(address, stream);
        self.launch(address, stream, None, kernel);
    }

    /// No kernel of another stream may still use a block that is handed out on `stream`.
    fn is_free_of_kernels(&mut self, address: u64, stream: StreamId) {
        let now = self.gpu.now_ns();
        let starts = self.gpu.done_at(stream).expect("no work is held").max(now);
        let live = &self.live[&address];
        if let Some(by) = self.uses.conflict(&live.pieces, (stream, live.pool), (now, starts)) {
            panic!("{address:#x} is handed out for stream {stream} at {starts}, and still used: {by:?}");
        }
    }

    /// A kernel uses a block. In a capture nothing runs.
    fn launch(&mut self, address: u64, stream: StreamId, untold: Option<StreamId>, kernel: Kernel) {
        let live = &self.live[&address];
        if live.captured && self.capture.is_some() || self.capture.is_some_and(|capture| capture.stream == stream) {
            return;
        }
        let plain = live.stream == Some(stream) && live.pool.is_none();
        let (pieces, ranges) = (live.pieces.clone(), [Range { address, size: live.size }]);
        let by = Use { stream, ends: 0, untold, graph_of: None, plain };
        self.launch_on(&pieces, &ranges, by, kernel.ns());
        let ends = self.gpu.done_at(stream).expect("no work is held");
        if let Some(live) = self.live.get_mut(&address) {
            live.used_by_other |= live.stream != Some(stream);
            live.used_until = live.used_until.max(ends);
        }
    }

    /// The program uses a block on some stream, and says so where it has to.
    pub(super) fn use_block(&mut self, block: Which, stream: u8, kernel: Kernel) {
        let Some(address) = self.block(block).filter(|address| !self.is_left(*address)) else { return };
        let stream = self.stream(stream);
        if self.live[&address].stream != Some(stream)
            && let Err(error) = self.allocator.record_stream(address, stream)
        {
            return self.refused(&error);
        }
        self.launch(address, stream, None, kernel);
    }

    pub(super) fn free(&mut self, block: Which, how: How) {
        // What the callback may free is not the program's to free.
        let Some(address) = self.block(block).filter(|address| !self.is_left(*address)) else { return };
        let handle = self.live[&address].handle;
        let (done, named) = match how {
            How::Plainly => (self.allocator.free(address), None),
            // What was restored is of no stream, so that there is none that may have it at once.
            How::Recorded(stream, kernel) | How::Under(stream, kernel)
                if handle.is_none() || matches!(how, How::Recorded(..)) =>
            {
                let stream = self.stream(stream);
                if let Err(error) = self.allocator.record_stream(address, stream) {
                    return self.refused(&error);
                }
                self.launch(address, stream, None, kernel);
                (self.allocator.free(address), None)
            }
            How::On(stream, kernel) => {
                let stream = self.stream(stream);
                self.launch(address, stream, None, kernel);
                (self.allocator.free_on(address, stream), Some(stream))
            }
            How::Recorded(stream, kernel) | How::Under(stream, kernel) => {
                let stream = self.stream(stream);
                // The block's own stream, or a new one with its handle, gets the memory at once.
                let untold = handle.filter(|own| *own != stream);
                self.launch(address, stream, untold, kernel);
                (self.allocator.free_with_current_stream(address, stream), Some(stream))
            }
        };
        match done {
            Ok(()) => {
                self.gone(address);
                assert!(
                    matches!(self.allocator.reports().size_of(address), Err(Error::InvalidAddress { .. })),
                    "it was freed"
                );
                assert!(matches!(self.allocator.free(address), Err(Error::InvalidAddress { .. })), "freed twice");
            }
            Err(error) => {
                assert!(self.allocator.reports().size_of(address).is_ok(), "a free that failed left {address:#x} live");
                self.refused(&error);
                if let Some(stream) = named {
                    self.tell(address, stream);
                }
            }
        }
    }

    /// The use that a failed free named is told again, so that the next free waits for it.
    fn tell(&mut self, address: u64, stream: StreamId) {
        self.gpu.fail_no_more();
        self.faulty = false;
        match self.allocator.record_stream(address, stream) {
            Ok(()) => {}
            Err(error) => assert!(self.lost, "{error}"),
        }
    }

    /// A block is not live any more.
    pub(super) fn gone(&mut self, address: u64) {
        let Some(live) = self.live.remove(&address) else { return };
        self.taken.release(&live.pieces);
        self.order.retain(|other| *other != address);
        self.freed.truncate(FREED - 1);
        self.freed.push_front(live.size);
        if let (true, Some(pool), Some(_)) = (live.captured, live.pool, self.capture) {
            self.uses.leave_to_graphs_of(&live.pieces, pool);
        }
    }

    pub(super) fn is_left(&self, address: u64) -> bool {
        self.left.lock().is_ok_and(|left| left.may_free.contains(&address))
    }

    pub(super) fn callback_freed(&mut self) {
        let freed = self.left.lock().map(|mut left| std::mem::take(&mut left.freed)).unwrap_or_default();
        freed.into_iter().for_each(|address| self.gone(address));
    }

    pub(super) fn leave_to_callback(&mut self, block: Which) {
        let Some(address) = self.block(block).filter(|address| !self.is_left(*address)) else { return };
        if let Ok(mut left) = self.left.lock() {
            left.may_free.push(address);
        }
    }

    /// A callback that frees what was left to it, and calls the allocator in other ways.
    pub(super) fn add_callback(&mut self) {
        let (allocator, left) = (std::sync::Arc::downgrade(&self.allocator), std::sync::Arc::clone(&self.left));
        self.allocator.limits().on_pressure(move |pressure| {
            let Some(allocator) = allocator.upgrade() else { return false };
            let Some(address) = left.lock().ok().and_then(|mut left| left.may_free.pop()) else { return false };
            let freed = allocator.free(address).is_ok();
            if freed && let Ok(mut left) = left.lock() {
                left.freed.push(address);
            }
            match pressure.requested % 4 {
                0 => {
                    if let Ok(address) = allocator.allocate(3 * MIB, pressure.stream) {
                        let _ = allocator.free(address);
                    }
                }
                1 => drop((allocator.empty_cache(), allocator.trim(MIB))),
                2 => drop((allocator.reports().fragmentation(), allocator.reports().snapshot())),
                _ => {}
            }
            freed
        });
    }

    /// An address that nothing was handed out at is refused by every operation.
    pub(super) fn wrong_address(&mut self, address: u64) {
        if address == 0 || self.live.contains_key(&address) {
            return;
        }
        let (stream, allocator) = (self.stream(0), &self.allocator);
        let done = [
            allocator.free(address),
            allocator.free_on(address, stream),
            allocator.free_with_current_stream(address, stream),
            allocator.record_stream(address, stream),
            allocator.reports().size_of(address).map(drop),
            allocator.sharing().export(address).map(drop),
        ];
        for (at, done) in done.into_iter().enumerate() {
            assert!(done.is_err(), "operation {at} took {address:#x}, which is nothing");
        }
    }
}
