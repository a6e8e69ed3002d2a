//! A named generator of traces, and the description of its traces.
//!
//! Owns: the description (meta) of a generated trace.

use super::error::{GenerateError, MAX_STEPS};
use super::pattern::Pattern;
use super::tape::{Dice, Tape};
use crate::trace::Trace;
use serde_json::{Map, Value};

/// A named generator of traces.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The name for lookups and output, such as `opt-1.3b-LR`.
    pub name: &'static str,
    /// The group of the workload's pattern, such as `transformer` or `kv-cache`.
    pub group: &'static str,
    /// A description of the workload, in one line.
    pub summary: &'static str,
    /// Whether `seamalloc stress` without names runs the workload.
    pub in_default_set: bool,
    /// The number of steps (or rounds) at the default scale.
    pub default_steps: u32,
    pub(super) pattern: Pattern,
}

/// The amount of a workload that is generated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scale {
    /// The number of training steps, requests or rounds, as the pattern counts them; `None` for the workload's own
    /// number.
    pub steps: Option<u32>,
}

impl Workload {
    /// Generates the trace. The same workload, seed and scale give the same events on every platform.
    ///
    /// # Errors
    /// [`GenerateError`], if the scale is out of bounds.
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
