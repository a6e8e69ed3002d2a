"""Passes seamalloc on to processes that Python's multiprocessing starts by `spawn` or `forkserver`.

Before a new process imports the program's main module, multiprocessing sends it a dict. One further value of the dict
runs a few lines of code when it is unpickled. The code calls `_switch.inherit`, which waits for PyTorch with
`AfterImport`. A process that never imports PyTorch pays for the import of seamalloc alone. coverage.py follows
processes in the same way.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import wraps
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable, NamedTuple

KEY = "seamalloc"

# The code that the new process runs. The code is sent as text, since seamalloc may be missing in the new process, and
# its absence must not end the process. The code sets `path` for its imports; multiprocessing sets the path for good a
# moment later.
_INHERIT = """
import sys, warnings
before, sys.path = sys.path, path
try:
    from seamalloc._switch import inherit
except Exception as error:
    inherit = None
    warnings.warn(
        f"seamalloc is not PyTorch's allocator in this process, though it is in its parent: {error}", RuntimeWarning
    )
finally:
    sys.path = before
if inherit is not None:
    inherit(*parent)
"""


class Parent(NamedTuple):
    """The settings that a process passes to its child processes: its options; "full", "pluggable", or "pytorch" if the
    process went on without seamalloc; its `fallback`; and the options of page-locked memory, or None if PyTorch manages
    page-locked memory."""

    conf: str
    kind: str
    fallback: str | None
    pinned: str | None = None


_handed_down: Parent | None = None


def hand_down(parent: Parent) -> None:
    """Makes every process that this process starts from now on get seamalloc with the same settings."""
    global _handed_down
    # The import is here because a process without PyTorch does not need it. PyTorch has imported the module already.
    from multiprocessing import spawn

    if _handed_down is None:
        spawn.get_preparation_data = _with_inheritance(spawn.get_preparation_data)
    _handed_down = parent


def _with_inheritance(get_preparation_data: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    @wraps(get_preparation_data)
    def with_inheritance(*arguments: Any, **keywords: Any) -> dict[str, Any]:
        data = get_preparation_data(*arguments, **keywords)
        if _handed_down is not None:
            data[KEY] = _Inheritance(data.get("sys_path", sys.path), _handed_down)
        return data

    return with_inheritance


class _Inheritance:
    """Settings that are pickled as a call of `exec`. Unpickling the call needs no module of seamalloc."""

    def __init__(self, path: list[str], parent: Parent) -> None:
        self._names = {"path": path, "parent": tuple(parent)}

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str, dict[str, Any]]]:
        return exec, (_INHERIT, self._names)


class AfterImport:
    """Calls a function after the first import of a module; at once if the module is imported already.

    The object is a finder at the head of `sys.meta_path`, and is removed once the module is imported. The finder stays
    after other calls: a program may ask for a module's spec to know whether the module is installed, and may repeat a
    failed import.
    """

    def __init__(self, name: str, function: Callable[[], None]) -> None:
        self._name = name
        self._function = function
        if sys.modules.get(name) is not None:
            function()
        else:
            sys.meta_path.insert(0, self)

    def cancel(self) -> bool:
        """Removes the finder from `sys.meta_path`. Returns whether the finder was still there."""
        try:
            sys.meta_path.remove(self)
        except ValueError:
            return False
        return True

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the other finders' spec of the awaited module, with a loader that reports the import; None for other
        modules."""
        if name != self._name:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                # A folder without `__init__.py` has a spec too, but no code to execute.
                if hasattr(spec.loader, "exec_module"):
                    loader: Any = _Loader(spec.loader, self)
                    spec.loader = loader
                return spec
        return None

    def imported(self) -> None:
        """Removes the finder and calls the function. The loader calls this method with the module's import lock held.
        """
        if self.cancel():
            self._function()


class _Loader:
    """A module's own loader, with a call after the import. The module sees only its own loader."""

    def __init__(self, loader: Any, waiting: AfterImport) -> None:
        self._loader = loader
        self._waiting = waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._waiting.imported()
