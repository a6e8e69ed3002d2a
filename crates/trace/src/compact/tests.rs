//! Files of the compact format, whole, damaged and hostile.

use proptest::prelude::*;

use super::layout::{ALLOC, FREE, FREE_COMPLETED, checksum, unzigzag, zigzag};
use super::write::put_bytes;
use super::{MAGIC, VERSION, read_compact, write_compact};
use crate::builder::tests::valid_trace;
use crate::error::{Place, RuleError, TraceError};
use crate::trace::{Trace, TraceEvent};
use seamalloc::driver::StreamId;

fn pack(body: &[u8], length: u64) -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    file.extend(VERSION.to_le_bytes());
    file.extend(checksum(body).to_le_bytes());
    file.extend(length.to_le_bytes());
    file.extend(zstd::encode_all(body, 1).unwrap());
    file
}

/// Returns a body with one stream, the sizes 5 and 6, and the given columns.
fn body(operations: &[u8], sizes: &[u8], streams: &[u8], blocks: &[u8]) -> Vec<u8> {
    let mut body = b"\x01t\x02{}\x01\x00\x02\x05\x06".to_vec();
    for column in [operations, sizes, streams, blocks] {
        put_bytes(&mut body, column);
    }
    body
}

fn read_body(body: &[u8]) -> Result<Trace, TraceError> {
    read_compact("t.seam", &pack(body, body.len() as u64))
}

fn small_file() -> Vec<u8> {
    let body = body(&[ALLOC, ALLOC, FREE], &[0, 1], &[0, 0], &[2]);
    pack(&body, body.len() as u64)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn round_trip(trace in valid_trace()) {
        let mut file = Vec::new();
        write_compact(&trace, &mut file).unwrap();
        prop_assert_eq!(read_compact("t", &file).unwrap(), trace);
    }

    #[test]
    fn damage_is_found(at in 0usize..1000, flip in 1u8..=255) {
        let mut file = small_file();
        let at = at % file.len();
        file[at] ^= flip;
        // A flipped bit in zstd's frame header may leave the content unchanged. The trace must then be unchanged too.
        if let Ok(trace) = read_compact("t", &file) {
            prop_assert_eq!(trace, read_compact("t", &small_file()).unwrap());
        }
    }

    #[test]
    fn hostile_bodies_do_not_panic(body in proptest::collection::vec(0u8..8, 0..60)) {
        drop(read_body(&body));
    }
}

#[test]
fn streams_that_are_unused_or_listed_twice_come_back() {
    let streams = vec![StreamId(4), StreamId(0), StreamId(4)];
    let trace = Trace { name: "ü".to_owned(), streams, ..Trace::default() };
    let mut file = Vec::new();
    write_compact(&trace, &mut file).unwrap();
    assert_eq!(read_compact("t", &file).unwrap(), trace);
}

/// A parser that rounds twice reads this decimal number as a neighbouring one.
#[test]
fn what_is_known_of_a_job_keeps_its_last_digit() {
    let number = serde_json::json!(-6.708072638548222e+274);
    assert_eq!(number.as_f64(), Some(-6.708072638548222e+274));
    let mut trace = Trace { name: "t".to_owned(), ..Trace::default() };
    trace.meta.insert("threshold".to_owned(), number);
    let mut file = Vec::new();
    write_compact(&trace, &mut file).unwrap();
    assert_eq!(read_compact("t", &file).unwrap(), trace);
}

#[test]
fn the_documented_columns_are_read() {
    let trace = read_compact("t", &small_file()).unwrap();
    assert_eq!(trace.events[1], TraceEvent::Alloc { size: 6, stream: 0 });
    assert_eq!(trace.events[2..], [TraceEvent::FreeRequested { block: 1 }, TraceEvent::FreeCompleted { block: 1 }]);
}

#[test]
fn every_truncation_is_an_error() {
    let file = small_file();
    for length in 0..file.len() {
        let error = read_compact("t.seam", &file[..length]).unwrap_err();
        assert!(matches!(error, TraceError::Malformed { place: Place::Byte(_), .. }), "{length}: {error}");
    }
    let mut longer = file;
    longer.push(0);
    assert!(read_compact("t.seam", &longer).unwrap_err().to_string().contains("1 more bytes"));
}

#[test]
fn headers_that_lie_are_named() {
    let mut newer = small_file();
    newer[8] = 2;
    let error = read_compact("t", &newer).unwrap_err();
    assert!(error.to_string().contains("version 2; this program reads versions 1 to 1"), "{error}");
    let mut wrong = small_file();
    wrong[12] ^= 1;
    assert!(matches!(read_compact("t", &wrong), Err(TraceError::Checksum { .. })));
    let error = read_compact("t", b"notmagic").unwrap_err();
    assert!(matches!(error, TraceError::Malformed { place: Place::Byte(0), .. }), "{error}");
    assert!(matches!(read_compact("t", &pack(b"", u64::MAX)), Err(TraceError::TooLarge { .. })));
}

#[test]
fn a_bomb_is_cut_at_its_claimed_length() {
    let bomb = vec![0u8; 8 << 20];
    let packed = pack(&bomb, 100);
    assert!(packed.len() < 4096);
    let error = read_compact("t", &packed).unwrap_err();
    assert!(error.to_string().contains("found more, expected 100 bytes"), "{error}");
}

#[test]
fn counts_that_lie_allocate_nothing() {
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    for front in [b"".as_slice(), b"\x01t", b"\x01t\x02{}", b"\x01t\x02{}\x01\x00", b"\x01t\x02{}\x01\x00\x00"] {
        let error = read_body(&[front, &huge].concat()).unwrap_err();
        assert!(matches!(error, TraceError::Malformed { place: Place::Byte(_), .. }), "{error}");
    }
    let eleven = [[0xff; 10].as_slice(), &[1]].concat();
    assert!(read_body(&eleven).unwrap_err().to_string().contains("more than 64 bits"));
}

#[test]
fn columns_that_disagree_are_named() {
    for (operations, sizes, streams, blocks) in [
        (&[ALLOC, 4][..], &[0][..], &[0][..], &[0][..]),
        (&[ALLOC], &[2], &[0], &[]),
        (&[ALLOC], &[], &[0], &[]),
        (&[ALLOC], &[0], &[], &[]),
        (&[ALLOC], &[0, 0], &[0], &[]),
        (&[ALLOC], &[0], &[0, 0], &[]),
        (&[ALLOC], &[0], &[0], &[0]),
        (&[ALLOC, FREE], &[0], &[0], &[1]),
        (&[ALLOC, FREE], &[0], &[0], &[]),
    ] {
        let error = read_body(&body(operations, sizes, streams, blocks)).unwrap_err();
        assert!(matches!(error, TraceError::Malformed { place: Place::Byte(_), .. }), "{error}");
    }
    let error = read_body(&body(&[ALLOC, FREE_COMPLETED], &[0], &[0], &[0])).unwrap_err();
    assert!(matches!(error, TraceError::Rule { source: RuleError::CompletedBeforeRequested(0), .. }), "{error}");
    let error = read_body(&body(&[ALLOC], &[0], &[1], &[])).unwrap_err();
    assert!(matches!(error, TraceError::Rule { source: RuleError::NoSuchStream { .. }, .. }), "{error}");
    let mut longer = body(&[ALLOC], &[0], &[0], &[]);
    longer.push(0);
    assert!(read_body(&longer).unwrap_err().to_string().contains("the end of the body"));
}

#[test]
fn zigzag_is_undone() {
    for number in [0, -1, 1, i64::from(u32::MAX), i64::MIN, i64::MAX] {
        assert_eq!(unzigzag(zigzag(number)), number);
    }
}
