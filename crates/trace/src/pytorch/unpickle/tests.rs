//! Pickles of every kind, including hostile ones.

use proptest::prelude::*;

use super::super::pickle::Number;
use super::*;

fn read(bytes: &[u8]) -> Result<Pickle<'_>, TraceError> {
    unpickle("t.pickle", bytes, &mut Memory::of(bytes.len() as u64))
}

fn root(bytes: &[u8]) -> Item {
    read(bytes).unwrap().root()
}

fn number(bytes: &[u8]) -> Number {
    let pickle = read(bytes).unwrap();
    pickle.number(pickle.root()).unwrap()
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        drop(read(&bytes));
    }

    #[test]
    fn any_opcodes_are_read_or_refused(picks in proptest::collection::vec(0usize..24, 0..100)) {
        const OPCODES: &[u8; 24] = b"(.N]}alte01u2s)dKJhqX\x85\x86\x94";
        let bytes: Vec<u8> = picks.into_iter().map(|pick| OPCODES[pick]).collect();
        drop(read(&bytes));
    }
}

#[test]
fn integers_of_every_width() {
    assert_eq!(number(b"\x80\x02K\xff."), Number::Int(255));
    assert_eq!(number(b"\x80\x02M\xff\xff."), Number::Int(65535));
    assert_eq!(number(b"\x80\x02J\xff\xff\xff\xff."), Number::Int(-1));
    assert_eq!(number(b"\x80\x02\x8a\x00."), Number::Int(0));
    assert_eq!(number(b"\x80\x02\x8a\x06\x00\x00\x00\xa4\xe2\x7f."), Number::Int(0x7fe2_a400_0000));
    assert_eq!(number(b"\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00."), Number::Large(u64::MAX));
    assert_eq!(number(b"\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x7f."), Number::Huge);
    assert_eq!(number(b"\x80\x02\x8b\x01\x00\x00\x00\x80."), Number::Int(-128));
    assert_eq!(number(b"\x80\x02G\x3f\xf0\x00\x00\x00\x00\x00\x00."), Number::Float(1.0));
}

#[test]
fn dicts_lists_and_shared_values() {
    // The bytes are pickle.dumps({"a": [1, (2, None)], "b": "a"}, 4), with the second "a" taken from the memo.
    let bytes = b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01K\x02N\x86\x94e\x8c\x01b\x94h\x01u.";
    let pickle = read(bytes).unwrap();
    let list = pickle.list(pickle.get(pickle.root(), "a").unwrap()).unwrap();
    assert_eq!(list[0], Item::Small(1));
    assert_eq!(pickle.list(list[1]), Some([Item::Small(2), Item::None].as_slice()));
    assert_eq!(pickle.get(pickle.root(), "b").and_then(|item| pickle.text(item)), Some("a"));
    assert_eq!(pickle.get(pickle.root(), "c"), None);
}

#[test]
fn nothing_is_executed() {
    // The bytes are pickle.dumps of an object whose __reduce__ gives (os.system, ("echo pwned",)), in protocols 2 and
    // 4.
    let old = b"\x80\x02cposix\nsystem\nq\x00X\x0a\x00\x00\x00echo pwnedq\x01\x85q\x02Rq\x03.";
    let new = b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x0aecho pwned\x94\x85\x94R\x94.";
    for (bytes, at, name) in [(old.as_slice(), 2, "GLOBAL"), (new.as_slice(), 19, "STACK_GLOBAL")] {
        match read(bytes).err() {
            Some(TraceError::NotData { offset, opcode, .. }) => assert_eq!((offset, opcode), (at, name)),
            other => panic!("{other:?}"),
        }
    }
    for opcode in *b"\x81\x82\x83\x84\x92\x93\x97\x98RbioPQc" {
        let error = read(&[0x80, 4, b'N', opcode]).err().unwrap();
        assert!(error.to_string().contains("byte 3: the pickle holds"), "{error}");
        assert!(error.to_string().contains("not executed"), "{error}");
    }
}

#[test]
fn bombs_do_no_harm() {
    // One pickle has a million nested lists, the other a million `MARK` opcodes.
    let mut nested = vec![0x80, 4];
    nested.extend(vec![b']'; 1_000_000]);
    nested.extend(vec![b'a'; 999_999]);
    nested.push(b'.');
    assert!(matches!(root(&nested), Item::List(0)));
    assert!(read(&vec![b'('; 1_000_000]).is_err());
    // Each of forty lists contains the previous list ten times. Copies would be 10^40 values.
    let mut laughs = b"\x80\x04]\x94".to_vec();
    for id in 0..40 {
        laughs.push(b'(');
        (0..10).for_each(|_| laughs.extend([b'h', id]));
        laughs.extend(b"l\x94");
    }
    laughs.push(b'.');
    assert!(matches!(root(&laughs), Item::List(40)));
    // The list contains itself.
    assert!(matches!(root(b"\x80\x04]\x94h\x00a."), Item::List(0)));
}

#[test]
fn lengths_and_ids_that_lie_are_errors() {
    let cases: [&[u8]; 12] = [
        b"",
        b"\x80",
        b"\x80\x04",
        b"\x80\x04X\xff\xff\xff\xffa.",
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffa.",
        b"\x80\x04\x8b\xff\xff\xff\xffa.",
        b"\x80\x04\x96\xff\xff\xff\xff\xff\xff\xff\xffa.",
        b"\x80\x04Nr\xff\xff\xff\xff.",
        b"\x80\x04h\x00.",
        b"\x80\x04}(Nu.",
        b"\x80\x04}Na.",
        b"\x80\x04K\x01(a.",
    ];
    for bytes in cases {
        let error = read(bytes).err().unwrap();
        assert!(matches!(error, TraceError::Malformed { place: Place::Byte(_), .. }), "{bytes:?}: {error}");
    }
}
