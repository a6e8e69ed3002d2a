//! Live memory is spilled to the machine's memory, and comes back: what programs say of it, and when it comes back.
//!
//! Owns: the public operations. `backing/spill.rs` chooses, and `strategy/stitch/last_resort.rs` spills before a refusal.

use super::operations::Spilling;
use crate::config::{Advice, SpillPolicy};
use crate::error::Result;

impl Spilling<'_> {
    /// Says how the program uses a live allocation from now on, which counts as a use. What is [`Advice::Cold`] is spilled first,
    /// what is [`Advice::Hot`] last, and comes back at once if the device has room for it. Of an allocation that grows it holds for
    /// all of it, and for what it will get. Address 0 is ignored, and so is the advice where nothing is spilled.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`](crate::Error::InvalidAddress) if no live allocation starts there; [`Error::HostMemory`](crate::Error::HostMemory); the driver's, and the advice is taken.
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

    /// Lets what was spilled come back to the device, as far as there is room; free memory is given back for it. Returns the bytes
    /// that came back. The CPU waits for the device. During a stream capture, and once another device has access to the memory,
    /// nothing comes back.
    ///
    /// While it runs, no thread may give the device work that uses memory of the allocator, as with [`Split`](crate::Split).
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver), [`Error::HostMemory`](crate::Error::HostMemory); what came back before stays so.
    pub fn restore(self) -> Result<u64> {
        let core = &mut *self.0.core.lock();
        if core.heap.spilled() == 0 || core.capturing() || core.may_spill().is_none() {
            return Ok(0);
        }
        let returned = core.bring_back(None);
        core.checked()?;
        returned
    }

    /// Chooses by another policy what is spilled from now on. The default is [`ColdestFirst`](crate::ColdestFirst).
    pub fn set_policy(self, policy: impl SpillPolicy + 'static) {
        self.0.core.lock().features.spill.policy = Box::new(policy);
    }
}
