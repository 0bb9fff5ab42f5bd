"""A failure of code is one line with a traceback, and a stack that stays with the failure."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest

from affinity import ActivityContext, App, Client, OrchestrationContext, RetryPolicy, RuntimeOptions, Worker
from affinity.errors import ActivityFailed, ActivityTimeout, OrchestrationFailed

pytestmark = pytest.mark.anyio

OPTIONS = RuntimeOptions.make(poll_interval=0.2)

app = App("failures")


def charge(amount: int) -> None:
    raise ValueError(f"cannot charge {amount}")


@app.activity
async def pay(ctx: ActivityContext, amount: int) -> None:
    charge(amount)


@app.activity
def pay_in_a_thread(ctx: ActivityContext, amount: int) -> None:
    charge(amount)


@app.activity
async def dawdle(ctx: ActivityContext) -> None:
    await anyio.sleep(60)


@app.orchestration
async def order(ctx: OrchestrationContext, activity: str) -> None:
    retry = RetryPolicy(max_attempts=2, initial_interval=0.01)
    await ctx.schedule_activity(activity, 7, retry=retry).on_session("s")


@app.orchestration
async def hurried(ctx: OrchestrationContext, activity: str) -> str:
    try:
        await ctx.schedule_activity(activity, timeout=0.2)
    except ActivityTimeout as error:
        return error.stack
    return ""


@app.orchestration
async def survivor(ctx: OrchestrationContext) -> str:
    """Goes on after a failure, and fails in the end; with an event between the two."""
    try:
        await ctx.schedule_activity(pay, 7)
    except ActivityFailed:
        await ctx.schedule_wait("go")
    raise LookupError("in the end")


@app.orchestration
async def parent(ctx: OrchestrationContext) -> None:
    await ctx.schedule_sub_orchestration(order, "pay", instance_id="child")


misused: list[int] = []


@app.activity
async def misuse(ctx: ActivityContext, number: int) -> None:
    misused.append(ctx.attempt)
    await ctx.schedule_activity(dawdle)  # type: ignore[attr-defined]


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The failures that the worker has logged."""
    return [one for one in caplog.records if one.name == "affinity.worker" and " failed" in one.getMessage()]


def shown(record: logging.LogRecord) -> str:
    """The record's traceback, as a handler prints it."""
    return logging.Formatter().format(record)


@pytest.mark.parametrize("activity", ["pay", "pay_in_a_thread"])
async def test_each_failure_is_a_line_and_the_last_one_has_a_traceback(
    sqlite_url: str, activity: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Worker(app, sqlite_url, OPTIONS), Client(sqlite_url) as client:
        run = await client.start(order, activity, instance_id="order-7")
        with pytest.raises(OrchestrationFailed):
            await run.wait(30)
    retried, failed, ended = lines(caplog)
    assert [one.levelname for one in (retried, failed, ended)] == ["WARNING", "ERROR", "ERROR"]
    where = "execution 1, event 2, session s, attempt"
    error = "ValueError: cannot charge 7"
    assert retried.getMessage() == f"activity {activity} of order-7 failed and is retried in 0.0 s ({where} 1): {error}"
    assert failed.getMessage() == f"activity {activity} of order-7 failed and is not retried ({where} 2): {error}"
    assert ended.getMessage() == (
        "orchestration order of order-7 failed (version 1.0.0, execution 1): "
        f"ActivityFailed: activity {activity!r}: {error}"
    )
    for record in (retried, failed):
        assert (" in charge\n" in shown(record)) is (record is failed)
        assert vars(record)["session_id"] == "s"
        assert vars(record)["activity_id"] == 2
    assert [vars(one)["attempt"] for one in (retried, failed)] == [1, 2]
    assert " in order\n" in shown(ended)
    assert {vars(one)["instance_id"] for one in (retried, failed, ended)} == {"order-7"}
    assert {vars(one)["execution_id"] for one in (retried, failed, ended)} == {1}


async def test_a_call_that_only_orchestrations_make_is_not_retried(sqlite_url: str) -> None:
    misused.clear()
    async with Worker(app, sqlite_url, OPTIONS), Client(sqlite_url) as client:
        run = await client.start(order, "misuse")
        with pytest.raises(OrchestrationFailed, match="only orchestrations schedule work") as failed:
            await run.wait(30)
    assert (failed.value.error_type, misused) == ("ActivityFailed", [1])


async def test_a_replay_logs_nothing_again(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The worker replays the instance before its last turn; and, opened again, another worker replays it."""
    async with Client(sqlite_url) as client:
        async with Worker(app, sqlite_url, OPTIONS) as worker:
            run = await client.start(survivor, instance_id="i", for_session="of-the-instance")
            with anyio.fail_after(30):
                while "activity_failed" not in [event.type for event in await client.history("i")]:
                    await anyio.sleep(0.01)
            while len(worker.runtime.instances):
                worker.runtime.instances.drop_idle()
                await anyio.sleep(0.01)
            await run.raise_event("go")
            with pytest.raises(OrchestrationFailed):
                await run.wait(30)
            events = (await run.status()).event_count
            assert worker.runtime.instances.replays == 1
        said = [one.getMessage() for one in lines(caplog)]
        assert said == [
            "activity pay of i failed and is not retried (execution 1, event 2, attempt 1): "
            "ValueError: cannot charge 7",
            "orchestration survivor of i failed (version 1.0.0, execution 1, session of-the-instance): "
            "LookupError: in the end",
        ]
        await run.reset(to_event=events - 2)
        async with Worker(app, sqlite_url, OPTIONS):  # the event comes again, by the reset
            with pytest.raises(OrchestrationFailed):
                await run.wait(30)
    assert [one.getMessage().partition(" (")[0] for one in lines(caplog)][2:] == ["orchestration survivor of i failed"]


@pytest.mark.parametrize("activity", ["pay", "pay_in_a_thread"])
async def test_the_stack_stays_with_the_failure(sqlite_url: str, activity: str) -> None:
    """In the history, with the instance, and on the error that a client gets; it begins in the application's code."""
    async with Worker(app, sqlite_url, OPTIONS), Client(sqlite_url) as client:
        run = await client.start(order, activity)
        with pytest.raises(OrchestrationFailed) as caught:
            await run.wait(30)
        status = await run.status()
        events = {event.type: event.fields for event in await client.history(run.instance_id)}
    own: str = events["activity_failed"]["stack"]
    assert own.splitlines()[1].endswith(f"in {activity}")
    assert own.endswith("ValueError: cannot charge 7\n")
    assert caught.value.stack == status.error_stack == events["orchestration_failed"]["stack"]
    assert caught.value.stack.startswith(own)
    assert " in order\n" in caught.value.stack


async def test_the_stack_of_a_child_reaches_the_client_of_its_parent(sqlite_url: str) -> None:
    async with Worker(app, sqlite_url, OPTIONS), Client(sqlite_url) as client:
        run = await client.start(parent)
        with pytest.raises(OrchestrationFailed) as caught:
            await run.wait(30)
    order_of = [caught.value.stack.index(f" in {name}\n") for name in ("charge", "order", "parent")]
    assert order_of == sorted(order_of)


async def test_a_timeout_shows_where_the_time_ran_out(sqlite_url: str) -> None:
    async with Worker(app, sqlite_url, OPTIONS), Client(sqlite_url) as client:
        run = await client.start(hurried, "dawdle")
        stack: Any = await run.wait(30)
    assert " in dawdle\n" in stack
    assert stack.endswith("ran longer than its timeout of 0.2 s\n")


async def test_an_instance_that_a_defect_suspends_is_a_line_with_a_traceback(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of affinity's own code; the errors that suspend an instance by a rule have none."""

    def build_nothing(*arguments: object, **options: object) -> None:
        raise TypeError("a defect")

    monkeypatch.setattr("affinity.worker.instances.build_turn", build_nothing)
    async with Worker(app, sqlite_url, OPTIONS), Client(sqlite_url) as client:
        run = await client.start(order, "pay", instance_id="i")
        with anyio.fail_after(30):
            while not (said := [one for one in caplog.records if "suspended" in one.getMessage()]):
                await anyio.sleep(0.01)
        assert (await run.status()).status == "suspended"
    (line,) = said
    assert (line.levelname, line.getMessage()) == ("ERROR", "instance i is suspended: TypeError: a defect")
    assert " in build_nothing\n" in shown(line)


async def test_what_no_code_has_raised_has_a_line_and_no_stack(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = RuntimeOptions.make(poll_interval=0.2, unregistered_timeout=0.3)
    async with Worker(app, sqlite_url, options), Client(sqlite_url) as client:
        run = await client.start(order, "misspelt", instance_id="i")
        with pytest.raises(OrchestrationFailed) as caught:
            await run.wait(30)
    unknown, ended = lines(caplog)
    assert unknown.levelname == "ERROR"
    assert unknown.exc_info is None
    assert "UnknownActivity: no worker registers the activity 'misspelt'" in unknown.getMessage()
    assert ended.exc_info is not None
    assert " in order\n" in caught.value.stack
