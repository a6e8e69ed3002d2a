"""Records the last steps of a program: what its kernels, its streams and its CPU do, and its memory. programs.py --record.

Two windows of a cycle of steps each, with one step before each that is thrown away: `light` without what torch.profiler sees
of operators, so that the CPU is slowed down little, and `full` with it and with its own events of memory, which name the thread.
A recording is JSON, one object a line for each window; timeline.py makes a timeline of it.

| key | holds |
|---|---|
| job, rank, variant, torch, device | what was recorded; variant is light or full |
| base_ns | Unix time at which the events' times begin |
| names | the names of events |
| events | of the Chrome trace: category, index of the name, begin and length in ns, thread, then a number or null for each of FIELDS |
| history | of the memory history: action, address, bytes, stream, time in microseconds of Unix time |
| start | blocks that were live at the window's begin: address, requested bytes, stream |
| streams | the profiler's number of each stream of the history |
| marks | of each step: its number, Unix time in ns of its begin and of its end, and whether it is the one thrown away |
"""

import gzip
import json
import os
import tempfile
import time
import traceback
from pathlib import Path

# What is kept of an event's arguments.
FIELDS = (
    "stream",
    "correlation",
    "wait_on_stream",
    "wait_on_cuda_event_record_corr_id",
    "wait_on_cuda_event_id",
    "cuda_event_id",
    "Addr",
    "Bytes",
    "Device Type",
)
CATEGORIES = frozenset(
    (
        "kernel",
        "gpu_memcpy",
        "gpu_memset",
        "cuda_runtime",
        "cuda_driver",
        "cuda_sync",
        "cuda_event",
        "cpu_instant_event",
        "overhead",
    )
)
MAX_ENTRIES = 2_000_000


def reduced(trace):
    """The events of a Chrome trace that a timeline is made of. Returns their names, and the events."""
    names, events = {}, []
    for event in trace["traceEvents"]:
        category = event.get("cat")
        if category not in CATEGORIES:
            continue
        begin, length = round(float(event.get("ts", 0)) * 1000), round(float(event.get("dur", 0)) * 1000)
        arguments = event.get("args", {})
        name = names.setdefault(str(event.get("name", "")), len(names))
        events.append([category, name, begin, length, event.get("tid"), *(arguments.get(field) for field in FIELDS)])
    return list(names), events


def numbers_of_streams(names, events, handles):
    """The profiler's number of each stream: of the kernels that were launched at the end, one on each in their order."""
    place = 5 + FIELDS.index("stream")
    spun = sorted(
        (event for event in events if event[0] == "kernel" and "spin_kernel" in names[event[1]]),
        key=lambda event: event[2],
    )
    if len(spun) < len(handles):
        return {}
    return {handle: event[place] for handle, event in zip(handles, spun[len(spun) - len(handles) :])}


class Window:
    """One recording, from `start` to `stop`."""

    def __init__(self, job, variant):
        import torch

        self.torch, self.job, self.variant, self.marks = torch, job, variant, []
        activities = [torch.profiler.ProfilerActivity.CUDA]
        if variant == "full":
            activities.append(torch.profiler.ProfilerActivity.CPU)
        keywords = {"enable_cuda_sync_events": True, "profile_all_threads": variant == "full"}
        try:
            config = torch._C._profiler._ExperimentalConfig(**keywords)
        except TypeError:
            # An older PyTorch sees its own threads alone.
            config = torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)
        self.profiler = torch.profiler.profile(
            activities=activities, profile_memory=variant == "full", experimental_config=config
        )

    def live(self):
        """Returns the live blocks: address, bytes, stream."""
        found = []
        for segment in self.torch.cuda.memory._snapshot()["segments"]:
            if segment["device"] != self.torch.cuda.current_device():
                continue
            address = segment["address"]
            for block in segment["blocks"]:
                if block["state"] != "inactive":
                    size = block.get("requested_size") or block["size"]
                    found.append([block.get("address", address), size, segment["stream"]])
                address += block["size"]
        return found

    def start(self):
        """Begins the recording."""
        torch = self.torch
        torch.cuda.synchronize()
        torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=MAX_ENTRIES)
        self.profiler.start()
        self.first = self.live()

    def stop(self):
        """Ends the recording, and returns it."""
        torch = self.torch
        torch.cuda.synchronize()
        entries = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
        torch.cuda.memory._record_memory_history(enabled=None)
        history = [
            [entry["action"], entry["addr"], entry["size"], entry["stream"], entry["time_us"]]
            for entry in entries
            if entry["action"] in ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "oom")
        ]
        handles = sorted({entry[3] for entry in history} | {block[2] for block in self.first})
        for handle in handles:
            torch.cuda.synchronize()
            with torch.cuda.stream(torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()):
                torch.cuda._sleep(1000)
        torch.cuda.synchronize()
        self.profiler.stop()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            self.profiler.export_chrome_trace(str(path))
            trace = json.loads(path.read_text())
        names, events = reduced(trace)
        return {
            "job": self.job,
            "rank": int(os.environ.get("RANK", "0")),
            "world": int(os.environ.get("WORLD_SIZE", "1")),
            "variant": self.variant,
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(),
            "base_ns": int(trace.get("baseTimeNanoseconds", 0)),
            "fields": FIELDS,
            "names": names,
            "events": events,
            "history": history,
            "start": self.first,
            "streams": numbers_of_streams(names, events, handles),
            "marks": self.marks,
            "schema": trace.get("schemaVersion"),
        }


class Recorder:
    """Records the windows of a program of `steps` steps whose inputs repeat after `cycle` of them."""

    def __init__(self, path, job, steps, cycle):
        self.path, self.job = path, job
        light, full = steps - 2 * (cycle + 1), steps - (cycle + 1)
        self.first = {light: "light", full: "full"}
        self.last = {full - 1, steps - 1}
        self.window, self.began, self.thrown_away = None, 0, False

    def _failed(self):
        """Writes the failure of a recording to its file; the program goes on."""
        self.window = None
        self._write({"job": self.job, "error": traceback.format_exc()})

    def _write(self, line):
        with gzip.open(self.path, "at", 6) as out:
            out.write(json.dumps(line, separators=(",", ":")) + "\n")

    def begin(self, number):
        """Notes that a step begins."""
        self.thrown_away = number in self.first
        if self.thrown_away:
            try:
                self.window = Window(self.job, self.first[number])
                self.window.start()
            except Exception:  # noqa: BLE001 - whatever it is
                self._failed()
        self.began = time.time_ns()

    def end(self, number):
        """Notes that a step is over, and the GPU idle."""
        if self.window is None:
            return
        self.window.marks.append([number, self.began, time.time_ns(), self.thrown_away])
        if number in self.last:
            try:
                line = self.window.stop()
                self.window = None
                self._write(line)
            except Exception:  # noqa: BLE001 - whatever it is
                self._failed()
