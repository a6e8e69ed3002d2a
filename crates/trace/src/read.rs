//! Reads a trace from a file of any known format. The format is recognized by the content, never by the name.
//!
//! Owns: the recognition of formats, and the naming of traces after files. `unpack.rs` unpacks gzip; each format has a
//! file of its own.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use crate::error::{TraceError, excerpt};
use crate::layout::Layout;
use crate::trace::Trace;
use crate::unpack::{self, Opened};
use crate::{compact, csv, pytorch, rmm};

/// The endings of a file's name that the trace's name leaves out.
const EXTENSIONS: [&str; 8] = [".gz", ".csv", ".seam", ".pickle", ".pkl", ".json", ".snapshot", ".txt"];

/// The first bytes of a csv of buffers with lifetimes.
const BUFFERS: &[u8] = b"id,lower";

/// Reads every trace of a file. A csv file, a `.seam` file or a log of RMM has one trace. A PyTorch snapshot has one
/// trace for each device with events.
///
/// A trace is named after the file, without known endings. If a file has several traces, `.dev1` and so on is added to
/// the name. A trace that stores its own name keeps this name.
///
/// # Errors
/// The file cannot be read, has no known format, is damaged, or contains no allocation.
pub fn read_path(path: &Path) -> Result<Vec<Trace>, TraceError> {
    let file = path.display().to_string();
    let opened = File::open(path).map_err(|error| TraceError::io(&file, error))?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    read_traces(&file, stem(&name), BufReader::with_capacity(unpack::BUFFER, opened))
}

/// Reads every trace of a file's content, as [`read_path`] does; `name` is the file's name.
///
/// # Errors
/// The errors of [`read_path`].
pub fn read_bytes(name: &str, bytes: &[u8]) -> Result<Vec<Trace>, TraceError> {
    read_traces(name, stem(name), bytes)
}

/// Returns a file name without its known endings.
pub(crate) fn stem(name: &str) -> &str {
    let mut stem = name;
    while let Some(shorter) = EXTENSIONS.iter().find_map(|end| stem.strip_suffix(end)) {
        if shorter.is_empty() {
            break;
        }
        stem = shorter;
    }
    stem
}

fn read_traces(file: &str, name: &str, reader: impl BufRead) -> Result<Vec<Trace>, TraceError> {
    let opened = Opened::new(file, reader)?;
    if opened.is_gzip() {
        return traces_of(Opened::new(file, opened.unpacked())?, file, name);
    }
    traces_of(opened, file, name)
}

fn traces_of(opened: Opened<impl BufRead>, file: &str, name: &str) -> Result<Vec<Trace>, TraceError> {
    match opened.head.as_slice() {
        [] => Err(TraceError::NoContent { file: file.to_owned() }),
        head if compact::MAGIC.starts_with(head) || head.starts_with(&compact::MAGIC) => {
            let (bytes, _) = unpack::read_to_limit(file, opened.content, compact::MAX_FILE)?;
            Ok(vec![compact::read_compact(file, &bytes)?])
        }
        [pytorch::PICKLE_MAGIC | b'{', ..] => {
            let (bytes, mut memory) = unpack::read_to_limit(file, opened.content, unpack::MAX_WHOLE)?;
            let snapshot = pytorch::read_snapshot_named(file, name, &bytes, memory)?;
            if snapshot.traces.is_empty() {
                let layouts = memory.charge(snapshot.heap_bytes());
                let layouts = layouts.and_then(|()| Layout::of(name, &snapshot.snapshots, &mut memory));
                let layouts = layouts.map_err(|error| TraceError::memory(file, error))?;
                return Err(TraceError::NoHistory { file: file.to_owned(), layouts });
            }
            Ok(snapshot.traces)
        }
        [b'#', ..] | [b'a' | b'r' | b'f', b',', ..] => Ok(vec![csv::read_csv(name, file, opened.content)?]),
        head if head.starts_with(rmm::BEGIN) => Ok(vec![rmm::read_rmm(name, file, opened.content)?]),
        head if head.starts_with(BUFFERS) => Err(TraceError::Buffers { file: file.to_owned() }),
        head => Err(TraceError::UnknownFormat { file: file.to_owned(), found: excerpt(head) }),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    const CSV: &[u8] = b"a,1,5,0\nr,1\nf,1\n";

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn names_lose_their_known_endings() {
        assert_eq!(stem("gpt2xl-N.csv.gz"), "gpt2xl-N");
        assert_eq!(stem("opt1.3b-R.seam"), "opt1.3b-R");
        assert_eq!(stem("prefetch-2s.snapshot.pickle"), "prefetch-2s");
        assert_eq!(stem(".csv"), ".csv");
    }

    #[test]
    fn content_decides_and_not_the_name() {
        let plain = read_bytes("job.pickle", CSV).unwrap();
        assert_eq!(plain[0].name, "job");
        assert_eq!(read_bytes("job.seam", &gzip(CSV)).unwrap(), plain);
        let mut compact = Vec::new();
        compact::write_compact(&plain[0], &mut compact).unwrap();
        assert_eq!(read_bytes("other.csv", &compact).unwrap(), plain);
        assert_eq!(read_bytes("other.csv", &gzip(&compact)).unwrap(), plain);
    }

    #[test]
    fn files_are_read_from_disk() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.csv.gz");
        std::fs::write(&path, gzip(CSV)).unwrap();
        assert_eq!(read_path(&path).unwrap()[0].events.len(), 3);
        let error = read_path(&folder.path().join("missing.csv")).unwrap_err();
        assert!(matches!(&error, TraceError::Io { file, .. } if file.ends_with("missing.csv")), "{error}");
    }

    #[test]
    fn gzip_that_ends_early_is_named() {
        let packed = gzip(&CSV.repeat(1000));
        for length in [3, 12, packed.len() / 2, packed.len() - 1] {
            let error = read_bytes("t.csv.gz", &packed[..length]).unwrap_err();
            assert!(error.to_string().contains("damaged or ends early"), "{length}: {error}");
        }
        let mut wrong = packed.clone();
        let middle = wrong.len() / 2;
        wrong[middle] ^= 0x55;
        assert!(read_bytes("t.csv.gz", &wrong).is_err());
    }

    #[test]
    fn nothing_and_unknown_things_are_errors() {
        assert!(matches!(read_bytes("t", b""), Err(TraceError::NoContent { .. })));
        assert!(matches!(read_bytes("t", &gzip(b"")), Err(TraceError::NoContent { .. })));
        for bytes in [b"\x7fELF....".as_slice(), b"PK\x03\x04", b"hello", &gzip(&gzip(CSV))] {
            let error = read_bytes("t", bytes).unwrap_err();
            assert!(matches!(error, TraceError::UnknownFormat { .. }), "{error}");
        }
    }
}
