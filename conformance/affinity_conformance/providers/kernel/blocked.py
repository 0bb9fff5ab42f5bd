"""A bounded batch never hides the rows behind it: blocked rows go behind, or are passed over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from affinity.limits import MAX_REROUTE
from affinity.provider.contract import MAX_ASSIGNED, OFFER_SECONDS
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import SESSION_LOCK
from affinity_conformance.providers.cluster import Cluster

LIMIT: Final = 5
"""The limit that callers give, where a verb takes one."""


async def _resources(cluster: Cluster) -> None:
    """Resources that could not be destroyed keep none from being destroyed, also when their time is over."""
    provider = (await cluster.worker("a")).provider
    for number in range(LIMIT + 1):
        await provider.begin_resource(f"r{number}", "box", ("gone", 1, number), held=None)
        await cluster.advance(0.001)
    first = {
        resource.resource_id for resource in await provider.take_unused_resources(["box"], limit=LIMIT, seconds=1.0)
    }
    await cluster.advance(2.0)
    second = {
        resource.resource_id for resource in await provider.take_unused_resources(["box"], limit=LIMIT, seconds=1.0)
    }
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
    assert [session.session_id for session in taken] == [names[-1]]


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
    "unused resources": _resources,
    "planned moves": _planned_moves,
    "stale offers": _offers,
}


class BlockedRules(Rules):
    """Blocked rows hide nothing."""

    @pytest.mark.parametrize("case", list(CASES))
    async def test_what_cannot_be_done_now_hides_nothing(self, cluster: Cluster, case: str) -> None:
        """A row is found behind more than a batch of older rows that are all blocked (contract: take_unused_resources,
        WorkFetch.assigned, sweep).
        """
        await CASES[case](cluster)
