"""Output at the end of the process: a report of each device that it used, where SEAMALLOC_REPORT asks for it, and a line in
the log."""

from __future__ import annotations

import atexit
import errno
import os
from pathlib import Path

from . import _messages
from ._library import check, folder_of, library, name_of, plugged, plugged_devices, read_json
from ._report import text_of

VARIABLE = "SEAMALLOC_REPORT"
# The process that writes. Forked processes have its handlers, but none of its memory.
_owner: int | None = None


def fill_in(name: str, device: int | None = None) -> str:
    """A file's name with `{rank}`, `{pid}` and, where it is given, `{device}` filled in."""
    name = name.replace("{rank}", os.environ.get("RANK", "0")).replace("{pid}", str(os.getpid()))
    return name if device is None else name.replace("{device}", name_of(device))


def device_report(device: int) -> str:
    """The figures of a device that matter, as text."""
    handle = plugged(device)
    stats = read_json(library.seam_stats_json, handle)
    return text_of(name_of(device), stats, read_json(library.seam_fragmentation_json, handle))


def _destination() -> str | None:
    """Returns where the report goes: a file's name, "" for standard error, or None for nowhere."""
    found = os.environ.get(VARIABLE, "")
    if found in ("", "0"):
        return None
    return "" if found == "1" else fill_in(found)


def check_destination() -> None:
    """Raises `OSError` now where the report could not be written at the end. Makes no file: the process may use no GPU."""
    name = _destination()
    if not name:
        return
    code = 0
    if not os.path.isdir(folder_of(name)):
        code = errno.ENOENT
    elif os.path.isdir(name):
        code = errno.EISDIR
    elif not os.access(name if os.path.exists(name) else folder_of(name), os.W_OK):
        code = errno.EACCES
    if code != 0:
        raise OSError(code, f"{os.strerror(code)} ({VARIABLE})", name)


def prepare() -> None:
    """Has the report written at the end of the process."""
    global _owner
    if _owner is None:
        atexit.register(_write)
    _owner = os.getpid()


def _write() -> None:
    if os.getpid() != _owner:
        return
    devices = plugged_devices()
    # Lines are written only if SEAMALLOC_LOG asks for them.
    for device in devices:
        check(library.seam_log_summary(plugged(device)))
    name = _destination()
    if name is None or not devices:
        return
    rank = os.environ.get("RANK")
    head = f"process {os.getpid()}" + (f", rank {rank}" if rank else "")
    text = "\n".join([f"seamalloc, {head}, at its end", *map(device_report, devices), ""])
    try:
        if name:
            # Written in one piece, behind the output of other processes.
            with Path(name).open("a", encoding="utf-8") as file:
                file.write(text)
        else:
            _messages.block(text)
    except OSError as error:
        _messages.line(f"the report could not be written: {error}")
