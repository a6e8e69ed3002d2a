//! The verdict on a job that is short of memory: the matching one of the five questions of `docs/why.md`, the amounts,
//! and one next step.
//!
//! Owns: the text and the JSON of a [`Judgement`]. `figures.rs` has the values, `rules.rs` the rules and their
//! thresholds, and `words.rs` the sentences. `measure.rs` and `look.rs` have the figures of a trace, and `shortage.rs`
//! the figures of a job that no allocator runs.

mod amounts;
mod figures;
mod look;
mod measure;
mod rules;
mod shortage;
#[cfg(test)]
mod tests;
mod words;

pub use figures::{
    CONTEXT_BYTES, Choice, EXPANDABLE_SETTING, Figures, Holder, Judgement, Need, Options, SEAMALLOC_COMMAND, Shortage,
    Verdict,
};
pub(crate) use look::Look;
pub use measure::{figures_of, judged};
pub(crate) use rules::near;
pub use rules::{APART_PART, FEW_BYTES, FEW_PERCENT, FEWER_PART, NEAR_PERCENT, judge};

use crate::whatif::DeviceFrom;
use serde_json::{Value, json};

impl Judgement {
    /// Returns the verdict on these figures.
    #[must_use]
    pub fn of(figures: Figures) -> Self {
        Self { verdict: judge(&figures), figures }
    }

    /// Returns the verdict in at most 100 characters.
    #[must_use]
    pub fn headline(&self) -> String {
        words::headline(self)
    }

    /// Returns the reasons, in one or two sentences with figures.
    #[must_use]
    pub fn reasons(&self) -> String {
        words::reasons(self)
    }

    /// Returns the one next step: a command, a setting or a change of the job.
    #[must_use]
    pub fn next_step(&self) -> String {
        words::next_step(self)
    }

    /// Returns whether the job runs on the stated device with the recommended allocator.
    #[must_use]
    pub fn runs(&self) -> bool {
        let is_stated = matches!(self.figures.device_from, Some(DeviceFrom::Asked | DeviceFrom::Noted));
        match self.verdict {
            Verdict::TooMuchLive { .. } => false,
            // The memory of a CUDA context and of libraries never becomes free.
            Verdict::Others { .. } if self.figures.is_little_elsewhere() => false,
            // The device itself has enough memory: other programs or a limit keep it from PyTorch.
            Verdict::Others { .. } | Verdict::Limit { .. } => is_stated,
            Verdict::PyTorchIsEnough { .. } | Verdict::Streams { .. } | Verdict::SeamallocHelps { .. } => true,
        }
    }

    /// Returns the headline, the reasons and the next step, each on a line.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{}\n{}\nNext: {}", self.headline(), self.reasons(), self.next_step())
    }

    /// Returns the value of the key `verdict` in lines of JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let Figures { capacity, device, live, refused, persistent, owners, shortage, .. } = &self.figures;
        let need = |need: &Need| {
            json!({
                "reserved": need.reserved,
                "idle": need.idle,
                "elsewhere": need.elsewhere,
                "pending": need.pending,
                "waits": need.waits,
            })
        };
        let owners = owners.iter().map(|owner| json!({"name": owner.name, "bytes": owner.bytes}));
        json!({
            "kind": self.verdict.kind(),
            "text": self.headline(),
            "reasons": self.reasons(),
            "next": self.next_step(),
            "runs": self.runs(),
            "figures": {
                "capacity": capacity,
                "device": device,
                "live": live,
                "refused": refused,
                "persistent": persistent,
                "owners": owners.collect::<Vec<_>>(),
                "native": need(&self.figures.native),
                "expandable": need(&self.figures.expandable),
                "stitch": need(&self.figures.stitch),
                "needs": shortage.as_ref().map(|shortage| shortage.needs),
                "smaller_percent": shortage.as_ref().and_then(|shortage| shortage.smaller),
                "others": self.figures.others(),
                "available": self.figures.available,
                "free_beyond_limit": self.figures.free_beyond_limit,
                "expandable_set": self.figures.is_expandable_set,
            },
        })
    }
}
