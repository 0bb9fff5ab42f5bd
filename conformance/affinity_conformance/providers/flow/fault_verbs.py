"""The verbs on limits under faults: what each needs, the call, and what must be true afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from affinity.flow.store.contract import (
    Admitted,
    LimitChange,
    LimitCharge,
    LimitClosing,
    LimitProvider,
    LimitSpec,
    RateBound,
    limits_of,
)
from affinity.orchestration.gates import LimitUse, gate_of
from affinity.provider.contract import Provider, WorkKey
from affinity_conformance.providers.fault_fixtures import Attempt, FaultFixtures, FaultPart, Prepare, same


def _clean(fixtures: FaultFixtures) -> LimitProvider:
    return limits_of(fixtures.clean.provider)


def _app(name: str) -> str:
    """Return an app of its own for a limit: its declaration takes back no other."""
    return f"app of {name}"


async def _declared(fixtures: FaultFixtures, **fields: Any) -> str:
    name = fixtures.name("limit")
    await _clean(fixtures).declare_limits(_app(name), "1", [LimitSpec(**{"name": name, "concurrency": 1, **fields})])
    return name


async def _queued(fixtures: FaultFixtures, name: str, times: int = 1) -> list[WorkKey]:
    return await fixtures.cluster.enqueue(*[None] * times, gate=gate_of([LimitUse(name)]))


async def _finish(fixtures: FaultFixtures, name: str) -> None:
    """Run all work of a limit, so that no later attempt meets it."""
    store = _clean(fixtures)
    await store.declare_limits(_app(name), "2", [])
    while (await store.admit(most=100)).more:
        pass
    for item in await fixtures.clean.take_all():
        assert await fixtures.clean.ack(item) == [True]
    await store.admit(most=100)


async def declare_limits(fixtures: FaultFixtures) -> Attempt:
    """The limits of an app, all together."""
    name = fixtures.name("limit")
    specs = [LimitSpec(name=name, concurrency=3), LimitSpec(name=f"{name}b", keyed=True)]

    async def check(_: object) -> None:
        rows = await _clean(fixtures).list_limits([name, f"{name}b"])
        assert [(row.spec, row.declared) for row in rows] == [(spec, True) for spec in specs]

    return Attempt(lambda: limits_of(fixtures.provider).declare_limits(_app(name), "1", specs), check)


async def admit(fixtures: FaultFixtures) -> Attempt:
    """A slot is taken once, by one of the work."""
    name = await _declared(fixtures, concurrency=0)
    await _queued(fixtures, name, 2)
    await _clean(fixtures).change_limits([LimitChange(limit=name, concurrency=1)])

    async def check(admitted: Admitted) -> None:
        assert admitted.admitted == 1 or attempt.unknown
        (row,) = await _clean(fixtures).list_limits([name])
        assert (row.in_use, row.waiting) == (1, 1)
        await _finish(fixtures, name)

    attempt = Attempt(lambda: limits_of(fixtures.provider).admit(most=10), check)
    return attempt


async def close_limits(fixtures: FaultFixtures) -> Attempt:
    """A limit is closed."""
    name = await _declared(fixtures)
    closing = LimitClosing(limit=name, seconds=1_000.0, reason="429")

    async def check(_: object) -> None:
        (row,) = await _clean(fixtures).list_limits([name])
        assert (row.closed_for, row.closed_until is None) == ("429", False)

    return Attempt(lambda: limits_of(fixtures.provider).close_limits([closing]), check)


async def charge_limits(fixtures: FaultFixtures) -> Attempt:
    """Units are counted; a repeated call may count them twice."""
    name = await _declared(fixtures, rate=RateBound(count=1_000, per=1e6))

    async def check(_: object) -> None:
        await _clean(fixtures).admit(most=10)
        (row,) = await _clean(fixtures).list_limit_keys(name)
        assert row.used == 7 or (attempt.unknown and row.used % 7 == 0)

    attempt = Attempt(lambda: limits_of(fixtures.provider).charge_limits([LimitCharge(limit=name, units=7)]), check)
    return attempt


async def return_slots(fixtures: FaultFixtures) -> Attempt:
    """Work whose worker is lost comes back once."""
    name = await _declared(fixtures)
    (key,) = await _queued(fixtures, name)
    await _clean(fixtures).admit(most=10)
    lost = await replace(await fixtures.registered(), provider=fixtures.clean.provider).take_one()
    assert lost.lock.key == key
    await fixtures.cluster.advance(31.0)

    async def check(returned: int) -> None:
        assert returned == 1 or attempt.unknown
        await _finish(fixtures, name)
        assert await fixtures.clean.check(lost) == [False]

    attempt = Attempt(lambda: limits_of(fixtures.provider).return_slots(), check)
    return attempt


async def change_limits(fixtures: FaultFixtures) -> Attempt:
    """A change of a limit."""
    name = await _declared(fixtures)
    changes = [LimitChange(limit=name, concurrency=7)]

    async def check(changed: Sequence[bool]) -> None:
        assert list(changed) == [True]
        (row,) = await _clean(fixtures).list_limits([name])
        assert row.concurrency == 7

    return Attempt(lambda: limits_of(fixtures.provider).change_limits(changes), check)


async def get_limit_waits(fixtures: FaultFixtures) -> Attempt:
    """Why work waits."""
    name = await _declared(fixtures, concurrency=0)
    keys = await _queued(fixtures, name)
    await _clean(fixtures).admit(most=10)

    async def causes(provider: Provider) -> list[tuple[WorkKey, str, str]]:
        return [(wait.key, wait.limit, wait.cause) for wait in await limits_of(provider).get_limit_waits(keys)]

    async def then() -> None:
        assert await causes(fixtures.clean.provider) == [(keys[0], name, "concurrency")]
        await _finish(fixtures, name)

    return same(fixtures, causes, then)


def _reading(read: Callable[[LimitProvider, str], Awaitable[Any]]) -> Prepare:
    async def prepare(fixtures: FaultFixtures) -> Attempt:
        name = await _declared(fixtures)
        await _clean(fixtures).change_limits([LimitChange(limit=name, key="k", paused=True)])
        return same(fixtures, lambda provider: read(limits_of(provider), name))

    return prepare


LIMITS: Final = FaultPart(
    verbs={
        "declare_limits": declare_limits,
        "admit": admit,
        "close_limits": close_limits,
        "charge_limits": charge_limits,
        "return_slots": return_slots,
        "change_limits": change_limits,
        "get_limit_waits": get_limit_waits,
        "list_limits": _reading(lambda store, name: store.list_limits([name])),
        "list_limit_keys": _reading(lambda store, name: store.list_limit_keys(name)),
    }
)
