"""`seamalloc fleet`: the verdict on a job from the figures of its ranks. test_fleet_command.py has the command."""

import contextlib
import io
import json
import os
import random
import signal
import time
import unittest
from unittest import mock

from fleet_jobs import line
from processes import run

from seamalloc._outside import encodable, printable, printable_lines
from seamalloc.fleet import engines, files, outliers, progress, rank
from seamalloc.fleet.job import judge
from seamalloc.fleet.rank import Found


def found(number, **figures):
    url = f"/job/rank-{number}.pickle"
    return Found(url, (line(f"rank-{number}", **figures),))


class Names(unittest.TestCase):
    def test_say_the_rank(self):
        for name, rank in [
            ("rank-12", 12),
            ("rank_07", 7),
            ("Rank3", 3),
            ("run2/rank-1/snapshot", 1),
            ("node-3/rank-41.dev0", 41),
            ("worker-5", 5),
            ("job_17.pickle.gz", 17),
            ("prefetch-2s", None),
            ("snapshot", None),
            ("frank/snapshot", None),
        ]:
            self.assertEqual(files.rank_of(name), rank, name)

    def test_are_without_what_all_have_in_common(self):
        urls = ["s3://b/job/rank-0/snap.pickle", "s3://b/job/rank-1/snap.pickle.gz"]
        self.assertEqual(list(files.short_names(urls).values()), ["rank-0/snap", "rank-1/snap"])
        twice = ["/a/x.pickle", "/a/x.pickle.gz"]
        self.assertEqual(list(files.short_names(twice).values()), ["x.pickle", "x.pickle.gz"])
        self.assertEqual(files.short_names(["/a/b/rank-1.snapshot.pickle"]), {"/a/b/rank-1.snapshot.pickle": "rank-1"})
        self.assertEqual(files.short_names([]), {})


class Outside(unittest.TestCase):
    """Text from outside: names may hold anything."""

    def test_is_printed_so_that_no_terminal_obeys_it(self):
        self.assertEqual(printable("größer 大 \\ x"), "größer 大 \\ x")
        self.assertEqual(
            printable("a\x1b]0;t\x07\n\t\r\x9b\u2028\u202e\udcff"),
            "a\\u001b]0;t\\u0007\\n\\t\\u000d\\u009b\\u2028\\u202e\\udcff",
        )
        self.assertEqual(printable_lines("a\x1b\nb"), "a\\u001b\nb")

    def test_can_be_encoded(self):
        self.assertEqual(encodable("rank-1\udcff\x1b\u2028.csv"), "rank-1\\udcff\x1b\u2028.csv")
        judged = judge(
            [Found("/job/rank-1\udcff.csv", (line("rank-1"),)), Found("/job/rank-2\udcff.csv", error="no \udcfe")], "0"
        )
        json.dumps(judged, ensure_ascii=False).encode()
        self.assertEqual([row["file"] for row in judged["ranks"]], ["/job/rank-1\\udcff.csv"])
        self.assertEqual(
            [(row["file"], row["error"]) for row in judged["broken"]], [("/job/rank-2\\udcff.csv", "no \\udcfe")]
        )

    def test_splits_no_line_of_the_program(self):
        name = "rank-1\u2028\x85\x1c.csv"
        answer = json.dumps(line(name), ensure_ascii=False) + "\n"
        program = mock.Mock(returncode=0, communicate=lambda timeout: (answer, ""))
        with mock.patch.object(rank.Running, "start", return_value=program):
            found = rank._judge(f"/job/{name}", f"/job/{name}", rank.Settings(), rank.Running())
        self.assertEqual((found.error, found.lines), (None, (line(name),)))

    def test_a_snapshot_without_history_is_no_rank(self):
        answer = json.dumps({"layout": True, "trace": "rank-1", "reserved": 1}) + "\n"
        program = mock.Mock(returncode=0, communicate=lambda timeout: (answer, ""))
        with mock.patch.object(rank.Running, "start", return_value=program):
            found = rank._judge("/job/rank-1.pickle", "/job/rank-1.pickle", rank.Settings(), rank.Running())
        self.assertEqual(found.lines, ())
        self.assertIn("no history of allocations", found.error)


class Outliers(unittest.TestCase):
    def test_are_far_from_the_median(self):
        values = [100, 101, 102, 103, 104, 103, 102, 150]
        (one,) = outliers.find(values)
        # The median is 102.5, the deviations from it 0.5, 0.5, 0.5, 0.5, 1.5, 1.5, 2.5, 47.5.
        self.assertEqual((one.index, one.value, one.median, one.score), (7, 150, 102.5, round(0.6745 * 47.5 / 1.0, 2)))

    def test_are_none_among_few_or_among_those_that_hardly_differ(self):
        self.assertEqual(outliers.find([1, 1, 1, 100]), [])
        self.assertEqual(outliers.find([1000, 1001, 1000, 1000, 1009]), [])
        self.assertEqual(outliers.find([]), [])
        self.assertEqual(outliers.find([0] * 9), [])

    def test_are_found_where_most_are_equal(self):
        (one,) = outliers.find([100, None, 100, 100, 100, 102, None])
        self.assertEqual((one.index, one.score), (5, None))

    def test_do_not_hide_one_another(self):
        self.assertEqual([one.index for one in outliers.find([10, 10.5, 10.2, 10.1, 900, 800, 10.3])], [4, 5])


class Job(unittest.TestCase):
    def test_is_the_same_whatever_the_order(self):
        ranks = [found(number, reserved=100 + number) for number in range(20)] + [
            Found("/job/rank-20.pickle", error="x")
        ]
        job = judge(ranks, "1")
        self.assertEqual([row["rank"] for row in job["ranks"]], list(range(20)))
        for seed in range(3):
            random.Random(seed).shuffle(ranks)
            self.assertEqual(judge(ranks, "1"), job)

    def test_is_decided_by_the_rank_whose_steps_grow_least(self):
        ranks = [
            found(0, step=2.5),
            found(1, step=1.25),
            found(2, step=1.25, reserved=90),
            found(3, grows=False, step=None),
        ]
        of = judge(ranks, "1")["job"]["strategies"]["stitch"]
        self.assertEqual(of["largest_step"], 1.25)
        self.assertEqual((of["decides"]["name"], of["decides"]["by"]), ("rank-1", "largest step"), "it has less free")
        self.assertEqual(of["decides"]["as_near"], 0)
        self.assertEqual(of["saves"]["native"]["step_ratio"], round(1.25 / 1.5, 4))

    def test_is_decided_by_the_fullest_device_where_no_step_was_sought(self):
        quick = {"sought": False, "step": None, "native_step": None, "expandable_step": None}
        small = {**quick, "capacity": 128, "device": "sim:small"}
        job = judge([found(0, **quick), found(1, **small), found(2, **small), found(3, **quick, reserved=1000)], "1")[
            "job"
        ]
        decides = job["strategies"]["stitch"]["decides"]
        self.assertEqual((decides["name"], decides["by"], decides["free"]), ("rank-3", "free memory", 24))
        native = job["strategies"]["caching"]["decides"]
        self.assertEqual((native["name"], native["free"], native["as_near"]), ("rank-1", 128 - 150, 1))
        self.assertEqual(job["devices"], {"sim:h200,capacity=1KiB": 2, "sim:small": 2})
        self.assertIsNone(job["strategies"]["stitch"]["largest_step"])

    def test_is_decided_by_what_is_held_where_the_device_is_unknown(self):
        unknown = {"sought": False, "step": None, "native_step": None, "expandable_step": None}
        unknown |= {"capacity": None, "device_from": "unknown"}
        job = judge([found(0, **unknown), found(1, **unknown, reserved=300), found(2, **unknown)], "1")["job"]
        decides = job["strategies"]["stitch"]["decides"]
        self.assertEqual((decides["name"], decides["free"], decides["as_near"]), ("rank-1", None, 0))
        self.assertIn("rank-1 decides the batch size: it holds most, 300 B; its device is unknown (--device)", str(job["sentences"]))

    def test_counts_what_is_saved_where_both_run(self):
        ranks = [
            found(0),
            found(1, reserved=None, step=None),
            found(2, native_reserved=None, native_step=0.5),
            found(3),
        ]
        job = judge(ranks, "1")["job"]
        stitch = job["strategies"]["stitch"]
        self.assertEqual((stitch["runs"], stitch["reserved"]), (3, 300))
        self.assertEqual(stitch["utilization"], 0.9)
        native = stitch["saves"]["native"]
        self.assertEqual((native["ranks"], native["bytes"], native["runs_more_ranks"]), (2, 100, 0))
        self.assertEqual((native["deciding_rank"], native["bytes_on_deciding_rank"]), ("rank-2", None))
        self.assertEqual(stitch["saves"]["expandable"]["bytes"], 60)
        self.assertEqual(stitch["saves_recorded"], {"ranks": 3, "bytes": 300})
        # The whole job does not run, whatever the others could.
        self.assertEqual((stitch["largest_step"], stitch["decides"]["name"]), (0.0, "rank-1"))
        self.assertTrue(any("rank-1 does not run" in text for text in job["sentences"]), job["sentences"])

    def test_is_decided_by_a_rank_that_does_not_run_though_nothing_of_it_grows(self):
        fixed = {"grows": False, "step": None, "native_step": None, "expandable_step": None}
        of = judge([found(0), found(1, **fixed), found(2, **fixed, reserved=None)], "1")["job"]["strategies"]["stitch"]
        self.assertEqual((of["largest_step"], of["decides"]["name"], of["decides"]["reserved"]), (0.0, "rank-2", None))

    def test_has_the_verdict_of_the_rank_that_is_worst_off(self):
        def judged(kind):
            return {"kind": kind, "text": f"{kind}.", "reasons": "why.", "next": "do.", "figures": {}}

        enough, live = judged("pytorch_is_enough"), judged("too_much_live")
        ranks = [found(0, verdict=enough), found(1, verdict=live), found(2, verdict=live, peak_live=95)]
        job = judge(ranks, "1")["job"]
        self.assertEqual(
            job["verdict"],
            {
                "kind": "too_much_live",
                "text": "too_much_live.",
                "next": "do.",
                "rank": 2,
                "name": "rank-2",
                "ranks": 2,
                "kinds": {"pytorch_is_enough": 1, "too_much_live": 2},
            },
        )
        self.assertEqual(job["sentences"][:2], ["too_much_live. (rank-2, and 1 of 2 more ranks alike)", "Next: do."])
        # Lines of a program that does not judge.
        self.assertIsNone(judge([found(0)], "1")["job"]["verdict"])

    def test_says_less_and_more_with_one_sign(self):
        def said(*reserved):
            ranks = [found(number, reserved=held) for number, held in enumerate(reserved)]
            (text,) = (text for text in judge(ranks, "1")["job"]["sentences"] if "than expandable" in text)
            return text.split(", which")[0]

        # Expandable segments hold 120 bytes on each rank; the first decides with them.
        for reserved, text in [
            ((140, 140), "stitch holds 40 B more than expandable on 2 ranks, 20 B of it on rank-0"),
            ((100, 100), "stitch holds 40 B less than expandable on 2 ranks, 20 B of it on rank-0"),
            ((140, 60), "stitch holds 40 B less than expandable on 2 ranks, but 20 B more on rank-0"),
            ((100, 180), "stitch holds 40 B more than expandable on 2 ranks, but 20 B less on rank-0"),
        ]:
            self.assertEqual(said(*reserved), text)

    def test_counts_ranks_within_a_hundredth(self):
        near = judge([found(0, step=2.0), found(1, step=2.01), found(2, step=2.1)], "1")["job"]
        self.assertEqual(near["strategies"]["stitch"]["decides"]["as_near"], 1)
        self.assertTrue(any("decides the batch size (and 1 within 1%)" in text for text in near["sentences"]))

    def test_names_what_makes_figures_doubtful(self):
        ranks = [
            found(0),
            Found("/job/again/rank-0.pickle", (line(),)),
            found(1, device_from="unknown", reserved_before=7),
        ]
        notes = judge(ranks, "1")["job"]["notes"]
        for part in (
            "rank 0 is in 2 files",
            "1 of 3 ranks do not say how much memory",
            "1 of 3 ranks were recorded after",
        ):
            self.assertTrue(any(part in note for note in notes), notes)
        self.assertEqual(judge(ranks, "1")["job"]["strategies"]["stitch"]["saves_recorded"]["ranks"], 2)

    def test_has_a_row_for_each_device_of_a_file(self):
        lines = (line("rank-0.dev0"), line("rank-0.dev1", "caching"), line("rank-0.dev1"))
        rows = judge([Found("/job/rank-0.pickle", lines)], "1")["ranks"]
        self.assertEqual([row["name"] for row in rows], ["rank-0 (dev0)", "rank-0 (dev1)"])

    def test_of_broken_files_alone_has_no_ranks(self):
        job = judge([Found("/job/rank-1.pickle", error="no")], "1")
        self.assertEqual((job["ranks"], job["job"]["strategies"], job["job"]["broken"]), ([], {}, 1))
        self.assertEqual(job["broken"], [{"rank": 1, "name": "rank-1", "file": "/job/rank-1.pickle", "error": "no"}])


class Slow:
    """An engine that does one task at a time, and counts those that wait."""

    workers = 3

    def __init__(self):
        self.under_way, self.most, self.closed, self.started = 0, 0, False, 0

    def submit(self, file):
        self.under_way += 1
        self.started += 1
        self.most = max(self.most, self.under_way)
        return object()

    def first(self, tasks):
        return tasks[-1:]

    def wake(self):
        self.woken = True

    def result(self, task, file):
        self.under_way -= 1
        return Found(file)

    def close(self):
        self.closed = True


class Interrupted(Slow):
    """An engine that gets a signal while it waits."""

    def __init__(self, number):
        super().__init__()
        self.number, self.woken, self.went_on = number, False, False

    def first(self, tasks):
        os.kill(os.getpid(), self.number)
        # Python calls the handler between two of its instructions.
        until = time.monotonic() + 30
        while not self.woken and time.monotonic() < until:
            pass
        assert self.woken, "no signal came within 30 s"
        self.went_on = True
        return []


# Each time another moment: 200 rounds that a signal ends, and a traceback if one of them does not end. A signal between two runs is noted.
STORM = """
import faulthandler, os, random, signal, threading, time
from unittest import mock
from seamalloc.fleet import engines
from seamalloc.fleet.rank import Found, Settings

def quick(file, settings, running=None):
    time.sleep(file * 0.0002)
    return Found(file)

faulthandler.dump_traceback_later(300, exit=True)
outside = threading.Event()
signal.signal(signal.SIGINT, lambda number, frame: outside.set())
random, within, rounds = random.Random(0), 0, 0
with mock.patch.object(engines, "look", quick):
    for _ in range(200):
        outside.clear()
        after = threading.Timer(random.random() * 0.01, os.kill, (os.getpid(), signal.SIGINT))
        after.start()
        try:
            while not outside.is_set():
                for one in engines.run(engines.Processes(Settings(), 2), [number % 3 for number in range(40)]):
                    pass
        except KeyboardInterrupt:
            within += 1
        after.join()
        rounds += 1
print(rounds, within > 0)
"""


class Engines(unittest.TestCase):
    def setUp(self):
        # Whoever starts this in the background has it ignore SIGINT.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)

    def test_are_given_no_more_than_they_do_at_a_time(self):
        engine = Slow()
        done = [one.url for one in engines.run(engine, map(str, range(100)))]
        self.assertEqual((sorted(done, key=int), engine.most), ([str(n) for n in range(100)], 3))
        self.assertTrue(engine.closed)

    def test_are_closed_where_nobody_waits_for_the_rest(self):
        engine = Slow()
        results = engines.run(engine, map(str, range(100)))
        next(results)
        results.close()
        self.assertTrue(engine.closed)
        self.assertLess(engine.started, 5)

    def test_are_closed_where_a_signal_comes_and_what_waits_is_not_torn(self):
        for number, raised in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)):
            before = signal.getsignal(number)
            engine = Interrupted(number)
            with self.assertRaises(raised):
                list(engines.run(engine, map(str, range(100))))
            self.assertTrue(engine.went_on and engine.woken and engine.closed)
            self.assertEqual(signal.getsignal(number), before)

    def test_lose_no_signal_that_comes_at_the_end(self):
        with self.assertRaises(KeyboardInterrupt), engines.Signals(lambda: None) as signals:
            signals.check()
            os.kill(os.getpid(), signal.SIGINT)

    def test_heed_a_signal_once(self):
        signals = engines.Signals(lambda: None)
        with signals:
            os.kill(os.getpid(), signal.SIGINT)
            with self.assertRaises(KeyboardInterrupt):
                signals.check()
            signals.check()
            # Whoever sends another one does not want to wait for the end.
            with self.assertRaises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(10)

    def test_end_whenever_a_signal_comes(self):
        done = run("-c", STORM)
        self.assertEqual((done.returncode, done.stdout.strip()), (0, "200 True"), done.stderr)

    def test_leave_a_signal_alone_that_is_ignored(self):
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        with engines.Signals(lambda: self.fail("woken")) as signals:
            os.kill(os.getpid(), signal.SIGINT)
            signals.check()


class Progress(unittest.TestCase):
    def said(self, between):
        out = io.StringIO()
        with mock.patch.object(progress, "BETWEEN_LINES", between), contextlib.redirect_stderr(out):
            with progress.Progress(3) as bar:
                for is_broken in (False, True, False):
                    bar.count(is_broken)
        return out.getvalue().splitlines()

    def test_is_a_line_now_and_then_where_there_is_no_terminal(self):
        first, second = self.said(0)
        self.assertRegex(first, r"^seamalloc: 1 of 3 files; about \d+ s left$")
        self.assertRegex(second, r"^seamalloc: 2 of 3 files, 1 broken; about \d+ s left$")
        self.assertEqual(self.said(60), [], "what is short needs none")

    def test_says_minutes(self):
        self.assertEqual(
            [progress._time(seconds) for seconds in (59.4, 61, 7200)], ["59 s", "1 min 1 s", "120 min 0 s"]
        )


if __name__ == "__main__":
    unittest.main()
