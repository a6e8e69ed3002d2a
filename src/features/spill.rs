//! Live memory lies in the machine's memory.
//!
//! Owns: by which policy it is chosen.

use crate::config::{ColdestFirst, SpillPolicy};

pub(crate) struct Spilling {
    pub(crate) policy: Box<dyn SpillPolicy>,
}

impl Default for Spilling {
    fn default() -> Self {
        Self { policy: Box::new(ColdestFirst) }
    }
}
