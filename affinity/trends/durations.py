"""Histograms of durations: a count for each bucket, and percentiles read from the counts.

Bucket 0 ends at a millisecond, and each later bucket at the fourth root of two times the end of the one before. So a
percentile is within a fifth of the true value, and the last bucket begins at five weeks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Final, TypeAlias

Durations: TypeAlias = Mapping[int, int]
"""By bucket, the number of durations in it."""

FIRST: Final = 0.001
"""Seconds at which bucket 0 ends."""

BUCKETS: Final = 128


def bucket_of(seconds: float) -> int:
    """Return the bucket of a duration; the SQL of PostgreSQL has the same formula."""
    if seconds <= FIRST:
        return 0
    return min(BUCKETS - 1, math.ceil(4 * math.log2(seconds / FIRST)))


def percentile(durations: Durations, share: float) -> float | None:
    """Return the duration in seconds that this share of the durations does not exceed; None: there are none.

    Within a bucket, the durations count as spread evenly.
    """
    rank = share * sum(durations.values())
    if not rank:
        return None
    seen = 0
    for bucket, number in sorted(durations.items()):
        if seen + number >= rank:
            return _within(bucket, (rank - seen) / number)
        seen += number
    raise AssertionError("a rank is no more than the sum")


def _within(bucket: int, part: float) -> float:
    end = FIRST * math.exp2(bucket / 4)
    begin = 0.0 if bucket == 0 else FIRST * math.exp2((bucket - 1) / 4)
    return begin + part * (end - begin)


def added(one: Durations, other: Durations) -> Durations:
    """Return the sum of two histograms."""
    return Counter(one) + Counter(other)
