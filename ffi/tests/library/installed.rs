//! What `ffi/install` puts in place, as C and C++ programs use it: by the lines of the documentation, by pkg-config, by
//! CMake; and the C++ wrapper. On the simulated device.

use crate::tools::{FFI, compiler, library, run, tool};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Pages with lines that compile a program against what is installed.
const PAGES: [&str; 2] = ["README.md", "docs/c-api.md"];
/// What every C++ program here is compiled with.
const CPP: [&str; 8] = ["-std=c++17", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror", "-pthread"];
/// Folders with the headers of CCCL and of CUDA's runtime, as in PATH.
const CCCL: &str = "SEAMALLOC_CCCL";

/// A folder with an installation in `prefix`.
struct Installed {
    folder: TempDir,
    prefix: PathBuf,
}

/// `ffi/install` with nothing of the environment that it looks at.
fn install() -> Command {
    let mut command = Command::new(Path::new(FFI).join("install"));
    command.env_remove("DESTDIR").env_remove("LIBDIR");
    command
}

/// A folder with files in place of the libraries, which are large.
fn empty_libraries() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["libseamalloc.so", "libseamalloc.a"] {
        fs::write(folder.path().join(name), name).unwrap();
    }
    folder
}

impl Installed {
    fn new() -> Self {
        Self::of(library())
    }

    fn of(libraries: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("prefix");
        run(install().arg(&prefix).arg(libraries));
        Self { folder, prefix }
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.path().join(name), text).unwrap();
    }

    /// A command in the folder that finds the installation where its environment says so.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.folder.path()).env("PREFIX", &self.prefix);
        command.env("PKG_CONFIG_PATH", self.prefix.join("lib/pkgconfig")).env("CMAKE_PREFIX_PATH", &self.prefix);
        command.env_remove("SEAMALLOC_CONF").env_remove("SEAMALLOC_DEVICE");
        command
    }

    /// What a program of the folder says. It finds the library by `LD_LIBRARY_PATH`.
    fn said(&self, program: &str) -> String {
        let mut command = self.command(self.folder.path().join(program));
        command.env("LD_LIBRARY_PATH", self.prefix.join("lib")).arg("sim:h200");
        String::from_utf8(run(&mut command).stdout).unwrap()
    }
}

fn page(name: &str) -> String {
    fs::read_to_string(Path::new(FFI).join("..").join(name)).unwrap()
}

/// The blocks of a page in one language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let opens = format!("{language}\n");
    page.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix(opens.as_str())).collect()
}

/// Whether a command of a page can be run.
fn is_there(name: &str) -> bool {
    Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// The program of the C page, in C (`c`) or in C++ (`cpp`).
fn program_of_the_page(language: &str) -> String {
    let page = page("docs/c-api.md");
    let programs = blocks(&page, language);
    programs.into_iter().find(|block| block.contains("int main(")).unwrap().to_owned()
}

#[test]
fn the_lines_of_the_documentation_run_as_they_are_written() {
    let installed = Installed::new();
    installed.write("program.c", &program_of_the_page("c"));
    installed.write("program.cpp", &program_of_the_page("cpp"));
    let mut ran = 0;
    for name in PAGES {
        let text = page(name);
        let lines = blocks(&text, "sh").into_iter().flat_map(str::lines);
        let compiles = |line: &&str| {
            ["cc ", "c++ "].iter().any(|word| line.starts_with(word))
                && ["$PREFIX", "pkg-config"].iter().any(|word| line.contains(word))
        };
        for line in lines.filter(compiles) {
            let command = line.split(" #").next().unwrap().trim();
            let needed = command.split(' ').next().unwrap();
            let others = command.contains("pkg-config").then_some("pkg-config");
            if let Some(missing) = [needed].into_iter().chain(others).find(|name| !is_there(name)) {
                println!("LEFT OUT: {command}: there is no {missing} here");
                continue;
            }
            run(installed.command("sh").args(["-euc", command]));
            let said = installed.said("a.out");
            assert!(said.contains(" 7 GiB more"), "{name}: {command}: {said}");
            fs::remove_file(installed.folder.path().join("a.out")).unwrap();
            ran += 1;
        }
    }
    let all = ["cc", "c++", "pkg-config"].into_iter().all(is_there);
    assert!(ran >= 4 || !all, "{ran} lines ran");
}

#[test]
fn files_are_where_the_soname_says_and_a_moved_installation_works() {
    let installed = Installed::of(empty_libraries().path());
    let library = fs::read_link(installed.prefix.join("lib/libseamalloc.so")).unwrap();
    assert_eq!(library, Path::new("libseamalloc.so.1"));
    for name in ["seamalloc.h", "seamalloc.hpp"] {
        let written = fs::read(installed.prefix.join("include").join(name)).unwrap();
        assert!(written == fs::read(Path::new(FFI).join(name)).unwrap(), "{name}");
    }
    for (name, holds) in [("libseamalloc.a", "libseamalloc.a"), ("libseamalloc.so.1", "libseamalloc.so")] {
        assert_eq!(fs::read_to_string(installed.prefix.join("lib").join(name)).unwrap(), holds);
    }
    for name in ["lib/pkgconfig/seamalloc.pc", "lib/cmake/seamalloc/seamallocConfig.cmake"] {
        let text = fs::read_to_string(installed.prefix.join(name)).unwrap();
        assert!(!text.contains('@') && !text.contains(installed.prefix.to_str().unwrap()), "{name}: {text}");
    }
    let moved = installed.folder.path().join("moved to/here");
    fs::create_dir_all(moved.parent().unwrap()).unwrap();
    fs::rename(&installed.prefix, &moved).unwrap();
    if let Some(tool) = tool("PKG_CONFIG", "pkg-config") {
        let mut command = tool.bare();
        command.env("PKG_CONFIG_PATH", moved.join("lib/pkgconfig")).args(["--variable=includedir", "seamalloc"]);
        let found = String::from_utf8(run(&mut command).stdout).unwrap();
        assert!(
            Path::new(found.trim().trim_matches('"').replace("\\ ", " ").as_str()).join("seamalloc.h").is_file(),
            "{found}"
        );
        let mut command = tool.bare();
        command.env("PKG_CONFIG_PATH", moved.join("lib/pkgconfig")).args(["--modversion", "seamalloc"]);
        assert_eq!(String::from_utf8(run(&mut command).stdout).unwrap().trim(), env!("CARGO_PKG_VERSION"));
    }
}

#[test]
fn an_installation_goes_below_a_package_s_folder_and_over_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let libraries = empty_libraries();
    for _ in 0..2 {
        run(install().arg("/usr").arg(libraries.path()).env("DESTDIR", folder.path()).env("LIBDIR", "lib/here"));
    }
    assert!(folder.path().join("usr/include/seamalloc.h").is_file());
    let place = folder.path().join("usr/lib/here");
    let text = fs::read_to_string(place.join("pkgconfig/seamalloc.pc")).unwrap();
    assert!(text.contains("prefix=${pcfiledir}/../../..\n") && text.contains("libdir=${prefix}/lib/here\n"), "{text}");
    let left = fs::read_dir(&place).unwrap().count();
    assert_eq!(left, 5, "two libraries, a link, and two folders");
    for wrong in [&[][..], &["-x"], &["a", "b", "c"], &["prefix", "/nowhere"]] {
        let output = install().args(wrong).current_dir(&folder).output().unwrap();
        assert!(!output.status.success() && !output.stderr.is_empty(), "{wrong:?}");
        assert!(!folder.path().join("prefix").exists());
    }
}

#[test]
fn cmake_finds_it() {
    let (Some(cmake), Some(_), Some(_)) = (tool("CMAKE", "cmake"), compiler("CC", "cc"), compiler("CXX", "c++")) else {
        return;
    };
    let installed = Installed::new();
    installed.write("program.c", &fs::read_to_string(Path::new(FFI).join("examples/training_step.c")).unwrap());
    installed.write("program.cpp", &program_of_the_page("cpp"));
    let project = "
        cmake_minimum_required(VERSION 3.16)
        project(user LANGUAGES C CXX)
        set(CMAKE_CXX_STANDARD 17)
        find_package(seamalloc 9.9 QUIET)
        if(seamalloc_FOUND)
            message(FATAL_ERROR \"9.9 was found\")
        endif()
        find_package(seamalloc 0.1 REQUIRED)
        find_package(seamalloc REQUIRED)
        message(STATUS \"seamalloc is ${seamalloc_VERSION}\")
        add_executable(shared program.cpp)
        target_link_libraries(shared PRIVATE seamalloc::seamalloc)
        add_executable(alone program.c)
        target_link_libraries(alone PRIVATE seamalloc::static)
    ";
    installed.write("CMakeLists.txt", project);
    let cmake = |arguments: &[&str]| {
        let bare = cmake.bare();
        let mut command = installed.command(bare.get_program());
        String::from_utf8(run(command.args(bare.get_args()).args(arguments)).stdout).unwrap()
    };
    let said = cmake(&["-S", ".", "-B", "build"]);
    assert!(said.contains(concat!("seamalloc is ", env!("CARGO_PKG_VERSION"))), "{said}");
    cmake(&["--build", "build"]);
    assert!(installed.said("build/shared").contains("GiB more"));
    fs::remove_dir_all(&installed.prefix).unwrap();
    assert!(installed.said("build/alone").contains("stitched"));
}

/// A C++ program of this folder, compiled with these arguments; what it says.
fn cpp(source: &str, arguments: &[String]) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    std::os::unix::fs::symlink(library().join("libseamalloc.so"), folder.path().join("libseamalloc.so.1")).unwrap();
    let mut command = compiler("CXX", "c++")?.command();
    command.args(CPP).args(arguments).arg("-o").arg(&path).arg(Path::new(FFI).join("tests").join(source));
    command.arg("-L").arg(library()).arg("-lseamalloc").arg(format!("-Wl,-rpath,{}", folder.path().display()));
    run(&mut command);
    let mut program = Command::new(&path);
    program.env("SEAMALLOC_DEVICE", "sim:h200,capacity=1GiB").env("SEAMALLOC_CONF", "memory_limit:64MiB");
    Some(String::from_utf8(run(&mut program).stdout).unwrap())
}

#[test]
fn the_wrapper_owns_frees_and_throws() {
    if let Some(said) = cpp("wrapper.cpp", &["-DSEAMALLOC_WITHOUT_CCCL".to_owned()]) {
        assert_eq!(said, "right\n");
    }
}

/// The folders of SEAMALLOC_CCCL, or those where CUDA puts the headers.
fn cccl() -> Option<Vec<PathBuf>> {
    let named = env::var_os(CCCL).map(|folders| env::split_paths(&folders).collect::<Vec<_>>());
    let homes = [env::var_os("CUDA_HOME"), env::var_os("CUDA_PATH"), Some("/usr/local/cuda".into())];
    let usual = |home: PathBuf| vec![home.join("include/cccl"), home.join("include")];
    let known = homes.into_iter().flatten().map(|home| usual(home.into()));
    let has = |folders: &Vec<PathBuf>, name: &str| folders.iter().any(|folder| folder.join(name).is_file());
    named.into_iter().chain(known).find(|folders| {
        has(folders, "cuda/__memory_resource/get_memory_resource.h") && has(folders, "cuda_runtime_api.h")
    })
}

#[test]
fn the_resource_is_one_of_cccl() {
    let Some(folders) = cccl() else {
        println!("LEFT OUT: there is no CCCL 3.1 with CUDA's headers here; {CCCL} names their folders, as in PATH");
        return;
    };
    let includes: Vec<String> = folders.iter().map(|folder| format!("-isystem{}", folder.display())).collect();
    if let Some(said) = cpp("resource.cpp", &includes) {
        assert_eq!(said, "right\n");
    }
}
