//! A program that depends on seamalloc links and runs on a machine without CUDA, and does not need libcuda to start.
//!
//! `cuda-driver-sys` asks the linker for `-lcuda`; build.rs makes that harmless, and only building packages from outside
//! of this workspace shows that it does. Their dependencies are fetched where they are missing; `SEAMALLOC_EMPTY_CARGO_HOME=1`
//! builds them with an empty cargo home, as on a machine that has fetched nothing.

#![cfg(all(target_os = "linux", not(feature = "paranoid")))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use object::read::elf::{Dyn, ElfFile64, FileHeader};
use rustix::fs::FlockOperation;

const SEAMALLOC: &str = env!("CARGO_MANIFEST_DIR");
/// Set, the packages are built with an empty cargo home.
const EMPTY_HOME: &str = "SEAMALLOC_EMPTY_CARGO_HOME";

#[test]
fn a_binary_links_and_runs() {
    let program = artifacts().join("downstream-binary");
    assert_no_libcuda(&program);
    let output = Command::new(&program).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(text.contains("driver: ") && text.contains("device: "), "{text}");
    let answered = if text.contains("no driver: ") { "no driver: no NVIDIA driver found: libcuda" } else { "CudaApi" };
    assert!(text.contains(answered), "{text}");
}

/// Of the default features, `baselines` is none.
#[test]
fn a_strategy_of_the_literature_is_refused_by_the_name_of_its_feature() {
    let output = Command::new(artifacts().join("downstream-binary")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let said = text.lines().find(|line| line.starts_with("no strategy: ")).unwrap_or(&text);
    assert!(said.contains("`gmlake` is not in this build") && said.contains("the feature `baselines`"), "{said}");
}

#[test]
fn a_cdylib_links_and_loads() {
    let path = artifacts().join("libdownstream_cdylib.so");
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
    let program = artifacts().join("downstream-program");
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
    let program = artifacts().join("downstream-hello");
    assert_no_libcuda(&program);
    let output = Command::new(&program).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.starts_with("1 GiB at 0x"), "{output:?}");
    assert!(text.contains("1.00 GiB held, peak 1.00 GiB"), "{text}");
}

fn scratch() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("downstream")
}

/// The folder of the artifacts of all packages of tests/downstream, which the first test builds for all.
fn artifacts() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let workspace = scratch().join("workspace");
        fs::create_dir_all(&workspace).unwrap();
        // Each test may be a process of its own.
        let lock = fs::File::create(scratch().join("lock")).unwrap();
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
        copy_packages(&workspace);
        let folder = build(&workspace);
        assert_versions_are_known(&workspace);
        folder
    })
}

/// Copies the packages of tests/downstream out of the source tree, beside a package with the first program of the page for Rust.
fn copy_packages(workspace: &Path) {
    let source = Path::new(SEAMALLOC).join("tests/downstream");
    let read = |name: &str| fs::read_to_string(source.join(name)).unwrap();
    let elsewhere = |manifest: &str| {
        let here = "path = \"../../..";
        assert!(manifest.contains(here), "{manifest}");
        manifest.replace(here, &format!("path = \"{SEAMALLOC}"))
    };
    write(&workspace.join("Cargo.toml"), &read("Cargo.toml"));
    for (name, file) in [("binary", "main.rs"), ("cdylib", "lib.rs"), ("program", "main.rs")] {
        let package = workspace.join(name);
        write(&package.join("Cargo.toml"), &elsewhere(&read(&format!("{name}/Cargo.toml"))));
        write(&package.join("src").join(file), &read(&format!("{name}/src/{file}")));
    }
    let hello = elsewhere(&read("binary/Cargo.toml")).replace("downstream-binary", "downstream-hello");
    write(&workspace.join("hello/Cargo.toml"), &hello);
    write(&workspace.join("hello/src/main.rs"), &hello_of_the_page());
    // The versions that this build has downloaded already; cargo drops from the copy what the packages do not need.
    fs::copy(Path::new(SEAMALLOC).join("Cargo.lock"), workspace.join("Cargo.lock")).unwrap();
}

/// Writes a file where it differs: cargo builds anew what was written since the last build.
fn write(path: &Path, text: &str) {
    if fs::read_to_string(path).ok().as_deref() != Some(text) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

/// Builds all packages and returns the folder of their artifacts. Packages of the registry that only these need, as cudarc, are fetched
/// where they are missing.
fn build(workspace: &Path) -> PathBuf {
    let home = std::env::var_os(EMPTY_HOME).map(|_| make_empty_home());
    let target = match home {
        // Cargo compiles the dependencies of another home again: a folder of its own leaves those of this build alone.
        Some(_) => scratch().join("target"),
        // That of this build, where most dependencies are compiled already: target/tmp is beside target/debug.
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().to_owned(),
    };
    let text = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let mut fetched = false;
    // The program asks for more features of seamalloc than the others, which have the default ones.
    for packages in [&["--workspace", "--exclude", "downstream-program"][..], &["--package", "downstream-program"]] {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet"]).args(packages).arg("--manifest-path").arg(workspace.join("Cargo.toml"));
        cargo.env_remove("CARGO_BUILD_TARGET").arg("--target-dir").arg(&target);
        home.iter().for_each(|home| _ = cargo.env("CARGO_HOME", home));
        // First without the network: a machine that has all packages needs none.
        let offline = cargo.env("CARGO_NET_OFFLINE", "true").output().unwrap();
        if !offline.status.success() {
            let missing = text(&offline);
            assert!(missing.contains("offline"), "{workspace:?} does not build:\n{missing}");
            fetched = true;
            let online = cargo.env_remove("CARGO_NET_OFFLINE").output().unwrap();
            assert!(
                online.status.success(),
                "{workspace:?} does not build. Without the network, a package is missing:\n{missing}\nWith it:\n{}",
                text(&online)
            );
        }
    }
    assert!(home.is_none() || fetched, "an empty cargo home has no packages");
    target.join("debug")
}

/// A cargo home that has the settings of this machine, such as a mirror of the registry, and no packages.
fn make_empty_home() -> PathBuf {
    let home = scratch().join("home");
    if home.exists() {
        fs::remove_dir_all(&home).unwrap();
    }
    fs::create_dir_all(&home).unwrap();
    let usual = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    // The settings alone: a token for a registry has no place in a build folder.
    if let Some(file) = usual.map(|usual| usual.join("config.toml")).filter(|file| file.exists()) {
        fs::copy(file, home.join("config.toml")).unwrap();
    }
    home
}

/// Every package that was built has the version that Cargo.lock names: `--locked` would refuse the packages of tests/downstream.
fn assert_versions_are_known(workspace: &Path) {
    let packages = |lock: &Path| -> Vec<String> {
        let text = fs::read_to_string(lock).unwrap();
        let packages = text.split("[[package]]\n").skip(1);
        packages.map(|package| package.lines().take(2).collect::<Vec<_>>().join(" ")).collect()
    };
    let known = packages(&Path::new(SEAMALLOC).join("Cargo.lock"));
    let used = packages(&workspace.join("Cargo.lock"));
    assert!(used.iter().any(|package| package.starts_with("name = \"cudarc\"")), "{used:?}");
    for package in used.iter().filter(|package| !package.starts_with("name = \"downstream-")) {
        assert!(known.contains(package), "{package} is not in Cargo.lock");
    }
}

/// The first program of the page for Rust.
fn hello_of_the_page() -> String {
    let page = fs::read_to_string(Path::new(SEAMALLOC).join("docs/rust.md")).unwrap();
    let program = page.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert!(program.contains("fn main()"), "{program}");
    program.to_owned()
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
