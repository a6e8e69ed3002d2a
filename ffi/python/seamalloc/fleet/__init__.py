"""`seamalloc fleet`: the memory that every rank of a job holds, and would hold with each strategy.

    command     the command line, and its exit codes
    files       the snapshots: by fsspec, local or in an object store
    rank        one file: `seamalloc whatif` in a process of its own
    engines     many files at a time: threads that start processes here, or tasks of Ray
    job         the result for the job as a whole
    outliers    the ranks that differ from the others
    words       the figures of the job, in sentences
    table       the whole result as text
    progress    how many files are finished

This module imports no other module. Only the command needs fsspec, rich and Ray.
"""

SHORT_USAGE = """\
usage: seamalloc fleet [options] 'snapshots/rank-*.pickle' ...

Shows the memory that every rank of a job holds, and would hold with each strategy; seamalloc fleet --help"""
