"""The snapshots of a job, opened by fsspec: local files, or files of an object store."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The bytes that one copy step transfers.
PIECE = 1 << 20
# The number of a rank: after the word `rank`, or at the end of the file's name.
RANK = re.compile(r"rank[^0-9A-Za-z/]{0,2}(\d+)", re.IGNORECASE)
AT_THE_END = re.compile(r"[^0-9A-Za-z](\d+)$")
ENDINGS = re.compile(r"(\.(gz|csv|seam|pickle|pkl|json|snapshot|txt))+$")


class PatternError(Exception):
    """Raised if a pattern matches no file, or if its files cannot be read from this machine."""


@dataclass(frozen=True)
class File:
    """A file and its file system. Both objects can be sent to another process."""

    url: str
    system: Any
    path: str

    @property
    def is_local(self) -> bool:
        protocol = self.system.protocol
        return "file" in ((protocol,) if isinstance(protocol, str) else protocol)

    @contextmanager
    def here(self, folder: str | None) -> Iterator[str]:
        """Makes a context with the path of a local file that has the content: the file itself, or a copy in a temporary
        folder that is removed at the end. The copy is made in `folder`, or by default in the system's folder of
        temporary files."""
        if self.is_local:
            yield self.path
            return
        made = tempfile.mkdtemp(prefix="seamalloc-fleet-", dir=folder)
        try:
            # The copy keeps the file's name, since the trace is named after it.
            copy = os.path.join(made, Path(self.path).name or "snapshot")
            with self.system.open(self.path, "rb") as content, open(copy, "wb") as out:
                shutil.copyfileobj(content, out, PIECE)
            yield copy
        finally:
            shutil.rmtree(made, ignore_errors=True)


def find(patterns: Iterable[str]) -> list[File]:
    """Returns the files of all patterns, each file once. Raises PatternError if a pattern matches no file."""
    import fsspec

    found: dict[str, File] = {}
    for pattern in patterns:
        try:
            opened = fsspec.open_files(pattern, "rb")
            files = [File(_name(one), one.fs, one.path) for one in opened]
            files = [file for file in files if file.system.isfile(file.path)]
        except ImportError as error:
            # fsspec's message names the package that reads this kind of address.
            raise PatternError(f"{pattern}: {error}") from error
        except Exception as error:
            # Each file system has errors of its own.
            raise PatternError(f"{pattern}: {in_words(error)}") from error
        if not files:
            raise PatternError(
                f"{pattern}: no such file. A pattern is quoted, so that the shell leaves it: 'rank-*.pickle'"
            )
        found.update((file.url, file) for file in files)
    return list(found.values())


def _name(opened: Any) -> str:
    """Returns a readable name of a file: its path if it is local, else its address."""
    name = str(opened.full_name)
    return name.removeprefix("file://")


def in_words(error: BaseException) -> str:
    """Returns an error as one line of text."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def short_names(urls: Iterable[str]) -> dict[str, str]:
    """Returns a short name for each address, without the common folder and without the endings of file types."""
    urls = list(urls)
    folders = [url.split("/")[:-1] for url in urls]
    common = len(os.path.commonprefix(folders)) if folders else 0
    bare = {url: ENDINGS.sub("", "/".join(url.split("/")[common:])) for url in urls}
    taken: dict[str, int] = {}
    for name in bare.values():
        taken[name] = taken.get(name, 0) + 1
    # If two files differ only in their endings, the endings stay.
    return {url: name if taken[name] == 1 and name else "/".join(url.split("/")[common:]) for url, name in bare.items()}


def rank_of(name: str) -> int | None:
    """Returns the number of the rank in a name such as `rank-12`, `rank_12/job` or `worker-12`, or None."""
    named = RANK.findall(name)
    if named:
        return int(named[-1])
    at_the_end = AT_THE_END.search(ENDINGS.sub("", name.rsplit("/", 1)[-1]))
    return int(at_the_end.group(1)) if at_the_end else None
