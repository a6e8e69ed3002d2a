"""Estimates how much slower the CPU was while it was recorded: the profiler takes its part of each call.

A timeline's steps without an allocator are computed with the CPU's times scaled, until their mean is that of the job's steps while
nobody recorded. What waits for the GPU is not scaled, and neither is the GPU's work.
"""

# Of the program's time and of calls: how much faster, and how much slower than recorded it may have been.
FASTEST, SLOWEST = 0.3, 1.5
HALVINGS = 16
# Where the time before a line stands, and that of its call, by the line's kind.
GAP, CALL = 2, 3
CALLS = ("k", "e", "w")


def scaled(lines, factor):
    """The lines with the CPU's times scaled."""
    for line in lines:
        fields = line.split(",")
        if fields[0] in "#b" or line.startswith("#"):
            yield line
            continue
        fields[GAP] = str(round(int(fields[GAP]) * factor))
        if fields[0] in CALLS:
            fields[CALL] = str(round(int(fields[CALL]) * factor))
        yield ",".join(fields)


def steps(lines, about, factor=1.0):
    """The lengths of the steps where memory takes no time, in nanoseconds. Threads go on in the order of the lines."""
    now, free, events, found, began = {}, {}, {}, [], 0
    for line in scaled(lines, factor):
        kind, *fields = line.split(",")
        if line.startswith("#") or kind == "b":
            continue
        thread, gap = fields[0], int(fields[1])
        time = now.get(thread, 0) + gap
        if kind in CALLS:
            time += int(fields[2])
            stream = fields[3]
        if kind == "k":
            begin = max(time + about["latency_ns"], free.get(stream, 0) + about["gap_ns"])
            free[stream] = begin + int(fields[4])
        elif kind == "e":
            events[fields[4]] = max(time, free.get(stream, 0))
        elif kind == "w":
            free[stream] = max(free.get(stream, 0), events[fields[4]])
        elif kind == "s":
            what = fields[3]
            done = max(free.values(), default=0)
            if what != "d":
                done = free.get(fields[4], 0) if what == "s" else events[fields[4]]
            time = max(time, done) + int(fields[2])
        elif kind == "j":
            time = max(time, now.get(fields[2], 0))
        elif kind == "p":
            began = time
        elif kind == "q":
            found.append(time - began)
        now[thread] = time
    return found


def fit(lines, about, mean_ns):
    """The factor with which the mean step is as long as that, or as near as can be."""
    low, high = FASTEST, SLOWEST
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        lengths = steps(lines, about, middle)
        if sum(lengths) < mean_ns * len(lengths):
            low = middle
        else:
            high = middle
    return round((low + high) / 2, 4)
