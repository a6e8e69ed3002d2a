//! The objects that a program owns of an allocator: blocks, pools, routes and streams that end when they are dropped,
//! whatever else happens.

mod blocks;
mod ends;
mod last_uses;
mod opened;
mod pools;
mod streams;
mod texts;
mod unwinding;

use crate::simulated;
use seamalloc::driver::sim::SimGpu;
use seamalloc::{Allocator, Config, StreamId};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId(7);
const SIDE: StreamId = StreamId(8);

/// A GPU, and an allocator on it with the default strategy.
fn device() -> (Arc<SimGpu>, Allocator) {
    simulated::on("sim:h200", Config::default())
}

fn live(allocator: &Allocator) -> u64 {
    allocator.stats().allocation.all.current
}
