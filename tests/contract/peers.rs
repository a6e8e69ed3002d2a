//! The features that an allocator asks of a device beside memory: access for other devices, and typed errors once the
//! context is lost.

use crate::source::{POOL, Source};
use crate::{MIB, Subject};
use seamalloc::driver::sim::{Range, SimConfig, SimGpu};
use seamalloc::driver::{Call, Driver, Status, StreamId};
use seamalloc::{Allocator, Config, Error, StrategyKind};
use std::sync::Arc;

const A: StreamId = StreamId(0xa0);
const B: StreamId = StreamId(0xb0);
const PEER: u32 = 3;

fn device() -> Arc<SimGpu> {
    Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=1GiB").unwrap()).unwrap())
}

fn on(gpu: &Arc<SimGpu>, strategy: StrategyKind) -> Allocator {
    Allocator::new(Arc::clone(gpu) as Arc<dyn Driver>, Config::with_strategy(strategy)).unwrap()
}

/// Small and large blocks, and with strategies that stitch a stitched one.
fn blocks(allocator: &Allocator) -> Vec<Range> {
    let allocate = |size| Range { address: allocator.allocate(size, A).unwrap(), size };
    let mut blocks: Vec<Range> = [1000, 40 * MIB, 2 * MIB, 40 * MIB, 2 * MIB].map(allocate).into();
    for at in [3, 1] {
        allocator.free(blocks.remove(at).address).unwrap();
    }
    blocks.push(allocate(70 * MIB));
    blocks
}

pub(crate) fn a_peer_can_use_every_block_whenever_it_was_enabled(Subject { kind, .. }: Subject) {
    let gpu = device();
    gpu.connect_peer(PEER);
    let allocator = on(&gpu, kind);
    let before = blocks(&allocator);
    assert!(before.iter().all(|block| !gpu.can_peer_use(PEER, *block)), "{kind}");
    allocator.sharing().enable_peer_access(PEER).unwrap();
    let after = blocks(&allocator);
    for block in before.iter().chain(&after) {
        assert!(gpu.can_peer_use(PEER, *block), "{kind}: {block}");
        assert!(!gpu.can_peer_use(PEER + 1, *block), "{kind}: {block}");
    }
}

pub(crate) fn a_peer_that_is_refused_has_nothing_then_or_later(Subject { kind, .. }: Subject) {
    let gpu = device();
    let allocator = on(&gpu, kind);
    let before = blocks(&allocator);
    let error = allocator.sharing().enable_peer_access(PEER).unwrap_err();
    assert!(matches!(&error, Error::Driver(error) if error.status == Status::PEER_ACCESS_UNSUPPORTED), "{error}");
    gpu.connect_peer(PEER);
    gpu.fail_nth(Call::EnablePeer, 1, Status::OUT_OF_MEMORY);
    allocator.sharing().enable_peer_access(PEER).unwrap_err();
    for block in before.iter().chain(&blocks(&allocator)) {
        assert!(!gpu.can_peer_use(PEER, *block), "{kind}: {block}");
    }
    allocator.reports().check().unwrap();
}

pub(crate) fn a_lost_context_is_a_typed_error_everywhere_and_the_end_is_clean(Subject { kind, .. }: Subject) {
    let gpu = device();
    let allocator = on(&gpu, kind);
    let [kept, shared, waiting] = [30, 20, 10].map(|size| allocator.allocate(size * MIB, A).unwrap());
    allocator.record_stream(shared, B).unwrap();
    allocator.record_stream(waiting, B).unwrap();
    gpu.hold(B);
    allocator.free(waiting).unwrap();
    gpu.lose_context(Status::ILLEGAL_ADDRESS);

    let lost = |error: Error| assert!(error.is_context_lost(), "{kind}: {error}");
    lost(allocator.allocate(200 * MIB, A).unwrap_err());
    lost(allocator.allocate(200 * MIB, StreamId(0xc0)).unwrap_err());
    lost(allocator.free(shared).unwrap_err());
    lost(allocator.empty_cache().unwrap_err());
    lost(allocator.trim(u64::MAX).unwrap_err());
    lost(allocator.streams().forget(A).unwrap_err());
    lost(allocator.sharing().enable_peer_access(PEER).unwrap_err());
    // What needs no driver works on.
    allocator.free(kept).unwrap();
    allocator.reports().check().unwrap();
    assert_eq!(allocator.stats().allocated_bytes.all.current, 20 * MIB, "{kind}: what could not be freed is live");
    drop(allocator);
}

pub(crate) fn devices_that_may_use_the_memory_may_use_a_pools_own(Subject { kind, .. }: Subject) {
    for before in [false, true] {
        let (gpu, allocator) = crate::on(kind, "sim:h200");
        let source = Source::of(&gpu);
        gpu.connect_peer(PEER);
        let enable = || allocator.sharing().enable_peer_access(PEER).unwrap();
        if before {
            enable();
            gpu.fail_nth(Call::EnablePeer, 1, Status::UNKNOWN);
            let failed = allocator.pools().open_with(POOL, source.segments()).unwrap_err();
            assert!(matches!(failed, Error::Driver(_)) && std::mem::take(&mut source.book().dropped), "{failed}");
            assert!(allocator.pools().ids().is_empty());
        }
        allocator.pools().open_with(POOL, source.segments()).unwrap();
        let address = allocator.pools().allocate(POOL, 30 * MIB, A).unwrap();
        if !before {
            enable();
        }
        assert!(gpu.can_peer_use(PEER, Range { address, size: 30 * MIB }), "{kind}, {before}");
    }
}
