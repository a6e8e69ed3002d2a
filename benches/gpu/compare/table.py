"""The table of a comparison, from its raw.jsonl:  python3 table.py raw.jsonl > table.md"""
import json
import statistics
import sys

GIB = 1 << 30
# Driver calls that move memory; the others are events and questions.
MEMORY_CALLS = ("create", "map", "set_access", "unmap", "release", "reserve", "address_free", "malloc", "free")
COLUMNS = ("job", "allocator", "held, GiB", "utilization, %", "ns/op, pass 1", "pass 2", "{later}", "{steady}",
           "allocation p50", "p99", "p99.9", "max, us", "free p50", "p99", "p99.9", "max, us",
           "driver calls, pass 1", "later")


def calls_until(line):
    """Returns the number of driver calls by the end of a pass, of seamalloc those for memory and all others; None: unknown."""
    figures = line.get("figures")
    if not figures:
        return None
    if "driver_calls" in figures:
        counts = {name: call["count"] for name, call in figures["driver_calls"].items()}
        memory = sum(counts.get(name, 0) for name in MEMORY_CALLS)
        return memory, sum(counts.values()) - memory
    if figures["backend"] == "native":
        return figures["num_device_alloc"] + figures["num_device_free"], 0
    return None


def calls_of(passes, candidate):
    """Driver calls in the first pass, and in the mean of the later ones, as text."""
    if candidate in ("cudaMalloc", "torch-async"):
        return "each operation", "each operation"
    until = [calls_until(line) for line in passes]
    if until[0] is None or until[-1] is None:
        return "-", "-"

    def text(memory, other):
        return f"{memory:,.0f}" + (f" + {other:,.0f}" if other else "")

    later = len(passes) - 1
    if not later:
        return text(*until[0]), "-"
    return text(*until[0]), text(*((last - first) / later for first, last in zip(until[0], until[-1])))


def reserved(line):
    """The largest number of bytes that the allocator itself says it held; None where it does not say."""
    figures = line.get("figures") or {}
    if "reserved_bytes" in figures:
        return figures["reserved_bytes"]["all"]["peak"]
    return figures.get("reserved_peak") or None


class Run:
    """One candidate on one trace."""

    def __init__(self, rows):
        self.trace, self.candidate = rows[0]["trace"], rows[0]["candidate"]
        self.passes = [row for row in rows if "pass" in row]
        self.error = next((row["error"] for row in rows if "error" in row), None)
        self.stderr = next((row["stderr"] for row in rows if "stderr" in row), "")
        self.whole = [line for line in self.passes if line["ops"] == line["of_ops"] and not line["failed"]]
        self.timed = [line for line in self.whole if line["timed"]]
        self.plain = [line for line in self.whole if not line["timed"]]

    def held(self):
        """Returns the most bytes that the device lacked; on a simulated device the most that the allocator says it held."""
        held = [line["held"] for line in self.whole if line["held"] is not None]
        return max(held) if held else max((reserved(line) or 0 for line in self.whole), default=0)

    def utilization(self):
        return self.whole[0]["peak_live"] / self.held() if self.whole and self.held() else None

    def first(self):
        return self.passes[0]["all"]["mean"] if self.passes else None

    def second(self):
        return self.timed[1]["all"]["mean"] if self.timed[1:] else None

    def later(self):
        """The mean over the passes after the second in which each operation was timed, a read of the clock included."""
        return statistics.mean(line["all"]["mean"] for line in self.timed[2:]) if self.timed[2:] else None

    def steady(self):
        return statistics.mean(line["ns_per_op"] for line in self.plain) if self.plain else None

    def figure(self, of, name):
        """Returns the median of timed passes after the first, or the largest for "max"; the first pass's if there is no other."""
        lines = self.timed[1:] or self.passes[:1]
        values = [line[of][name] for line in lines if line.get(of)]
        if not values:
            return None
        return max(values) if name == "max" else statistics.median(values)

    def remark(self):
        if self.error:
            return ": ".join([self.error, *self.stderr.splitlines()[:1]])
        for line in self.passes:
            if line["failed"]:
                return f"{line['failed']:,} requests failed in pass {line['pass']}"
            if line["ops"] < line["of_ops"]:
                return f"pass {line['pass']} was stopped after {line['ops']:,} of {line['of_ops']:,} operations"
        return None


def number(value, form=",.0f"):
    return "-" if value is None else format(value, form)


def row(run):
    utilization = run.utilization()
    cells = [run.trace, run.candidate, number(run.held() / GIB or None, ".2f")]
    cells.append(number(utilization and 100 * utilization, ".2f"))
    cells += [number(value) for value in (run.first(), run.second(), run.later(), run.steady())]
    for of in ("allocations", "frees"):
        cells += [number(run.figure(of, name)) for name in ("p50", "p99", "p99.9")]
        largest = run.figure(of, "max")
        cells.append(number(largest and largest / 1e3))
    return cells + (list(calls_of(run.whole, run.candidate)) if run.whole else ["-", "-"])


def lines_of(columns, rows):
    yield "| " + " | ".join(columns) + " |"
    yield "|---|---|" + "---:|" * (len(columns) - 2)
    for cells in rows:
        yield "| " + " | ".join(cells) + " |"
    yield ""


def ratio(one, other):
    return number(one / other, ".2f") if one is not None and other else "-"


def against_torch(runs):
    """Returns rows of seamalloc's times as a part of PyTorch's, which the library's goals are about."""
    for of in runs.values():
        native, expandable = of.get("torch-native"), of.get("torch-expandable")
        for name, run in of.items():
            if not native or not expandable or name.startswith("torch-"):
                continue
            yield [run.trace, name, ratio(run.first(), native.first()), ratio(run.first(), expandable.first()),
                   ratio(run.second(), native.second()), ratio(run.later(), native.later()),
                   ratio(run.steady(), native.steady()),
                   ratio(run.figure("allocations", "p99.9"), native.figure("allocations", "p99.9")),
                   ratio(run.figure("frees", "p99.9"), native.figure("frees", "p99.9")),
                   ratio(run.held(), native.held()), ratio(run.held(), expandable.held())]


def render(rows):
    runs, heads = {}, [line for line in rows if "clock_ns" in line]
    for line in rows:
        if "candidate" in line:
            runs.setdefault(line["trace"], {}).setdefault(line["candidate"], []).append(line)
    runs = {trace: {name: Run(lines) for name, lines in of.items()} for trace, of in runs.items()}
    timed = max((len(run.timed) for of in runs.values() for run in of.values()), default=1)
    plain = max((len(run.plain) for of in runs.values() for run in of.values()), default=0)
    device = heads[0]["device"] if heads else "-"
    clock = statistics.median(head["clock_ns"] for head in heads) if heads else 0
    machine = "{cores} cores, {machine}; {date}".format(**rows[0])
    later, steady = f"passes 3-{timed}", f"passes {timed + 1}-{timed + plain}"
    columns = [column.format(later=later, steady=steady) for column in COLUMNS]
    text = [f"Device: {device}; PyTorch {rows[0]['torch'] or '-'}; {machine}.",
            f"Two reads of the clock in a row: {clock:.0f} ns, in all figures but those of {steady}.",
            "Times in ns but where a column says us.", ""]
    every = [run for of in runs.values() for run in of.values()]
    text += lines_of(columns, [row(run) for run in every])
    remarks = [f"- {run.trace}, {run.candidate}: {run.remark()}" for run in every if run.remark()]
    text += [*remarks, ""] if remarks else []
    compared = list(against_torch(runs))
    if compared:
        columns = ["pass 1 / native", "pass 1 / expandable", "pass 2 / native", f"{later} / native",
                   f"{steady} / native", "allocation p99.9 / native", "free p99.9 / native", "held / native", "held / expandable"]
        text += ["As a part of PyTorch's (1 is as much, less is better):", ""]
        text += lines_of(["job", "allocator", *columns], compared)
    return "\n".join(text)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as raw:
        print(render([json.loads(line) for line in raw]))
