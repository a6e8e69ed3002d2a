//! Chunks are split before memory grows, where the program allows it and it pays.
//!
//! Owns: when it pays. `split.rs` chooses the chunks, and `backing/exchange.rs` makes the calls.
//!
//! Growth is cheap: memory that a job needs once costs 2 to 3 ms a GiB, and a split waits for the device. But what growth adds
//! beside free memory stays held. So chunks are split once more than [`WASTE`] of what would be held lies free, for
//! [`GAIN`] of it at least, and [`MOST_MS`] at most.

use super::miss::{Joined, Stitch};
use super::split::{gain_within, may_split, split};
use crate::backing::{Miss, StrategyContext};
use crate::config::Split;
use crate::heap::Request;

/// A part (1/n) of what is held. With less lying free, memory grows.
const WASTE: u64 = 200;
/// The least that splitting is to gain, as a part (1/n) of what is held.
const GAIN: u64 = 400;
/// The longest stall, as estimated, in milliseconds.
const MOST_MS: u64 = 4;

impl Stitch {
    /// Splits chunks for a request for which so many bytes are missing, if that is better than to grow by them. Returns the block
    /// that serves it, or what is missing then.
    pub(super) fn split_before_growth(
        &mut self,
        context: &mut StrategyContext<'_>,
        request: &Request,
        missing: u64,
    ) -> Result<Joined, Miss> {
        let stays = Ok(Joined::Missing(missing));
        if context.config.split != Split::BeforeGrowth || !may_split(context) {
            return stays;
        }
        let held = context.heap.reserved().saturating_add(missing);
        let free = held.saturating_sub(context.heap.counters().active_bytes.current() + request.size);
        if free < held / WASTE {
            return stays;
        }
        let gain = gain_within(context.heap, missing, MOST_MS)?;
        if gain < held / GAIN {
            return stays;
        }
        context.wait_for_all()?;
        if split(context, gain)? { self.join(context, request) } else { stays }
    }
}
