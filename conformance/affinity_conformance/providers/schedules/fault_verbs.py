"""The verbs on schedules under faults: what each needs, the call, and what must be true afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from affinity.provider.contract import Provider
from affinity.schedules.store.contract import ScheduleRow, ScheduleWrite, schedules_of
from affinity_conformance.providers.builders import new_instance
from affinity_conformance.providers.fault_fixtures import Attempt, FaultFixtures, FaultPart, Prepare, same

LONG_AGO: Final = datetime(2020, 1, 1, tzinfo=UTC)


async def write_schedules(fixtures: FaultFixtures) -> Attempt:
    """One tick: its start and the next due time, once."""
    clean, name = fixtures.clean.provider, fixtures.name("schedule")
    row = await _created(fixtures, name)
    tick = ScheduleWrite(row=replace(row, next_due=None, skipped=1), starts=[new_instance(fixtures.name("i"))])

    async def check(written: Sequence[bool]) -> None:
        assert list(written) == [True] or attempt.unknown
        (found,) = await schedules_of(clean).list_schedules([name])
        assert (found.revision, found.skipped, found.next_due) == (2, 1, None)
        assert (await clean.get_instance([fixtures.name("i")]))[0] is not None
        await fixtures.finish(await fixtures.taken(fixtures.name("i")))
        assert list(await schedules_of(clean).write_schedules([ScheduleWrite(row=found, removed=True)])) == [True]

    attempt = Attempt(lambda: schedules_of(fixtures.provider).write_schedules([tick]), check)
    return attempt


async def _created(fixtures: FaultFixtures, name: str) -> ScheduleRow:
    row = ScheduleRow(name=name, generation="g", spec="{}", next_due=LONG_AGO)
    assert list(await schedules_of(fixtures.clean.provider).write_schedules([ScheduleWrite(row=row)])) == [True]
    (found,) = await schedules_of(fixtures.clean.provider).list_schedules([name])
    return found


async def _due_names(provider: Provider) -> list[str]:
    return [row.name for row in (await schedules_of(provider).get_due_schedules(10)).rows]


async def _listed_names(provider: Provider) -> list[str]:
    return [row.name for row in await schedules_of(provider).list_schedules()]


def _reading(read: Callable[[Provider], Awaitable[Any]]) -> Prepare:
    async def prepare(fixtures: FaultFixtures) -> Attempt:
        row = await _created(fixtures, fixtures.name("schedule"))

        async def then() -> None:
            await schedules_of(fixtures.clean.provider).write_schedules([ScheduleWrite(row=row, removed=True)])

        return same(fixtures, read, then)

    return prepare


SCHEDULES: Final = FaultPart(
    verbs={
        "write_schedules": write_schedules,
        "get_due_schedules": _reading(_due_names),
        "list_schedules": _reading(_listed_names),
    }
)
