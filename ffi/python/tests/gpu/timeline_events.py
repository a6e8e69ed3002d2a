"""Finds the record of an event that each GPU-side wait is for, and the stream of that record.

The profiler says so itself in newer versions. PyTorch 2.11's says only the number of the event that is waited for. Numbers are
given in the order in which events are made, and PyTorch makes an event when it first records it. So of events with rising
numbers the records follow each other, each before the first wait for it. Events that are recorded again and again (their
numbers are waited for in several steps) are recorded just before each wait. What NCCL records for itself, by another call than
PyTorch, orders streams that the program orders too, and is left out.

A record is taken to be on the stream that its thread gave work last, which is what PyTorch calls the current stream.
"""

import bisect

# PyTorch's call; NCCL's own is the other.
PYTORCHS = "cudaEventRecordWithFlags"


def steps_of(times, marks):
    """Returns the number of different steps that these times are in."""
    begins = [begin for begin, _ in marks]
    return len({bisect.bisect_right(begins, time) for time in times})


def match(records, waits, marks):
    """The record of each wait: a dict from the wait's index to the record's.

    `records` are (begin, name, correlation) in order of time, `waits` (begin, event number, correlation of its record or None),
    `marks` the begins and ends of steps.
    """
    found = {}
    known = {record[2]: index for index, record in enumerate(records)}
    named = any(wait[2] in known for wait in waits)
    if named:
        return {index: known[wait[2]] for index, wait in enumerate(waits) if wait[2] in known}
    own = [index for index, record in enumerate(records) if record[1] == PYTORCHS] or list(range(len(records)))
    begins = [record[0] for record in records]
    by_event = {}
    for index, wait in enumerate(waits):
        by_event.setdefault(wait[1], []).append(index)
    again = {
        event
        for event, of in by_event.items()
        if len(marks) > 1 and steps_of([waits[index][0] for index in of], marks) > 1
    }
    taken = set()
    for event in again:
        for index in by_event[event]:
            # The last record of whatever kind: where it is NCCL's, so is the wait.
            last = bisect.bisect_left(begins, waits[index][0]) - 1
            if last >= 0 and records[last][1] == records[own[0]][1]:
                found[index] = last
                taken.add(last)
    free = [index for index in own if index not in taken]
    places = [records[index][0] for index in free]
    limit, above = len(free), None
    for event in sorted((event for event in by_event if event not in again and event is not None), reverse=True):
        # Events between the two that nobody waited for have records too.
        between = 0 if above is None else above - event - 1
        first = min(waits[index][0] for index in by_event[event])
        place = min(bisect.bisect_left(places, first), limit - between) - 1
        if place < 0:
            continue
        for index in by_event[event]:
            found[index] = free[place]
        limit, above = place, event
    return found
