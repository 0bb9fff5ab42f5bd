"""Work that comes in many ways to limits: no more runs than these allow, all of it ends, and no slot stays in use."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from affinity import ActivityContext, App, Limit, OrchestrationContext, RetryAfter, RetryPolicy, RuntimeOptions
from affinity.errors import OrchestrationCancelled
from affinity.flow.store.contract import limits_of
from affinity.testing import Env

pytestmark = [pytest.mark.anyio, pytest.mark.nightly_cases(r"old|new-(?!plain-expected|comes_again-2|crash|parent)")]

SLOTS = 2
POOL = Limit("pool", concurrency=SLOTS)
TENANT = Limit("tenant", concurrency=1, keyed=True)
app = App("kinds", limits=[POOL, TENANT])


class Seen:
    """What ran at the same time, as the activities have seen it."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.most = 0
        self.most_of_tenant = 0
        self.runs = 0

    @contextmanager
    def run(self, tenant: str) -> Iterator[int]:
        """Count a run."""
        self.running.append(tenant)
        self.runs += 1
        self.most = max(self.most, len(self.running))
        self.most_of_tenant = max(self.most_of_tenant, self.running.count(tenant))
        try:
            yield self.runs
        finally:
            with suppress(ValueError):  # of a worker that has crashed
                self.running.remove(tenant)


seen = Seen()


async def work(tenant: str) -> None:
    with seen.run(tenant):
        for _ in range(20):
            await asyncio.sleep(0)


@app.activity
async def plain(ctx: ActivityContext, tenant: str) -> str:
    await work(tenant)
    return tenant


@app.activity
def in_a_thread(ctx: ActivityContext, tenant: str) -> str:
    asyncio.run(work(tenant))
    return tenant


@app.activity
async def fails_at_first(ctx: ActivityContext, tenant: str) -> str:
    await work(tenant)
    if ctx.attempt == 1:
        raise ValueError("at first")
    return tenant


@app.activity
async def comes_again(ctx: ActivityContext, tenant: str) -> str:
    await work(tenant)
    if seen.runs < 10:
        raise RetryAfter(20, limit=TENANT.key(tenant))
    return tenant


@app.activity
async def takes_too_long(ctx: ActivityContext, tenant: str) -> None:
    await work(tenant)
    with seen.run(tenant):
        await asyncio.sleep(1_000)


@app.activity
async def never_ends(ctx: ActivityContext, tenant: str) -> None:
    with seen.run(tenant):
        await asyncio.Event().wait()


@app.orchestration
async def calls(ctx: OrchestrationContext, options: dict[str, Any]) -> list[str]:
    """Call an activity for each of three tenants, three times."""
    futures = []
    for number in range(9):
        tenant = "abc"[number % 3]
        future = ctx.schedule_activity(options["activity"], tenant, **RETRIES.get(options["activity"], {}))
        future.limited(POOL, TENANT.key(tenant)).with_priority(number)
        if "session" in options:
            future.on_session(f"s{number % options['session']}", ordered=options.get("ordered", False))
        if "tag" in options:
            future.with_tag(options["tag"])
        futures.append(future)
    return [str(end) for end in await ctx.gather(*futures, return_exceptions=True)]


RETRIES: dict[str, dict[str, Any]] = {
    "fails_at_first": {"retry": RetryPolicy(max_attempts=3, initial_interval=30)},
    "takes_too_long": {"timeout": 0.1},
}


@app.orchestration
async def cancels(ctx: OrchestrationContext, options: dict[str, Any]) -> int:
    """Cancel what has a slot and what waits for one."""
    late = 0
    for _ in range(3):
        futures = [ctx.schedule_activity(never_ends, name).limited(POOL, TENANT.key(name)) for name in "aab"]
        won = await ctx.select(*futures, ctx.schedule_timer(60))
        late += won.index == 3
    return late


@app.orchestration
async def parent(ctx: OrchestrationContext, options: dict[str, Any]) -> list[list[str]]:
    """Have children that continue as new."""
    return list(await ctx.gather(*(ctx.schedule_sub_orchestration(continues, 2) for _ in range(3))))


@app.orchestration
async def continues(ctx: OrchestrationContext, times: int) -> list[str]:
    found = [await ctx.schedule_activity(plain, name).limited(POOL, TENANT.key(name)) for name in "abc"]
    if times:
        ctx.continue_as_new(times - 1)
    return found


NINE = [*"abcabcabc"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"activity": "plain"}, NINE),
        ({"activity": "in_a_thread"}, NINE),
        ({"activity": "plain", "session": 1}, NINE),
        ({"activity": "plain", "session": 4}, NINE),
        ({"activity": "plain", "session": 1, "ordered": True}, NINE),
        ({"activity": "plain", "session": 2, "ordered": True}, NINE),
        ({"activity": "plain", "tag": "gpu"}, NINE),
        ({"activity": "plain", "session": 2, "tag": "gpu"}, NINE),
        ({"activity": "fails_at_first"}, NINE),
        ({"activity": "fails_at_first", "session": 1, "ordered": True}, NINE),
        ({"activity": "comes_again"}, NINE),
        ({"activity": "comes_again", "session": 2}, NINE),
        ({"activity": "takes_too_long"}, None),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else None,
)
async def test_work_of_each_kind(env_url: str | None, options: dict[str, Any], expected: list[str] | None) -> None:
    async with running(env_url) as env:
        ends = await (await env.client.start(calls, options)).wait()
        assert expected is None or ends == expected
        assert expected is not None or all("ActivityTimeout" in end or "timeout" in end for end in ends), ends
        await check_idle(env)


@pytest.mark.parametrize("orchestration", [cancels, parent])
async def test_orchestrations_of_each_kind(env_url: str | None, orchestration: Any) -> None:
    async with running(env_url) as env:
        runs = [await env.client.start(orchestration, {}) for _ in range(2)]
        if orchestration is cancels:  # the clock does not jump by itself while activities run
            await env.advance(200)
        ends = [await run.wait() for run in runs]
        assert ends == [3 if orchestration is cancels else [[*"abc"]] * 3] * 2
        await check_idle(env, cancelled=orchestration is cancels)


@pytest.mark.parametrize("event", ["crash", "drain", "reset", "cancel"])
async def test_what_happens_to_work(env_url: str | None, event: str) -> None:
    async with running(env_url) as env:
        first = await env.client.start(calls, {"activity": "never_ends"})
        second = await env.client.start(calls, {"activity": "plain"})
        await env.advance(1)
        assert len(seen.running) == SLOTS
        if event == "crash":
            await env.crash(0)
            await env.crash(1)
            seen.running.clear()
        elif event == "drain":
            await env.drain(0)
        elif event == "reset":
            await first.reset(to_event=1)
        await env.advance(120)
        assert len(seen.running) == SLOTS
        await first.cancel()
        with pytest.raises(OrchestrationCancelled):
            await first.wait()
        assert await second.wait() == NINE
        await check_idle(env, cancelled=True)


def running(url: str | None) -> Env:
    """An environment with two workers."""
    global seen  # noqa: PLW0603
    seen = Seen()
    return Env(app, url=url, workers=2, options=RuntimeOptions(tags=("gpu",), drain_timeout=0.5))


async def check_idle(env: Env, *, cancelled: bool = False) -> None:
    """Check what was seen, and that no slot is in use. Code of work that was cancelled goes on until its worker looks:
    its slot is free before.
    """
    assert cancelled or seen.most <= SLOTS
    assert cancelled or seen.most_of_tenant <= 1
    await env.advance(5)
    assert seen.running == []
    rows = await limits_of(env.client._provider).list_limits(["pool", "tenant"])
    assert [(row.in_use, row.waiting) for row in rows] == [(0, 0), (0, 0)]
