//! The checker finds what it is there for: crates of a few lines, and what it says of them.

use super::calls::calls;
use super::circles::{circles, say};
use super::imports::{Arrow, arrows};
use super::modules::{Crate, Files};
use super::{arithmetic, order};

fn read(files: &[(&str, &str)]) -> Crate {
    let files: Files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    let others = [("seamalloc_driver", "crates/driver/src/lib.rs"), ("seamalloc_sim", "crates/sim/src/lib.rs")];
    let others: Vec<_> = others.into_iter().filter(|(_, root)| files.contains_key(*root)).collect();
    Crate::read(&files, "src/lib.rs", &others).unwrap()
}

fn arrows_of(files: &[(&str, &str)]) -> Vec<Arrow> {
    arrows(&read(files))
}

/// The arrows as `from:line > to`.
fn drawn(files: &[(&str, &str)]) -> Vec<String> {
    arrows_of(files).iter().map(|arrow| format!("{}:{} > {}", arrow.from, arrow.line, arrow.to)).collect()
}

fn objections(files: &[(&str, &str)]) -> Vec<String> {
    arrows_of(files).iter().filter_map(order::objection).collect()
}

fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
    circles(&arrows_of(files)).iter().map(|circle| say(circle)).collect()
}

#[test]
fn an_import_that_goes_down_is_allowed() {
    let files = [
        ("src/lib.rs", "mod heap; mod ids;"),
        ("src/heap/mod.rs", "mod pool;\nuse crate::ids::PoolId;\nuse pool::Pool;\nstruct Heap(Pool, PoolId);"),
        ("src/heap/pool.rs", "use crate::ids::PoolId;\npub(crate) struct Pool(PoolId);"),
        ("src/ids.rs", "pub(crate) struct PoolId;"),
    ];
    assert_eq!(objections(&files), Vec::<String>::new());
    assert_eq!(circles_of(&files), Vec::<String>::new());
    let expected = ["src/heap/mod.rs:2 > src/ids.rs", "src/heap/mod.rs:3 > src/heap/pool.rs"];
    assert_eq!(drawn(&files), [expected[0], expected[1], "src/heap/pool.rs:1 > src/ids.rs"]);
}

#[test]
fn an_import_that_goes_up_is_named_with_both_files() {
    let files = [
        ("src/lib.rs", "mod heap; mod strategy;"),
        ("src/heap/mod.rs", "//! The tables.\nuse crate::strategy::Strategy;"),
        ("src/strategy/mod.rs", "mod contract;\npub(crate) use contract::Strategy;"),
        ("src/strategy/contract.rs", "pub(crate) trait Strategy {}"),
    ];
    let said = "src/heap/mod.rs:2 imports crate::strategy::Strategy of src/strategy/contract.rs: \
                `heap` stands below `strategy`";
    assert_eq!(objections(&files), [said]);
}

#[test]
fn a_path_through_parents_is_an_import() {
    let files = [
        ("src/lib.rs", "mod heap; mod streams;"),
        ("src/heap/mod.rs", "mod pool;"),
        ("src/heap/pool.rs", "use super::super::streams::Epoch;"),
        ("src/streams.rs", "pub(crate) struct Epoch;"),
    ];
    assert_eq!(drawn(&files), ["src/heap/pool.rs:1 > src/streams.rs"]);
    assert_eq!(objections(&files).len(), 1);
}

#[test]
fn each_name_in_nested_braces_is_an_import() {
    let files = [
        ("src/lib.rs", "mod error; mod heap; mod strategy; mod units;"),
        ("src/error.rs", "use crate::{\n    units::Bytes,\n    heap::{Heap,\n    block::{self, Block}}};"),
        ("src/heap/mod.rs", "pub(crate) mod block;\npub(crate) struct Heap;"),
        ("src/heap/block.rs", "pub(crate) struct Block;"),
        ("src/strategy/mod.rs", ""),
        ("src/units.rs", "pub(crate) struct Bytes;"),
    ];
    let expected = ["src/error.rs:2 > src/units.rs", "src/error.rs:3 > src/heap/mod.rs"];
    // The module `block`, and the name in it.
    let block = "src/error.rs:4 > src/heap/block.rs";
    assert_eq!(drawn(&files), [expected[0], expected[1], block, block]);
    assert_eq!(objections(&files).len(), 3);
}

#[test]
fn a_path_in_code_is_an_import_too() {
    let files = [
        ("src/lib.rs", "mod error; mod heap;"),
        ("src/error.rs", "fn a() {\n    crate::heap::grow();\n}\nfn b() { format!(\"{}\",\n crate::heap::LIMIT) }"),
        ("src/heap.rs", "pub(crate) fn grow() {}\npub(crate) const LIMIT: u64 = 1;"),
    ];
    assert_eq!(drawn(&files), ["src/error.rs:2 > src/heap.rs", "src/error.rs:5 > src/heap.rs"]);
}

#[test]
fn an_import_leads_to_the_file_that_defines_the_name() {
    let files = [
        ("src/lib.rs", "mod backing; mod heap;\npub(crate) use heap::Block;"),
        ("src/backing.rs", "use crate::Block;\nuse crate::heap::{Found as F, index};\nfn f() { index::Index::new(); }"),
        ("src/heap/mod.rs", "mod block;\npub(crate) mod index;\npub(crate) use block::*;"),
        ("src/heap/block.rs", "pub(crate) struct Block;\npub(super) use super::index::Found;"),
        ("src/heap/index.rs", "pub(crate) struct Found;\npub(crate) struct Index;"),
    ];
    assert_eq!(
        drawn(&files),
        [
            "src/backing.rs:1 > src/heap/block.rs",
            // The module `index`, and the name that it defines.
            "src/backing.rs:2 > src/heap/index.rs",
            "src/backing.rs:2 > src/heap/index.rs",
            "src/backing.rs:3 > src/heap/index.rs",
        ]
    );
}

#[test]
fn names_that_an_asterisk_brings_in_lead_to_their_files() {
    let files = [
        ("src/lib.rs", "mod a; mod b; mod c;"),
        ("src/a.rs", "use crate::b::*;\nfn f(x: X) {}"),
        ("src/b.rs", "pub(crate) use crate::c::{X, Y};"),
        ("src/c.rs", "pub(crate) struct X;\npub(crate) struct Y;"),
    ];
    assert_eq!(drawn(&files), ["src/a.rs:1 > src/b.rs", "src/a.rs:1 > src/c.rs"]);
}

#[test]
fn two_files_that_need_each_other_are_a_circle() {
    let files = [
        ("src/lib.rs", "mod heap;"),
        ("src/heap/mod.rs", "mod pool;\nuse pool::Pool;\npub(crate) struct Heap(Pool);"),
        ("src/heap/pool.rs", "use super::Heap;\npub(crate) struct Pool;\nfn of(heap: &Heap) {}"),
    ];
    let said = "a circle of 2 files:\n  src/heap/mod.rs:2 imports pool::Pool of src/heap/pool.rs\n  \
                src/heap/pool.rs:1 imports super::Heap of src/heap/mod.rs";
    assert_eq!(circles_of(&files), [said]);
}

#[test]
fn three_files_in_a_ring_are_a_circle() {
    let files = [
        ("src/lib.rs", "mod a; mod b; mod c; mod d;"),
        ("src/a.rs", "use crate::b::B;\npub(crate) struct A;"),
        ("src/b.rs", "use crate::c::C;\npub(crate) struct B;"),
        ("src/c.rs", "use crate::a::A;\nuse crate::d::D;\npub(crate) struct C;"),
        ("src/d.rs", "pub(crate) struct D;"),
    ];
    let circles = circles_of(&files);
    assert_eq!(circles.len(), 1, "{circles:?}");
    for line in ["src/a.rs:1 imports", "src/b.rs:1 imports", "src/c.rs:1 imports crate::a::A of src/a.rs"] {
        assert!(circles[0].contains(line), "{}", circles[0]);
    }
}

#[test]
fn a_part_of_the_heap_that_knows_another_one_is_named() {
    let files = [
        ("src/lib.rs", "mod heap;"),
        ("src/heap/mod.rs", "mod blocks;\nmod fingerprint;\nmod home;"),
        ("src/heap/fingerprint.rs", "pub(crate) struct Fingerprint;"),
        ("src/heap/home/mod.rs", "pub(crate) mod view;"),
        ("src/heap/home/view.rs", "use crate::heap::blocks::table::Blocks;\npub(crate) struct View;"),
        ("src/heap/blocks/mod.rs", "pub(crate) mod table;\nmod block;"),
        ("src/heap/blocks/block.rs", "pub(crate) struct Block;"),
        (
            "src/heap/blocks/table.rs",
            "use super::block::Block;\nuse crate::heap::fingerprint::Fingerprint;\nuse crate::heap::home::view::View;",
        ),
    ];
    let said = "src/heap/blocks/table.rs:3 imports crate::heap::home::view::View of src/heap/home/view.rs: \
                `src/heap/blocks/` knows no other part of the heap";
    assert_eq!(objections(&files), [said]);
}

#[test]
fn a_circle_through_a_re_export_is_one_among_the_files_that_define() {
    // The parent that only passes names on is not part of it.
    let files = [
        ("src/lib.rs", "mod heap;"),
        ("src/heap/mod.rs", "mod block;\nmod index;\npub(crate) use block::Block;\npub(crate) use index::Index;"),
        ("src/heap/block.rs", "use crate::heap::Index;\npub(crate) struct Block;"),
        ("src/heap/index.rs", "use super::Block;\npub(crate) struct Index;"),
    ];
    let circles = circles_of(&files);
    assert_eq!(circles.len(), 1, "{circles:?}");
    assert!(circles[0].starts_with("a circle of 2 files") && !circles[0].contains("mod.rs"), "{}", circles[0]);
}

#[test]
fn mod_lines_and_re_exports_are_no_imports_unless_the_name_is_used() {
    let parent = |code: &str| format!("mod child;\npub(crate) use child::Child;\npub(crate) struct Parent;\n{code}");
    let child = "use super::Parent;\npub(crate) struct Child;";
    for (code, circles) in [("", 0), ("fn of(child: &Child) {}", 1), ("fn of() { child::Child::new() }", 1)] {
        let of = [("src/lib.rs", "mod p;"), ("src/p/mod.rs", &*parent(code)), ("src/p/child.rs", child)];
        assert_eq!(circles_of(&of).len(), circles, "{code}");
    }
}

#[test]
fn what_is_for_tests_only_does_not_count() {
    let above = "use crate::strategy::Strategy;";
    for hidden in [
        format!("#[cfg(test)]\nmod tests {{ {above} }}"),
        format!("#[cfg(all(test, feature = \"x\"))]\n{above}"),
        "#[test]\nfn t() { crate::strategy::f(); }".to_owned(),
        "struct S;\nimpl S {\n#[cfg(test)]\nfn t() { crate::strategy::f(); } }".to_owned(),
        // The file is not read, and need not be there.
        "#[cfg(test)]\nmod tests;".to_owned(),
    ] {
        let files = [
            ("src/lib.rs", "mod ids; mod strategy;"),
            ("src/ids.rs", &*hidden),
            ("src/strategy.rs", "pub(crate) trait Strategy {}\npub(crate) fn f() {}"),
        ];
        assert_eq!(drawn(&files), Vec::<String>::new(), "{hidden}");
    }
    let files =
        [("src/lib.rs", "mod ids;"), ("src/ids.rs", "#[cfg(not(test))]\nuse crate::above;"), ("src/above.rs", "")];
    assert_eq!(drawn(&[files[0], files[1], files[2]]).len(), 1, "what tests lack is there for all else");
}

#[test]
fn nothing_below_it_calls_the_driver() {
    let import = |from: &'static str, line: &'static str| {
        let (config, heap) = if from == "config" { (line, "") } else { ("", line) };
        objections(&[
            ("src/lib.rs", "mod config; mod driver; mod heap; mod ids;"),
            ("src/config.rs", config),
            ("src/heap/mod.rs", heap),
            (
                "src/driver.rs",
                "pub use seamalloc_driver::{Driver, Handle, MemoryInfo, Status};\npub use seamalloc_sim as sim;",
            ),
            ("src/ids.rs", "pub use seamalloc_driver::Handle;"),
            (
                "crates/driver/src/lib.rs",
                "mod contract; mod error; mod ids;\npub use contract::*;\npub use error::Status;",
            ),
            (
                "crates/driver/src/contract.rs",
                "pub trait Driver {}\npub struct MemoryInfo;\npub use crate::ids::Handle;",
            ),
            ("crates/driver/src/error.rs", "pub struct Status;"),
            ("crates/driver/src/ids.rs", "pub struct Handle;"),
            ("crates/sim/src/lib.rs", "pub struct SimGpu;"),
        ])
    };
    for (from, line, allowed) in [
        ("heap", "use crate::driver::Status;", true),
        ("heap", "use crate::driver::Handle;", true),
        ("heap", "use crate::driver::MemoryInfo;", false),
        ("heap", "use crate::driver::Driver;", false),
        ("config", "use crate::driver::MemoryInfo;", true),
        ("config", "use crate::driver::Driver;", false),
        ("config", "use crate::driver::sim::SimGpu;", false),
        ("config", "use seamalloc_driver::Driver;", false),
        ("config", "use seamalloc_sim::SimGpu;", false),
        ("heap", "use crate::ids::Handle;", true),
        ("heap", "use seamalloc_driver::MemoryInfo;", false),
    ] {
        assert_eq!(import(from, line).is_empty(), allowed, "{from}: {line}");
    }
}

#[test]
fn a_file_that_is_in_no_layer_is_named() {
    let files = [
        ("src/lib.rs", "mod helper; mod ids;"),
        ("src/helper.rs", "use crate::ids::Id;"),
        ("src/ids.rs", "pub(crate) struct Id;"),
    ];
    assert_eq!(objections(&files).len(), 1);
    assert!(objections(&files)[0].ends_with("`helper` is in no layer"));
}

#[test]
fn pool_indices_are_found_wherever_they_are_computed() {
    let code = "fn f(&self) {\n let a = self.pools[1];\n let b = pool & !1;\n let c = of.pool & 1;\n let d = pool + 1;\n \
                assert!(x(\n pool & 1 == 0));\n}";
    let found = |code: &str| arithmetic::found(&read(&[("src/lib.rs", code)]));
    let lines: Vec<(usize, &str)> = found(code).into_iter().map(|(_, line, words)| (line, words)).collect();
    assert_eq!(lines, [(2, "pools["), (3, "& !1"), (4, "& 1"), (5, "pool + 1"), (7, "& 1")]);
    let other = "fn f() { g(&1); let [a, b] = pools; pools(); x & 15; x && 1 == y; pool + 12; &pools; }";
    assert_eq!(found(other), []);
    assert_eq!(found("#[cfg(test)] mod tests { fn f() { pools[1]; } }"), []);
}

/// The calls as `from:line > to`, of a file `src/a.rs` with this code in a crate whose `Core` and `Heap` have methods in files of their own.
fn called(code: &str) -> Vec<String> {
    let core =
        "use crate::heap::Heap;\npub(crate) struct Core { pub(crate) heap: Heap, pub(crate) next: Option<Box<Core>> }";
    let files = [
        ("src/lib.rs", "mod a; mod core; mod find; mod free; mod heap;"),
        ("src/a.rs", code),
        ("src/core.rs", core),
        (
            "src/find.rs",
            "use crate::heap::Heap;\nimpl Heap { pub(crate) fn find(&self) -> u64 { 0 }\npub(crate) fn new() -> Self {} }",
        ),
        (
            "src/free.rs",
            "use crate::core::Core;\nimpl Core { pub(crate) fn free(&mut self) -> Result<&mut Heap> {}\n\
             pub(crate) fn with(&mut self, step: impl FnOnce(&mut Core, &Heap)) {} }\nuse crate::heap::Heap;",
        ),
        ("src/heap.rs", "pub(crate) struct Heap;"),
    ];
    let of = read(&files);
    calls(&of)
        .iter()
        .filter(|arrow| arrow.from == "src/a.rs")
        .map(|arrow| format!("{} > {}", arrow.line, arrow.to))
        .collect()
}

#[test]
fn a_call_of_a_method_leads_to_the_file_that_defines_it() {
    let import = "use crate::core::Core; use crate::heap::Heap;\n";
    let (find, free) = ("src/find.rs", "src/free.rs");
    for (code, to) in [
        ("fn f(heap: &Heap) { heap.find(); }", find),
        ("fn f(core: &mut Core) { core.heap.find(); }", find),
        ("fn f(core: &mut Core) { core.next.as_ref().unwrap().heap.find(); }", find),
        ("fn f(core: &mut Core) { let heap = &core.heap; g(heap.find()); }", find),
        ("fn f(core: &mut Core) { if let Some(next) = &core.next { next.heap.find(); } }", find),
        ("fn f(core: &mut Core) { let Core { heap, .. } = core; heap.find(); }", find),
        ("fn f(all: &[Core]) { for core in all { core.heap.find(); } }", find),
        ("fn f(all: &[Core]) { all.iter().any(|core| core.heap.find() == 0); }", find),
        ("fn f() { let heap = Heap::new;\n}", find),
        ("fn f() { g(Heap::find) }", find),
        ("fn f(heap: &Heap) { assert_eq!(heap.find(), 0); }", find),
        ("impl Core { fn f(&mut self) { self.free(); } }", free),
        ("fn f(guard: &mut Guard<Core>) { let core: &mut Core = guard; core.free(); }", free),
    ] {
        assert_eq!(called(&format!("{import}{code}")), [format!("2 > {to}")], "{code}");
    }
    let of_a_result = "fn f(core: &mut Core) { let heap = core.free()?;\n heap.find(); }";
    assert_eq!(called(&format!("{import}{of_a_result}")), ["2 > src/free.rs", "3 > src/find.rs"]);
    let of_a_closure = "fn f(core: &mut Core) { core.with(|core, heap| {\n core.free();\n heap.find(); }) }";
    let expected = ["2 > src/free.rs", "3 > src/free.rs", "4 > src/find.rs"];
    assert_eq!(called(&format!("{import}{of_a_closure}")), expected);
    let none: [&str; 0] = [];
    for code in [
        "fn f(other: &Other) { other.find(); find(); }",
        "fn f(heap: &Heap) { let heap = 1; heap.find(); }",
        "#[cfg(test)]\nfn f(heap: &Heap) { heap.find(); }",
        "struct Own;\nimpl Own { fn find(&self) {} fn f(&self) { self.find(); } }",
    ] {
        assert_eq!(called(&format!("{import}{code}")), none, "{code}");
    }
}

#[test]
fn files_that_need_each_other_by_calls_are_one_circle() {
    let files = [
        ("src/lib.rs", "mod a; mod b; mod c; mod core;"),
        ("src/a.rs", "use crate::core::Core;\nimpl Core { fn one(&self) { self.two() } }"),
        ("src/b.rs", "use crate::core::Core;\nimpl Core { fn two(&self) { self.three() } }"),
        (
            "src/c.rs",
            "use crate::core::Core;\nimpl Core { fn three(&self) { self.one() }\n fn four(&self) { self.five() } }",
        ),
        ("src/core.rs", "pub(crate) struct Core;\nimpl Core { fn five(&self) {} }"),
    ];
    let of = read(&files);
    assert!(circles(&arrows(&of)).is_empty(), "imports go one way");
    let all: Vec<Arrow> = arrows(&of).into_iter().chain(calls(&of)).collect();
    let circles = circles(&all);
    let files: Vec<Vec<&str>> =
        circles.iter().map(|circle| circle.iter().map(|arrow| arrow.from.as_str()).collect()).collect();
    assert_eq!(files, [["src/a.rs", "src/b.rs", "src/c.rs"]]);
    assert!(say(&circles[0]).contains("src/a.rs:2 calls Core::two of src/b.rs"));
}
