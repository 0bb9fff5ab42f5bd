"""Histograms of durations, and the percentiles that are read from them."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from affinity.trends.durations import BUCKETS, added, bucket_of, percentile


@pytest.mark.parametrize("share", [0.01, 0.5, 0.95, 1.0])
def test_a_percentile_is_within_a_fifth(share: float) -> None:
    """Of durations from milliseconds to days."""
    numbers = random.Random(7)
    given = sorted(10 ** numbers.uniform(-2, 5) for _ in range(2000))
    found = percentile(Counter(map(bucket_of, given)), share)
    assert found is not None
    true = given[max(0, round(share * len(given)) - 1)]
    assert true / 1.2 < found < true * 1.2


def test_each_duration_has_a_bucket() -> None:
    """Also none, one before its start as a clock was set back, and one of years."""
    assert [bucket_of(seconds) for seconds in (-5.0, 0.0, 0.001)] == [0, 0, 0]
    assert bucket_of(1e9) == BUCKETS - 1
    assert percentile({0: 1}, 0.5) == 0.0005


def test_nothing_has_no_percentile() -> None:
    assert percentile({}, 0.5) is None


def test_histograms_add_up() -> None:
    assert added({1: 2, 3: 1}, {1: 1, 9: 4}) == {1: 3, 3: 1, 9: 4}
