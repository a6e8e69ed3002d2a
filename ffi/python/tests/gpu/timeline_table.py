"""Predicted steps beside measured ones: python timeline_table.py STEPS.jsonl PREDICTED.jsonl [CYCLE]. A table on standard output.

STEPS are lines of programs.py, PREDICTED of `seamalloc replay --timeline FILE --json`, of one program: every rank's timeline, the
strategy `caching` among the policies. Policies and allocators are matched by their options; caching is native. A measured
step is the slowest rank's. Steps of the first two cycles do not count. Measured: the sum of an allocator's steps by that of
native's, the median of the rounds, and the least and the most. Predicted: the mean of the last pass, of the rank with the
longest steps, by caching's.
"""

import json
import statistics
import sys

from json_process import seamalloc_options
from programs_table import spread
from pytorch_tests_table import lines_of, table

NAMES = {"native": "caching", "expandable": "expandable", "seamalloc": "stitch"}
DEFAULT_CYCLE = 4


def policy(allocator):
    """Returns the name that `seamalloc replay` has for an allocator of programs.py."""
    return NAMES.get(allocator) or seamalloc_options(allocator)


def measured(lines, cycle):
    """The seconds of each allocator's steps: by program, policy, round and step."""
    found = {}
    for line in lines:
        if line.get("step", 0) >= 2 * cycle:
            steps = found.setdefault(line["program"], {}).setdefault(policy(line["allocator"]), {})
            step = line["round"], line["step"]
            steps[step] = max(line["seconds"], steps.get(step, 0.0))
    return found


def predicted(lines):
    """The mean step of each policy in its last pass, in seconds, and its critical path: by program and policy."""
    found = {}
    for line in lines:
        program = line["timeline"].partition(".")[0]
        of = found.setdefault(program, {}).setdefault(line["policy"], {})
        # Later passes of a timeline take the place of earlier ones.
        of[line["timeline"]] = line
    return {
        program: {name: max(of.values(), key=lambda line: line["step_ns"]) for name, of in policies.items()}
        for program, policies in found.items()
    }


def rows(of_steps, of_timelines):
    """The table's rows."""
    found = []
    for program, policies in of_steps.items():
        native = policies.get("caching", {})
        bare = of_timelines.get(program, {}).get("caching")
        for name, steps in policies.items():
            both = [step for step in steps if step in native]
            line = of_timelines.get(program, {}).get(name)
            if not both or not bare or not line:
                continue
            sums = {}
            for step in both:
                mine, theirs = sums.get(step[0], (0.0, 0.0))
                sums[step[0]] = mine + steps[step], theirs + native[step]
            ratios = [mine / theirs for mine, theirs in sums.values()]
            ratio = statistics.median(ratios)
            failed = line["oom_line"] is not None
            change = line["step_ns"] / bare["step_ns"]
            found.append(
                [
                    program,
                    name,
                    f"{statistics.median(steps[step] for step in both) * 1000:.1f}",
                    spread(ratios, "{:.3f}"),
                    "no memory" if failed else f"{line['step_ns'] / 1e6:.1f}",
                    "" if failed else f"{change:.3f}",
                    "" if failed else f"{(change / ratio - 1) * 100:+.1f}%",
                    f"{line['driver_share'] * 100:.1f}%",
                    f"{line['held_share'] * 100:.1f}%",
                ]
            )
    return found


def read(path):
    """Lines of JSON."""
    return [json.loads(line) for line in lines_of(path) if line]


def main():
    """The command."""
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    cycle = int(sys.argv[3]) if len(sys.argv) == 4 else DEFAULT_CYCLE
    head = [
        "program",
        "policy",
        "measured, ms",
        "beside native",
        "predicted, ms",
        "beside caching",
        "off by",
        "path: driver",
        "waits hold",
    ]
    print(table(head, rows(measured(read(sys.argv[1]), cycle), predicted(read(sys.argv[2])))))


if __name__ == "__main__":
    main()
