"""Activities that ask to run again later: the attempt does not count."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from affinity import ActivityContext, App, Limit, OrchestrationContext, RetryAfter, RetryPolicy
from affinity.errors import AffinityError, InvalidLimit, InvalidOptions, OrchestrationFailed
from affinity.limits import MIN_RETRY_AFTER
from affinity.testing import Env

pytestmark = pytest.mark.anyio

KEYED = Limit("retried", keyed=True, concurrency=5)
PLAIN = Limit("plain")
app = App("retry", limits=[KEYED, PLAIN])
seen: list[int] = []


def ask(ctx: ActivityContext, times: int, error: BaseException) -> int:
    """Raise for so many attempts."""
    seen.append(ctx.attempt)
    if len(seen) <= times:
        raise error
    return len(seen)


@app.activity
async def asks(ctx: ActivityContext, times: int) -> int:
    try:
        return ask(ctx, times, RetryAfter(60))
    except Exception:  # it is no failure
        return -1


@app.activity
def asks_in_a_thread(ctx: ActivityContext, times: int) -> int:
    return ask(ctx, times, RetryAfter(timedelta(minutes=1)))


@app.activity
async def asks_in_a_group(ctx: ActivityContext, times: int) -> int:
    async def fail() -> None:
        raise ValueError("beside it")

    if len(seen) < times:
        tasks = [fail(), asyncio.to_thread(ask, ctx, times, RetryAfter(60)), asyncio.to_thread(min, 1, 2)]
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        raise BaseExceptionGroup("several", [end for end in ends if isinstance(end, BaseException)])
    return ask(ctx, 0, RetryAfter(60))


@app.activity
async def asks_at_a_limit_where_it_does_not_wait(ctx: ActivityContext, times: int) -> int:
    return ask(ctx, times, RetryAfter(60, PLAIN))


@app.orchestration
async def once(ctx: OrchestrationContext, name: str) -> int:
    return int(await ctx.schedule_activity(name, 3))


@app.orchestration
async def bounded(ctx: OrchestrationContext, name: str) -> int:
    return int(await ctx.schedule_activity(name, 100, retry=RetryPolicy(max_attempts=1, total_timeout=300)))


@pytest.fixture(autouse=True)
def _forget() -> None:
    seen.clear()


@pytest.mark.parametrize("name", sorted(app.activities))
async def test_the_attempt_does_not_count(env_url: str | None, name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "affinity.worker")
    async with Env(app, url=env_url) as env:
        run = await env.client.start(once, name)
        assert await run.wait() == 4
        assert seen == [1, 1, 1, 1]
        assert env.now() - env.started >= timedelta(minutes=3)
    lines = [record.message for record in caplog.records if "is given back" in record.message]
    assert len(lines) == 3
    assert lines[0].startswith(f"activity {name} of {run.instance_id} is given back: ")
    assert "RetryAfter: again in 60 s" in lines[0]


async def test_the_time_for_all_attempts_bounds_it(env_url: str | None) -> None:
    async with Env(app, url=env_url) as env:
        run = await env.client.start(bounded, "asks")
        with pytest.raises(OrchestrationFailed, match=r"ActivityTimeout.*total_timeout of 300 s"):
            await run.wait()
        assert set(seen) == {1}
        assert 4 <= len(seen) <= 5


wrong: Any = "soon"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: RetryAfter(wrong), InvalidOptions, "seconds of RetryAfter must be seconds or a timedelta, not 'soon'"),
        (lambda: RetryAfter(float("nan")), InvalidOptions, "must be seconds"),
        (lambda: RetryAfter(1e12), InvalidOptions, "is it milliseconds"),
        (lambda: RetryAfter(1, wrong), InvalidLimit, "a limit is a Limit"),
        (lambda: RetryAfter(1, Limit("lost")), InvalidLimit, "no app declares the limit 'lost'"),
    ],
)
def test_arguments_that_are_refused(make: Callable[[], object], error: type[AffinityError], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_what_it_says() -> None:
    assert str(RetryAfter(5)) == "again in 5 s"
    assert str(RetryAfter(-3)) == f"again in {MIN_RETRY_AFTER:g} s"
    assert str(RetryAfter(5, KEYED)) == "again in 5 s, with limit 'retried' closed"
    assert str(RetryAfter(5, KEYED.key("acme"))) == "again in 5 s, with limit 'retried' of 'acme' closed"
