//! All other operations, which function carries out which, and the end of a program.

use super::program::{Op, Until, Which, call, status};
use super::trail::Line;
use super::world::{Pool, THOROUGH, World};
use seamalloc::driver::sim::Range;
use seamalloc::driver::{Driver, Status};
use seamalloc::{Error, IpcError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const NS: u64 = 1_000;
/// Blocks that a process shares at most: the descriptors that it sends stay open.
const MAX_SHARED: u32 = 100;
/// Descriptors that a process has sent, in shares.
static SHARED: AtomicU32 = AtomicU32::new(0);

impl World {
    pub(super) fn step(&mut self, op: Op) {
        self.ops += 1;
        self.note(Line::Op(self.ops, op));
        self.carry_out(op);
        self.callback_freed();
        self.check(self.ops.is_multiple_of(THOROUGH));
    }

    fn carry_out(&mut self, op: Op) {
        match op {
            Op::Allocate { size, stream, kernel } => self.allocate(size, stream, kernel),
            Op::AllocateIn { pool, size, stream, kernel, only_held } => {
                self.allocate_in(pool, size, stream, kernel, only_held)
            }
            Op::Free { block, how } => self.free(block, how),
            Op::Launch { block, stream, kernel } => self.use_block(block, stream, kernel),
            Op::Advance(until) => self.advance(until),
            Op::RunAhead { us } => self.gpu.set_run_ahead(u64::from(us) * NS),
            Op::EmptyCache => self.empty_cache(),
            Op::Trim { part } => self.trim(part),
            Op::Limit { part } => self.set_limit(part),
            Op::Fraction { percent } => self.set_fraction(percent),
            Op::ForgetStream { stream, destroy } => self.forget_stream(stream, destroy),
            Op::ReplaceStream { stream } => self.replace_stream(stream),
            Op::BorrowStream { stream } => self.borrow_stream(stream),
            Op::CreatePool => self.create_pool(),
            Op::OpenPoolWithSegments { unsplit, own_source } => self.open_pool_with(unsplit, own_source),
            Op::ReopenPool { which } => self.reopen_pool(which),
            Op::KeepPoolUnsplit { pool } => self.keep_unsplit(pool),
            Op::RetainPool { pool } => self.retain_pool(pool),
            Op::ReleasePool { pool } => self.release_pool(pool),
            Op::EmptyPool { pool } => self.empty_pool(pool),
            Op::BeginRoute { pool, stream } => self.begin_route(pool, stream),
            Op::EndRoute { pool } => self.end_route(pool),
            Op::BeginCapture { pool, stream, mode } => self.begin_capture(pool, stream, mode),
            Op::EndCapture => self.end_capture(),
            Op::LaunchGraph { graph, stream, kernel } => self.launch_graph(graph, stream, kernel),
            Op::TakeCheckpoint { pool } => self.take_checkpoint(pool),
            Op::Restore { checkpoint } => self.restore(checkpoint),
            Op::LeaveToCallback { block } => self.leave_to_callback(block),
            Op::Share { block } => self.share(block),
            Op::OpenShared { handle } => {
                let opened = self.allocator.sharing().open(&handle);
                assert!(opened.is_err(), "{handle:?} names nothing");
            }
            Op::WrongAddress { address } => self.wrong_address(address),
            Op::NextToBlock { block, by } => {
                if let Some(address) = self.block(block) {
                    self.wrong_address(address + u64::from(by));
                }
            }
            Op::TooLarge { which, stream } => self.allocate_too_much(which, stream),
            Op::ConnectPeer { ordinal } => self.connect_peer(ordinal),
            Op::Fail { call: at, nth, status: answer } => {
                self.gpu.fail_nth(call(at), 1 + u64::from(nth) % 8, status(answer));
                self.faulty = true;
            }
            Op::FailNoMore => {
                self.gpu.fail_no_more();
                self.faulty = false;
            }
            Op::LoseContext { really } => {
                if really && self.capture.is_none() {
                    self.gpu.lose_context(Status::ILLEGAL_ADDRESS);
                    self.lost = true;
                }
            }
            Op::ResetStats => {
                self.allocator.reports().reset_peaks();
                self.allocator.reports().reset_accumulated();
            }
            Op::Look => self.look(),
        }
    }

    fn advance(&mut self, until: Until) {
        match until {
            Until::Us(us) => self.gpu.advance(u64::from(us) * NS),
            Until::Done(stream) => {
                let done = self.gpu.done_at(self.other_stream(stream)).expect("no work is held");
                self.gpu.advance(done.saturating_sub(self.gpu.now_ns()));
            }
        }
    }

    fn empty_cache(&mut self) {
        let before = self.allocator.reports().reserved();
        match self.allocator.empty_cache() {
            Ok(given) => assert_eq!(before - given, self.allocator.reports().reserved(), "what was given back"),
            Err(error) => self.refused(&error),
        }
    }

    fn trim(&mut self, part: u8) {
        let before = self.allocator.reports().reserved();
        match self.allocator.trim(self.capacity / 256 * u64::from(part)) {
            Ok(given) => assert_eq!(before - given, self.allocator.reports().reserved(), "what was given back"),
            Err(error) => self.refused(&error),
        }
    }

    fn set_limit(&mut self, part: Option<u8>) {
        let bytes = part.map(|part| self.capacity / 256 * u64::from(part));
        self.limited |= bytes.is_some();
        if let Err(error) = self.allocator.limits().set_bytes(bytes) {
            self.refused(&error);
        }
    }

    fn set_fraction(&mut self, percent: u8) {
        self.limited |= percent != 100;
        match self.allocator.limits().set_fraction(f64::from(percent) / 100.0) {
            Ok(()) => assert!(percent <= 100, "{percent} %"),
            Err(error) => assert!(percent > 100 && matches!(error, Error::Config(_)), "{percent} %: {error}"),
        }
    }

    /// The program says that a stream ends, and may destroy it.
    fn forget_stream(&mut self, stream: u8, destroy: bool) {
        let stream = self.other_stream(stream);
        if self.destroyed.contains(&stream) {
            return;
        }
        match self.allocator.streams().forget(stream) {
            Ok(()) => {
                self.live.values_mut().filter(|live| live.stream == Some(stream)).for_each(|live| live.stream = None);
                if destroy {
                    self.gpu.destroy_stream(stream);
                    self.destroyed.insert(stream);
                }
            }
            Err(error) => self.refused(&error),
        }
    }

    fn replace_stream(&mut self, stream: u8) {
        let stream = self.other_stream(stream);
        // While a stream is captured, numbers cannot be asked for.
        if self.capture.is_none() && !self.destroyed.contains(&stream) {
            // That a stream has ended is noticed for its own memory alone: what else it uses has to be passed before. It is
            // not noticed either where a stream was first seen in a capture, when no number can be asked for.
            let (now, done) = (self.gpu.now_ns(), self.gpu.done_at(stream).expect("no work is held"));
            if self.captures > 0 || self.uses.has_elsewhere(stream, now) {
                self.gpu.advance(done.saturating_sub(now));
            }
            self.uses.give_up(stream, done);
            self.gpu.replace_stream(stream);
        }
    }

    fn borrow_stream(&mut self, stream: u8) {
        let stream = self.stream(stream);
        if let Err(error) = self.allocator.streams().mark_external(stream) {
            self.refused(&error);
        }
    }

    /// A block is opened where it was shared, and is the same memory.
    fn share(&mut self, block: Which) {
        let Some(address) = self.block(block).filter(|_| self.capture.is_none() && !self.lost) else { return };
        self.gpu.fail_no_more();
        self.faulty = false;
        if SHARED.fetch_add(1, Relaxed) >= MAX_SHARED {
            // As it ends where memory is shared, so that an input does the same wherever it stands among others.
            return self.gpu.synchronize().expect("no call fails");
        }
        let shared = self.allocator.sharing().export(address).expect("no call fails");
        match self.allocator.sharing().open(&shared.handle) {
            Ok(opened) => {
                let live = &self.live[&address];
                let range = Range { address: opened + shared.offset, size: live.size };
                assert_eq!(self.gpu.physical(range), live.pieces, "what was opened is what was shared");
                self.allocator.sharing().close(opened).expect("no call fails");
                let again = self.allocator.sharing().close(opened);
                assert_eq!(again, Err(Error::Ipc(IpcError::NotOpen { address: opened })), "closed twice");
            }
            // Plain memory cannot be opened by the process that has it.
            Err(Error::Driver(_)) => {}
            Err(error) => panic!("what was shared cannot be opened: {error}"),
        }
    }

    /// Once a device may use the memory, it may use all of it.
    fn connect_peer(&mut self, ordinal: u8) {
        let ordinal = 1 + u32::from(ordinal) % 3;
        self.gpu.connect_peer(ordinal);
        match self.allocator.sharing().enable_peer_access(ordinal) {
            Ok(()) => {
                self.peers.insert(ordinal);
            }
            Err(error) => self.refused(&error),
        }
    }

    fn look(&self) {
        let stats = self.allocator.stats();
        assert!(stats.reserved_bytes.all.peak >= stats.reserved_bytes.all.current);
        for pool in self.allocator.pools().ids() {
            let pool = self.allocator.pools().stats(pool).expect("it exists");
            assert!(pool.allocated_bytes <= pool.active_bytes && pool.active_bytes <= pool.reserved_bytes, "{pool:?}");
        }
        for done in [
            self.allocator.reports().largest_request(),
            self.allocator.driver().memory_info().map(|memory| memory.free).map_err(Error::from),
        ] {
            if let Err(error) = done {
                self.refused(&error);
            }
        }
    }

    /// Ends everything that is under way, frees all, and gives all back.
    pub(super) fn finish(mut self) {
        self.note(Line::End);
        self.gpu.fail_no_more();
        self.faulty = false;
        if self.lost {
            return self.finish_lost();
        }
        self.end_capture();
        for (pool, _) in std::mem::take(&mut self.routed) {
            self.allocator.pools().end(pool).expect("it is routed");
        }
        for Pool { id, uses } in std::mem::take(&mut self.pools) {
            (0..uses).for_each(|_| self.allocator.pools().release(id).expect("it has a use"));
        }
        self.graphs.clear();
        for address in self.live.keys() {
            self.allocator.free(*address).expect("it is live");
        }
        self.live.clear();
        self.taken.clear();
        self.allocator.empty_cache().expect("no call fails");
        self.check(true);
        assert_eq!(self.allocator.reports().reserved(), 0, "all was freed; {:?}", self.allocator.pools().ids());
        let Self { gpu, allocator, .. } = self;
        drop(Arc::into_inner(allocator).expect("nobody else has it"));
        assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
    }

    /// Without a context nothing can be given back.
    fn finish_lost(mut self) {
        for address in std::mem::take(&mut self.live).into_keys() {
            match self.allocator.free(address) {
                Ok(()) => {}
                Err(error) => assert!(error.is_context_lost(), "{error}"),
            }
        }
        self.allocator.reports().check().unwrap_or_else(|broken| panic!("{broken}"));
    }
}
