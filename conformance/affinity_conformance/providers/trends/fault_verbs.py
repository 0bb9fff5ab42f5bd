"""The verbs on trends under faults."""

from __future__ import annotations

from typing import Final

from affinity.trends.store.contract import LAG, trends_of
from affinity_conformance.providers.builders import new_instance
from affinity_conformance.providers.fault_fixtures import Attempt, FaultFixtures, FaultPart, same

PAUSE: Final = 10.0
KEEP: Final = 86_400.0

LATER: Final = PAUSE + LAG + 1
"""Seconds until a count is due. No lock of the fixtures is a multiple of it, so none ends just behind a jump."""


async def count_trends(fixtures: FaultFixtures) -> Attempt:
    """An instance counts once, however often the call is repeated."""
    name = fixtures.name("counted")
    clean = trends_of(fixtures.clean.provider)
    assert await fixtures.clean.provider.create_instance([new_instance(fixtures.name("i"), name=name)]) == [True]
    await fixtures.cluster.advance(LATER)

    async def check(_: float) -> None:
        await fixtures.cluster.advance(LATER)
        await clean.count_trends(pause=PAUSE, keep=KEEP)
        found = await clean.read_trends("orchestration", name, 60)
        assert [row.counts.started for row in found.rows if row.counts.started] == [1]

    return Attempt(lambda: trends_of(fixtures.provider).count_trends(pause=PAUSE, keep=KEEP), check)


async def read_trends(fixtures: FaultFixtures) -> Attempt:
    async def read(provider: object) -> object:
        return (await trends_of(provider).read_trends("orchestration", "", 60)).rows  # type: ignore[arg-type]

    return same(fixtures, read)


async def sum_trends(fixtures: FaultFixtures) -> Attempt:
    return same(fixtures, lambda provider: trends_of(provider).sum_trends(60, 10))


TRENDS: Final = FaultPart(
    verbs={prepare.__name__: prepare for prepare in (count_trends, read_trends, sum_trends)},
)
