//! The layers of the library, and which import goes up.

use super::imports::{Arrow, What};

/// The folders and files under `src/`, and the crates below it with the files of `crates/driver`, lowest first: each may import what stands
/// on its own line and above.
pub(crate) const LAYERS: [&[&str]; 18] = [
    &["ids", "fallible"],
    &["units", "nearest", "span"],
    &["driver"],
    &["sim"],
    &["device"],
    &["config", "report"],
    &["ipc", "limits"],
    &["error"],
    &["heap"],
    &["streams"],
    &["backing"],
    &["strategy"],
    &["diagnose"],
    &["features"],
    &["allocator"],
    &["owned"],
    &["host_pool"],
    &["lib"],
];

/// Layers that may have the driver's plain values, and may not call it.
const CALL_NO_DRIVER: [&str; 5] = ["config", "report", "heap", "strategy", "diagnose"];
/// Where the heap's own are: it says what a call has failed with.
const DRIVER_ERRORS: &str = "crates/driver/src/error.rs";
/// The drivers themselves.
const DRIVERS: [&str; 2] = ["crates/driver/src/cuda/", "crates/sim/src/"];

/// The crate of the driver.
const DRIVER: &str = "crates/driver/src/";
/// The files of that crate that are layers of their own.
const BELOW_THE_DRIVER: [&str; 5] = ["ids", "fallible", "units", "nearest", "span"];
/// The other crates that are layers, by the folder of each.
const CRATES: [(&str, &str); 4] = [
    ("crates/sim/src/", "sim"),
    ("crates/config/src/", "config"),
    ("crates/report/src/", "report"),
    ("crates/ipc/src/", "ipc"),
];

/// Parts of the heap that know no other part of it, each with the files beside the parts that it may use.
const PARTS: [(&str, &[&str]); 2] =
    [("src/heap/blocks/", &["src/heap/fingerprint.rs", "src/heap/host_bytes.rs"]), ("src/heap/journal/", &[])];

/// The layer of a file: the first folder, or the file, under `src/`.
fn name_of(file: &str) -> &str {
    if let Some((_, name)) = CRATES.iter().find(|(folder, _)| file.starts_with(folder)) {
        return name;
    }
    let below = file.strip_prefix(DRIVER).or_else(|| file.strip_prefix("src/")).unwrap_or(file);
    let name = below.split_once('/').map_or(below.trim_end_matches(".rs"), |(folder, _)| folder);
    match (file.starts_with(DRIVER), name) {
        (true, name) if !BELOW_THE_DRIVER.contains(&name) => "driver",
        // The library's own folder of that name has the names of devices.
        (false, "driver") => "device",
        (_, name) => name,
    }
}

fn rank_of(layer: &str) -> Option<usize> {
    LAYERS.iter().position(|names| names.contains(&layer))
}

/// Returns the error of an import; `None` where nothing is.
pub(crate) fn objection(arrow: &Arrow) -> Option<String> {
    let [from, to] = [&arrow.from, &arrow.to].map(|file| name_of(file));
    let [Some(own), Some(other)] = [from, to].map(rank_of) else {
        let unknown = if rank_of(from).is_none() { from } else { to };
        return Some(format!("{arrow}: `{unknown}` is in no layer"));
    };
    if other > own {
        return Some(format!("{arrow}: `{from}` stands below `{to}`"));
    }
    if ["driver", "sim", "device"].contains(&to) && CALL_NO_DRIVER.contains(&from) && calls(arrow, from) {
        return Some(format!("{arrow}: `{from}` does not call the driver"));
    }
    let is_foreign = |part: &str, beside: &[&str]| {
        let to = arrow.to.as_str();
        to.starts_with("src/heap/") && !to.starts_with(part) && !beside.contains(&to)
    };
    let part = PARTS.iter().find(|(part, beside)| arrow.from.starts_with(part) && is_foreign(part, beside));
    part.map(|(part, _)| format!("{arrow}: `{part}` knows no other part of the heap"))
}

/// Whether more than plain values of the driver are imported.
fn calls(arrow: &Arrow, from: &str) -> bool {
    match arrow.what {
        // What is used of a module counts.
        What::Module | What::Call => false,
        What::Trait => true,
        What::Other if from == "heap" => arrow.to != DRIVER_ERRORS,
        What::Other => DRIVERS.iter().any(|folder| arrow.to.starts_with(folder)),
    }
}
