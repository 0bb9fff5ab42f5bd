"""A bounded batch never hides what is behind it: what cannot be done now goes behind, or is passed over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import pytest

from affinity.limits import MAX_REROUTE, SCHEDULE_STEP
from affinity.provider.contract import MAX_ASSIGNED, OFFER_SECONDS, ScheduleRow, ScheduleWrite
from affinity.testing.conformance.providers.base import Rules
from affinity.testing.conformance.providers.builders import SESSION_LOCK
from affinity.testing.conformance.providers.cluster import Cluster

LIMIT: Final = 5
"""Of the calls whose caller says how many."""


async def _due_schedules(cluster: Cluster) -> None:
    """Schedules that were put off keep none behind from its turn, and come again when their time is over."""
    provider = (await cluster.worker("a")).provider
    now = (await provider.get_due_schedules(0)).now
    rows = [
        ScheduleRow(name=f"s{number:03}", generation="g", spec="{}", next_due=now - timedelta(seconds=2_000 - number))
        for number in range(SCHEDULE_STEP + 1)
    ]
    rows += [
        ScheduleRow(name=f"q{number:03}", generation="g", spec="{}", queued=now - timedelta(seconds=2_000 - number))
        for number in range(SCHEDULE_STEP + 1)
    ]
    assert all(await provider.write_schedules([ScheduleWrite(row=row) for row in rows]))
    first = (await provider.get_due_schedules(SCHEDULE_STEP)).rows
    assert len(first) == 2 * SCHEDULE_STEP
    later = now + timedelta(seconds=60)
    assert all(await provider.write_schedules([ScheduleWrite(row=_put_off(row, later)) for row in first]))
    behind = await provider.get_due_schedules(SCHEDULE_STEP)
    assert {row.name for row in behind.rows} == {f"s{SCHEDULE_STEP}", f"q{SCHEDULE_STEP}"}
    assert behind.next_due is not None
    assert behind.next_due <= 0
    assert all(await provider.write_schedules([ScheduleWrite(row=_put_off(row, later)) for row in behind.rows]))
    none = await provider.get_due_schedules(SCHEDULE_STEP)
    assert not none.rows
    assert none.next_due is not None
    assert 0 < none.next_due <= 60
    await cluster.advance(61)
    assert len((await provider.get_due_schedules(SCHEDULE_STEP)).rows) == 2 * SCHEDULE_STEP


def _put_off(row: ScheduleRow, until: datetime) -> ScheduleRow:
    return replace(row, retry_at=until)


async def _resources(cluster: Cluster) -> None:
    """Resources that could not be destroyed keep none from being destroyed, also when their time is over."""
    provider = (await cluster.worker("a")).provider
    for number in range(LIMIT + 1):
        await provider.begin_resource(f"r{number}", "box", ("gone", 1, number), held=None)
        await cluster.advance(0.001)
    first = {one.resource_id for one in await provider.take_unused_resources(["box"], limit=LIMIT, seconds=1.0)}
    await cluster.advance(2.0)
    second = {one.resource_id for one in await provider.take_unused_resources(["box"], limit=LIMIT, seconds=1.0)}
    assert first | second == {f"r{number}" for number in range(LIMIT + 1)}


async def _planned_moves(cluster: Cluster) -> None:
    """Moves that wait for running work keep none from being made that could be."""
    a, b = await cluster.worker("a"), await cluster.worker("b")
    names = [f"s{number:03}" for number in range(MAX_ASSIGNED + 1)]
    await cluster.enqueue(*names)
    items = await a.take_all()
    assert len(items) == len(names)
    for name in names:
        assert await a.plan(name, "b", within=60.0) == "planned"
    (last,) = [item for item in items if item.session_id == names[-1]]
    assert await a.ack(last) == [True]
    assigned = (await b.fetch()).assigned
    assert names[-1] in assigned
    taken = await b.provider.take_session(b.identity, assigned, max_sessions=10**6, session_lock=SESSION_LOCK)
    assert [one.session_id for one in taken] == [names[-1]]


async def _offers(cluster: Cluster) -> None:
    """Work of a move that waits for running work keeps no stale offer on the route of a worker that does not come."""
    a, b, c = [await cluster.worker(name) for name in "abc"]
    await cluster.give(a, "s")
    assert await a.plan("s", "b", within=300.0) == "planned"
    await cluster.enqueue(*["s"] * MAX_REROUTE)
    await cluster.offer(b, "t")
    await cluster.advance(OFFER_SECONDS + 1)
    await cluster.sweep()
    assert [item.session_id for item in await c.take_all()] == ["t"]


Case = Callable[[Cluster], Awaitable[None]]
CASES: Final[dict[str, Case]] = {
    "due schedules": _due_schedules,
    "unused resources": _resources,
    "planned moves": _planned_moves,
    "stale offers": _offers,
}


class BlockedRules(Rules):
    """What cannot be done now hides nothing."""

    @pytest.mark.parametrize("case", list(CASES))
    async def test_what_cannot_be_done_now_hides_nothing(self, cluster: Cluster, case: str) -> None:
        """More rows than a batch has, all blocked and older, before one that is not (contract: get_due_schedules,
        take_unused_resources, WorkFetch.assigned, sweep).
        """
        await CASES[case](cluster)
