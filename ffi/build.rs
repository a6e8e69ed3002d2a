//! Gives the shared library its soname, and says how it is loaded.
//!
//! It is never unloaded (`-z nodelete`): a thread of its own may run in it, which nothing ends before the process, and other
//! threads' destructors and `atexit` functions may call it. Every symbol is bound when it is loaded, and the tables of
//! addresses are then write-protected (`-z relro -z now`): rustc asks for that by default, other configurations of it, and
//! other linkers, may not. tests/library/symbols.rs reads the result.
//!
//! The number is that of the binary interface (`ABI_VERSION` in src/lib.rs): a program linked against one finds no other
//! at run time. Symbols carry no versions of their own (a linker's version script): rustc passes an anonymous script,
//! which hides Rust's symbols, and beside that one GNU ld refuses a script with versions, and LLD leaves them out.

#![allow(clippy::print_stdout, reason = "cargo reads a build script's standard output")]

use std::env;

/// Equal to `ABI_VERSION`; tests/library/symbols.rs compares them.
const ABI_VERSION: u32 = 1;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libseamalloc.so.{ABI_VERSION}");
        for keyword in ["nodelete", "relro", "now"] {
            println!("cargo:rustc-cdylib-link-arg=-Wl,-z,{keyword}");
        }
    }
}
