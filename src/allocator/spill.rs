//! Live memory is spilled to host memory, and comes back: access advice of programs, and when memory comes back.
//!
//! Owns: the public operations. `backing/spill.rs` chooses the chunks, and `strategy/stitch/last_resort.rs` spills them
//! before a request is refused.

use super::operations::Spilling;
use crate::config::{Advice, SpillPolicy};
use crate::error::Result;

impl Spilling<'_> {
    /// Advises how the program uses a live allocation from now on. The call counts as a use of the allocation.
    /// [`Advice::Cold`] memory is spilled first. [`Advice::Hot`] memory is spilled last, and comes back at once if the
    /// device has room. For an allocation that grows, the advice holds for all its parts, including later ones. Address
    /// 0 is ignored. The advice has no effect without the option `spill`.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`](crate::Error::InvalidAddress) if no live allocation starts there;
    /// [`Error::HostMemory`](crate::Error::HostMemory); the driver's errors, after which the advice is in force.
    pub fn advise(self, address: u64, advice: Advice) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let core = &mut *self.0.core.lock();
        let spilled = if core.grows_at(address)? {
            core.advise_growing(address, advice)?
        } else {
            let id = core.heap.live(address)?;
            core.heap.advise(id, advice);
            core.heap.spilled_under(id)?
        };
        if advice == Advice::Hot && !spilled.is_empty() && !core.capturing() && core.may_spill().is_some() {
            core.bring_back(Some(&spilled))?;
        }
        core.checked()
    }

    /// Returns spilled memory to the device, as far as there is room; free memory is given back to make room. Even
    /// without the option `spill`, parts of a split chunk may lie in host memory, if another process took the device
    /// memory for them during the split. Returns the bytes that came back. The CPU waits for the device. During a
    /// stream capture, and once another device has access to the memory, no memory comes back.
    ///
    /// During the call, no thread may give the device work that uses memory of the allocator, as with
    /// [`Split`](crate::Split).
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver), [`Error::HostMemory`](crate::Error::HostMemory); memory that came back
    /// before the error stays on the device.
    pub fn restore(self) -> Result<u64> {
        let core = &mut *self.0.core.lock();
        if core.heap.spilled() == 0 || core.capturing() || !core.nobody_else_looks() {
            return Ok(0);
        }
        let returned = core.bring_back(None);
        core.checked()?;
        returned
    }

    /// Sets the policy that chooses the memory to spill from now on. The default is
    /// [`ColdestFirst`](crate::ColdestFirst).
    pub fn set_policy(self, policy: impl SpillPolicy + 'static) {
        self.0.core.lock().features.spill.policy = Box::new(policy);
    }
}
