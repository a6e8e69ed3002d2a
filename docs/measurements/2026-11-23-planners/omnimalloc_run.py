"""One run of omnimalloc for compare.py: ALLOCATOR OPTIONS FILE CAPACITY SECONDS OUT. A capacity of 0: the least peak.

omnimalloc looks for the least peak and knows no capacity. `bounded` calls its search with the capacity as the bound, an order
a thread, as its own ablations do; for `supermalloc` and `bounded` a buffer as large as the capacity is added behind all others, so
that a plan of this size cannot be improved, and the search ends with it.
"""

import inspect
import json
import sys
import time

import omnimalloc
from omnimalloc._cpp import Partition, try_solve_many
from omnimalloc.allocators import BaseAllocator
from omnimalloc.allocators.supermalloc import DEFAULT_HEURISTICS
from omnimalloc.io import load_allocation, save_allocation

RULES = ("canonical", "dominance", "floor_inference", "monotonic_floor", "decompose")
PAD = "pad"


def bounded(allocations, capacity, seconds, num_threads):
    base = Partition.from_allocations(allocations)
    orders = [base.reorder("".join(keys)).with_bound(capacity + 1) for keys in DEFAULT_HEURISTICS]
    rules = dict.fromkeys(RULES, True)
    limits = {"timeout": seconds, "num_threads": num_threads}
    found = try_solve_many(orders, capacity + 1, None, **rules, **limits)
    return found and tuple(found.allocations)


def main():
    name, options, path, capacity, seconds, out = sys.argv[1:]
    options, capacity, seconds = json.loads(options), int(capacity), float(seconds)
    allocations = tuple(load_allocation(path).allocations)
    given = allocations
    if capacity:
        end = max(one.end for one in allocations)
        given = (*allocations, omnimalloc.Allocation(id=PAD, size=capacity, start=end, end=end + 1))
    start = time.monotonic()
    if name == "bounded":
        placed = bounded(given, capacity, seconds, **options)
    else:
        kind = BaseAllocator.get(name)
        if "timeout" in inspect.signature(kind.__init__).parameters:
            options["timeout"] = seconds
        placed = kind(**options).allocate(given)
    took = time.monotonic() - start
    if placed:
        save_allocation([one for one in placed if one.id != PAD], out)
    print(json.dumps({"seconds": took, "found": bool(placed)}))


if __name__ == "__main__":
    main()
