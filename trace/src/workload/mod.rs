//! Generated workloads: allocation traces that resemble those of real jobs, made from model shapes and a seed.
//!
//! Owns: the public face (names, scale, errors) and the meta of a generated trace. The list of workloads stands in
//! `catalogue.rs`, each pattern in a file of its own; all write through `tape.rs`. Nothing here allocates device memory.
//!
//! ```
//! use seamalloc_trace::workload::{self, Scale};
//!
//! let workload = workload::find("opt-1.3b-R")?;
//! let trace = workload.generate(0, Scale { steps: Some(1) })?;
//! assert_eq!(trace.name, "opt-1.3b-R");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod adversarial;
mod catalogue;
mod kv_cache;
mod layer;
pub mod models;
mod moe;
mod recipe;
mod rematerialisation;
mod rlhf;
mod side_stream;
mod step;
mod tape;
mod transformer;
mod vision;

use serde_json::{Map, Value};
use thiserror::Error;

use self::{
    catalogue::{CATALOGUE, Pattern},
    tape::{Dice, Tape},
};
use super::Trace;
use seamalloc::nearest::nearest;

/// A generated trace holds at most this many events (512 MiB of host memory).
pub const MAX_EVENTS: usize = 32 << 20;
/// The most steps that a [`Scale`] may ask for.
pub const MAX_STEPS: u32 = 100_000;

/// A named generator of traces.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Name for lookups and output: `opt-1.3b-LR`.
    pub name: &'static str,
    /// The pattern that it belongs to: `transformer`, `kv-cache`.
    pub group: &'static str,
    /// One line on what it does.
    pub summary: &'static str,
    /// Whether a stress run without names includes it.
    pub in_default_set: bool,
    /// Steps (or rounds) at the default scale.
    pub default_steps: u32,
    pattern: Pattern,
}

/// How much of a workload to generate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scale {
    /// Training steps, requests or rounds, as the pattern counts them; `None` takes the workload's own number.
    pub steps: Option<u32>,
}

/// No workload of that name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no workload is called `{name}`; the nearest is `{nearest}`")]
pub struct UnknownWorkload {
    /// What was asked for.
    pub name: String,
    /// The nearest known name by edit distance.
    pub nearest: &'static str,
}

/// Why a trace could not be generated.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// The scale asks for no step, or for more than [`MAX_STEPS`].
    #[error("{steps} steps asked for, 1 to {MAX_STEPS} possible")]
    Steps {
        /// What was asked for.
        steps: u32,
    },
    /// The trace would hold more than [`MAX_EVENTS`] events: ask for fewer steps.
    #[error("the trace would hold more than {limit} events: ask for fewer steps")]
    TooLong {
        /// The bound.
        limit: usize,
    },
    /// The workload's pattern cannot run this model.
    #[error("the pattern cannot run a model like `{model}`")]
    WrongArchitecture {
        /// The model.
        model: &'static str,
    },
}

/// Every workload, in the order in which reports show them.
pub fn catalogue() -> &'static [Workload] {
    &CATALOGUE
}

/// The workload of that name.
///
/// # Errors
/// [`UnknownWorkload`], with the nearest name.
pub fn find(name: &str) -> Result<&'static Workload, UnknownWorkload> {
    CATALOGUE.iter().find(|w| w.name == name).ok_or_else(|| UnknownWorkload {
        name: name.to_owned(),
        nearest: nearest(name, CATALOGUE.iter().map(|w| w.name)),
    })
}

impl Workload {
    /// Generates the trace. The same workload, seed and scale give the same events on every platform.
    ///
    /// # Errors
    /// [`GenerateError`], when the scale is out of bounds.
    pub fn generate(&self, seed: u64, scale: Scale) -> Result<Trace, GenerateError> {
        let steps = scale.steps.unwrap_or(self.default_steps);
        if !(1..=MAX_STEPS).contains(&steps) {
            return Err(GenerateError::Steps { steps });
        }
        let mut tape = Tape::new(self.pattern.side_streams());
        self.pattern.run(&mut tape, &mut Dice::new(seed), steps)?;
        let trace = tape.finish()?;
        Ok(Trace { name: self.name.to_owned(), meta: self.meta(seed, steps), ..trace })
    }

    fn meta(&self, seed: u64, steps: u32) -> Map<String, Value> {
        let mut meta = Map::new();
        let mut put = |key: &str, value: Value| meta.insert(key.to_owned(), value);
        put("workload", self.name.into());
        put("group", self.group.into());
        put("seed", seed.into());
        put("steps", steps.into());
        if let Some(model) = self.pattern.model() {
            put("model", model.into());
        }
        if let Some(batch) = self.pattern.batch() {
            put("batch", batch.into());
        }
        meta
    }
}

#[cfg(test)]
mod tests;
