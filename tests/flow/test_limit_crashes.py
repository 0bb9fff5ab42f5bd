"""A crash, or a lost answer, at each commit of work that waits at limits, closes them and charges them, and of
instances that keep a slot until they end.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, NamedTuple

import pytest

from affinity import ActivityContext, App, Limit, OrchestrationContext, Rate, RetryAfter, RetryPolicy
from affinity.flow.store.contract import limits_of
from affinity.testing import Env, crash_matrix
from affinity.testing.env import traffic

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("env_url", ["sqlite", pytest.param("new", marks=pytest.mark.nightly)], indirect=True),
]

SLOT: Final = Limit("slot", concurrency=1)
TOKENS: Final = Limit("tokens", rate=Rate(1000, per=3600), keyed=True)
app: Final = App("crashes of limits", limits=[TOKENS])
runs: Final[dict[str, int]] = {}


@app.activity(limits=[SLOT], retry=RetryPolicy(max_attempts=3, initial_interval=10))
async def ask(ctx: ActivityContext, name: str) -> str:
    """Be put off at first, then fail, then return."""
    runs[ctx.instance_id] = run = runs.get(ctx.instance_id, 0) + 1
    await ctx.consume(TOKENS.key(name), 10)
    if run == 1:
        raise RetryAfter(30, limit=SLOT)
    if run == 2:
        raise ValueError("once")
    return name


@app.orchestration
async def asks(ctx: OrchestrationContext, name: str) -> str:
    return await ctx.schedule_activity(ask, name).with_priority(len(name))


async def scenario(env: Env) -> list[str]:
    runs.clear()
    started = [await env.client.start(asks, name, instance_id=name) for name in ("a", "bb")]
    return [await run.wait() for run in started]


async def check(env: Env, outcome: list[str]) -> None:
    assert outcome == ["a", "bb"]
    await env.advance(60)
    await check_free(env, SLOT)
    keys = {row.key: row.used for row in await limits_of(env.client._provider).list_limit_keys("tokens")}
    for name, used in keys.items():  # one attempt may have crashed before its charge, or have it counted twice
        assert 10 * (runs[name] - 1) <= used <= 10 * (runs[name] + 1)
    assert keys.keys() == {"a", "bb"}


async def check_free(env: Env, *limits: Limit) -> None:
    """No slot is in use, and nothing waits."""
    for row in await limits_of(env.client._provider).list_limits([limit.name for limit in limits]):
        assert (row.in_use, row.waiting) == (0, 0), row


async def test_a_crash_at_each_commit_of_activities(env_url: str | None) -> None:
    matrix = await crash_matrix(app, scenario, check, kills=0, url=env_url)
    assert matrix.hit > 40


# --- instances that keep a slot until they end ------------------------------------------------------------------------

ROOM: Final = Limit("room", concurrency=1)
HOUSE: Final = Limit("house", concurrency=1, keyed=True)
PLACES: Final = (ROOM, HOUSE.key("acme"))
STAY: Final = 60.0
"""Seconds from the begin of an instance to its end."""

FREE_FOR: Final = 20.0
"""Seconds, at most, for which the slot is free while instances wait for it, or kept by a worker that has crashed: a
lease, and the looks of the sweep.
"""

hotel: Final = App("crashes of limited starts", limits=[ROOM, HOUSE])


@hotel.orchestration
async def stay(ctx: OrchestrationContext, guest: str) -> str:
    """Stay; the instance ``first`` does so in two executions."""
    halves = ctx.instance_id == "first"
    await ctx.schedule_timer(STAY / 2 if halves else STAY)
    if halves and not guest.endswith(" again"):
        ctx.continue_as_new(f"{guest} again")
    return guest.removesuffix(" again")


class Stay(NamedTuple):
    """One run of an instance, of one execution or more, by the database's clock."""

    begin: datetime
    end: datetime
    guest: str


async def let_guests_in(env: Env) -> list[str]:
    """Start some beside each other; more runs of one id; and one whose input is replaced before it begins."""
    client = env.client
    await env.run_until_idle()  # until a worker has declared the limits, without which nothing waits
    first, second = [await client.start(stay, name, instance_id=name, limits=PLACES) for name in ("first", "second")]
    await env.advance(STAY / 4)  # a worker has begun the first one, or will when the lease of a crashed one has ended
    for guest in ("dropped", "third"):
        await client.start(stay, guest, instance_id="first", limits=PLACES, if_running="queue_one")
    for guest in ("early", "fourth"):
        await client.start(stay, guest, instance_id="late", limits=PLACES, debounce=20, max_wait=3600)
        await env.advance(5)
    await env.run_until_idle()
    return [await run.wait() for run in (first, second, client.handle("late", stay))]


async def check_guests(env: Env, outcome: list[str]) -> None:
    """Each start that counts ran once, one at a time, and the next one soon after the one before."""
    assert outcome == ["third", "second", "fourth"]
    stays = await read_stays(env, "first", "second", "late")
    assert sorted(each.guest for each in stays) == ["first", "fourth", "second", "third"], stays
    for before, after in pairwise(stays):
        assert before.end <= after.begin <= before.end + timedelta(seconds=FREE_FOR), (before, after)
    for each in stays:
        assert STAY <= (each.end - each.begin).total_seconds() <= STAY + 2 * FREE_FOR, each
    await check_free(env, ROOM, HOUSE)


async def read_stays(env: Env, *ids: str) -> Sequence[Stay]:
    """The runs of instances, the first one first."""
    found: list[Stay] = []
    for instance_id in ids:
        for execution in reversed(await env.client.executions(instance_id)):
            events = await env.client.history(instance_id, execution_id=execution.execution_id)
            begin, end = events[0].recorded_at, events[-1].recorded_at
            assert begin is not None
            assert end is not None
            if (guest := events[0].fields["input"]).endswith(" again"):
                found[-1] = found[-1]._replace(end=end)
            else:
                found.append(Stay(begin, end, guest))
    return sorted(found)


async def test_a_crash_at_each_commit_of_limited_starts(env_url: str | None) -> None:
    matrix = await crash_matrix(hotel, let_guests_in, check_guests, kills=2, url=env_url)
    assert matrix.hit > 30


@pytest.mark.nightly
async def test_a_crash_at_each_admission(env_url: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also at the calls of workers that give and return slots, most of which find nothing to do."""
    monkeypatch.setattr(traffic, "COMMITS", traffic.COMMITS | {"admit"})
    monkeypatch.setattr(traffic, "describe_commit", lambda verb, *_: "")
    matrix = await crash_matrix(hotel, let_guests_in, check_guests, kills=0, url=env_url)
    assert matrix.hit > 90
