//! `memquilt convert`: one trace format into another.

use crate::args::ConvertArgs;
use crate::failure::Failure;
use crate::source;
use memquilt::trace::{workload, write_path};

pub(crate) fn run(args: &ConvertArgs) -> Result<(), Failure> {
    let workload = args.from.to_str().filter(|_| !args.from.exists()).and_then(|name| workload::find(name).ok());
    let traces = match workload {
        Some(workload) => vec![source::generate(workload, args.seed, args.steps)?],
        None => source::load(&args.from)?,
    };
    let [trace] = traces.as_slice() else {
        let names: Vec<_> = traces.iter().map(|trace| trace.name.as_str()).collect();
        let from = args.from.display();
        return Err(Failure::Usage(format!("{from} holds the traces of several devices: {}", names.join(", "))));
    };
    Ok(write_path(trace, &args.to)?)
}
