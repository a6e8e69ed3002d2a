"""`seamalloc fleet` as its users have it: files in, tables, JSON and a page out, by both engines."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

from fleet_jobs import MIB, broken, lacks, snapshot, trace
from processes import run

DEVICE = "sim:h200,capacity=400MiB"


class InFolder(unittest.TestCase):
    def setUp(self):
        why = lacks("fsspec", "rich")
        if why:
            self.skipTest(why)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()

    def job(self, ranks=3):
        """A job whose last rank has the largest weights. By arithmetic: (400 - weights) / 50 times as large a step."""
        for rank in range(ranks):
            trace(self.folder, f"rank-{rank}.csv", 100 + 50 * rank, 50)
        return f"{self.folder}/rank-*"

    def fleet(self, *arguments, code=0, **environment):
        done = run("-m", "seamalloc", "fleet", *arguments, **environment)
        self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        self.assertNotIn("Traceback", done.stderr)
        return done

    def judged(self, *arguments, code=0, **environment):
        return json.loads(self.fleet(*arguments, "--json", code=code, **environment).stdout)


class Names(InFolder):
    """Files whose names hold anything that a name of a file may."""

    NAMES = ("rank-0\u2028\x85\x1c.csv", "rank-1\udcff.csv", "rank-2\x1b]0;title\x07\n.csv")

    def names(self):
        for rank, name in enumerate(self.NAMES):
            trace(self.folder, name, 100 + 50 * rank, 50)
        (self.folder / "rank-3\x1b\udcff.csv").write_text("a,1,x,0\n")
        return f"{self.folder}/rank-*"

    def test_are_looked_at_and_printed_and_a_page_is_written(self):
        page = self.folder / "page.html"
        job = self.judged(self.names(), "--quick", "--device", DEVICE, "-o", page, code=4)
        self.assertEqual([row["rank"] for row in job["ranks"]], [0, 1, 2])
        shown = [name.replace("\udcff", "\\udcff") for name in self.NAMES]
        self.assertEqual([Path(row["file"]).name for row in job["ranks"]], shown)
        self.assertTrue(page.is_file())
        done = self.fleet(f"{self.folder}/rank-*", "--quick", "--device", DEVICE, code=4)
        for text in (done.stdout, done.stderr):
            self.assertNotRegex(text, "[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028]")
        self.assertIn("rank-2\\u001b]0;title\\u0007\\n", done.stdout)
        self.assertIn("rank-3\\u001b\\udcff", done.stdout)

    def test_are_printed_where_the_page_cannot_be_written(self):
        job = self.job(ranks=2)
        page = self.folder / "pages" / "page.html"
        page.parent.mkdir()
        code = f"""
import shutil, sys
from seamalloc.fleet import command
write = command._write_page
def gone(judged, output):
    shutil.rmtree({str(page.parent)!r})
    write(judged, output)
command._write_page = gone
sys.exit(command.main([{job!r}, "--quick", "--device", {DEVICE!r}, "-o", {str(page)!r}]))
"""
        done = run("-c", code)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("rank-1", done.stdout)
        self.assertIn("page.html", done.stderr)

    def test_are_printed_where_the_locale_lacks_a_character(self):
        trace(self.folder, "rank-größer-0.csv", 100, 50)
        done = self.fleet(f"{self.folder}/*.csv", "--quick", "--device", DEVICE, PYTHONIOENCODING="ascii")
        self.assertIn("rank-gr\\xf6\\xdfer", done.stdout)


class Command(InFolder):
    def test_says_which_rank_decides(self):
        job = self.judged(self.job(), "--device", DEVICE)
        self.assertEqual([row["rank"] for row in job["ranks"]], [0, 1, 2])
        for row, weights in zip(job["ranks"], (100, 150, 200)):
            self.assertEqual(row["peak_live"], (weights + 50) * MIB)
            self.assertEqual(row["capacity"], 400 * MIB)
            for of in row["strategies"].values():
                self.assertLessEqual(of["largest_step"], (400 - weights) / 50)
                self.assertGreater(of["largest_step"], (400 - weights - 30) / 50)
                self.assertEqual(of["free"], 400 * MIB - of["reserved"])
        self.assertEqual(list(job["job"]["strategies"]), ["caching", "expandable", "gmlake", "stitch"])
        for name, of in job["job"]["strategies"].items():
            self.assertEqual((of["decides"]["name"], of["runs"]), ("rank-2", 3))
            self.assertEqual(of["reserved"], sum(row["strategies"][name]["reserved"] for row in job["ranks"]))

    def test_prints_tables(self):
        out = self.fleet(self.job(), "--device", DEVICE).stdout
        for part in ("rank-2", "decides", "less than", "3 ranks in 3 files, 0 broken", "x4.", "stitch holds"):
            self.assertIn(part, out)
        self.job(12)
        out = self.fleet(f"{self.folder}/rank-*", "--quick", "--rows", "4").stdout
        self.assertIn("4 of 12 ranks; --rows 0 shows all", out)
        self.assertNotIn("4 of 12", self.fleet(f"{self.folder}/rank-*", "--quick", "--rows", "0").stdout)

    def test_goes_on_behind_broken_files(self):
        pattern = self.job()
        bad = broken(self.folder, "rank-3.pickle")
        (self.folder / "rank-4.pickle").write_bytes(b"")
        job = self.judged(pattern, "--quick", code=4)
        self.assertEqual((job["job"]["ranks"], job["job"]["broken"], job["job"]["files"]), (3, 2, 5))
        cut, empty = job["broken"]
        self.assertEqual((cut["rank"], cut["file"]), (3, str(bad)))
        self.assertEqual(
            cut["error"],
            "byte 999: found the end of a file that is cut off, after 0 of 1 bytes, expected a whole pickle",
        )
        self.assertIn("the file is empty", empty["error"])
        self.assertIn(f"broken: {bad}: byte 999", self.fleet(pattern, "--quick", code=4).stdout)
        for arguments in ([bad], [bad, "--json"], [bad, "-o", self.folder / "x.html"]):
            self.fleet(*arguments, code=1)

    def test_takes_each_ranks_own_device(self):
        for rank, gib in enumerate((16, 40)):
            snapshot(self.folder, f"rank-{rank}.pickle", gib << 30)
        job = self.judged(f"{self.folder}/rank-*", "--quick")
        self.assertEqual([row["capacity"] >> 30 for row in job["ranks"]], [16, 40])
        self.assertEqual({row["device_from"] for row in job["ranks"]}, {"refusal"})
        # Requests of 8.85 and 32.85 GiB were refused, which are part of the jobs.
        self.assertEqual(job["job"]["strategies"]["expandable"]["decides"]["name"], "rank-1")
        self.assertEqual(len(job["job"]["devices"]), 2)
        # A device on which seamalloc alone runs it, and then one on which nothing does.
        for rank in range(2):
            snapshot(self.folder, f"rank-{rank}.pickle")
        options = [f"{self.folder}/rank-*", "--quick", "--device"]
        out = self.fleet(*options, "sim:h200,capacity=850MiB").stdout
        for part in ("0 of 2", "2 of 2", "too much"):
            self.assertIn(part, out)
        out = self.fleet(*options, "sim:h200,capacity=700MiB", code=3).stdout
        self.assertTrue(out.startswith("Too much is live: 778.30 MiB of 700.00 MiB. No allocator helps. (rank-0, and 1"), out)
        self.assertIn("With stitch, rank-0 does not run on sim:h200,capacity=700MiB (nor do 1 more)", out)

    def test_refuses_what_it_does_not_know(self):
        pattern = self.job(1)
        for arguments, code, part in [
            ([], 2, "PATTERN"),
            ([f"{self.folder}/none-*"], 1, "no such file"),
            ([self.folder / "rank-9.csv"], 1, "no such file"),
            ([self.folder], 1, "no such file"),
            (["noprotocol://x/rank-*"], 1, "noprotocol"),
            ([pattern, "--strategy", "stich"], 2, "unknown strategy `stich`"),
            ([pattern, "--device", "sim:h2000"], 2, "h2000"),
            ([pattern, "--conf", "chunk:2"], 2, "chunk"),
            ([pattern, "--device", "cuda:0"], 2, "simulated device"),
            ([pattern, "--workers", "0"], 2, "--workers"),
            ([pattern, "--timeout", "nan"], 2, "--timeout"),
            ([pattern, "--engine", "slurm"], 2, "slurm"),
            ([pattern, "--ray-address", "auto"], 2, "--engine ray"),
            ([pattern, "-o", self.folder / "none" / "x.html"], 1, "cannot be written"),
            ([pattern, "--temporary", self.folder / "none"], 2, "is no folder"),
        ]:
            self.assertIn(part, self.fleet(*arguments, code=code).stderr, arguments)

    def test_says_what_it_needs(self):
        code = "import sys; sys.modules['fsspec'] = None; from seamalloc.fleet.command import main; main(['x'])"
        done = run("-c", code)
        self.assertEqual(done.returncode, 1)
        self.assertIn("pip install 'seamalloc[fleet]'", done.stderr)
        code = "import sys; sys.modules['ray'] = None; from seamalloc.fleet.command import main; main(sys.argv[1:])"
        done = run("-c", code, self.job(1), "--engine", "ray")
        self.assertIn("pip install 'seamalloc[ray]'", done.stderr)

    def test_has_a_help_without_any_package(self):
        for arguments in (["fleet", "--help"], ["help", "fleet"]):
            done = run(
                "-S", "-m", "seamalloc", *arguments, PYTHONPATH=str(Path(lacks.__globals__["PROGRAM"]).parents[2])
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("Exit codes: 0 success", done.stdout)

    def test_gives_up_a_file_that_takes_too_long(self):
        trace(self.folder, "rank-0.csv", 100, 50)
        self.assertIn(
            "--timeout", self.judged(self.folder / "rank-0.csv", "--timeout", "0.0001", code=1)["broken"][0]["error"]
        )

    def test_ends_what_it_has_started(self):
        for rank in range(4):
            snapshot(self.folder, f"rank-{rank}.pickle")
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)):
            command = [sys.executable, "-m", "seamalloc", "fleet", f"{self.folder}/rank-*", "--workers", "2"]
            # Whoever starts this in the background has it ignore SIGINT.
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONFAULTHANDLER": "1"},
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
            self.wait_for(lambda: len(self.started()) == 2)
            process.send_signal(number)
            try:
                out, said = process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                # What each thread is doing.
                process.send_signal(signal.SIGABRT)
                out, said = process.communicate()
            self.assertEqual((process.returncode, out), (code, ""), said)
            self.assertNotIn("Traceback", said)
            self.wait_for(lambda: not self.started())

    def started(self):
        """Returns the processes that look at a file of the folder."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                line = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if b"whatif\0" + os.fsencode(self.folder) in line:
                found.append(process.name)
        return found

    def wait_for(self, holds):
        until = time.monotonic() + 30
        while not holds():
            self.assertLess(time.monotonic(), until)
            time.sleep(0.02)

    def test_shows_a_bar_on_a_terminal(self):
        ours, theirs = os.openpty()
        command = [sys.executable, "-m", "seamalloc", "fleet", self.job(), "--quick", "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env={**os.environ, "TERM": "xterm"})
        os.close(theirs)
        out, _ = process.communicate(timeout=120)
        shown = b""
        # The end of a terminal whose other side is closed is an error.
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 1 << 16):
                shown += piece
        os.close(ours)
        self.assertEqual(process.returncode, 0, shown)
        json.loads(out)
        self.assertIn(b"3/3", shown)

    def test_makes_a_page(self):
        page = self.folder / "job.html"
        broken(self.folder, "rank-7.pickle")
        done = self.fleet(self.job(), "--quick", "-o", page, "--json", code=4)
        self.assertIn("job.html", done.stderr)
        json.loads(done.stdout)
        text = page.read_text(encoding="utf-8")
        self.assertTrue(text.startswith("<!DOCTYPE html>"))
        self.assertIn("<title>job", text)
        self.assertEqual(text.count("<script"), text.count("</script>"))

    def test_reads_real_snapshots(self):
        snapshot(self.folder, "rank-0.pickle")
        (row,) = self.judged(f"{self.folder}/rank-*", "--quick")["ranks"]
        self.assertEqual(row["recorded_reserved"], row["strategies"]["caching"]["reserved"])
        self.assertLess(row["strategies"]["stitch"]["reserved"], row["strategies"]["expandable"]["reserved"])


class FileSystems(InFolder):
    """Files that are not on the local disk."""

    def found(self, pattern, folder):
        from seamalloc.fleet.engines import Processes
        from seamalloc.fleet.engines import run as all_of
        from seamalloc.fleet.files import find
        from seamalloc.fleet.rank import Settings

        engine = Processes(Settings(("--quick",), folder=str(folder)), 2)
        return sorted(all_of(engine, find([pattern])), key=lambda one: one.url)

    def test_are_those_of_fsspec(self):
        import fsspec

        store = fsspec.filesystem("memory")
        for rank in range(5):
            store.pipe(f"/job-of-test/rank-{rank}.csv", trace(self.folder, "x.csv", 100 + rank, 50).read_bytes())
        store.pipe("/job-of-test/rank-5.csv", b"nothing\n")
        self.addCleanup(store.rm, "/job-of-test", recursive=True)
        temporary = self.folder / "temporary"
        temporary.mkdir()
        *ranks, bad = self.found("memory://job-of-test/rank-*.csv", temporary)
        self.assertEqual([one.lines[0]["peak_live"] for one in ranks], [(150 + rank) * MIB for rank in range(5)])
        self.assertEqual({one.lines[0]["trace"] for one in ranks}, {f"rank-{rank}" for rank in range(5)})
        self.assertEqual(bad.url, "memory:///job-of-test/rank-5.csv")
        self.assertIsNotNone(bad.error)
        self.assertNotIn(str(temporary), bad.error, "a copy's place says nothing to anybody")
        self.assertEqual(list(temporary.iterdir()), [], "copies are removed")

    def test_have_local_files_by_address_too(self):
        self.job()
        urls = [one.url for one in self.found(f"file://{self.folder}/rank-*.csv", self.folder)]
        self.assertEqual(urls, [f"{self.folder}/rank-{rank}.csv" for rank in range(3)])

    def test_may_fail(self):
        import fsspec

        store = fsspec.filesystem("memory")
        store.pipe("/failing/rank-0.csv", b"a,1,512,0\n")
        self.addCleanup(store.rm, "/failing", recursive=True)
        with mock.patch.object(type(store), "_open", side_effect=ConnectionError("the store is gone")):
            (one,) = self.found("memory://failing/rank-0.csv", self.folder)
        self.assertEqual(one.error, "ConnectionError: the store is gone")


# Ray's own: it starts, and does something.
STARTS = """
import ray
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=128 << 20)
assert ray.get(ray.remote(lambda number: -number).remote(ray.put(-7)), timeout=100) == 7
"""
# The command beside a Ray that runs already: it is told where, or finds it by the environment.
RUNS_ALREADY = """
import json, os, subprocess, sys
import ray
context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
address = context.address_info["gcs_address"]
command = [sys.executable, "-m", "seamalloc", "fleet", sys.argv[1], "--quick", "--json", "--engine", "ray"]
said = []
for named in (["--ray-address", address], []):
    environment = dict(os.environ) if named else {**os.environ, "RAY_ADDRESS": address}
    said.append(subprocess.run(command + named, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)
ray.shutdown()
print(json.dumps(said))
"""
# The worker that looks at one of the files dies.
DIES = """
import json, os, sys
from seamalloc.fleet import engines, files
from seamalloc.fleet.rank import Found, Settings

def dying(file, settings):
    if file.url.endswith("rank-1.csv"):
        os._exit(1)
    return Found(file.url, ({},))

engines.look = dying
engine = engines.Ray(Settings(), 2, None)
print(json.dumps({one.url[-10:]: one.error for one in engines.run(engine, files.find([sys.argv[1]]))}))
"""


class Ray(InFolder):
    """The command with Ray as its engine."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        why = lacks("ray")
        if why:
            raise unittest.SkipTest(f"{why}: pip install 'seamalloc[ray]'")
        # Where the machine is short of memory, Ray ends workers; where a disk is 95% full, it refuses objects.
        with_less = mock.patch.dict(
            os.environ, RAY_memory_monitor_refresh_ms="0", RAY_local_fs_capacity_threshold="1.0"
        )
        with_less.start()
        cls.addClassCleanup(with_less.stop)
        done = run("-c", STARTS)
        if done.returncode != 0:
            raise unittest.SkipTest(f"Ray does not start on this machine: {done.stderr[-300:]}")

    def test_finds_what_processes_find(self):
        pattern = self.job(6)
        snapshot(self.folder, "rank-6.pickle", 16 << 30)
        broken(self.folder, "rank-7.pickle")
        expected = self.fleet(pattern, "--quick", "--json", code=4).stdout
        self.assertEqual(
            self.fleet(pattern, "--quick", "--json", "--engine", "ray", "--workers", "2", code=4).stdout, expected
        )

    def alone(self, code, *arguments):
        """Returns what a program prints in a process of its own, since Ray ends the process it is in when it loses its own."""
        done = run("-c", code, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        # Ray may say something before.
        return json.loads(done.stdout.splitlines()[-1])

    def test_may_run_already(self):
        pattern = self.job()
        expected = self.fleet(pattern, "--quick", "--json").stdout
        self.assertEqual(self.alone(RUNS_ALREADY, pattern), [expected, expected])

    def test_names_the_file_whose_worker_dies(self):
        self.job()
        found = self.alone(DIES, f"{self.folder}/rank-*")
        self.assertIn("Ray: WorkerCrashedError", found["rank-1.csv"])
        self.assertEqual([found[f"rank-{rank}.csv"] for rank in (0, 2)], [None, None])

    def test_that_is_not_there_is_an_error(self):
        done = self.fleet(self.job(), "--engine", "ray", "--ray-address", "127.0.0.1:1", code=1)
        self.assertIn("Ray cannot be had at 127.0.0.1:1", done.stderr)


if __name__ == "__main__":
    unittest.main()
