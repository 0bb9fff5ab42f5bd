"""Rows of ``trends`` of either engine as records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from affinity.trends.durations import Durations
from affinity.trends.store.contract import TrendCounts, TrendRow, TrendSum


def to_trend_row(row: Sequence[Any]) -> TrendRow:
    """Return the minute, and its counts."""
    minute, *counts = row
    return TrendRow(minute=minute, counts=_to_counts(counts))


def to_trend_sum(row: Sequence[Any]) -> TrendSum:
    """Return the kind, the name, and their counts."""
    kind, name, *counts = row
    return TrendSum(kind=kind, name=name, counts=_to_counts(counts))


def read_durations(text: str) -> Durations:
    """Return the histogram in a JSON object."""
    return {int(bucket): number for bucket, number in json.loads(text).items()}


def _to_counts(row: Sequence[Any]) -> TrendCounts:
    started, completed, failed, cancelled, retries, queue_age, durations = row
    return TrendCounts(
        started=started,
        completed=completed,
        failed=failed,
        cancelled=cancelled,
        retries=retries,
        queue_age=queue_age,
        durations=read_durations(durations),
    )
