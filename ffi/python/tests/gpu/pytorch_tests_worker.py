"""Runs tests of one class of PyTorch's in this process: python pytorch_tests_worker.py FOLDER [MODULE.CLASS TEST ...].

With the folder alone, the tests that pytorch_tests_choice.py chooses there, as JSON. Else a line of JSON before and after
each test. It ends after the first that fails, for another process to go on: the tensors of that test live on in its
traceback, its settings may stand, and CUDA may not work any more. The allocator is what PYTORCH_TESTS_ALLOCATOR names;
children that a test starts by `spawn` read this file, and have it too.
"""

import hashlib
import importlib
import inspect
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ALLOCATOR = os.environ.get("PYTORCH_TESTS_ALLOCATOR", "native")
if ALLOCATOR.startswith("seamalloc"):
    import seamalloc

    seamalloc.enable(shim=True)

import pytorch_tests_choice as choice
import torch

# Of this process's status: what a failed test left behind would be a matter of the next.
SPOILT = 3
# For the allocators that PyTorch's tests bring. They need nothing of PyTorch; its headers take half a minute to compile.
PRELUDE = """
#include <cstddef>
#include <stdexcept>
extern "C" int cudaMalloc(void**, size_t);
extern "C" int cudaFree(void*);
#define C10_EXPORT __attribute__((visibility("default")))
#define C10_CUDA_CHECK(call) do { if ((call) != 0) throw std::runtime_error(#call); } while (0)
"""


def build_allocator(source):
    """Compiles an allocator that a test brings. What it counts begins at zero: each is a file of its own. Managed memory,
    which some take, is not what is tested, and is not for a machine that others share."""
    source = source.replace("cudaMallocManaged(&ptr, size)", "cudaMalloc(&ptr, size)")
    source = PRELUDE + "\n".join(line for line in source.splitlines() if not line.lstrip().startswith("#include"))
    folder = Path(tempfile.mkdtemp(prefix="allocator-"))
    (folder / "allocator.cpp").write_text(source)
    output = folder / f"{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}.so"
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    subprocess.run([*compiler, "-shared", "-fPIC", str(folder / "allocator.cpp"), "-o", str(output)], check=True)
    return str(output)


def load_inline(name, cpp_sources, *arguments, original=None, **options):
    """In place of torch.utils.cpp_extension.load_inline."""
    text = cpp_sources if isinstance(cpp_sources, str) else "\n".join(cpp_sources)
    if options.get("is_python_module", True) or "dummy_alloc" not in text:
        return original(name, cpp_sources, *arguments, **options)
    return build_allocator(text)


def patch_compiler():
    """Puts `load_inline` in its place."""
    from functools import partial

    from torch.utils import cpp_extension

    cpp_extension.load_inline = partial(load_inline, original=cpp_extension.load_inline)


def last_line(error):
    """What an exception says, and where in the tests."""
    kind, value, trace = error
    # PyTorch's assertions say first that something differs, and then how it can be run again.
    text = str(value).split("To execute this test")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    place = ""
    while trace is not None:
        name = Path(trace.tb_frame.f_code.co_filename).name
        if name.startswith("test_"):
            place = f" ({name}:{trace.tb_lineno})"
        trace = trace.tb_next
    return f"{kind.__name__}: {' '.join(lines)[:400]}{place}"


class Result(unittest.TestResult):
    """How one test ended."""

    def __init__(self):
        super().__init__()
        self.outcome, self.error = "passed", ""

    def bad(self, outcome, error):
        if self.outcome in ("passed", "skipped"):
            self.outcome, self.error = outcome, last_line(error)

    def addError(self, test, err):
        super().addError(test, err)
        self.bad("failed", err)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.bad("failed", err)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.bad("failed", err)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.outcome, self.error = "skipped", reason

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.outcome, self.error = "failed", "it was expected to fail"


def class_of(group):
    """A class of tests, by module and name."""
    module, name = group.split(".")
    return getattr(importlib.import_module(module), name)


def collect():
    """The chosen tests by class."""
    groups = {}
    for group in choice.CLASSES:
        try:
            tests = class_of(group)
        except (ImportError, AttributeError):
            # Of another version, or not carried along.
            continue
        if not issubclass(tests, unittest.TestCase):
            # What PyTorch puts in its place where there is no GPU.
            continue
        names = [name for name in dir(tests) if name.startswith("test_")]
        chosen = [name for name in names if choice.is_chosen(group, name, inspect.getsource(getattr(tests, name)))]
        if chosen:
            groups[group] = chosen
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"groups": groups, "versions": {"torch": torch.__version__, "cuda": torch.version.cuda, "device": device}}


def say(out, **report):
    """A line for the process that started this one."""
    out.write(json.dumps(report) + "\n")
    out.flush()


def run(out, group, names):
    """Runs tests one by one."""
    tests = class_of(group)
    for name in names:
        say(out, test=name, outcome="started")
        result, start = Result(), time.monotonic()
        unittest.TestSuite([tests(name)]).run(result)
        seconds = round(time.monotonic() - start, 2)
        say(out, test=name, outcome=result.outcome, error=result.error, seconds=seconds)
        # Neither way through destructors, which may fail where CUDA does.
        if result.outcome == "failed":
            out.close()
            os._exit(SPOILT)
    out.close()
    os._exit(0)


def main():
    """The command."""
    # What tests print goes elsewhere; their children have no hand on it.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    folder, arguments = sys.argv[1], sys.argv[2:]
    # PyTorch's tests read the command line.
    sys.argv = sys.argv[:1]
    sys.path.insert(0, folder)
    os.chdir(tempfile.mkdtemp(prefix="pytorch-tests-"))
    patch_compiler()
    if arguments:
        run(out, arguments[0], arguments[1:])
    say(out, **collect())


if __name__ == "__main__":
    main()
