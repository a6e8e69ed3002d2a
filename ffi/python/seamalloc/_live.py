"""Access for other processes to this one's allocators, metrics, and the flight recorder."""

from __future__ import annotations

import os

from ._devices import Device, current_device
from ._library import FileName, check, folder_of, library, path_of, plugged, read_text

VARIABLE = "SEAMALLOC_SERVE"


def serve(path: FileName | None = None) -> None:
    """Tells other processes of this user what the allocators of this one do, from now on: `seamalloc top` shows it. A thread of the
    library answers at a Unix socket: of the name `path`, or of one where `seamalloc top` looks. Does nothing if this process
    serves already. Raises `Error`, or `FileNotFoundError` where there is no such folder."""
    if path is None:
        check(library.seam_serve(None))
    else:
        check(library.seam_serve(path_of(path)), folder_of(path))


def stop_serving() -> None:
    """Ends the service that `serve` began."""
    check(library.seam_serve_stop())


def serve_as_asked(asked: bool | FileName | None) -> None:
    """Serves as the argument `serve` of `enable` asks. Processes that this one starts serve too, each at a socket of its own."""
    if asked is None or asked is False:
        return
    if asked is True:
        os.environ[VARIABLE] = "1"
        serve()
    else:
        serve(asked)


def metrics() -> str:
    """Returns the metrics of all allocators of this process, as Prometheus reads them. docs/metrics.md lists them."""
    return read_text(library.seam_metrics)


def dump_flight(path: FileName, device: Device = None) -> None:
    """Writes the last operations of the device's allocator, which its flight recorder has kept (the option `flight_recorder`), and what
    it holds: as a trace where the name ends in .seam, .csv or .csv.gz, else as a pickle that PyTorch's viewer opens. Raises
    `FileNotFoundError` where there is no such folder."""
    check(library.seam_flight_write(plugged(current_device(device)), path_of(path)), folder_of(path))
