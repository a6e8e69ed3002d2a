"""`seamalloc fleet`: the memory that every rank of a job holds, and would hold with each strategy.

    command     the command line, and what ends it
    files       the snapshots: by fsspec, local or in an object store
    rank        one file: `seamalloc whatif` in a process of its own
    engines     many files at a time: threads that start processes here, or tasks of Ray
    job         what follows for the job as a whole
    outliers    which ranks are unlike the others
    words       its figures, in sentences
    table       all of it as text
    progress    how far it is

This module imports no other module. Only the command needs fsspec, rich and Ray.
"""

SHORT_USAGE = """\
usage: seamalloc fleet [options] 'snapshots/rank-*.pickle' ...

Shows the memory that every rank of a job holds, and would hold with each strategy; seamalloc fleet --help"""
