"""Prints the tables of README.md from replays.jsonl.gz and fit.jsonl, which lie beside it: python3 table.py."""

import gzip
import json
import statistics
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main():
    passes, fits = {}, {}
    with gzip.open(HERE / "replays.jsonl.gz", "rt") as lines:
        for line in map(json.loads, lines):
            key = line["trace"], line["lag"], line["strategy"], line["conf"]
            passes.setdefault(key, []).append(line)
    for line in map(json.loads, (HERE / "fit.jsonl").read_text().splitlines()):
        fits[line["trace"], line["conf"]] = line
    jobs = sorted({(trace, lag) for trace, lag, *_ in passes if lag == 0 or trace.endswith("fsdp2") or trace == "serve-4t"})
    confs = ["split:off", "split:before_growth", "sharing:wait", "sharing:wait,split:before_growth"]
    print("| job | " + " | ".join(f"`{conf}`" for conf in confs) + " | expandable |")
    print("|---|" + "---|" * (len(confs) + 1))

    def cell(found):
        used = [100 * one["peak_live"] / one["peak_reserved"] for one in found]
        times = ", ".join(f"{one['driver_time_us'] / 1e3:.0f}" for one in found)
        worst = max(one["worst_stall_us"] for one in found) / 1e3
        splits = sum(one["splits"] for one in found)
        return f"{used[0]:.2f}, {used[-1]:.2f}; {times}; {worst:.1f}" + (f"; {splits}" if splits else "")

    for trace, lag in jobs:
        name = trace + (f", {lag} ahead" if lag else "")
        cells = [cell(passes[trace, lag, "stitch", conf]) for conf in confs]
        cells.append(cell(passes[trace, lag, "expandable", "split:off"]))
        print(f"| {name} | " + " | ".join(cells) + " |")
    training = [job for job in jobs if job[0] != "serve-4t"]
    print()
    for conf in confs:
        of = [passes[trace, lag, "stitch", conf] for trace, lag in training]
        first = statistics.mean(100 * one[0]["peak_live"] / one[0]["peak_reserved"] for one in of)
        last = statistics.mean(100 * one[-1]["peak_live"] / one[-1]["peak_reserved"] for one in of)
        every = [passes[trace, lag, "stitch", conf][0] for trace, lag in jobs]
        price = statistics.median(one["driver_time_us"] / 1e3 / (one["peak_reserved"] / 2**30) for one in every)
        print(f"{conf}: {first:.2f}, {last:.2f}%; {price:.2f} ms a GiB")
    print()
    for conf in confs:
        ratios = []
        for trace, lag in jobs:
            if lag == 0:
                ours, theirs = passes[trace, 0, "stitch", conf][0], passes[trace, 0, "expandable", "split:off"][0]
                ratios.append(f"{trace} {ours['driver_time_us'] / theirs['driver_time_us']:.2f}")
        print(f"{conf}, first pass beside expandable's: " + ", ".join(ratios))
    print()
    print("| job | `split:last_resort` | `split:before_growth` |")
    print("|---|---|---|")
    for trace in sorted({trace for trace, _ in fits}):
        above = [fits[trace, conf] for conf in ("split:last_resort", "split:before_growth")]
        print(f"| {trace} | " + " | ".join(f"{100 * (one['capacity'] / one['peak_live'] - 1):.3f}" for one in above) + " |")


if __name__ == "__main__":
    main()
