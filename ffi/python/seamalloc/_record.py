"""Recordings of the requests to allocators, as traces for `seamalloc replay`."""

from __future__ import annotations

import atexit
import errno
import operator
import os
from types import TracebackType

from . import _end, _messages
from ._devices import Device, current_device
from ._library import FileName, check, folder_of, library, name_of, path_of, plugged, plugged_devices

ENDINGS = (".seam", ".csv", ".csv.gz")
# The largest number of events that are kept, which take 112 MB.
MAX_ENTRIES = 2_000_000


def check_name(path: FileName) -> None:
    """Raises an error if a trace could not be written at the end."""
    name = os.fsdecode(path)
    if not name.endswith(ENDINGS):
        raise ValueError(f"{name}: a trace is named .seam, .csv or .csv.gz")
    if not os.path.isdir(folder_of(path)):
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", folder_of(path))


def _count(max_entries: int) -> int:
    count = operator.index(max_entries)
    if not 0 < count < 1 << 48:
        raise ValueError(f"max_entries is {max_entries}; expected a number above 0")
    return count


def _write(handle: int, path: FileName) -> None:
    check(library.seam_record_write(handle, path_of(path)), folder_of(path))


class Recording:
    """A context manager that records one device's allocations. `record` starts the recording."""

    def __init__(self, path: FileName, device: Device = None, max_entries: int = MAX_ENTRIES) -> None:
        check_name(path)
        count = _count(max_entries)
        self.path = path
        self._handle = plugged(current_device(device))
        check(library.seam_record_start(self._handle, count))
        # A forked process must not write the recording when it ends.
        self._owner: int | None = os.getpid()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Writes the file and ends the recording. Does nothing in a second call or in a forked process."""
        if self._owner != os.getpid():
            return
        self._owner = None
        atexit.unregister(self.stop)
        try:
            _write(self._handle, self.path)
        finally:
            check(library.seam_record_stop(self._handle))

    def __enter__(self) -> Recording:  # noqa: PYI034 - typing has Self from Python 3.11 on
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def record(path: FileName, device: Device = None, max_entries: int = MAX_ENTRIES) -> Recording:
    """Records every allocation and free from now on, until `stop()` of the returned recording or the end of the
    process. The file (`.seam`, `.csv`, `.csv.gz`) is a trace that the command `seamalloc replay` reads. The trace
    contains sizes, order and streams, and nothing of the program or its data. If there are more than `max_entries`
    events (56 bytes each), the latest are kept."""
    return Recording(path, device, max_entries)


def record_process(name: str) -> None:
    """Records every device that this process will use, from its first use to the end of the process, and uses no device
    itself. `{rank}` and `{device}` in the file's name are filled in. Without `{device}`, a process that used several
    devices writes a file for each, with `-device1` and so on before the ending."""
    check_name(_end.fill_in(name, 0))
    check(library.seam_record_new(MAX_ENTRIES))
    owner = os.getpid()

    def write() -> None:
        if os.getpid() == owner:
            _write_all(name)

    atexit.register(write)


def _write_all(name: str) -> None:
    """Writes the recordings of all devices of this process. The program has ended and its exit status is fixed, so
    errors are printed."""
    devices = plugged_devices()
    if not devices:
        _messages.line(f"nothing was recorded to {_end.fill_in(name)}: the process used no GPU")
    if len(devices) > 1 and "{device}" not in name:
        ending = next(ending for ending in reversed(ENDINGS) if name.endswith(ending))
        name = name[: -len(ending)] + "-device{device}" + ending
    for device in devices:
        path = _end.fill_in(name, device)
        try:
            _write(plugged(device), path)
        except Exception as error:  # noqa: BLE001 - the other devices' files are still to be written
            _messages.line(f"the recording of device {name_of(device)} could not be written: {error}")
            continue
        _messages.say(f"device {name_of(device)} is recorded in {path}")
