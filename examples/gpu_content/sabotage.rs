//! Mistakes that the program makes on purpose, one a run: each must show as wrong words, or a clean run would say nothing.
//!
//! Owns: which mistakes there are, and the one that is the driver's.

use seamalloc::driver::{Driver, DriverResult, EventId, ForwardingDriver, StreamId};
use std::str::FromStr;
use std::sync::Arc;

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// The program does not tell the allocator which other streams use a block.
    Untold,
    /// No GPU-side wait that the allocator asks for is made.
    Unwaited,
    /// A graph's outputs are freed right after its capture, and used all the same.
    FreedOutputs,
}

impl FromStr for Sabotage {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "untold" => Ok(Self::Untold),
            "unwaited" => Ok(Self::Unwaited),
            "freed-outputs" => Ok(Self::FreedOutputs),
            _ => Err(format!("there is no sabotage `{name}`: untold, unwaited, freed-outputs")),
        }
    }
}

/// The driver that an allocator gets in a run with that mistake.
pub(crate) fn driver(sabotage: Option<Sabotage>, driver: Arc<dyn Driver>) -> Arc<dyn Driver> {
    match sabotage {
        Some(Sabotage::Unwaited) => Arc::new(WithoutWaits(driver)),
        _ => driver,
    }
}

/// A driver whose streams wait for nothing.
struct WithoutWaits(Arc<dyn Driver>);

impl ForwardingDriver for WithoutWaits {
    fn inner(&self) -> &dyn Driver {
        &*self.0
    }
    fn stream_wait(&self, _: StreamId, _: EventId) -> DriverResult<()> {
        Ok(())
    }
}
