"""Timelines made of recordings: records and waits of events, blocks, threads; on small recordings written by hand."""

import gzip
import itertools
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

GPU = Path(__file__).resolve().parent / "gpu"
sys.path.insert(0, str(GPU))

import timeline
import timeline_events
import timeline_record
import timeline_scale
import timeline_table

MAIN, OTHER, THIRD = 101, 102, 103
# The profiler's number of the default stream, and of two others; the first of these has a handle.
DEFAULT, SIDE, NAMELESS = 7, 18, 22
HANDLE = 0xABC
BASE = 5_000_000_000


class Made:
    """A recording, made call by call. Times are microseconds from its base."""

    def __init__(self, rank=0, marks=((0, 1000),)):
        self.names, self.events, self.history, self.start = {}, [], [], []
        self.rank, self.marks, self.number = rank, marks, 0

    def event(self, category, name, begin, length, thread, **fields):
        place = self.names.setdefault(name, len(self.names))
        values = [fields.get(field) for field in timeline_record.FIELDS]
        self.events.append([category, place, round(begin * 1000), round(length * 1000), thread, *values])

    def call(self, name, begin, length=1, thread=MAIN, category="cuda_runtime"):
        self.number += 1
        self.event(category, name, begin, length, thread, correlation=self.number)
        return self.number

    def kernel(self, begin, at, length, stream=DEFAULT, thread=MAIN, name="kernel"):
        number = self.call("cudaLaunchKernel", begin, thread=thread)
        self.event("kernel", name, at, length, stream, stream=stream, correlation=number)

    def record(self, begin, thread=MAIN, name="cudaEventRecordWithFlags"):
        return self.call(name, begin, thread=thread)

    def wait(self, begin, stream, event, record=-1, thread=MAIN):
        number = self.call("cudaStreamWaitEvent", begin, thread=thread)
        fields = {"wait_on_cuda_event_id": event, "wait_on_cuda_event_record_corr_id": record}
        self.event("cuda_sync", "Stream Wait Event", begin, 0, stream, stream=stream, correlation=number, **fields)

    def synchronize(self, begin, length, stream=DEFAULT):
        number = self.call("cudaStreamSynchronize", begin, length)
        self.event("cuda_sync", "Stream Sync", begin, length, stream, stream=stream, correlation=number)

    def memory(self, action, time, address, size=512, stream=0):
        self.history.append([action, address, size, stream, BASE // 1000 + time])

    def recording(self):
        line = {
            "job": "made",
            "rank": self.rank,
            "world": 1,
            "variant": "light",
            "torch": "2.11.0",
            "device": "none",
            "base_ns": BASE,
            "fields": timeline_record.FIELDS,
            "names": list(self.names),
            "events": self.events,
            "history": self.history,
            "start": self.start,
            "streams": {"0": DEFAULT, str(HANDLE): SIDE},
            "marks": [
                [number, BASE + begin * 1000, BASE + end * 1000, False]
                for number, (begin, end) in enumerate(self.marks)
            ],
        }
        return timeline.Recording(json.loads(json.dumps(line)))

    def lines(self, lengths=None):
        return list(timeline.Timeline(self.recording(), lengths or {}).text())[1:]


class Lines(unittest.TestCase):
    def test_have_the_programs_time_before_them(self):
        made = Made()
        made.kernel(10, 15, 100)
        made.kernel(20, 115, 50, SIDE)
        made.kernel(30, 165, 50, NAMELESS)
        # It waits for what was launched last on the stream, until 115, and then takes 5.
        made.synchronize(40, 80)
        self.assertEqual(
            made.lines(),
            [
                "p,0,0,0",
                "k,0,10000,1000,0,100000",
                "k,0,9000,1000,abc,50000",
                f"k,0,9000,1000,{timeline.UNNAMED + NAMELESS:x},50000",
                "s,0,9000,5000,s,0",
                "q,0,880000,0",
            ],
        )

    def test_leave_out_what_the_recorded_allocator_asked_of_the_driver(self):
        made = Made()
        made.kernel(10, 15, 1)
        made.call("cudaMalloc", 11, 500)
        made.kernel(521, 525, 1)
        self.assertEqual(made.lines()[2], "k,0,10000,1000,0,1000")

    def test_of_blocks(self):
        made = Made(marks=((100, 200), (300, 400)))
        made.kernel(110, 115, 1)
        made.start = [[0x1000, 512, 0], [0x2000, 1024, HANDLE]]
        made.history = []
        made.memory("free_completed", 120, 0x1000)
        made.memory("alloc", 130, 0x1000, 2048, HANDLE)
        made.memory("free_requested", 140, 0x1000, 2048, HANDLE)
        made.memory("alloc", 150, 0x3000, 4096)
        made.memory("free_completed", 160, 0x1000, 2048, HANDLE)
        made.memory("free_requested", 250, 0x3000, 4096)
        made.memory("free_completed", 250, 0x3000, 4096)
        made.memory("alloc", 400, 0x5000)
        self.assertEqual(
            [line for line in made.lines() if line[0] not in "kpq"],
            [
                "b,0,512,0",
                "b,1,1024,abc",
                # It was freed before the beginning, and somebody used it until then.
                "r,0,9000,0",
                "a,0,10000,2,2048,abc",
                # Another stream used it.
                "u,0,10000,2,0",
                "r,0,0,2",
                "a,0,10000,3,4096,0",
                # Between steps the program waits for its turn.
                "r,0,50000,3",
            ],
        )

    def test_of_threads_side_by_side_begin_and_end_with_the_main_one(self):
        made = Made()
        for number in range(4):
            made.kernel(100 + 20 * number, 500, 1, SIDE, OTHER)
            made.kernel(110 + 20 * number, 500, 1, NAMELESS, THIRD)
        made.memory("alloc", 105, 0x1000, 512, HANDLE)
        made.call("cudaDeviceSynchronize", 300, 300)
        made.kernel(700, 800, 1)
        lines = made.lines()
        other = ["p,0,0,0", "j,1,0,0", "k,1,100000,1000,abc,1000", "a,1,4000,0,512,abc"]
        third = ["j,2,0,0", f"k,2,110000,1000,{timeline.UNNAMED + NAMELESS:x},1000"]
        self.assertEqual(lines[:6], other + third)
        place = lines.index("j,0,0,1")
        # From the end of the last of them, 171, to 300.
        self.assertEqual(lines[place : place + 3], ["j,0,0,1", "j,0,0,2", "s,0,129000,99000,d"])

    def test_of_a_program_and_its_backward_pass_are_of_one_thread(self):
        made = Made()
        for number in range(200):
            made.kernel(1 + number, 500, 1, DEFAULT, OTHER if 100 <= number < 150 else MAIN)
        self.assertEqual({line.split(",")[1] for line in made.lines()}, {"0"})


class Events(unittest.TestCase):
    def made(self, named):
        """Work on one stream, and on another that waits for it; named: the profiler says which record is waited for."""
        made = Made(marks=((0, 500), (500, 1000)))
        for start, event in ((10, 900), (510, 902)):
            made.kernel(start, start + 5, 5)
            record = made.record(start + 10)
            if not named:
                # An event that nobody waits for, as the host's allocator records.
                made.record(start + 20)
            made.wait(start + 15, SIDE, event, record if named else -1)
            made.kernel(start + 30, start + 40, 5, SIDE)
        return made

    def test_are_matched_with_their_records(self):
        for named in (True, False):
            lines = [line.split(",") for line in self.made(named).lines()]
            kinds = [line[0] for line in lines if line[0] in "kew"]
            self.assertEqual(kinds, ["k", "e", "w", "k"] * 2, named)
            events = [line for line in lines if line[0] in "ew"]
            self.assertEqual([line[4] for line in events], ["0", "abc"] * 2, "recorded where there was work last")
            self.assertEqual(events[0][5], events[1][5])
            self.assertEqual(events[2][5], events[3][5])
            self.assertNotEqual(events[0][5], events[2][5])

    def test_of_rising_numbers_have_records_in_that_order(self):
        name = timeline_events.PYTORCHS
        records = [(time, name, 1000 + time) for time in (1, 2, 3, 4, 5)]
        # 8 is waited for behind the record of 9; between 9 and 11 there is one that nobody waits for.
        waits = [(7, 11, None), (3.5, 9, None), (3.6, 8, None)]
        self.assertEqual(timeline_events.match(records, waits, [(0, 10)]), {0: 4, 1: 2, 2: 1})

    def test_that_are_recorded_again_and_again_have_the_last_record(self):
        name = timeline_events.PYTORCHS
        records = [(1, name, 1), (2, name, 2), (11, name, 3), (12, name, 4)]
        waits = [(1.5, 3, None), (11.5, 3, None), (5, 70, None), (15, 71, None)]
        self.assertEqual(timeline_events.match(records, waits, [(0, 10), (10, 20)]), {0: 0, 1: 2, 2: 1, 3: 3})

    def test_of_nccl_are_left_out(self):
        records = [(1, timeline_events.PYTORCHS, 1), (2, "cudaEventRecord", 2), (12, "cudaEventRecord", 3)]
        waits = [(3, 4, None), (13, 4, None)]
        self.assertEqual(timeline_events.match(records, waits, [(0, 10), (10, 20)]), {})


class Collectives(unittest.TestCase):
    def rank(self, number, lengths, streams=(SIDE, SIDE)):
        made = Made(number)
        for place, (length, stream) in enumerate(zip(lengths, streams)):
            made.kernel(10 + 20 * place, 300 * place + 50, length, stream, name="ncclDevKernel_AllGather")
        return made.recording()

    def test_last_as_long_as_where_nothing_was_waited_for(self):
        ranks = [self.rank(0, (100, 30)), self.rank(1, (40, 250))]
        found = timeline.shorten(ranks)
        self.assertEqual([list(of.values()) for of in found], [[40_000, 30_000]] * 2)
        with self.assertRaises(SystemExit):
            timeline.shorten([self.rank(0, (100, 30)), self.rank(1, (40,))])

    def test_follow_each_other_on_all_streams(self):
        made = Made()
        for place, stream in enumerate((SIDE, DEFAULT, DEFAULT)):
            made.kernel(10 + 20 * place, 50, 5, stream, name="ncclDevKernel_AllGather")
        kinds = [line.split(",")[0] for line in made.lines()]
        self.assertEqual("".join(kinds), "p" + "ke" + "wke" + "ke" + "q")


class Scale(unittest.TestCase):
    LINES = (
        "b,0,512,0",
        "p,0,0,0",
        "k,0,100000,20000,0,30000",
        "e,0,0,0,0,1",
        "w,0,0,0,a,1",
        "k,0,10000,10000,a,50000",
        "j,1,0,0",
        "k,1,30000,0,a,5000",
        "s,0,0,1000,d",
        "q,0,1000,0",
    )
    ABOUT = {"latency_ns": 2000, "gap_ns": 1000}

    def test_steps_are_what_the_timeline_says(self):
        # 120 on the CPU, 2 to arrive, 30, a gap of 1, 50, 1, 5; then 1 to wake up, and 1 of the program.
        self.assertEqual(timeline_scale.steps(self.LINES, self.ABOUT), [211_000])

    def test_of_the_cpu_is_found_and_the_gpu_is_left(self):
        factor = timeline_scale.fit(self.LINES, self.ABOUT, 152_000)
        self.assertAlmostEqual(factor, 0.5 + 1.5 / 121, 3)
        lines = list(timeline_scale.scaled(self.LINES, 0.5))
        self.assertEqual(lines[2], "k,0,50000,10000,0,30000")
        self.assertEqual(lines[8], "s,0,0,1000,d")
        self.assertEqual(timeline_scale.steps(lines, self.ABOUT), [150_500])

    def test_that_cannot_be_is_as_near_as_can_be(self):
        self.assertEqual(timeline_scale.fit(self.LINES, self.ABOUT, 1), timeline_scale.FASTEST)


class Table(unittest.TestCase):
    def test_shows_what_was_predicted_beside_what_was_measured(self):
        steps = []
        gmlake = "seamalloc:strategy:gmlake+memory_limit:1GiB"
        for number, step in itertools.product((1, 2, 3), range(20)):
            for allocator, seconds in (("native", 0.1), (gmlake, 0.1 + 0.05 * number)):
                slow = 9.0 if step < 4 else 1.0
                for rank in (0, 1):
                    found = {"seconds": seconds * slow / (2 - rank), "rank": rank, "round": number, "step": step}
                    steps.append({"program": "p", "allocator": allocator, **found})
        shares = {"driver_share": 0.5, "held_share": 0.0, "oom_line": None}
        lines = [
            {"timeline": "p.0", "policy": policy, "step_ns": ns, **shares}
            for policy, ns in (("caching", 9), ("caching", 100), ("strategy:gmlake,memory_limit:1GiB", 220))
        ]
        rows = timeline_table.rows(timeline_table.measured(steps, 2), timeline_table.predicted(lines))
        self.assertEqual([row[1] for row in rows], ["caching", "strategy:gmlake,memory_limit:1GiB"])
        self.assertEqual(rows[1][2:4], ["200.0", "2.000 (1.500 to 2.500)"])
        self.assertEqual(rows[1][5:8], ["2.200", "+10.0%", "50.0%"])


class Recorded(unittest.TestCase):
    def test_keeps_what_a_timeline_is_made_of(self):
        def event(category, name, ts, dur, tid, **arguments):
            return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": arguments}

        trace = [
            event("cpu_op", "aten::add", 1.0, 9.0, 5),
            event("cuda_runtime", "cudaLaunchKernel", 2.5, 1.25, 5, correlation=3),
            event("kernel", "spin_kernel(long)", 4, 2, 7, correlation=3, stream=7),
            event("kernel", "spin_kernel(long)", 8, 2, 9, correlation=4, stream=9),
            {"ph": "M", "name": "process_name"},
        ]
        names, events = timeline_record.reduced({"traceEvents": trace})
        self.assertEqual(names, ["cudaLaunchKernel", "spin_kernel(long)"])
        self.assertEqual(events[0][:5], ["cuda_runtime", 0, 2500, 1250, 5])
        self.assertEqual(timeline_record.numbers_of_streams(names, events, [0, HANDLE]), {0: 7, HANDLE: 9})
        self.assertEqual(timeline_record.numbers_of_streams(names, events, [0, 1, 2]), {}, "one was not seen")

    def test_becomes_a_file_by_the_command(self):
        with tempfile.TemporaryDirectory() as folder:
            path, made = Path(folder) / "made.0.json.gz", Made()
            made.kernel(10, 15, 100)
            line = {**made.recording().line, "variant": "full"}
            with gzip.open(path, "wt") as out:
                out.write(json.dumps(line) + "\n")
            command = [sys.executable, str(GPU / "timeline.py"), folder, str(path)]
            done = subprocess.run([*command, "--variant", "full"], capture_output=True, text=True, check=True)
            with gzip.open(done.stdout.strip(), "rt") as lines:
                head = next(lines)
            self.assertEqual(json.loads(head[2:])["steps_ns"], [1_000_000])
            done = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual((done.returncode, "no window" in done.stderr), (1, True))


if __name__ == "__main__":
    unittest.main()
