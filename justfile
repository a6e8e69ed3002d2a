# What developers do, by name: `just` lists it. Each recipe is one command that also works without just; CI runs the steps of
# .ci/run.

default:
    @just --list --unsorted

# Format, lints, documentation.
check:
    .ci/run format lint docs

# The tests that every change must pass: `just test`, `just test -p seamalloc --test hot_path`.
test *arguments:
    cargo test {{arguments}}

# The tests in their long form: suites that repeat a random program or a fault at every call do all of it (docs/reliability.md).
long *arguments:
    SEAMALLOC_TESTS=long cargo test {{arguments}}

# The page of `seamalloc report` in a headless Chromium; pictures of it go to target/page.
page *tests:
    .ci/page {{tests}}

# The allocator's tests, with a check of every invariant after each operation.
paranoid:
    cargo test -p seamalloc --features paranoid

# Bytes and driver calls on recorded and generated workloads, against the stored ones.
figures:
    .ci/run figures

# The tables of simulated figures in the documentation, against what this version comes to: `just tables --write` writes them.
tables *args:
    .ci/tables {{args}}

# The benchmarks: `just bench`, `just bench misses`, `just bench hot_path one_block`.
bench name='hot_path' *filter:
    cargo bench -p seamalloc-benches --bench {{name}} -- {{filter}}

# Writes ffi/seamalloc.h anew from ffi/src.
header:
    SEAMALLOC_WRITE_HEADER=1 cargo test -p seamalloc-ffi --test library header

# The documentation as a book, into target/book. Installs mdbook where it is not there.
book:
    .ci/run book

# Writes docs/options.md anew from crates/config.
options:
    SEAMALLOC_WRITE_OPTIONS=1 cargo test -p seamalloc --test repository options_page

# On a machine with a GPU: the driver's rules, then kernels that fill and check every word.
gpu device='cuda:0':
    cargo run --release --example driver_rules -- {{device}}
    cargo run --release --example gpu_content -- {{device}} --seconds 20

# Opens the documentation of the packages.
docs:
    cargo doc --no-deps --open

# Lines that the tests reach, by file; `just coverage --html` writes pages to target/llvm-cov.
coverage *arguments:
    .ci/coverage {{arguments}}

# Fuzz targets, for so many seconds each: `just fuzz 300 --rounds 5`. It needs cargo-fuzz.
fuzz seconds='60' *arguments:
    .ci/fuzz {{seconds}} {{arguments}}

# Random programs of everything public: `just attack`, `just attack rust`, `just attack c`. A finding says how it is repeated.
attack *arguments:
    .ci/attack {{arguments}}

# Changes of the core that a test must notice: `just mutants 'src/streams/*'`.
mutants *arguments:
    .ci/mutants {{arguments}}

# Sanitizers and valgrind over tests with threads and the C programs: `just sanitize thread`.
sanitize *which:
    .ci/sanitize {{which}}

# A hundred million operations: what is the allocator's own must not grow.
soak *arguments:
    cargo run --release --example endurance -- {{arguments}}

# Licences, versions and sources of dependencies, and known vulnerabilities.
deny:
    .ci/run deny

# The integer programs of crates/order/, with a HiGHS that is compiled without optimisation.
order:
    .ci/run order

# The crates as they are published, in order, each built from its package. `CONTRIBUTING.md` says the order.
package:
    .ci/run package

# What is off by default: the features `cudarc` and `serde`, and the programs of docs/rust.md.
features:
    .ci/run features

# The packages build with the oldest Rust that Cargo.toml names.
msrv:
    .ci/run msrv

# The C library and the command for this machine, stripped: target/dist/libseamalloc.so, .a, and the command.
dist:
    cargo build --profile dist -p seamalloc-ffi -p seamalloc-cli

# The C library with its headers, for pkg-config and CMake: `just install /usr/local`. LIBDIR and DESTDIR as usual.
install prefix:
    ffi/install {{prefix}}

# The shim against the real headers of PyTorch: `just shims` for the newest patch of each version, `just shims 2.11.0 newest`.
shims *versions='minors':
    ffi/python/build_tools/run compile --torch {{versions}}

# The wheel that is given to users, into target/wheels: `just wheel`, or with shims for some versions, `just wheel 2.11.0`.
wheel *versions='all':
    ffi/python/build_tools/run wheel --torch {{versions}} -- target/wheels

# All that CI runs.
ci:
    .ci/run
