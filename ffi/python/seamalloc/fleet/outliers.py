"""Finds ranks that differ from the others, by a rule that a few ranks cannot shift: the median and the median absolute
deviation (MAD).

A value is an outlier if its modified z-score, 0.6745 (x - median) / MAD, is beyond 3.5 (Iglewicz and Hoaglin, 1993) and
the value is more than 1% from the median. The 1% is needed because ranks with the same work differ by less, and their
MAD may be close to 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

MOST_SCORE = 3.5
# The 75th percentile of the normal distribution, by which the MAD estimates its standard deviation.
NORMAL = 0.6745
LEAST_PART = 0.01
# With fewer values there is no usual value.
LEAST_VALUES = 5

RULE = (
    f"{NORMAL} |x - median| / MAD > {MOST_SCORE} and |x - median| > {LEAST_PART:.0%} of the median, "
    f"of at least {LEAST_VALUES} ranks"
)


@dataclass(frozen=True)
class Outlier:
    """An outlier."""

    index: int
    value: float
    median: float
    # The modified z-score. None if the MAD is 0, because more than half of the values are equal.
    score: float | None


def find(values: Sequence[float | None]) -> list[Outlier]:
    """Returns the outliers of a figure. Ranks without the figure have None."""
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
