//! What depends on seamalloc links and runs on a machine without CUDA, and does not need libcuda to start.
//!
//! `cuda-driver-sys` asks the linker for `-lcuda`; build.rs makes that harmless, and only building packages from outside
//! of this workspace shows that it does.

#![cfg(all(target_os = "linux", not(feature = "paranoid")))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::read::elf::{Dyn, ElfFile64, FileHeader};

const SEAMALLOC: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn a_binary_links_and_runs() {
    let program = build("binary").join("downstream-binary");
    assert_no_libcuda(&program);
    let output = Command::new(&program).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(text.contains("driver: ") && text.contains("device: "), "{text}");
    let answered = if text.contains("no driver: ") { "no driver: no NVIDIA driver found: libcuda" } else { "CudaApi" };
    assert!(text.contains(answered), "{text}");
}

#[test]
fn a_cdylib_links_and_loads() {
    let path = build("cdylib").join("libdownstream_cdylib.so");
    assert_no_libcuda(&path);
    // SAFETY: the library was just built from tests/downstream/cdylib and its initialisers are Rust's own.
    let library = unsafe { libloading::Library::new(&path) }.unwrap();
    // SAFETY: the type is that of the function's definition.
    let open_device: libloading::Symbol<'_, extern "C" fn() -> i32> =
        unsafe { library.get(b"downstream_open_device") }.unwrap();
    assert!(matches!(open_device(), 0 | 1));
    // libcuda, where there is one, must not lose the code that it calls back.
    std::mem::forget(library);
}

/// All that the page for Rust says, by the shortest paths, with every feature: cudarc's version of CUDA is the program's own.
#[test]
fn a_program_of_a_stranger_builds_and_runs() {
    let program = build("program").join("downstream-program");
    assert_no_libcuda(&program);
    let output = Command::new(&program).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.ends_with("done\n"), "{output:?}");
    let figures = text.lines().find(|line| line.starts_with('{')).unwrap();
    let figures: serde_json::Value = serde_json::from_str(figures).unwrap();
    assert!(figures["stats"]["allocated_bytes"]["all"]["peak"].as_u64() >= Some(10 << 20), "{figures}");
    assert!(figures["calls"]["create"]["count"].as_u64() > Some(0), "{figures}");
}

/// The first program of the page for Rust, with the options that the page tells of.
#[test]
fn the_hello_of_the_page_builds_and_runs() {
    let page = fs::read_to_string(Path::new(SEAMALLOC).join("docs/rust.md")).unwrap();
    let program = page.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert!(program.contains("fn main()"), "{program}");
    let package = scratch().join("hello");
    fs::create_dir_all(package.join("src")).unwrap();
    fs::write(package.join("src/main.rs"), program).unwrap();
    let manifest = fs::read_to_string(Path::new(SEAMALLOC).join("tests/downstream/binary/Cargo.toml")).unwrap();
    write_manifest(&package, &manifest.replace("downstream-binary", "hello"));
    let output = Command::new(built(&package).join("hello")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.starts_with("1 GiB at 0x"), "{output:?}");
    assert!(text.contains("1.00 GiB held, peak 1.00 GiB"), "{text}");
}

fn scratch() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("downstream")
}

/// Builds a copy of a package of tests/downstream, outside of the source tree, and returns the folder of its artifacts.
fn build(name: &str) -> PathBuf {
    let source = Path::new(SEAMALLOC).join("tests/downstream").join(name);
    let package = scratch().join(name);
    fs::create_dir_all(package.join("src")).unwrap();
    for entry in fs::read_dir(source.join("src")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, package.join("src").join(path.file_name().unwrap())).unwrap();
    }
    write_manifest(&package, &fs::read_to_string(source.join("Cargo.toml")).unwrap());
    built(&package)
}

/// Writes a manifest of tests/downstream for a package that lies elsewhere.
fn write_manifest(package: &Path, manifest: &str) {
    let here = "path = \"../../..";
    assert!(manifest.contains(here), "{manifest}");
    fs::write(package.join("Cargo.toml"), manifest.replace(here, &format!("path = \"{SEAMALLOC}"))).unwrap();
    // The versions that this build has downloaded already; cargo drops from the copy what it does not need.
    fs::copy(Path::new(SEAMALLOC).join("Cargo.lock"), package.join("Cargo.lock")).unwrap();
}

/// Builds a package, and returns the folder of its artifacts.
fn built(package: &Path) -> PathBuf {
    // One target folder for all: each build finds the dependencies of the one before, and waits for its lock.
    let target = scratch().join("target");
    let output = Command::new(env!("CARGO"))
        .args(["build", "--offline", "--quiet", "--manifest-path"])
        .arg(package.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .env_remove("CARGO_BUILD_TARGET")
        .output()
        .unwrap();
    assert!(output.status.success(), "{package:?} does not build:\n{}", String::from_utf8_lossy(&output.stderr));
    target.join("debug")
}

fn assert_no_libcuda(path: &Path) {
    let needed = needed_libraries(path);
    assert!(needed.iter().any(|name| name.starts_with("libc.so")), "{path:?} needs {needed:?}");
    assert!(!needed.iter().any(|name| name.contains("cuda")), "{path:?} needs {needed:?}");
}

/// The DT_NEEDED entries of an ELF file, which `readelf -d` shows.
fn needed_libraries(path: &Path) -> Vec<String> {
    let bytes = fs::read(path).unwrap();
    let file = ElfFile64::<object::Endianness>::parse(&*bytes).unwrap();
    let endian = file.elf_header().endian().unwrap();
    let sections = file.elf_section_table();
    let (entries, strings) = sections.dynamic(endian, &*bytes).unwrap().unwrap();
    let strings = sections.strings(endian, &*bytes, strings).unwrap();
    entries
        .iter()
        .filter(|entry| entry.d_tag(endian) == u64::from(object::elf::DT_NEEDED))
        .map(|entry| String::from_utf8_lossy(entry.string(endian, strings).unwrap()).into_owned())
        .collect()
}
