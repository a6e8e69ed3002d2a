//! The features of an allocator besides serving requests and frees, each with its state.
//!
//! Owns: the features of an allocator. Programs reach them through the operations in `allocator/`. These operations
//! call the features at named points: before a request, on a miss, after a hand-out, on a free, and when memory is
//! released.

pub(crate) mod fallback;
pub(crate) mod growing;
pub(crate) mod guard;
pub(crate) mod headroom;
pub(crate) mod lending;
pub(crate) mod own_memory;
pub(crate) mod pressure;
pub(crate) mod sharing;
pub(crate) mod sleep;
pub(crate) mod spill;

use crate::config::{Config, StrategyKind};
use crate::strategy::Rules;
use fallback::Fallback;
use growing::Growths;
use guard::Guard;
use headroom::Looks;
use lending::Borrowing;
use own_memory::OwnMemory;
use sharing::Sharing;
use spill::Spilling;

/// The features of an allocator.
pub(crate) struct Features {
    /// Guard mode, if it is on.
    pub(crate) guard: Option<Box<Guard>>,
    pub(crate) growing: Growths,
    /// The last look at the device's free memory, for the option `headroom`.
    pub(crate) headroom: Looks,
    pub(crate) lending: Borrowing,
    pub(crate) sharing: Sharing,
    pub(crate) spill: Spilling,
    pub(crate) own_memory: OwnMemory,
    pub(crate) fallback: Fallback,
}

impl Features {
    /// Returns the features under these options. `instead_of` is the requested strategy if another strategy is in use.
    pub(crate) fn new(config: &Config, rules: &Rules, instead_of: Option<StrategyKind>) -> Self {
        Self {
            guard: Guard::new(&config.guard),
            growing: Growths::default(),
            headroom: Looks::default(),
            lending: Borrowing::default(),
            sharing: Sharing::default(),
            spill: Spilling::default(),
            own_memory: OwnMemory::new(config, rules),
            fallback: Fallback { instead_of, ..Fallback::default() },
        }
    }

    /// Returns whether a feature has work at every request.
    pub(crate) fn have_work(&self) -> bool {
        self.guard.is_some()
    }
}
