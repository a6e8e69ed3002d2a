//! The sources of traces: files, recorded jobs in the command, and generated workloads.

use crate::args::GenerateArgs;
use crate::failure::Failure;
use crate::inputs::Inputs;
use crate::layout::Layouts;
use crate::output;
use seamalloc::nearest::near;
use seamalloc_trace::pytorch::{Origins, read_with_origins};
use seamalloc_trace::workload::{self, Scale, Workload};
use seamalloc_trace::{Trace, TraceError, make_refused, read_path, recorded};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Returns the traces of all files and names. If one of several inputs cannot be read, this input is reported and left
/// out.
pub(crate) fn load_all(paths: &[PathBuf], generate: GenerateArgs) -> Result<(Vec<Trace>, Inputs), Failure> {
    must_be_given(paths)?;
    Inputs::read(paths, |path| load(path, generate))
}

/// A trace, with the origins of its requests from its file.
pub(crate) type Loaded = (Trace, Option<Origins>);

/// Returns the traces as [`load_all`] does, with the origins of requests. A request that was refused when the job was
/// recorded is added to its trace. The layouts of snapshots without a history are added to `layouts`.
pub(crate) fn load_with_origins(
    paths: &[PathBuf],
    generate: GenerateArgs,
    layouts: &mut Layouts,
) -> Result<(Vec<Loaded>, Inputs), Failure> {
    must_be_given(paths)?;
    Inputs::read(paths, |path| {
        let mut traces = layouts.or(path, load_by(path, generate, read_with_origins, |trace| (trace, None)))?;
        traces.iter_mut().for_each(|(trace, origins)| make_refused(trace, origins.as_mut()));
        Ok(traces)
    })
}

/// Returns an error for a command line without a trace.
pub(crate) fn must_be_given(paths: &[PathBuf]) -> Result<(), Failure> {
    if paths.is_empty() {
        let jobs: Vec<_> = recorded::JOBS.iter().map(|job| job.name).collect();
        return Err(Failure::Usage(format!(
            "no trace is given; expected a PyTorch memory snapshot (.pickle, .pickle.gz, .json), a trace (.seam, .csv, \
             .csv.gz), or the name of a recorded job ({}) or of a generated workload (`seamalloc stress --list`)",
            jobs.join(", ")
        )));
    }
    Ok(())
}

/// Returns the traces of a file, or the recorded jobs and generated workloads with that name or group. A file takes
/// precedence.
pub(crate) fn load(path: &Path, generate: GenerateArgs) -> Result<Vec<Trace>, Failure> {
    load_by(path, generate, read_path, |trace| trace)
}

/// Loads traces as [`load`] does, with `read` for a file and `of` for a trace without a file.
fn load_by<T>(
    path: &Path,
    generate: GenerateArgs,
    read: impl FnOnce(&Path) -> Result<Vec<T>, TraceError>,
    of: impl Fn(Trace) -> T,
) -> Result<Vec<T>, Failure> {
    match read(path) {
        Err(TraceError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
            let name = path.to_string_lossy();
            let named: Vec<_> = entries().into_iter().filter(|entry| entry.is_called(&name)).collect();
            if named.is_empty() {
                return Err(Failure::NoSuchTrace { path: path.to_owned(), nearest: suggestion(&name) });
            }
            tell_of_twin(&name);
            named.into_iter().map(|entry| Ok(of(entry.trace(generate)?))).collect()
        }
        Err(TraceError::Io { source, .. }) => Err(Failure::Read { path: path.to_owned(), error: source }),
        traces => Ok(traces?),
    }
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

    /// Returns whether the entry or its group has this name.
    fn is_called(self, name: &str) -> bool {
        self.name() == name || self.group() == name
    }

    pub(crate) fn summary(self) -> &'static str {
        match self {
            Self::Recorded(job) => job.summary,
            Self::Generated(workload) => workload.summary,
        }
    }

    /// Returns the entry's description. If a recorded job and a generated workload have similar names, the description
    /// names the other one.
    pub(crate) fn described(self) -> String {
        match (self, self.twin()) {
            (_, None) => self.summary().to_owned(),
            (Self::Recorded(_), Some(twin)) => format!("{} (generated: {})", self.summary(), twin.name()),
            (Self::Generated(_), Some(twin)) => format!("{} (recorded: {})", self.summary(), twin.name()),
        }
    }

    /// Returns the recorded job for a generated workload, or the other way round, if their names differ only in dashes,
    /// as `gpt2xl-N` and `gpt2-xl-N` do.
    fn twin(self) -> Option<Self> {
        let plain = |entry: Self| entry.name().replace('-', "");
        let is_recorded = |entry: Self| matches!(entry, Self::Recorded(_));
        let mut all = entries().into_iter();
        all.find(|entry| is_recorded(*entry) != is_recorded(self) && plain(*entry) == plain(self))
    }

    pub(crate) fn in_default_set(self) -> bool {
        match self {
            Self::Recorded(_) => true,
            Self::Generated(workload) => workload.in_default_set,
        }
    }

    /// Returns the trace. The trace of a recorded job is always the same.
    pub(crate) fn trace(self, generate: GenerateArgs) -> Result<Trace, Failure> {
        match self {
            Self::Recorded(job) => Ok(job.load()?),
            Self::Generated(workload) => {
                let trace = workload.generate(generate.seed, Scale { steps: generate.steps });
                trace.map_err(|error| Failure::Usage(format!("{}: {error}", workload.name)))
            }
        }
    }
}

/// Returns all recorded jobs and generated workloads.
pub(crate) fn entries() -> Vec<Entry> {
    let generated = workload::catalogue().iter().map(Entry::Generated);
    recorded::JOBS.iter().map(Entry::Recorded).chain(generated).collect()
}

/// Returns the groups, in the order of the list.
pub(crate) fn groups() -> Vec<&'static str> {
    let mut groups: Vec<_> = entries().into_iter().map(Entry::group).collect();
    groups.dedup();
    groups
}

/// Returns the entries with these names and groups; without names, the default set.
pub(crate) fn select(names: &[String]) -> Result<Vec<Entry>, Failure> {
    let all = entries();
    if names.is_empty() {
        return Ok(all.into_iter().filter(|entry| entry.in_default_set()).collect());
    }
    let mut out = Vec::new();
    for name in names {
        let before = out.len();
        out.extend(all.iter().filter(|entry| entry.is_called(name)).copied());
        tell_of_twin(name);
        if out.len() == before {
            let groups = groups().join(", ");
            let text = format!(
                "no workload or group is called `{name}`; the groups are {groups} (`seamalloc stress --list` shows all workloads)"
            );
            return Err(Failure::Usage(text + &suggestion(name)));
        }
    }
    Ok(out)
}

/// Prints a note if the named generated workload has almost the name of a recorded job.
fn tell_of_twin(name: &str) {
    let named = entries().into_iter().find(|entry| entry.name() == name);
    if let Some(entry @ Entry::Generated(_)) = named
        && let Some(twin) = entry.twin()
    {
        output::note(&format!("`{name}` is generated; the recorded job is `{}`", twin.name()));
    }
}

/// Returns a question with the probable name, for the end of a message.
fn suggestion(name: &str) -> String {
    let names = entries().into_iter().flat_map(|entry| [entry.name(), entry.group()]);
    near(name, names).map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}
