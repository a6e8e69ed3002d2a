"""Output at the end of the process: a report of each device that the process used, if SEAMALLOC_REPORT asks for it, and
a line in the log."""

from __future__ import annotations

import atexit
import errno
import os
from pathlib import Path

from . import _messages
from ._library import check, folder_of, library, name_of, plugged, plugged_devices, read_json
from ._report import text_of

VARIABLE = "SEAMALLOC_REPORT"
# The id of the process that writes the output. Forked processes inherit its exit handlers, but not its memory.
_owner: int | None = None


def fill_in(name: str, device: int | None = None) -> str:
    """Returns a file's name with `{rank}` and `{pid}` filled in, and with `{device}` filled in if a device is given."""
    name = name.replace("{rank}", os.environ.get("RANK", "0")).replace("{pid}", str(os.getpid()))
    return name if device is None else name.replace("{device}", name_of(device))


def device_report(device: int) -> str:
    """Returns the main figures of a device as text."""
    handle = plugged(device)
    stats = read_json(library.seam_stats_json, handle)
    return text_of(name_of(device), stats, read_json(library.seam_fragmentation_json, handle))


def _destination() -> str | None:
    """Returns the destination of the report: a file's name, "" for standard error, or None for no report."""
    found = os.environ.get(VARIABLE, "")
    if found in ("", "0"):
        return None
    return "" if found == "1" else fill_in(found)


def check_destination() -> None:
    """Raises `OSError` if the report could not be written at the end of the process. Creates no file, since the process
    may use no GPU."""
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
    """Registers the output for the end of this process."""
    global _owner
    if _owner is None:
        atexit.register(_write)
    _owner = os.getpid()


def _write() -> None:
    if os.getpid() != _owner:
        return
    devices = plugged_devices()
    # The library writes a line only if SEAMALLOC_LOG asks for it.
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
            # The text is appended in one call, after the output of other processes.
            with Path(name).open("a", encoding="utf-8") as file:
                file.write(text)
        else:
            _messages.block(text)
    except OSError as error:
        _messages.line(f"the report could not be written: {error}")
