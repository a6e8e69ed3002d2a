//! `seamalloc.h` is what the source says, and compilers take it as C99 and as C++17.
//!
//! `SEAMALLOC_WRITE_HEADER=1 cargo test -p seamalloc-ffi --test library header` writes the header anew.

use crate::tools::{FFI, compiler, run};
use std::fs;

const WRITE: &str = "SEAMALLOC_WRITE_HEADER";

/// A copy of the source for cbindgen, which expands no macros: the struct that `figures!` makes is written out.
fn expanded() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in fs::read_dir(format!("{FFI}/src")).unwrap().map(Result::unwrap) {
        let mut text = fs::read_to_string(file.path()).unwrap();
        if let Some((before, rest)) = text.split_once("\nfigures! {\n") {
            let (table, after) = rest.split_once("\n}\n").unwrap();
            let field = |line: &str| line.rsplit_once(" = ").map_or(line.to_owned(), |(field, _)| format!("{field},"));
            let lines: Vec<String> = table.replace(" of Figures {", " {").lines().map(field).collect();
            text = format!("{before}\n{}\n{after}", lines.join("\n"));
        }
        fs::write(folder.path().join(file.file_name()), text).unwrap();
    }
    folder
}

#[test]
fn the_header_is_the_one_that_is_generated() {
    let config = cbindgen::Config::from_file(format!("{FFI}/cbindgen.toml")).unwrap();
    let source = expanded();
    let builder = cbindgen::Builder::new().with_config(config).with_src(source.path().join("lib.rs"));
    let bindings = builder.generate().unwrap();
    let mut generated = Vec::new();
    bindings.write(&mut generated);
    let generated = String::from_utf8(generated).unwrap();
    let path = format!("{FFI}/seamalloc.h");
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, &generated).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    let differing = written.lines().zip(generated.lines()).position(|(old, new)| old != new);
    assert!(
        written == generated,
        "ffi/seamalloc.h is not what ffi/src says (first at line {}): {WRITE}=1 cargo test -p seamalloc-ffi --test library header",
        differing.map_or(0, |line| line + 1)
    );
}

#[test]
fn c_and_cpp_take_the_header_without_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    for (variable, usual, ending, standards) in
        [("CC", "cc", "c", ["-std=c99", "-std=c11"]), ("CXX", "c++", "cpp", ["-std=c++17", "-std=c++11"])]
    {
        let Some(compiler) = compiler(variable, usual) else { continue };
        // Twice, as a program's files do; and a use of it, so that C++ has to mangle nothing.
        let source = folder.path().join(format!("use.{ending}"));
        fs::write(
            &source,
            "#include \"seamalloc.h\"\n#include \"seamalloc.h\"\nint main(void) { seam_stats stats; stats.size = sizeof stats; \
             return seam_get_stats(0, &stats) == SEAM_STATUS_OK; }\n",
        )
        .unwrap();
        for standard in standards {
            run(compiler
                .command()
                .args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"])
                .arg(&source));
        }
    }
}
