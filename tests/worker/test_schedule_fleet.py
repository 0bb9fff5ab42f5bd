"""Schedules under workers that are killed at random: real processes, in real time."""

from __future__ import annotations

import pytest

from tests.support.all_databases import on_all_databases
from tests.support.worker_processes import Workers
from tests.worker.schedule_fleet import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@on_all_databases
async def test_each_tick_starts_one_instance(workers: Workers) -> None:
    """Eight workers, of which one is killed now and then: no tick is lost, none is fired twice, all end."""
    outcome = await run(workers.url, workers, 12.0, fleet=8, schedules=60, seed=1)
    assert outcome.kills >= 2
    assert outcome.expected >= 200
    assert (outcome.lost, outcome.extra, dict(outcome.unended)) == ([], [], {}), outcome
