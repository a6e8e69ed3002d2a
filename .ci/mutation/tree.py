"""A copy of the project with mutants in it, and its programs of tests.

Cargo builds by the time of change of files, so a file is written only if its text changes.
"""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess

from .listing import PACKAGES
from .schemata import MODULE

PROFILE = "mutants"
NOT_CONST = re.compile(r"cannot call non-const (?:associated function|function|method) `([^`]+)`")
# The tests beside the tables, and the programs of tests that ask something of the core. A test that takes long is left out later.
JUDGES = """
    content contract host_memory hot_path interface real_words release stitching strategies streams
""".split()
# The programs of tests that are asked, by the package whose mutants are judged. The name of the package is that of the tests in its library.
PROGRAMS = {
    "seamalloc": ["seamalloc", *JUDGES],
    "seamalloc-live": ["seamalloc-live", "serving"],
    "seamalloc-broker": ["seamalloc-broker", "schedules", "processes"],
}


@dataclasses.dataclass(frozen=True)
class Program:
    name: str
    path: str
    folder: str
    """Where cargo would run it."""


class Tree:
    def __init__(self, root, folder, packages):
        self.root = root
        self.packages = packages
        self.chosen = [f"--package={package}" for package in packages]
        self.path = folder / "tree"
        # Cargo's own results of one tree serve no other.
        self.target = folder / "build"

    def copy(self, leave=()):
        """Makes the files those of the project, except for those in `leave`, which others write."""
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=self.root, check=True, capture_output=True, text=True).stdout.split("\0")
        names = {name for name in names if name and (self.root / name).is_file()}
        for name in names - set(leave):
            self.write(name, (self.root / name).read_bytes(), self.root / name)
        present = {str(path.relative_to(self.path)) for path in self.path.rglob("*") if path.is_file()}
        for name in present - names - set(leave):
            (self.path / name).unlink()

    def write(self, name, content, mode_of=None):
        path = self.path / name
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            if mode_of:
                shutil.copymode(mode_of, path)

    def cargo(self, *arguments):
        """Runs cargo. Returns the messages of the compiler, and whether it succeeded."""
        # What a change makes unused, unreachable or plainly wrong is no reason not to try it.
        environment = dict(os.environ, CARGO_TARGET_DIR=str(self.target), RUSTFLAGS="--cap-lints allow")
        command = ["cargo", *arguments, "--locked", "--profile", PROFILE, "--message-format", "json"]
        done = subprocess.run(
            command, cwd=self.path, env=environment, text=True, capture_output=True, stdin=subprocess.DEVNULL
        )
        messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode != 0 and not errors(messages):
            raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
        return messages, done.returncode == 0

    def check(self):
        """Returns the compiler's errors in the libraries."""
        return errors(self.cargo("check", "--lib", *self.chosen)[0])

    def programs(self, names=None):
        """Builds programs of tests, all without names. Returns them, or the compiler's errors."""
        names = names or [name for package in self.packages for name in PROGRAMS[package]]
        judges = {"--lib" if name in PACKAGES else f"--test={name}" for name in names}
        messages, built = self.cargo("test", "--no-run", *sorted(judges), *self.chosen)
        if not built:
            return None, errors(messages)
        made = (message for message in messages if message["reason"] == "compiler-artifact" and message["executable"])
        return [self.program(of) for of in made], []

    def program(self, made):
        folder = pathlib.Path(made["manifest_path"]).parent
        target = made["target"]
        name = target["name"] if "test" in target["kind"] else target["name"].replace("_", "-")
        return Program(name, made["executable"], str(folder))


def errors(messages):
    compiler = (message["message"] for message in messages if message["reason"] == "compiler-message")
    return [message for message in compiler if message["level"] == "error" and message["spans"]]


def build_all(tree, schemata, say):
    """Builds all mutants that can be built together, and notes in `schemata` those that cannot. Returns the programs."""
    folders = [PACKAGES[package] for package in schemata.packages]
    libraries = [f"{folder}src/lib.rs" for folder in folders]
    tree.copy(leave={*schemata.sources, *libraries, *(f"{folder}src/{MODULE}.rs" for folder in folders)})
    for library in libraries:
        tree.write(library, f"{(tree.root / library).read_text()}\nmod {MODULE};\n".encode())

    def built(step):
        while True:
            for file, text in schemata.files().items():
                tree.write(file, text.encode())
            done, found = step()
            if not found:
                return done
            say(f"{leave_out(schemata, found)} more do not compile")

    # Checking takes a fraction of the time of a build, and a change may be refused only after others are left out.
    built(lambda: (None, tree.check()))
    return built(tree.programs)


def leave_out(schemata, found):
    """Leaves out the mutants in which these errors are. Returns their number."""
    texts, left = schemata.files(), set()
    for error in found:
        for span in (span for span in error["spans"] if span["is_primary"]):
            file = span["file_name"]
            # The compiler counts bytes of a file.
            begins, ends = (len(texts[file].encode()[: span[end]].decode()) for end in ("byte_start", "byte_end")) if file in texts else (0, 0)
            number = schemata.mutant_at(file, begins, ends)
            if number is not None:
                schemata.unviable.setdefault(number, error["message"])
                left.add(number)
    # A function that constants need stays const, and its mutants need builds of their own.
    for name in {name for error in found for name in NOT_CONST.findall(error["message"])}:
        for function in schemata.functions:
            if function.const and function.number not in schemata.const and named(function, name):
                schemata.const.add(function.number)
                numbers = {mutant.number for mutant in function.mutants}
                schemata.alone |= numbers
                left |= numbers
    if not left:
        raise SystemExit("\n".join(error["rendered"] for error in found))
    return len(left)


def named(function, path):
    return function.mutants[0].function.split("::")[-1] == path.split("::")[-1]
