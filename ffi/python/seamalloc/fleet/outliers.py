"""Finds the ranks that are unlike the others, by a rule that a few of them cannot move: the median, and the median absolute
deviation (MAD).

A value is an outlier where its modified z-score, 0.6745 (x - median) / MAD, is beyond 3.5 (Iglewicz and Hoaglin, 1993),
and it is more than 1% from the median: ranks of the same work differ by less, and their MAD may be next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

MOST_SCORE = 3.5
# The 75th percentile of the normal distribution, by which the MAD estimates its standard deviation.
NORMAL = 0.6745
LEAST_PART = 0.01
# With fewer values no value can be called usual.
LEAST_VALUES = 5

RULE = (
    f"{NORMAL} |x - median| / MAD > {MOST_SCORE} and |x - median| > {LEAST_PART:.0%} of the median, "
    f"of at least {LEAST_VALUES} ranks"
)


@dataclass(frozen=True)
class Outlier:
    """A value beyond the rule."""

    index: int
    value: float
    median: float
    # The modified z-score; None if more than half of all values are equal, so that the deviation is 0.
    score: float | None


def find(values: Sequence[float | None]) -> list[Outlier]:
    """The outliers of a figure, of which some ranks may have none."""
    known = [value for value in values if value is not None]
    if len(known) < LEAST_VALUES:
        return []
    middle = median(known)
    mad = median(abs(value - middle) for value in known)
    found = []
    for index, value in enumerate(values):
        if value is None or abs(value - middle) <= LEAST_PART * abs(middle):
            continue
        score = NORMAL * (value - middle) / mad if mad > 0 else None
        if score is None or abs(score) > MOST_SCORE:
            found.append(Outlier(index, value, middle, None if score is None else round(score, 2)))
    return found
