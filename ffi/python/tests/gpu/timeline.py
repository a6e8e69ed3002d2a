"""Makes timelines of recordings: python timeline.py OUTPUT RECORDING... [--variant light] [--steps STEPS]. Needs no GPU and no PyTorch.

The recordings are those of all ranks of a job (programs.py --record). For each rank OUTPUT gets JOB.RANK.timeline.gz, which
`seamalloc replay --timeline` reads; docs/trace-format.md says what is in it. With the lines that programs.py wrote of the job's
steps (--steps), the CPU's times are scaled to those of native's steps, which nobody recorded.

A collective of several ranks lasts as long as in the rank in which it lasted least: elsewhere it waited for that one. NCCL runs
the collectives of a communicator one after the other, on whatever streams; all are taken to be of one communicator.
"""

import argparse
import bisect
import gzip
import json
import statistics
import sys
from pathlib import Path

import timeline_events
import timeline_scale

GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
# What the recorded allocator asked of the driver, which the replayed one does not.
MEMORY_CALLS = ("cudaMalloc", "cudaFree", "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemSetAccess")
# Between steps the program waits for other ranks, in nanoseconds at most.
MOST_BETWEEN_STEPS = 50_000
# A kernel was waiting for the one before it where it was launched so long before that ended, in nanoseconds.
CLEARLY_BEFORE = 20_000
# Streams whose handle is not known are named by the profiler's number, from here on.
UNNAMED = 1 << 60
# The event at which the last collective is over.
COLLECTIVES = 1 << 40
# Threads that take turns less often than after so many calls are one after the other, and not side by side.
TURN = 50


class Recording:
    """One window of one rank."""

    def __init__(self, line):
        self.line = line
        self.place = {field: 5 + index for index, field in enumerate(line["fields"])}
        base, names = line["base_ns"], line["names"]
        self.marks = [(begin - base, end - base) for _, begin, end, thrown_away in line["marks"] if not thrown_away]
        thrown = [end - base for _, _, end, thrown_away in line["marks"] if thrown_away]
        self.begin, self.end = max(thrown, default=self.marks[0][0]), self.marks[-1][1]
        self.work, self.syncs, self.calls = {}, {}, []
        for event in line["events"]:
            category, name = event[0], names[event[1]]
            correlation = event[self.place["correlation"]]
            if category in GPU_WORK:
                self.work[correlation] = (event[2], event[3], event[self.place["stream"]], name)
            elif category == "cuda_sync":
                self.syncs[correlation] = event
            elif category in CALLS and self.begin <= event[2] < self.end:
                self.calls.append((event[2], event[3], event[4], name, correlation))
        self.calls.sort()
        self.handles = {number: int(handle) for handle, number in line["streams"].items()}
        self.history = [
            (time_us * 1000 - base, action, address, size, stream)
            for action, address, size, stream, time_us in line["history"]
        ]

    def stream(self, number):
        """The stream's handle."""
        return self.handles.get(number, UNNAMED + number)

    def collectives(self):
        """Correlations of collectives, in the order in which they were launched."""
        return [call[4] for call in self.calls if call[4] in self.work and "nccl" in self.work[call[4]][3].lower()]


def shorten(recordings):
    """Returns the least length of each collective over the ranks, by correlation for each rank."""
    lists = [recording.collectives() for recording in recordings]
    if len({len(of) for of in lists}) > 1:
        sys.exit("the ranks made different numbers of collectives")
    found = [{} for _ in recordings]
    for same in zip(*lists):
        works = [recording.work[correlation] for recording, correlation in zip(recordings, same)]
        if len({work[3] for work in works}) > 1:
            sys.exit(f"the ranks made different collectives: {works[0][3]}, {works[1][3]}")
        for of, correlation in zip(found, same):
            of[correlation] = min(work[1] for work in works)
    return found


def times(recording):
    """Returns the launch latency on an idle stream, and the time between two kernels of a busy one, in ns."""
    launched = {call[4]: call for call in recording.calls}
    streams = {}
    for correlation, (begin, length, stream, _) in recording.work.items():
        if correlation in launched:
            call = launched[correlation]
            streams.setdefault(stream, []).append((begin, length, call[0] + call[1]))
    gaps, latencies = [], []
    for of in streams.values():
        of.sort()
        for (begin, length, _), (next_begin, _, called) in zip(of, of[1:]):
            end = begin + length
            if called < end - CLEARLY_BEFORE:
                gaps.append(next_begin - end)
            elif called > end + CLEARLY_BEFORE:
                latencies.append(next_begin - called)
    middle = lambda found: max(0, int(statistics.median(found))) if found else 0
    return middle(latencies), middle(gaps)


def one_after_the_other(calls):
    """Returns whether the threads of these calls take turns seldom, as a program and its backward pass do."""
    turns = sum(before[2] != after[2] for before, after in zip(calls, calls[1:]))
    return turns * TURN < len(calls)


def late_frees(history):
    """The requests of frees that completed later than at once, since another stream used the block."""
    requested, found = {}, set()
    for index, (_, action, address, _, _) in enumerate(history):
        if action == "free_requested":
            requested[address] = index
        elif action == "free_completed":
            request = requested.pop(address, None)
            if request is not None and request != index - 1:
                found.add(request)
    return found | set(requested.values())


class Timeline:
    """The lines of one rank."""

    def __init__(self, recording, lengths):
        self.recording, self.lengths = recording, lengths
        # Calls of threads that give the GPU work; others look after them.
        workers = {call[2] for call in recording.calls if call[4] in recording.work}
        self.calls = [call for call in recording.calls if call[2] in workers]
        self.main = max(
            workers, key=lambda thread: sum(call[2] == thread and "Synchronize" in call[3] for call in self.calls)
        )
        if one_after_the_other(self.calls):
            self.calls = [(*call[:2], self.main, *call[3:]) for call in self.calls]
        self.finished = self._finished()

    def _finished(self):
        """Returns for each stream the begins of calls that gave it work, and when all of that work so far was done."""
        found = {}
        for begin, _, _, _, correlation in self.calls:
            if correlation in self.recording.work:
                start, length, stream, _ = self.recording.work[correlation]
                begins, ends = found.setdefault(stream, ([], []))
                begins.append(begin)
                ends.append(max(start + length, ends[-1] if ends else 0))
        return found

    def done(self, stream, time):
        """Returns when a stream (None: every one) had completed the work given to it until a time."""
        found = 0
        for number, (begins, ends) in self.finished.items():
            if stream in (None, number):
                place = bisect.bisect_left(begins, time)
                found = max(found, ends[place - 1] if place else 0)
        return found

    def events(self):
        """The records that something waits for, and the waits: by correlation, (event, stream)."""
        recording, place = self.recording, self.recording.place
        records, waits, last = [], [], {}
        streams = []
        for begin, _, thread, name, correlation in self.calls:
            if correlation in recording.work:
                last[thread] = recording.work[correlation][2]
            elif name.startswith("cudaEventRecord"):
                records.append((begin, name, correlation))
                streams.append(last.get(thread))
            elif name in ("cudaStreamWaitEvent", "cudaEventSynchronize") and correlation in recording.syncs:
                sync = recording.syncs[correlation]
                of = sync[place["wait_on_cuda_event_record_corr_id"]]
                waits.append((begin, sync[place["wait_on_cuda_event_id"]], of, correlation, sync[place["stream"]]))
        found = timeline_events.match(records, [wait[:3] for wait in waits], recording.marks)
        recorded, waited = {}, {}
        for index, record in found.items():
            if streams[record] is not None:
                recorded[records[record][2]] = (record, streams[record])
                waited[waits[index][3]] = (record, waits[index][4])
        return recorded, waited

    def lines(self):
        """The lines of the GPU's and the allocator's: (begin, end, thread, kind, text behind the gap), in order."""
        recording = self.recording
        recorded, waited = self.events()
        collectives, before = set(recording.collectives()), None
        for begin, length, thread, name, correlation in self.calls:
            end = begin + length
            if correlation in recording.work:
                _, lasted, number, _ = recording.work[correlation]
                lasted, stream = self.lengths.get(correlation, lasted), recording.stream(number)
                ordered = correlation in collectives
                if ordered and before is not None and before != stream:
                    yield begin, begin, thread, "w", f"0,{stream:x},{COLLECTIVES}"
                yield begin, end, thread, "k", f"{length},{stream:x},{lasted}"
                if ordered:
                    yield begin, end, thread, "e", f"0,{stream:x},{COLLECTIVES}"
                    before = stream
            elif correlation in recorded:
                event, stream = recorded[correlation]
                yield begin, end, thread, "e", f"{length},{recording.stream(stream):x},{event}"
            elif correlation in waited and name == "cudaStreamWaitEvent":
                event, stream = waited[correlation]
                yield begin, end, thread, "w", f"{length},{recording.stream(stream):x},{event}"
            elif "Synchronize" in name:
                sync = recording.syncs.get(correlation)
                stream = sync[recording.place["stream"]] if sync else None
                if name == "cudaStreamSynchronize" and stream is not None:
                    rest = end - max(begin, min(end, self.done(stream, begin)))
                    yield begin, end, thread, "s", f"{rest},s,{recording.stream(stream):x}"
                elif name == "cudaEventSynchronize" and correlation in waited:
                    yield begin, end, thread, "s", f"{min(length, 5000)},e,{waited[correlation][0]}"
                elif name == "cudaDeviceSynchronize":
                    rest = end - max(begin, min(end, self.done(None, begin)))
                    yield begin, end, thread, "s", f"{rest},d"
            elif name.startswith(MEMORY_CALLS):
                yield begin, end, thread, None, ""

    def owners(self):
        """The thread that gives each stream most of its work."""
        counts = {}
        for _, _, thread, _, correlation in self.calls:
            if correlation in self.recording.work:
                of = counts.setdefault(self.recording.stream(self.recording.work[correlation][2]), {})
                of[thread] = of.get(thread, 0) + 1
        return {stream: max(of, key=of.get) for stream, of in counts.items()}

    def memory(self):
        """The blocks of the beginning, and the allocator's lines. The history names no threads: a block is taken to be of the
        thread that gives its stream work. Of a block that another stream uses it does not say which: the default stream."""
        recording, owners = self.recording, self.owners()
        late = late_frees(recording.history)
        live = {address: (size, stream) for address, size, stream in recording.line["start"]}
        before = [entry for entry in recording.history if entry[0] < recording.begin]
        for _, action, address, size, stream in before:
            if action == "alloc":
                live[address] = (size, stream)
            elif action in ("free_requested", "free_completed"):
                live.pop(address, None)
        start = [(number, *block) for number, block in enumerate(live.values())]
        ids = dict(zip(live, range(len(live))))
        streams = {address: stream for address, (_, stream) in live.items()}
        number, lines = len(start), []
        for index, (time, action, address, size, stream) in enumerate(recording.history):
            if not recording.begin <= time < recording.end:
                continue
            if action == "alloc":
                thread = owners.get(stream, self.main)
                lines.append((time, time, thread, "a", f"{number},{size},{stream:x}"))
                ids[address], streams[address] = number, stream
                number += 1
            elif action in ("free_requested", "free_completed") and address in ids:
                # Of a block that was freed before the beginning only the end of it is heard.
                block, stream = ids.pop(address), streams.pop(address)
                thread = owners.get(stream, self.main)
                if index in late and stream != 0:
                    lines.append((time, time, thread, "u", f"{block},0"))
                lines.append((time, time, thread, "r", f"{block}"))
        return start, lines

    def text(self, unrecorded_ns=None):
        """The timeline's lines. Where it is said how long a step takes while nobody records, the CPU is as fast as then."""
        recording = self.recording
        line = recording.line
        latency, gap = times(recording)
        about = {
            "timeline": 1,
            "job": line["job"] + (f".{line['rank']}" if line["world"] > 1 else ""),
            **{key: line[key] for key in ("rank", "world", "variant", "torch", "device")},
            "latency_ns": latency,
            "gap_ns": gap,
            "steps_ns": [end - begin for begin, end in recording.marks],
        }
        start, lines = self.memory()
        lines += self.lines()
        for number, (begin, end) in enumerate(recording.marks):
            lines.append((begin, begin, self.main, "p", str(number)))
            lines.append((end, end, self.main, "q", str(number)))
        # What is at one moment stays in its order.
        lines.sort(key=lambda of: of[0])
        lines = [f"b,{block},{size},{stream:x}" for block, size, stream in start] + list(self.ordered(lines))
        if unrecorded_ns:
            about["cpu_scale"] = timeline_scale.fit(lines, about, unrecorded_ns)
            lines = list(timeline_scale.scaled(lines, about["cpu_scale"]))
        return ["# " + json.dumps(about), *lines]

    def ordered(self, lines):
        """The lines with the program's time before each, and where threads wait for each other."""
        numbers, ends, others, inside = {self.main: 0}, {}, [], False
        for begin, end, thread, kind, rest in lines:
            number = numbers.setdefault(thread, len(numbers))
            before = ends.get(thread, begin)
            inside = inside and kind != "p"
            if not inside:
                before = max(before, begin - MOST_BETWEEN_STEPS)
            elif thread != self.main and thread not in others:
                # In each step it goes on from where the main thread has come to.
                others.append(thread)
                yield f"j,{number},0,0"
                before = max(ends.get(thread, 0), ends.get(self.main, begin))
            elif thread == self.main and kind in ("s", "q", "w") and others:
                # The main thread looks at what others did when they have done it.
                for other in others:
                    yield f"j,0,0,{numbers[other]}"
                    before = max(before, ends[other])
                others = []
            inside = kind == "p" or (inside and kind != "q")
            if kind is not None:
                yield f"{kind},{number},{max(0, begin - before)},{rest}"
            ends[thread] = max(end, ends.get(thread, end))


def read(path, variant):
    """The window of that variant in a recording."""
    with gzip.open(path, "rt") as lines:
        for line in map(json.loads, lines):
            if "error" in line:
                sys.exit(f"{path}: {line['error']}")
            if line["variant"] == variant:
                return Recording(line)
    sys.exit(f"{path}: no window `{variant}`")


def unrecorded(path, recording):
    """The mean of a rank's native steps while nobody recorded, in nanoseconds: of a cycle, by its steps' medians."""
    line, cycle = recording.line, len(recording.marks)
    at = {}
    for step in map(json.loads, path.read_text().splitlines()):
        whose = (step.get("program"), step.get("allocator"), step.get("rank"))
        # The first steps of a process are slower.
        if whose == (line["job"], "native", line["rank"]) and step.get("step", 0) >= 2 * cycle:
            at.setdefault(step["step"] % cycle, []).append(step["seconds"])
    if not at:
        sys.exit(f"{path}: no steps of {line['job']} under native")
    return statistics.mean(statistics.median(seconds) for seconds in at.values()) * 1e9


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="a folder")
    parser.add_argument("recordings", type=Path, nargs="+", help="of all ranks of one job")
    parser.add_argument("--variant", choices=("light", "full"), default="light")
    parser.add_argument("--steps", type=Path, help="lines of programs.py")
    parser.add_argument(
        "--as-recorded", action="store_true", help="collectives last as long as recorded, so that a replay can be judged"
    )
    options = parser.parse_args()
    recordings = [read(path, options.variant) for path in options.recordings]
    options.output.mkdir(parents=True, exist_ok=True)
    shortened = [{} for _ in recordings] if options.as_recorded else shorten(recordings)
    for recording, lengths in zip(recordings, shortened):
        path = options.output / f"{recording.line['job']}.{recording.line['rank']}.timeline.gz"
        # No name and no time, so that the same recording makes the same file.
        with open(path, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as out:
            for line in Timeline(recording, lengths).text(options.steps and unrecorded(options.steps, recording)):
                out.write(line.encode() + b"\n")
        print(path)


if __name__ == "__main__":
    main()
