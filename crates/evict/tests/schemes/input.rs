//! Files: DTR's logs and lists of operators, and what is said of those that are neither.

use flate2::Compression;
use flate2::write::GzEncoder;
use seamalloc_evict::generate::{PROGRAMS, linear, named};
use seamalloc_evict::graph::{GraphBuilder, GraphError, Output, Step};
use seamalloc_evict::read::{read_path, read_text};
use seamalloc_evict::{BudgetError, SchemeKind, budget, peak};
use std::io::Write;

/// A log as the prototype writes it: a constant, a product, a view of it, an activation in its place.
const LOG: &str = r#"{"INSTRUCTION":"CONSTANT","NAME":"before"}
{"ANNOTATION":"START","INSTRUCTION":"ANNOTATE"}
{"INSTRUCTION":"CONSTANT","NAME":"x1"}
{"INSTRUCTION":"MEMORY","MEMORY":"1728","NAME":"x1"}
{"DST":"x2","INSTRUCTION":"COPY","SRC":"x1"}
{"ARGS":["x1","x2"],"INSTRUCTION":"CALL","NAME":"cudnn_convolution","RESULT":["x3","x4"],"TIME":"900"}
{"INSTRUCTION":"MEMORY","MEMORY":"4096","NAME":"x3"}
{"ALIAS":"-1","INSTRUCTION":"ALIAS","NAME":"x3"}
{"INSTRUCTION":"MEMORY","MEMORY":"1728","NAME":"x4"}
{"ALIAS":"0","INSTRUCTION":"ALIAS","NAME":"x4"}
{"INSTRUCTION":"RELEASE","NAME":"x2"}
{"ARGS":["x3"],"INSTRUCTION":"MUTATE","MUTATE":[0],"NAME":"relu_","TIME":"20"}
{"DST":"x4","INSTRUCTION":"COPY_FROM","SRC":"x3"}
{"INSTRUCTION":"RELEASE","NAME":"nobody"}
{"INSTRUCTION":"RELEASE","NAME":"x3"}
{"ANNOTATION":"BACKWARD","INSTRUCTION":"ANNOTATE"}
"#;

const LIST: &str = r#"{"operators": [
  {"name": "add", "cost": 3, "inputs": ["y", "x"], "outputs": [{"name": "z", "bytes": 10}]},
  {"name": "input", "outputs": [{"name": "x", "bytes": 100}]},
  {"name": "matmul", "cost": 7, "inputs": ["x"], "outputs": [{"name": "y", "bytes": 1000}]}],
 "results": ["z"]}"#;

#[track_caller]
fn refused(text: &str, parts: &[&str]) {
    let error = read_text("bad", "bad.json", text).unwrap_err().to_string();
    for part in ["bad.json"].iter().chain(parts) {
        assert!(error.contains(part), "`{part}` is missing in: {error}");
    }
}

#[test]
fn a_log_is_read_as_the_simulator_reads_it() {
    let graph = read_text("log", "log", LOG).unwrap();
    let names: Vec<_> = graph.operators().iter().map(|operator| operator.name.as_str()).collect();
    assert_eq!(names, ["constant", "cudnn_convolution", "relu_"]);
    assert_eq!(graph.cost(), 920);
    let tensors: Vec<_> = graph.tensors().iter().map(|t| (t.name.as_str(), t.storage.0, t.is_alias)).collect();
    assert_eq!(tensors, [("x1", 0, false), ("x3", 1, false), ("x4", 0, true), ("x3'", 2, false)]);
    assert_eq!(graph.storages().iter().map(|storage| storage.bytes).collect::<Vec<_>>(), [1728, 4096, 4096]);
    assert_eq!(graph.operators()[2].in_place, [(0, 0)]);
    // The constant as it comes; at the end what is held, by each of its names.
    let pinned = graph.steps().iter().filter_map(|step| match step {
        Step::Pin(tensor) => Some(graph.tensors()[tensor.index()].name.as_str()),
        _ => None,
    });
    assert_eq!(pinned.collect::<Vec<_>>(), ["x1", "x1", "x1", "x3'", "x3'"]);
    // The constant, the product and the activation made of it.
    assert_eq!(peak(&graph).unwrap(), 1728 + 2 * 4096);
}

#[test]
fn a_list_runs_in_the_order_that_its_inputs_allow() {
    let graph = read_text("list", "list", LIST).unwrap();
    let names: Vec<_> = graph.operators().iter().map(|operator| operator.name.as_str()).collect();
    assert_eq!(names, ["constant", "matmul", "add"]);
    assert_eq!((graph.cost(), peak(&graph).unwrap()), (10, 1110));
}

#[test]
fn compressed_files_are_read_and_named_by_their_file() {
    let path = std::env::temp_dir().join(format!("seamalloc-evict-{}.log.gz", std::process::id()));
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(LOG.as_bytes()).unwrap();
    let packed = gzip.finish().unwrap();
    std::fs::write(&path, &packed).unwrap();
    let graph = read_path(&path).unwrap();
    assert!(graph.name().starts_with("seamalloc-evict-") && !graph.name().contains(".log"), "{}", graph.name());
    assert_eq!(graph.operators().len(), 3);
    std::fs::write(&path, &packed[..packed.len() / 2]).unwrap();
    assert!(read_path(&path).unwrap_err().to_string().contains("cannot read"));
    std::fs::remove_file(&path).unwrap();
    assert!(read_path(&path).unwrap_err().to_string().contains("expected a graph"));
}

#[test]
fn a_cycle_is_told_with_its_tensors() {
    refused(
        r#"{"operators": [
            {"name": "input", "outputs": [{"name": "x", "bytes": 1}]},
            {"name": "f", "cost": 1, "inputs": ["x", "c"], "outputs": [{"name": "a", "bytes": 1}]},
            {"name": "g", "cost": 1, "inputs": ["a"], "outputs": [{"name": "b", "bytes": 1}]},
            {"name": "h", "cost": 1, "inputs": ["b"], "outputs": [{"name": "c", "bytes": 1}]},
            {"name": "i", "cost": 1, "inputs": ["c"], "outputs": [{"name": "d", "bytes": 1}]}]}"#,
        &["cycle", "`a`", "`b`", "`c`"],
    );
    let itself =
        r#"{"operators": [{"name": "f", "cost": 1, "inputs": ["a"], "outputs": [{"name": "a", "bytes": 1}]}]}"#;
    refused(itself, &["cycle", "`a`"]);
}

#[test]
fn what_is_no_graph_is_told_with_its_place() {
    for (text, parts) in [
        ("", &["line 1", "expected a graph"] as &[_]),
        ("hello", &["line 1", "expected a graph"]),
        ("{}", &["`operators`"]),
        (r#"{"operators": []}"#, &["no operators"]),
        (r#"{"operators": [{"outputs": []}]}"#, &["operator 1", "`name`"]),
        (r#"{"operators": [{"name": "f"}]}"#, &["operator 1", "`outputs`"]),
        (r#"{"operators": [{"name": "f", "cost": -1, "outputs": []}]}"#, &["operator 1", "`cost`"]),
        (r#"{"operators": [{"name": "f", "outputs": [{"name": "x"}]}]}"#, &["operator 1", "`x`", "`bytes`"]),
        (r#"{"operators": [{"name": "f", "cost": 1, "inputs": ["y"], "outputs": []}]}"#, &["nothing makes `y`"]),
        (
            r#"{"operators": [{"name": "f", "outputs": [{"name": "x", "bytes": 1}, {"name": "x", "bytes": 1}]}]}"#,
            &["`x` is made twice"],
        ),
        (r#"{"operators": [{"name": "f", "outputs": [{"name": "x", "bytes": 9999999999999999}]}]}"#, &["`x`", "2^50"]),
    ] {
        refused(text, parts);
    }
    let constant =
        "{\"INSTRUCTION\":\"CONSTANT\",\"NAME\":\"a\"}\n{\"INSTRUCTION\":\"MEMORY\",\"MEMORY\":\"8\",\"NAME\":\"a\"}\n";
    for (line, parts) in [
        (
            "{\"INSTRUCTION\":\"CONSTANT\",\"NAME\":\"b\"}",
            &["line 3", "the file ends before the MEMORY of `b`"] as &[_],
        ),
        ("{\"INSTRUCTION\":\"JUMP\"}", &["line 3", "`JUMP`", "CONSTANT"]),
        ("not json", &["line 3", "JSON object"]),
        ("{\"INSTRUCTION\":\"COPY\",\"SRC\":\"z\",\"DST\":\"y\"}", &["line 3", "`z`", "unknown", "cycle"]),
        ("{\"INSTRUCTION\":\"COPY\",\"SRC\":\"a\",\"DST\":\"a\"}", &["line 3", "`a` is made twice"]),
        (
            "{\"INSTRUCTION\":\"RELEASE\",\"NAME\":\"a\"}\n{\"INSTRUCTION\":\"RELEASE\",\"NAME\":\"a\"}",
            &["line 4", "`a` is used after its release"],
        ),
        (
            "{\"INSTRUCTION\":\"CALL\",\"NAME\":\"f\",\"TIME\":\"soon\",\"ARGS\":[\"a\"],\"RESULT\":[]}",
            &["line 3", "`TIME`", "soon"],
        ),
        (
            "{\"INSTRUCTION\":\"CALL\",\"NAME\":\"f\",\"TIME\":\"-3\",\"ARGS\":[],\"RESULT\":[]}",
            &["line 3", "negative"],
        ),
        (
            "{\"INSTRUCTION\":\"MUTATE\",\"NAME\":\"f\",\"TIME\":\"3\",\"ARGS\":[\"a\"],\"MUTATE\":[1]}",
            &["line 3", "`MUTATE`", "no place"],
        ),
        (
            "{\"INSTRUCTION\":\"CALL\",\"NAME\":\"f\",\"TIME\":\"3\",\"ARGS\":[\"a\"],\"RESULT\":[\"b\"]}\n\
             {\"INSTRUCTION\":\"MEMORY\",\"MEMORY\":\"8\",\"NAME\":\"b\"}\n{\"INSTRUCTION\":\"ALIAS\",\"ALIAS\":\"4\",\"NAME\":\"b\"}",
            &["line 3", "`f`", "input 4", "1 inputs"],
        ),
    ] {
        refused(&format!("{constant}{line}\n"), parts);
    }
}

#[test]
fn builders_refuse_what_was_released() {
    let mut builder = GraphBuilder::new("g");
    let tensor = builder.constant("t", 8).unwrap();
    builder.release(tensor).unwrap();
    let released = GraphError::Released { tensor: "t".to_owned() };
    assert_eq!(builder.operator("f", 1, &[tensor], &[Output::View("v".to_owned(), 0)]).unwrap_err(), released);
    assert_eq!(builder.pin(tensor).unwrap_err(), released);
    assert_eq!(GraphBuilder::new("empty").finish().unwrap_err(), GraphError::Empty);
    assert_eq!(linear(0, 1).unwrap_err(), GraphError::Empty);
}

#[test]
fn budgets_and_names_that_make_no_sense_are_refused() {
    for part in [0.0, -0.5, f64::NAN] {
        assert!(matches!(budget(1 << 30, part), Err(BudgetError::None(_))), "{part}");
    }
    assert!(matches!(budget(1 << 30, f64::INFINITY), Err(BudgetError::TooLarge(_))));
    assert_eq!(budget(10 << 20, 0.5).unwrap(), 4 << 20);
    assert_eq!(budget(10, 0.5).unwrap(), 2 << 20);
    let error = "stiched".parse::<SchemeKind>().unwrap_err().to_string();
    assert!(error.contains("did you mean `stitched`?") && error.contains("dtr-eq"), "{error}");
    assert!(SchemeKind::ALL.iter().all(|kind| kind.name().parse() == Ok(*kind)));
}

#[test]
fn generated_programs_are_the_same_by_seed_and_go_forward_and_back() {
    for program in PROGRAMS {
        let graph = program.generate(3).unwrap();
        assert_eq!(graph, program.generate(3).unwrap());
        assert_eq!(graph.name(), program.name);
        assert!(named(program.name).is_ok());
        let most = peak(&graph).unwrap();
        assert!(graph.operators().len() >= 190 && most > 100 << 20, "{graph}: {most}");
        assert!(graph.cost() > 0);
    }
    let drawn = ["lstm", "treelstm", "dtr-tree"].map(|name| named(name).unwrap());
    assert!(drawn.iter().all(|program| program.generate(3).unwrap() != program.generate(4).unwrap()));
    assert_eq!(named("resnt").unwrap_err(), Some("resnet"));
}
