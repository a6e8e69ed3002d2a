//! Home's addresses: reserved at the first need, given back when nothing lies in them.
//!
//! Owns: the driver calls for them. What lies there, and where, is the strategy's.

use super::{Ground, Miss};
use crate::blocks::State;
use crate::driver::{Call, DriverResult};
use crate::home::GRANULE;

/// The most addresses of home, in bytes (64 TiB): no driver reserves more at once.
const MOST: u64 = 64 << 40;

/// Reserves home: so many times the device.
pub(super) fn reserve(ground: &mut Ground<'_>, times: u64) -> Result<(), Miss> {
    let total = ground.driver.properties().total_memory;
    let size = total.saturating_mul(times).clamp(GRANULE, MOST).next_multiple_of(64 * GRANULE);
    let address = ground.driver.reserve(size, 0)?;
    ground.heap.check_answer(Call::Reserve, address, size, GRANULE)?;
    if let Err(error) = ground.heap.add_home(address, size) {
        ground.driver.address_free(address, size)?;
        return Err(error.into());
    }
    Ok(())
}

/// Gives back home itself, if there is nothing in it.
pub(super) fn release(ground: &mut Ground<'_>) -> DriverResult<()> {
    let Some(home) = &ground.heap.home else { return Ok(()) };
    let (address, size, head) = (home.address, home.size, ground.heap.head_of(home.segment));
    if ground.heap.blocks[head].state == State::Unmapped && !ground.heap.blocks[head].is_split() {
        ground.driver.address_free(address, size)?;
        ground.heap.remove_expandable_segment(head);
        ground.heap.home = None;
    }
    Ok(())
}
