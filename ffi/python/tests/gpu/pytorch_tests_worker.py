"""Runs tests of one of PyTorch's test files in this process: python pytorch_tests_worker.py SUITE FOLDER MODULE.

Its first line of JSON says which allocator this process has, and which tests pytorch_tests_choice.py takes. Then it reads
the names of tests, CLASS.TEST, one a line, and answers each with a line of JSON. It ends at the end of its input, and after
the first test that fails, for another process to go on: the tensors of that test live on in its traceback, its settings
may stand, and CUDA may not work any more.

The allocator is what PYTORCH_TESTS_ALLOCATOR names. Processes that a test starts by `spawn` read this file too. They say
which allocator they have, and what it served, in files of the folder that PYTORCH_TESTS_CHILDREN names.
"""

import hashlib
import importlib
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
from pathlib import Path

ALLOCATOR = os.environ.get("PYTORCH_TESTS_ALLOCATOR", "native")
if ALLOCATOR.startswith("seamalloc"):
    import seamalloc

    seamalloc.enable()

import pytorch_tests_choice as choice
import torch

# Of this process's status: what a failed test left behind would be a matter of the next.
SPOILT = 3
TRACE_CHARACTERS = 3000
OF_ERROR = re.compile(r"[\w.]*(Error|Exception)\b")
# For the allocators that PyTorch's tests bring. They need nothing of PyTorch; its headers take half a minute to compile.
PRELUDE = """
#include <cstddef>
#include <stdexcept>
extern "C" int cudaMalloc(void**, size_t);
extern "C" int cudaFree(void*);
#define C10_EXPORT __attribute__((visibility("default")))
#define C10_CUDA_CHECK(call) do { if ((call) != 0) throw std::runtime_error(#call); } while (0)
"""


def allocator():
    """Returns the allocator of this process: "native", or "seamalloc" where it replaces PyTorch's in full."""
    module = sys.modules.get("seamalloc")
    how = module.enabled() if module is not None else None
    if how is None:
        return "native"
    return "seamalloc" if how == "full" else f"seamalloc, {how}"


def served():
    """Returns the allocator's own count of allocations on the current device. Other devices are left out: a question would
    make a context there."""
    if not torch.cuda.is_initialized():
        return 0
    try:
        device = torch.cuda.current_device()
        if allocator() == "native":
            return torch.cuda.memory_stats(device).get("allocation.all.allocated", 0)
        return seamalloc.stats(device)["allocation"]["all"]["allocated"]
    except RuntimeError:
        # After a test that leaves CUDA in an error nothing can be asked; the test itself has passed.
        return 0


def report_child():
    """Writes the allocator of a process that a test started, and at the process's end how much the allocator served."""
    from multiprocessing.util import Finalize

    path = Path(os.environ["PYTORCH_TESTS_CHILDREN"]) / f"{os.getpid()}.json"
    path.write_text(json.dumps({"allocator": allocator(), "served": 0}))

    def at_end():
        path.write_text(json.dumps({"allocator": allocator(), "served": served()}))

    Finalize(None, at_end, exitpriority=100)


def collect_children():
    """Returns the reports of the processes that the last test started."""
    found = []
    for path in Path(os.environ["PYTORCH_TESTS_CHILDREN"]).glob("*.json"):
        try:
            found.append(json.loads(path.read_text()))
        except ValueError:
            # It is about to be written by a process that has been killed, or will be.
            continue
        path.unlink()
    return {
        "started": len(found),
        "allocators": sorted({one["allocator"] for one in found}),
        "served": sum(one["served"] for one in found),
    }


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
    """A replacement for torch.utils.cpp_extension.load_inline."""
    text = cpp_sources if isinstance(cpp_sources, str) else "\n".join(cpp_sources)
    if options.get("is_python_module", True) or "dummy_alloc" not in text:
        return original(name, cpp_sources, *arguments, **options)
    return build_allocator(text)


def patch_compiler():
    """Puts `load_inline` in the place of PyTorch's."""
    from functools import partial

    from torch.utils import cpp_extension

    cpp_extension.load_inline = partial(load_inline, original=cpp_extension.load_inline)


def last_line(error):
    """Returns the message of an exception, and its place in the tests."""
    kind, value, trace = error
    # PyTorch's assertions say first that something differs, and then how it can be run again.
    text = str(value).split("To execute this test")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # Of a process that the test started: its traceback, of which the end says what was wrong.
    errors = [number for number, line in enumerate(lines) if OF_ERROR.match(line)]
    if errors and any("Traceback" in line for line in lines):
        lines = lines[errors[-1] :]
    place = ""
    while trace is not None:
        name = Path(trace.tb_frame.f_code.co_filename).name
        if name.startswith("test_"):
            place = f" ({name}:{trace.tb_lineno})"
        trace = trace.tb_next
    return f"{kind.__name__}: {' '.join(lines)[:400]}{place}"


class Result(unittest.TestResult):
    """The outcome of one test."""

    def __init__(self):
        super().__init__()
        self.outcome, self.message, self.trace = "passed", "", ""

    def bad(self, error):
        if self.outcome in ("passed", "skipped"):
            self.outcome, self.message = "failed", last_line(error)
            self.trace = "".join(traceback.format_exception(*error))[-TRACE_CHARACTERS:]

    def addError(self, test, err):
        super().addError(test, err)
        self.bad(err)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.bad(err)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.bad(err)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.outcome, self.message = "skipped", reason

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.outcome, self.message = "failed", "it was expected to fail"


def source_of(function):
    """A test's source, with its decorators; of one that was made from another, that one's."""
    try:
        return inspect.getsource(inspect.unwrap(function))
    except (OSError, TypeError):
        return ""


def collect(suite, path, module):
    """The tests of a module that are taken, in the order in which they are run."""
    found = []
    for group, tests in sorted(vars(module).items()):
        # What PyTorch puts in a class's place where there is no GPU is none; what is imported belongs to another file.
        if not (
            isinstance(tests, type) and issubclass(tests, unittest.TestCase) and tests.__module__ == module.__name__
        ):
            continue
        for name in sorted(name for name in dir(tests) if name.startswith("test")):
            code = source_of(getattr(tests, name))
            if choice.is_chosen(suite, path, group, name, code):
                found.append(
                    {
                        "test": f"{group}.{name}",
                        "gpus": choice.gpus_wanted(code),
                        "alone": choice.is_of_whole_device(name, code),
                    }
                )
    # Python's sort keeps the order of equal ones.
    return sorted(found, key=lambda test: choice.order(suite, test["test"].split(".")[0]))


def load(folder, path):
    """A test file as a module. Its folder comes first, as where it is started by itself; others name modules from the top."""
    sys.path[:0] = [str((folder / path).parent), str(folder)]
    return importlib.import_module(Path(path).name)


def run(module, name):
    """Runs one test."""
    group, method = name.split(".")
    result, start = Result(), time.monotonic()
    unittest.TestSuite([getattr(module, group)(method)]).run(result)
    return {
        "test": name,
        "outcome": result.outcome,
        "message": result.message,
        "trace": result.trace,
        "seconds": round(time.monotonic() - start, 2),
        "children": collect_children(),
    }


def say(out, report):
    """A line for the process that started this one."""
    out.write(json.dumps(report) + "\n")
    out.flush()


def main():
    """The command."""
    # What tests print goes elsewhere; their children have no hand on it.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    names = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    suite, folder, path = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    # PyTorch's tests read the command line.
    sys.argv = sys.argv[:1]
    os.chdir(tempfile.mkdtemp(prefix="pytorch-tests-"))
    patch_compiler()
    module = load(folder, path)
    gpus = torch.cuda.device_count()
    say(
        out,
        {
            "allocator": allocator(),
            "versions": {
                "torch": torch.__version__,
                "cuda": torch.version.cuda,
                "device": torch.cuda.get_device_name() if gpus else None,
                "gpus": gpus,
            },
            "tests": collect(suite, path, module),
        },
    )
    status = 0
    for line in names:
        report = run(module, line.strip())
        report["served"] = served()
        say(out, report)
        if report["outcome"] == "failed":
            status = SPOILT
            break
    out.close()
    # Neither way through destructors, which may fail where CUDA does.
    os._exit(status)


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__" and "PYTORCH_TESTS_CHILDREN" in os.environ:
    report_child()
