//! Options for memory that the CPU uses too.

use super::{Config, ConfigError, Headroom, Split, StreamSharing};

impl Config {
    /// Returns these options for memory that the CPU uses too: streams share freed memory only once the GPU has
    /// completed the work before the free. No stream waits for another on the GPU, since such a wait would not hold
    /// back the CPU. No chunk is split. A soft headroom is left out, since a release of page-locked memory makes the
    /// CPU wait.
    ///
    /// # Errors
    /// The errors of [`Self::check_for_host_pool`].
    pub fn for_host_pool(self) -> Result<Self, ConfigError> {
        self.check_for_host_pool()?;
        let headroom = if self.headroom.is_soft { Headroom::NONE } else { self.headroom };
        Ok(Self { sharing: StreamSharing::Completed, split: Split::Off, headroom, ..self })
    }

    /// Refuses options with which the device reads or writes contents in the order of streams, which the CPU does not
    /// keep.
    ///
    /// # Errors
    /// [`ConfigError::BadValue`] for guard mode, `split:ungated` and `spill`.
    pub fn check_for_host_pool(&self) -> Result<(), ConfigError> {
        let refused = |option: &str, found: &str| {
            let expected = "`off`: the CPU uses the memory too, of which no stream knows".to_owned();
            Err(ConfigError::BadValue { option: option.to_owned(), found: found.to_owned(), expected })
        };
        if let Some(bytes) = self.spill {
            return refused("spill", &format!("host={}", seamalloc_driver::units::format_bytes_exactly(bytes)));
        }
        match (self.split, self.guard.is_on()) {
            (split @ Split::Ungated, _) => refused("split", split.name()),
            (Split::Off | Split::LastResort, true) => refused("guard", "on"),
            (Split::Off | Split::LastResort, false) => Ok(()),
        }
    }
}
