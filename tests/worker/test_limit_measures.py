"""What a worker measures of limits, for its metrics."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from unittest.mock import AsyncMock

import pytest

from affinity.flow.measuring import MAX_LIMITS, MEASURES, REST, LimitMeasurement
from affinity.flow.store.contract import UNCHANGED, LimitProvider, LimitRow, LimitSpec

pytestmark = pytest.mark.anyio

NOW: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)


def limit(name: str, **more: Any) -> LimitRow:
    unchanged = {"concurrency": UNCHANGED, "rate": UNCHANGED, "paused": False, "ramp": None, "resumed_at": None}
    rest = {"closed_until": None, "closed_for": None, "changed_by": None, "changed_at": None, "declared": True}
    counts = {"in_use": 0, "waiting": 0, "oldest": None, "admitted": 0, "waited": 0.0, "keys": 0}
    return LimitRow(spec=LimitSpec(name=name), app="a", code="1", **{**unchanged, **rest, **counts, **more})


async def test_each_declared_limit_has_a_value_of_each_measure() -> None:
    store: Any = AsyncMock(spec=LimitProvider)
    oldest = NOW - timedelta(seconds=90)
    store.list_limits.return_value = [
        limit("model", in_use=5, waiting=213, oldest=oldest, admitted=700, waited=41.5, paused=True),
        limit("old", declared=False, waiting=7),
        limit("unused"),
    ]
    found = await LimitMeasurement(store, NOW.timestamp).read()
    assert found.keys() == {measure.name for measure in MEASURES}
    assert {name: values["model"] for name, values in found.items()} == {
        "limit_slots_in_use": 5,
        "limit_waiting": 213,
        "limit_oldest_waiting_seconds": 90.0,
        "limit_paused": True,
        "limit_admissions": 700,
        "limit_wait_seconds": 41.5,
    }
    assert all(values.keys() == {"model", "unused"} for values in found.values())
    assert found["limit_oldest_waiting_seconds"]["unused"] == 0.0


async def test_names_that_code_makes_up_have_no_series_without_end() -> None:
    store: Any = AsyncMock(spec=LimitProvider)
    store.list_limits.return_value = [limit(f"limit-{number:04}") for number in range(3 * MAX_LIMITS)]
    found = await LimitMeasurement(store, NOW.timestamp).read()
    assert {len(values) for values in found.values()} == {MAX_LIMITS}


async def test_a_reading_that_takes_long_serves_for_longer() -> None:
    """All keys are added up, of which there may be ten thousands."""
    store: Any = AsyncMock(spec=LimitProvider)
    store.list_limits.return_value = []
    clock = iter([0.0, 0.1, 0.1 + 0.99 * 0.1 * REST, math.inf, math.inf])
    measurement = LimitMeasurement(store, NOW.timestamp, lambda: next(clock))
    for _ in range(3):
        await measurement.read()
    assert store.list_limits.await_count == 2
