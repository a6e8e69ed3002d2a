"""Access of other processes to the allocators of this process, metrics, and the flight recorder."""

from __future__ import annotations

import os

from ._devices import Device, current_device
from ._library import FileName, check, folder_of, library, path_of, plugged, read_text

VARIABLE = "SEAMALLOC_SERVE"


def serve(path: FileName | None = None) -> None:
    """Serves the state of this process's allocators to other processes of this user, such as `seamalloc top`. A thread
    of the library answers on a Unix socket: at `path`, or without it in the folder in which `seamalloc top` searches.
    Does nothing if this process serves already. Raises `Error`, or `FileNotFoundError` if the folder of the socket does
    not exist."""
    if path is None:
        check(library.seam_serve(None))
    else:
        check(library.seam_serve(path_of(path)), folder_of(path))


def stop_serving() -> None:
    """Stops the service that `serve` started."""
    check(library.seam_serve_stop())


def serve_as_asked(asked: bool | FileName | None) -> None:
    """Serves as the argument `serve` of `enable` asks. Child processes serve too, each with its own socket."""
    if asked is None or asked is False:
        return
    if asked is True:
        os.environ[VARIABLE] = "1"
        serve()
    else:
        serve(asked)


def metrics() -> str:
    """Returns the metrics of all allocators of this process in the text format of Prometheus. docs/metrics.md lists the
    metrics."""
    return read_text(library.seam_metrics)


def dump_flight(path: FileName, device: Device = None) -> None:
    """Writes the latest operations of the device's allocator, which its flight recorder has kept (option
    `flight_recorder`), and the memory that the allocator holds. A name that ends in .seam, .csv or .csv.gz gives a
    trace, any other name a pickle that PyTorch's viewer opens. Raises `FileNotFoundError` if the folder does not
    exist."""
    check(library.seam_flight_write(plugged(current_device(device)), path_of(path)), folder_of(path))
