//! The graphs that are read, and the errors for input that is no graph.

use seamalloc_order::{Graph, GraphError, Limits, Load, LoadError, Method, OrderError, ReadError, order, read_text};
use std::time::Duration;

fn read(text: &str) -> Result<Graph, ReadError> {
    read_text("g", "g.json", text)
}

#[track_caller]
fn refused(tensors: &str, operators: &str, rest: &str, parts: &[&str]) {
    let text = format!("{{\"tensors\": [{tensors}], \"operators\": [{operators}]{rest}}}");
    let error = read(&text).unwrap_err().to_string();
    for part in ["g.json"].iter().chain(parts) {
        assert!(error.contains(part), "{error}\nlacks {part}");
    }
}

const A: &str = r#"{"name": "a", "bytes": 8}"#;
const W: &str = r#"{"name": "w", "bytes": 8, "persistent": true}"#;
const MAKE_A: &str = r#"{"name": "f", "inputs": [], "outputs": ["a"]}"#;

#[test]
fn what_is_no_graph_is_told_with_its_place() {
    refused(A, "", "", &["no operators"]);
    refused(&A.replace('8', "-8"), MAKE_A, "", &["tensor 1 `a`", "`bytes` is -8", "0 or more"]);
    refused(&A.replace('8', "1.5"), MAKE_A, "", &["tensor 1 `a`", "`bytes` is 1.5"]);
    refused(&A.replace('8', "281474976710656"), MAKE_A, "", &["tensor `a`", "281474976710656 bytes are too many"]);
    refused(r#"{"name": "a"}"#, MAKE_A, "", &["tensor 1 `a`", "expected `bytes` or `view_of`"]);
    refused(r#"{"bytes": 8}"#, MAKE_A, "", &["tensor 1", "expected a `name`"]);
    refused(r#"{"name": "a", "byte": 8}"#, MAKE_A, "", &["tensor 1", "unknown key `byte`"]);
    refused(&format!("{A}, {A}"), MAKE_A, "", &["two tensors are called `a`"]);
    refused(A, &format!("{MAKE_A}, {MAKE_A}"), "", &["operator 2 `f`", "`a` is made by operator 1 `f` already"]);
    refused(&format!("{A}, {W}"), r#"{"name": "f", "inputs": [], "outputs": ["w"]}"#, "", &["`w` is persistent"]);
    refused(A, r#"{"name": "f", "inputs": [], "outputs": []}"#, "", &["no operator makes `a`"]);
    refused(
        A,
        r#"{"name": "f", "inputs": ["weigth"], "outputs": ["a"]}"#,
        "",
        &["operator 1 `f`", "no tensor", "`weigth`"],
    );
    refused(&format!("{A}, {W}"), r#"{"name": "f", "inputs": ["W"], "outputs": ["a"]}"#, "", &["did you mean"]);
    refused(A, MAKE_A, r#", "outputs": ["b"]"#, &["outputs: no tensor is called `b`", "did you mean `a`?"]);
    refused(A, MAKE_A, r#", "outputs": "a""#, &["outputs", "expected a list of names"]);
    refused(A, MAKE_A, r#", "output": ["a"]"#, &["unknown key `output`"]);
    refused(r#"{"name": "a", "view_of": "a"}"#, MAKE_A, "", &["`a` is a view of itself"]);
    refused(r#"{"name": "a", "view_of": "b"}"#, MAKE_A, "", &["tensor `a`: no tensor is called `b`"]);
    refused(r#"{"name": "a", "view_of": "b", "bytes": 1}"#, MAKE_A, "", &["a view lies in the memory of another"]);
    let overwrites = r#"{"name": "f", "inputs": [], "outputs": ["a"], "overwrites": ["w"]}"#;
    refused(&format!("{A}, {W}"), overwrites, "", &["operator 1 `f`", "overwrites `w`", "none of its inputs"]);
    let error = read("{\n\"tensors\": [,]}").unwrap_err().to_string();
    assert!(error.contains("g.json, line 2"), "{error}");
}

#[test]
fn a_cycle_is_told_with_its_operators_and_tensors() {
    let error = read(
        r#"{"tensors": [{"name": "a", "bytes": 1}, {"name": "b", "bytes": 1}, {"name": "c", "bytes": 1}],
            "operators": [{"name": "start", "inputs": [], "outputs": ["c"]},
                          {"name": "f", "inputs": ["b", "c"], "outputs": ["a"]},
                          {"name": "g", "inputs": ["a"], "outputs": ["b"]}]}"#,
    );
    let Err(ReadError::Graph { error: GraphError::Cycle { steps }, .. }) = &error else {
        unreachable!("{error:?}");
    };
    assert_eq!(steps.len(), 2);
    let text = error.unwrap_err().to_string();
    let expected =
        "g.json: the graph has a cycle: operator 2 `f` needs `b` of operator 3 `g` needs `a` of operator 2 `f`";
    assert_eq!(text, expected);
}

#[test]
fn operators_out_of_order_are_no_cycle() {
    let error = read(
        r#"{"tensors": [{"name": "a", "bytes": 1}, {"name": "b", "bytes": 1}],
            "operators": [{"name": "g", "inputs": ["a"], "outputs": ["b"]}, {"name": "f", "inputs": [], "outputs": ["a"]}]}"#,
    );
    let text = error.unwrap_err().to_string();
    assert_eq!(
        text,
        "g.json: operator 1 `g`: it reads `a`, which operator 2 `f` makes later; operators stand in the program's order"
    );
}

/// A weight is read, overwritten, and its new value read; nothing of this may change places.
const STEP: &str = r#"{"tensors": [{"name": "w", "bytes": 8, "persistent": true}, {"name": "x", "bytes": 4},
        {"name": "g", "bytes": 8}, {"name": "new", "view_of": "w"}, {"name": "y", "bytes": 4}],
    "operators": [{"name": "read", "inputs": ["w"], "outputs": ["x"]},
                  {"name": "backward", "inputs": ["x"], "outputs": ["g"]},
                  {"name": "sgd", "inputs": ["w", "g"], "outputs": ["new"], "overwrites": ["w"]},
                  {"name": "read", "inputs": ["new"], "outputs": ["y"]}],
    "outputs": ["y"]}"#;

#[test]
fn what_writes_in_place_keeps_its_place_between_readers() {
    let graph = read(STEP).unwrap();
    let after: Vec<&[usize]> = graph.operators().iter().map(|operator| operator.after.as_slice()).collect();
    assert_eq!(after, [&[] as &[usize], &[0], &[0, 1], &[2]]);
    let load = Load::of(&graph, &[0, 1, 2, 3]).unwrap();
    assert_eq!((load.live.as_slice(), load.peak), (&[12, 20, 16, 12][..], 20));
    let early = Load::of(&graph, &[0, 2, 1, 3]).unwrap_err();
    assert_eq!(early, LoadError::Early { operator: 2, name: "sgd".to_owned(), before: 1 });
    assert_eq!(Load::of(&graph, &[0, 1, 2]).unwrap_err(), LoadError::Count { operators: 4 });
    assert_eq!(Load::of(&graph, &[0, 1, 2, 2]).unwrap_err(), LoadError::Count { operators: 4 });
}

#[test]
fn no_time_and_no_solver_are_errors() {
    let graph = read(STEP).unwrap();
    for method in Method::ALL {
        let none = order(&graph, method, &Limits { time: Duration::ZERO }).unwrap_err();
        assert_eq!(none, OrderError::NoTime { method });
        assert!(none.to_string().contains("a time limit of 0 s"), "{none}");
        let found = order(&graph, method, &Limits::default());
        assert_eq!(found.is_ok(), method.is_there(), "{method}");
        if let Err(error) = found {
            assert!(
                error.to_string().contains("no solver") && error.to_string().contains("--features highs"),
                "{error}"
            );
        }
    }
}
