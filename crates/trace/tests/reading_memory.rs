//! The memory that readers take of this machine, whatever a file holds: no more than eight times the unpacked bytes, or
//! 256 MiB beyond these, whichever is more (docs/trace-format.md). The most that is held at once is counted by a global
//! allocator.
//!
//! `SEAMALLOC_LARGE_FILES=1` adds files of a hundred megabytes, for which eight times is what counts; with a release build.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt::Write as _;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use seamalloc_trace::pytorch::{read_held_origins, read_origins};
use seamalloc_trace::{MemoryError, TraceError, read_bytes, read_snapshot};

const MIB: u64 = 1 << 20;
/// The memory that zstd may hold while it unpacks: it does not ask the counting allocator.
const ZSTD: u64 = MIB;

thread_local! {
    static HELD: Cell<u64> = const { Cell::new(0) };
    static PEAK: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

fn taken(bytes: usize) {
    let held = HELD.get() + bytes as u64;
    HELD.set(held);
    PEAK.set(PEAK.get().max(held));
}

fn given_back(bytes: usize) {
    HELD.set(HELD.get().saturating_sub(bytes as u64));
}

// SAFETY: every call goes to the system's allocator with the arguments as they came; the counters do not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        given_back(layout.size());
        // SAFETY: `ptr` came from `alloc` above, with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // While the bytes move, both places are held.
        taken(size);
        given_back(layout.size());
        // SAFETY: `ptr` came from `alloc` above, with this layout; the caller keeps `realloc`'s contract.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

/// The most bytes that are held at once while `read` runs, beside those that were held before; and what it returns.
fn peak<T>(read: impl FnOnce() -> T) -> (u64, T) {
    let before = HELD.get();
    PEAK.set(before);
    let read = read();
    (PEAK.get() - before, read)
}

/// Reads a file and holds the promise. `unpacked`: the bytes that it unpacks to.
#[track_caller]
fn hold(what: &str, file: &[u8], unpacked: usize) -> Result<(), TraceError> {
    let unpacked = unpacked as u64;
    let most = (8 * unpacked).max(unpacked + 256 * MIB);
    let beside = if file.starts_with(b"\x89sea") { ZSTD } else { 0 };
    let (bytes, traces) = peak(|| read_bytes(what, file).map(drop));
    assert!(bytes + beside <= most, "{what}: {} MiB of {}", bytes / MIB, unpacked / MIB);
    // What is read beside traces keeps to the same.
    let mut copy = tempfile::NamedTempFile::new().unwrap();
    copy.write_all(file).unwrap();
    let (bytes, _) = peak(|| read_origins(copy.path()).map(drop));
    assert!(bytes <= most, "the origins of {what}: {} MiB of {}", bytes / MIB, unpacked / MIB);
    let (bytes, _) = peak(|| read_held_origins(copy.path()).map(drop));
    assert!(bytes <= most, "what is held in {what}: {} MiB of {}", bytes / MIB, unpacked / MIB);
    traces
}

/// As [`hold`], of a file that must be refused since it takes too much.
#[track_caller]
fn refused(what: &str, file: &[u8], unpacked: usize) {
    let error = hold(what, file, unpacked).unwrap_err();
    assert!(matches!(error, TraceError::Memory { source: MemoryError::Limit { .. }, .. }), "{what}: {error}");
    assert!(error.to_string().contains("bytes of memory, which is the most for a file of its size"), "{error}");
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn number(out: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn part(out: &mut Vec<u8>, bytes: &[u8]) {
    number(out, bytes.len());
    out.extend(bytes);
}

/// A compact file of that body, and how long the body is.
fn compact(body: &[u8]) -> (Vec<u8>, usize) {
    let mut crc = flate2::Crc::new();
    crc.update(body);
    let mut file = b"\x89sea\r\n\x1a\n\x01\0\0\0".to_vec();
    file.extend(crc.sum().to_le_bytes());
    file.extend((body.len() as u64).to_le_bytes());
    file.extend(zstd::encode_all(body, 1).unwrap());
    (file, body.len())
}

/// A body of these parts.
fn body(name: &[u8], meta: &[u8], streams: usize, sizes: usize, columns: [&[u8]; 4]) -> Vec<u8> {
    let mut body = Vec::new();
    part(&mut body, name);
    part(&mut body, meta);
    number(&mut body, streams);
    body.resize(body.len() + streams, 0);
    number(&mut body, sizes);
    body.resize(body.len() + sizes, 1);
    columns.iter().for_each(|column| part(&mut body, column));
    body
}

/// Pickles of `repeat`, so many times, between `front` and `end`.
fn pickle(front: &[u8], repeat: &[u8], times: usize, end: &[u8]) -> Vec<u8> {
    [b"\x80\x04", front, &repeat.repeat(times), end, b"."].concat()
}

/// Dicts in lists: what JSON makes most of.
fn nested(bytes: usize) -> String {
    const DEPTH: usize = 100;
    let one = format!("{}1{},", r#"{"":"#.repeat(DEPTH), "}".repeat(DEPTH));
    let mut list = one.repeat(bytes / one.len());
    list.pop();
    format!("{{\"a\":[{list}]}}")
}

#[test]
fn csv() {
    let distinct: String = (0..100_000).map(|id| format!("a,{id},1,{id:x}\n")).collect();
    assert!(hold("ids and streams", distinct.as_bytes(), distinct.len()).is_ok());
    assert!(hold("ids and streams, packed", &gzip(distinct.as_bytes()), distinct.len()).is_ok());
    let short = "a,1,1,0\nr,1\nf,1\n".repeat(75_000);
    assert!(hold("the shortest lines", short.as_bytes(), short.len()).is_ok());
    // A description of a line's length at most.
    let meta = format!("# {}\na,1,1,0\n", nested((1 << 20) - 200));
    assert!(hold("a description", meta.as_bytes(), meta.len()).is_ok());
    let line = vec![b'a'; 3 << 20];
    assert!(hold("an endless line", &line, line.len()).is_err());
}

#[test]
fn compact_columns() {
    const N: usize = 3_000_000;
    let (zeros, empty) = (vec![0; N], &[][..]);
    // Refused at its very end: one size too many.
    let (file, length) = compact(&body(b"x", b"{}", 1, 1, [&zeros, &zeros, &vec![0; N + 1], empty]));
    assert!(file.len() < 8 << 10, "{}", file.len());
    assert!(hold("a column too long", &file, length).is_err());
    let (file, length) = compact(&body(b"x", b"{}", 13 * N, 1, [empty; 4]));
    refused("streams", &file, length);
    let frees = vec![1; 3 * N];
    let (file, length) = compact(&body(b"x", b"{}", 1, 1, [&frees, empty, empty, &frees]));
    refused("frees", &file, length);
    let (file, length) = compact(&body(&vec![b'x'; 2 * N], b"{}", 1, 1, [empty; 4]));
    assert!(hold("a name", &file, length).is_ok());
    let meta = nested((1 << 20) - 200);
    let (file, length) = compact(&body(b"x", meta.as_bytes(), 1, 1, [empty; 4]));
    assert!(hold("a description", &file, length).is_ok());
}

/// A file that unpacks to more bytes than are read at most is refused, and the error states the limit.
#[test]
fn bombs() {
    let (mut file, length) = compact(&vec![0; (1 << 26) + 1]);
    let error = hold("a body too long", &file, length).unwrap_err().to_string();
    assert!(error.contains("more than 67108864 bytes of columns, which is the most"), "{error}");
    // One that says that it is shorter.
    file[16..24].copy_from_slice(&1000_u64.to_le_bytes());
    let error = hold("a body that lies", &file, 1000).unwrap_err().to_string();
    assert!(error.contains("1000 bytes once unpacked"), "{error}");
    let mut zeros = b"\x89sea\r\n\x1a\n".to_vec();
    zeros.resize(70 << 20, 0);
    let error = hold("a compact file in gzip", &gzip(&zeros), zeros.len()).unwrap_err().to_string();
    assert!(error.contains("more than 67372056 unpacked bytes, which is the most"), "{error}");
}

/// As many as are refused: what each takes, and what moves while the lists grow, comes to more than 256 MiB.
#[test]
fn pickles() {
    for (what, repeat, times) in
        [("lists", &b"]"[..], 5_000_000), ("lists of one", b"]Na", 3_500_000), ("dicts of one", b"}NNs", 3_500_000)]
    {
        let file = pickle(b"N", repeat, times, b"");
        refused(what, &file, file.len());
    }
    let tuples = pickle(b"N", b"\x85", 4_200_000, b"");
    refused("tuples, packed", &gzip(&tuples), tuples.len());
}

#[test]
fn pickles_of_more_than_lists() {
    for (what, repeat) in [("constants", b"N"), ("marks", b"("), ("the memo", b"\x94"), ("copies", b"2")] {
        let file = pickle(b"N", repeat, 2_000_000, b"");
        assert!(hold(what, &file, file.len()).is_err());
    }
    // A list of as many entries as there are, all of them one dict, which is no event.
    let front = b"}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces](}\x8c\x06actionX\x01\x00\x00\x00xs\x94";
    let file = pickle(&[&front[..], b"0("].concat(), b"h\0", 4_500_000, b"leu");
    assert!(hold("one entry in many places", &file, file.len()).is_err());
    let file = pickle(&[&front[..48], b"("].concat(), b"]", 1_000_000, b"eu");
    assert!(hold("devices", &file, file.len()).is_err());
}

/// A list of JSON: an item, so many times.
fn list(item: &str, times: usize) -> String {
    let mut items = format!("{item},").repeat(times);
    items.pop();
    format!("[{items}]")
}

/// A snapshot of these lists.
fn snapshot(segments: &str, traces: &str) -> String {
    format!("{{\"segments\":{segments},\"device_traces\":{traces}}}")
}

const NO_EVENT: &str = r#"{"action":""}"#;
const SEGMENT: &str = r#"{"address":0,"total_size":0,"blocks":[]}"#;
const BLOCK: &str = r#"{"size":0,"state":"inactive"}"#;
const EVENTS: &str =
    r#"{"action":"alloc","addr":1,"size":1,"stream":1},{"action":"free_completed","addr":1,"size":1,"stream":1}"#;

#[test]
fn json() {
    let devices = snapshot("[]", &list("[]", 6_000_000));
    refused("devices", devices.as_bytes(), devices.len());
    let blocks = SEGMENT.replace("[]", &list(BLOCK, 50_000));
    let of_streams = (0..100_000).map(|stream| SEGMENT.replace('}', &format!(r#","stream":{stream}}}"#)));
    let of_streams: Vec<_> = of_streams.collect();
    for (what, json) in [
        ("entries that are no events", snapshot("[]", &format!("[{}]", list(NO_EVENT, 50_000)))),
        ("segments", snapshot(&list(SEGMENT, 50_000), "[]")),
        ("blocks", snapshot(&format!("[{blocks}]"), "[]")),
        ("streams", snapshot(&format!("[{}]", of_streams.join(",")), "[]")),
    ] {
        assert!(read_snapshot(json.as_bytes()).is_ok(), "{what}");
        let error = hold(what, json.as_bytes(), json.len()).unwrap_err();
        assert!(matches!(error, TraceError::NoHistory { .. }), "{what}: {error}");
    }
    for key in ["other", "allocator_settings"] {
        let deep = format!("{{\"{key}\":{}", "[".repeat(1 << 20));
        assert!(hold("lists in lists", deep.as_bytes(), deep.len()).is_err());
        let text = format!("{{\"{key}\":\"{}\"", "\\n".repeat(1 << 20));
        assert!(hold("text", text.as_bytes(), text.len()).is_err());
    }
}

/// Each of a thousand devices has a copy of the settings, of which every value is a node of a tree.
#[test]
fn settings_of_many_devices() {
    let mut settings = String::new();
    for key in 0..170 {
        write!(settings, "\"{key}\":{{\"a\":{{\"b\":1}}}},").unwrap();
    }
    settings.pop();
    let event = r#"[{"action":"alloc","addr":512,"size":1,"stream":0}],"#;
    let mut traces = event.repeat(1024);
    traces.pop();
    let json = format!("{{\"segments\":[],\"allocator_settings\":{{{settings}}},\"device_traces\":[{traces}]}}");
    refused("settings", json.as_bytes(), json.len());
}

/// The files of real jobs are far from the limit, so that larger ones are not refused: a snapshot takes less than six times
/// its bytes, its tables among them.
#[test]
fn snapshots_of_real_jobs() {
    for name in ["prefetch-2s", "resnet-multi-wrapped", "train-all", "vision", "fragmented"] {
        let path = format!("{}/tests/data/snapshots/{name}.snapshot.pickle.gz", env!("CARGO_MANIFEST_DIR"));
        let file = std::fs::read(&path).unwrap();
        let mut unpacked = Vec::new();
        std::io::copy(&mut flate2::read::MultiGzDecoder::new(file.as_slice()), &mut unpacked).unwrap();
        let (bytes, read) = peak(|| read_snapshot(&unpacked));
        assert!(read.is_ok() && bytes < 6 * unpacked.len() as u64, "{name}: {bytes} of {}", unpacked.len());
        let (stacks, origins) = peak(|| read_origins(std::path::Path::new(&path)));
        assert!(origins.is_ok() && stacks < 8 * unpacked.len() as u64, "{name}: {stacks} of {}", unpacked.len());
        let times = |bytes: u64| bytes as f64 / unpacked.len() as f64;
        eprintln!("{name}: {:.2} times {} bytes, stacks {:.2}", times(bytes), unpacked.len(), times(stacks));
    }
}

/// Where eight times the bytes are more than 256 MiB.
#[test]
fn large_files() {
    if std::env::var_os("SEAMALLOC_LARGE_FILES").is_none() {
        return;
    }
    let short = "a,1,1,0\nr,1\nf,1\n".repeat(6 << 20);
    assert!(hold("the shortest lines", short.as_bytes(), short.len()).is_ok());
    let distinct: String = (0..7_500_000).map(|id| format!("a,{id},1,{id:x}\n")).collect();
    let _ = hold("ids and streams", distinct.as_bytes(), distinct.len());
    let reused: String = (0..10_000_000).map(|id| format!("a,{id},1,0\n")).collect();
    let _ = hold("ids", reused.as_bytes(), reused.len());
    for (what, repeat) in [("lists", &b"]"[..]), ("tuples", b"N\x85"), ("constants", b"N"), ("memo", b"\x94")] {
        let file = pickle(b"N", repeat, (100 << 20) / repeat.len(), b"");
        assert!(hold(what, &file, file.len()).is_err());
    }
    let many = |item: &str| list(item, (100 << 20) / item.len());
    let of_one_block = SEGMENT.replace("[]", &format!("[{BLOCK}]"));
    for (what, json) in [
        ("segments", snapshot(&many(SEGMENT), "[]")),
        ("segments of a block", snapshot(&many(&of_one_block), "[]")),
        ("blocks", snapshot(&format!("[{}]", SEGMENT.replace("[]", &many(BLOCK))), "[]")),
        ("entries that are no events", snapshot("[]", &format!("[{}]", many(NO_EVENT)))),
        ("entries", snapshot("[]", &format!("[{}]", many(EVENTS)))),
    ] {
        let read = hold(what, json.as_bytes(), json.len());
        eprintln!("{what}: {read:?}");
    }
    const N: usize = 1 << 24;
    let zeros = vec![0; N];
    let (file, length) = compact(&body(b"x", b"{}", 1, 1, [&zeros, &zeros, &zeros, &[]]));
    assert!(hold("allocations", &file, length).is_ok());
}
