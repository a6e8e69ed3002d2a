"""How processes that Python's multiprocessing starts (`spawn`, `forkserver`) get seamalloc as the one that starts them.

multiprocessing sends a new process a dict before it imports the program's main module there. One value more in it, of no
use in itself, runs a few lines when it is unpickled. Those call `_switch.inherit`, which waits for PyTorch by
`AfterImport`: a process that never imports it pays for the import of seamalloc alone. coverage.py follows processes by the
same way.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import wraps
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable, NamedTuple

KEY = "seamalloc"

# The code that the new process runs. The code is sent as text, since seamalloc may be missing there, which must not end
# the process. `path` is put in place for good a moment later, by multiprocessing.
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
    """Settings that a process hands down: its options; "full", "pluggable", or "pytorch" where it went on without
    seamalloc; its `fallback`; and the options of page-locked memory, if that is seamalloc's."""

    conf: str
    kind: str
    fallback: str | None
    pinned: str | None = None


_handed_down: Parent | None = None


def hand_down(parent: Parent) -> None:
    """Every process that this one starts from now on gets seamalloc in the same way."""
    global _handed_down
    # Imported here: PyTorch has imported it already, and a process without PyTorch does not need it.
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
    """Pickled, it is a call of `exec`, which needs nothing of seamalloc where it is unpickled."""

    def __init__(self, path: list[str], parent: Parent) -> None:
        self._names = {"path": path, "parent": tuple(parent)}

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str, dict[str, Any]]]:
        return exec, (_INHERIT, self._names)


class AfterImport:
    """Calls a function after a module was imported for the first time; at once if it was already.

    The object is a finder at the head of `sys.meta_path`, which leaves it when the module is there. Until then it stays: a
    program may ask for a module's spec, to know whether it is installed, and an import may fail and be tried again.
    """

    def __init__(self, name: str, function: Callable[[], None]) -> None:
        self._name = name
        self._function = function
        if sys.modules.get(name) is not None:
            function()
        else:
            sys.meta_path.insert(0, self)

    def cancel(self) -> bool:
        """Leaves. Whether it was still waiting."""
        try:
            sys.meta_path.remove(self)
        except ValueError:
            return False
        return True

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the other finders' spec of the one module, with a loader that tells when the module is imported."""
        if name != self._name:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                # A folder without __init__.py has a spec too, but no code to execute.
                if hasattr(spec.loader, "exec_module"):
                    loader: Any = _Loader(spec.loader, self)
                    spec.loader = loader
                return spec
        return None

    def imported(self) -> None:
        """Called by the loader, with the module's import lock held."""
        if self.cancel():
            self._function()


class _Loader:
    """A module's own loader, and a call after it. The module never sees it."""

    def __init__(self, loader: Any, waiting: AfterImport) -> None:
        self._loader = loader
        self._waiting = waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._waiting.imported()
