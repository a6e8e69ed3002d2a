"""The mutants: what cargo-mutants would change, as it lists it."""

import dataclasses
import hashlib
import json
import re
import subprocess

from .rust import Source

# The folders and files that docs/mutants.md has figures for.
PARTS = """
    src/strategy/stitch src/streams src/backing src/heap
    src/allocator/growing.rs src/features/growing.rs src/allocator/headroom.rs src/allocator/lending.rs src/allocator/borrowing.rs
    src/allocator/sleep.rs src/features/sleep.rs src/allocator/sleep_change.rs src/allocator/spill.rs
    src/allocator/spilled.rs
    src/owned/growing.rs src/host_pool.rs src/strategy/baselines/malloc_async.rs src/strategy/malloc_fallback.rs
    crates/live/src crates/broker/src
""".split()
# The folder of a package, by the package.
PACKAGES = {"seamalloc": "", "seamalloc-live": "crates/live/", "seamalloc-broker": "crates/broker/"}
# Names of `Result`, which cargo-mutants takes for types of their own: it would call `Grown::new(X)`, which does not exist.
RESULTS = ["Grown", "DriverResult", "Checked"]


@dataclasses.dataclass(frozen=True)
class Mutant:
    number: int
    name: str
    """As cargo-mutants says it, with the place. No two are equal."""
    file: str
    span: dict
    replacement: str
    function: str
    function_span: dict | None
    """None: a constant's value."""
    key: str
    """What a result holds for, wherever the function moves to: its text, and the change in it."""

    @property
    def part(self):
        return next(part for part in PARTS if f"{self.file}/".startswith(part + "/"))

    @property
    def package(self):
        return package_of(self.file)


def package_of(file):
    return next(package for package, folder in PACKAGES.items() if file.startswith(f"{folder}src/"))


def all_mutants(root):
    """Returns the mutants of all parts, numbered from 1. What .cargo/mutants.toml leaves out is not among them."""
    patterns = [part if part.endswith(".rs") else f"{part}/**/*.rs" for part in PARTS]
    command = ["cargo", "mutants", "--list", "--json"]
    for package in PACKAGES:
        command += ["--package", package]
    for pattern in patterns:
        command += ["--file", pattern]
    listed = json.loads(subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout)
    if not listed:
        raise SystemExit(f"no mutants in {' '.join(patterns)}")
    found = [one for one in map(of_result, listed) if one is not None]
    sources = {file: Source((root / file).read_text()) for file in {one["file"] for one in found}}
    return [mutant(number, one, sources[one["file"]]) for number, one in enumerate(found, 1)]


def of_result(listed):
    """Returns the mutant with `Ok(X)` for what does not compile in a function that returns one of `RESULTS`, or None for one
    that would be the same again."""
    alias = next((alias for alias in RESULTS if (listed["function"] or {}).get("return_type", "").startswith(f"-> {alias}")), None)
    if listed["genre"] != "FnValue" or alias is None:
        return listed
    value = re.fullmatch(rf"{alias}::new\((.+)\)", listed["replacement"])
    if listed["replacement"] != "Default::default()" and value is None:
        return None
    result = f"Ok({value[1] if value else '()'})"
    name = listed["name"].removesuffix(listed["replacement"]) + result
    return {**listed, "replacement": result, "name": name}


def mutant(number, listed, source):
    function = listed["function"] or {"function_name": "a constant", "span": None}
    names = (listed[field] for field in ("name", "file", "span", "replacement"))
    start, end = source.span(listed["span"])
    if function["span"]:
        first, last = source.span(function["span"])
    else:
        line = listed["span"]["start"]["line"]
        first, last = source.offset(line, 1), source.offset(line + 1, 1)
    changed = "\0".join([listed["file"], source.text[first:start], listed["replacement"], source.text[start:end], source.text[end:last]])
    key = hashlib.sha256(changed.encode()).hexdigest()[:16]
    return Mutant(number, *names, function["function_name"], function["span"], key)
