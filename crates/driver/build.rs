//! Lets programs and libraries that depend on seamalloc be linked on a machine without CUDA.
//!
//! `cuda-driver-sys` always links `-lcuda`. seamalloc takes nothing but types from it and loads the driver at run time,
//! so an empty archive of that name satisfies the linker and leaves no trace in the output. The archive is offered only
//! if no real libcuda is found, since it would hide the real one from a program that calls `cuda-driver-sys` itself.
//!
//! The script never fails a build: it reports errors as cargo warnings.

#![allow(clippy::print_stdout, reason = "cargo reads a build script's standard output")]

use std::env;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIBRARY: &str = "libcuda.so";
/// An `ar` archive without members.
const EMPTY_ARCHIVE: &[u8] = b"!<arch>\n";
/// The directories in which distributions, containers and WSL put the driver's library.
const SYSTEM_DIRECTORIES: [&str; 9] = [
    "/usr/lib64",
    "/usr/lib64/nvidia",
    "/usr/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/local/lib",
    "/usr/local/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
];
/// Directories of the library below a CUDA installation.
const TOOLKIT_DIRECTORIES: [&str; 10] = [
    "",
    "lib64",
    "lib64/stubs",
    "lib",
    "lib/stubs",
    "targets/x86_64-linux/lib",
    "targets/x86_64-linux/lib/stubs",
    "targets/sbsa-linux/lib",
    "targets/sbsa-linux/lib/stubs",
    "targets/aarch64-linux/lib/stubs",
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=CUDA_LIBRARY_PATH");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    // A static executable cannot use the shared library, even if it is found.
    if !target_is_static() {
        if compiler_finds_library() {
            return;
        }
        if let Some(directory) =
            candidate_directories().into_iter().find(|directory| is_usable(&directory.join(LIBRARY)))
        {
            // cuda-driver-sys looks in fewer places than this script.
            println!("cargo:rustc-link-search=native={}", directory.display());
            return;
        }
    }
    offer_empty_archive();
}

fn offer_empty_archive() {
    let Some(out) = env::var_os("OUT_DIR").map(PathBuf::from) else {
        println!("cargo:warning=OUT_DIR is not set: linking may need libcuda.so");
        return;
    };
    let archive = out.join("libcuda.a");
    match fs::write(&archive, EMPTY_ARCHIVE) {
        Ok(()) => println!("cargo:rustc-link-search=native={}", out.display()),
        Err(error) => {
            println!("cargo:warning=cannot write {}: {error}; linking may need libcuda.so", archive.display())
        }
    }
}

fn target_is_static() -> bool {
    env::var("CARGO_CFG_TARGET_FEATURE")
        .is_ok_and(|features| features.split(',').any(|feature| feature == "crt-static"))
}

/// Whether the linker's own search path has the library. The compiler can be asked only if it builds for this machine.
fn compiler_finds_library() -> bool {
    if env::var_os("HOST") != env::var_os("TARGET") {
        return false;
    }
    let Ok(output) = Command::new("cc").arg(format!("-print-file-name={LIBRARY}")).output() else {
        return false;
    };
    // A compiler that does not find the library prints the bare name.
    let answer = String::from_utf8_lossy(&output.stdout);
    let path = Path::new(answer.trim());
    path.is_absolute() && is_usable(path)
}

fn candidate_directories() -> Vec<PathBuf> {
    let mut toolkits: Vec<PathBuf> =
        env::var_os("CUDA_LIBRARY_PATH").map(|paths| env::split_paths(&paths).collect()).unwrap_or_default();
    toolkits.push(PathBuf::from("/opt/cuda"));
    toolkits.push(PathBuf::from("/usr/local/cuda"));
    toolkits.extend(
        fs::read_dir("/usr/local")
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("cuda-"))
            .map(|entry| entry.path()),
    );
    let below_toolkits =
        toolkits.iter().flat_map(|toolkit| TOOLKIT_DIRECTORIES.iter().map(move |name| toolkit.join(name)));
    below_toolkits.chain(SYSTEM_DIRECTORIES.iter().map(PathBuf::from)).collect()
}

/// Whether `path` is a library for the target: a linker skips a library for another architecture, and then does not
/// find `-lcuda`.
fn is_usable(path: &Path) -> bool {
    // ELF header: magic at 0, class at 4 (1: 32 bits, 2: 64), machine at 18, in the file's byte order.
    const HEADER: usize = 20;
    const X86_64: u8 = 62;
    const AARCH64: u8 = 183;
    let mut header = [0; HEADER];
    if File::open(path).and_then(|mut file| file.read_exact(&mut header)).is_err() || header[..4] != *b"\x7fELF" {
        return false;
    }
    match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => header[4] == 2 && header[18] == X86_64,
        Ok("aarch64") => header[4] == 2 && header[18] == AARCH64,
        _ => true,
    }
}
