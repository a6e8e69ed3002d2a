//! `seamalloc convert`: converts one trace format to another.

use crate::args::ConvertArgs;
use crate::failure::Failure;
use crate::source;
use seamalloc_trace::{SNAPSHOT_ENDING, TraceError, write_path, write_trace_as_snapshot};

pub(crate) fn run(args: &ConvertArgs) -> Result<(), Failure> {
    let traces = source::load(&args.from, args.generate)?;
    let [trace] = traces.as_slice() else {
        let names: Vec<_> = traces.iter().map(|trace| trace.name.as_str()).collect();
        let from = args.from.display();
        return Err(Failure::Usage(format!("{from} holds the traces of several devices: {}", names.join(", "))));
    };
    let is_snapshot = args.to.to_string_lossy().ends_with(SNAPSHOT_ENDING);
    let write = if is_snapshot { write_trace_as_snapshot } else { write_path };
    write(trace, &args.to).map_err(|error| match error {
        TraceError::Io { source, .. } => Failure::Write { path: args.to.clone(), error: source },
        error => error.into(),
    })
}
