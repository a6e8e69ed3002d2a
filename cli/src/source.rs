//! Where traces come from: files, recorded jobs that the command carries, generated workloads.

use crate::failure::Failure;
use memquilt::trace::workload::{self, Scale, Workload};
use memquilt::trace::{Trace, read_path, recorded};
use std::path::Path;

/// The traces of a file, or the recorded job of that name. A file wins.
pub(crate) fn load(path: &Path) -> Result<Vec<Trace>, Failure> {
    if !path.exists()
        && let Some(job) = path.to_str().and_then(recorded::find)
    {
        return Ok(vec![job.load()?]);
    }
    Ok(read_path(path)?)
}

/// A generated workload's trace.
pub(crate) fn generate(workload: &Workload, seed: u64, steps: Option<u32>) -> Result<Trace, Failure> {
    workload.generate(seed, Scale { steps }).map_err(|error| Failure::Usage(format!("{}: {error}", workload.name)))
}

/// One entry of the stress set.
#[derive(Clone, Copy)]
pub(crate) enum Entry {
    Recorded(&'static recorded::Job),
    Generated(&'static Workload),
}

impl Entry {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Recorded(job) => job.name,
            Self::Generated(workload) => workload.name,
        }
    }

    pub(crate) fn group(self) -> &'static str {
        match self {
            Self::Recorded(_) => recorded::GROUP,
            Self::Generated(workload) => workload.group,
        }
    }

    pub(crate) fn summary(self) -> &'static str {
        match self {
            Self::Recorded(job) => job.summary,
            Self::Generated(workload) => workload.summary,
        }
    }

    pub(crate) fn in_default_set(self) -> bool {
        match self {
            Self::Recorded(_) => true,
            Self::Generated(workload) => workload.in_default_set,
        }
    }

    pub(crate) fn trace(self, seed: u64, steps: Option<u32>) -> Result<Trace, Failure> {
        match self {
            Self::Recorded(job) => Ok(job.load()?),
            Self::Generated(workload) => generate(workload, seed, steps),
        }
    }
}

/// Everything that can be stressed.
pub(crate) fn entries() -> Vec<Entry> {
    let generated = workload::catalogue().iter().map(Entry::Generated);
    recorded::JOBS.iter().map(Entry::Recorded).chain(generated).collect()
}

/// The entries of these names and groups; of none, the default set.
pub(crate) fn select(names: &[String]) -> Result<Vec<Entry>, Failure> {
    let all = entries();
    if names.is_empty() {
        return Ok(all.into_iter().filter(|entry| entry.in_default_set()).collect());
    }
    let mut out = Vec::new();
    for name in names {
        let found = all.iter().filter(|entry| entry.name() == name || entry.group() == name);
        let before = out.len();
        out.extend(found.copied());
        if out.len() == before {
            let error = match workload::find(name) {
                Err(error) => error.to_string(),
                Ok(_) => format!("no workload is called `{name}`"),
            };
            return Err(Failure::Usage(format!("{error}; `memquilt stress --list` shows all")));
        }
    }
    Ok(out)
}
