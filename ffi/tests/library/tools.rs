//! What the tests need of the machine: the library as C programs get it, and a compiler.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

pub(crate) const FFI: &str = env!("CARGO_MANIFEST_DIR");

/// A C or C++ compiler, or another program, that works.
pub(crate) struct Compiler(Vec<String>);

impl Compiler {
    /// It, finding the header.
    pub(crate) fn command(&self) -> Command {
        let mut command = self.bare();
        command.arg("-I").arg(FFI);
        command
    }

    /// It, with nothing but what the variable says.
    pub(crate) fn bare(&self) -> Command {
        let mut command = Command::new(&self.0[0]);
        command.args(&self.0[1..]);
        command
    }
}

/// The compiler (or Python) that an environment variable names, or the usual one. Without one, what needs it is left out.
pub(crate) fn compiler(variable: &str, usual: &str) -> Option<Compiler> {
    let found = tool(variable, usual);
    // Where everything must hold, nothing is left out.
    assert!(found.is_some() || std::env::var_os("CI").is_none(), "`{usual}` is missing");
    found
}

/// Does the same for what not every developer has, CI's machine included.
pub(crate) fn tool(variable: &str, usual: &str) -> Option<Compiler> {
    let named = std::env::var(variable).ok().filter(|name| !name.trim().is_empty());
    let words: Vec<String> = named.unwrap_or_else(|| usual.to_owned()).split_whitespace().map(str::to_owned).collect();
    let works = Command::new(&words[0]).arg("--version").output().is_ok_and(|output| output.status.success());
    if !works {
        println!("LEFT OUT: there is no `{}` here; {variable} names one", words[0]);
        return None;
    }
    Some(Compiler(words))
}

/// The folder with `libseamalloc.so` and `libseamalloc.a`: cargo builds neither for a package's tests.
pub(crate) fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // target/tmp is beside target/debug.
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let mut build = Command::new(env!("CARGO"));
        // With this program and all packages that `cargo test` takes, every dependency has the features that it was built with: only this
        // package's library is left to build.
        build.args(["build", "--offline", "--quiet", "--lib", "--test", "library"]);
        build.arg("--manifest-path").arg(format!("{FFI}/../Cargo.toml"));
        build.arg("--target-dir").arg(target).env_remove("CARGO_BUILD_TARGET");
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        run(&mut build);
        target.join(if cfg!(debug_assertions) { "debug" } else { "release" })
    })
}

/// Runs a command that must succeed.
pub(crate) fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}
