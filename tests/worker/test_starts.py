"""When an instance begins: delays, times and priorities of starts, and what is sent to one that waits."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import anyio
import pytest

from affinity import App, Client, Event, OrchestrationContext, RuntimeOptions, Start, Worker
from affinity.errors import InstanceRunning, InvalidInput, InvalidOptions, OrchestrationCancelled
from affinity.limits import MAX_TIMER_SECONDS
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

app = App("starts")
Question = Event("question", str, reply=str)
began: list[str] = []


@app.orchestration
async def job(ctx: OrchestrationContext, name: str) -> str:
    began.append(name)
    try:
        if name.startswith("wait"):
            await ctx.schedule_wait("go on")
    finally:
        began.append(f"{name} cleanup")
    return name


@app.orchestration
async def talker(ctx: OrchestrationContext) -> str:
    question = await ctx.schedule_wait(Question)
    question.reply(f"{ctx.instance_id}: {question.data}")
    return str(await ctx.schedule_wait("thanks"))


def worker(url: str) -> Worker:
    began.clear()
    return Worker(app, url, RuntimeOptions.make(poll_interval=0.2))


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    async with worker(kept_url), Client(kept_url) as client:
        yield client


async def test_a_delayed_start_begins_at_its_time(client: Client) -> None:
    now = datetime.now(UTC)
    runs = [
        await client.start(job, "delayed", delay=0.8),
        await client.start(job, "as a timedelta", delay=timedelta(seconds=0.8)),
        await client.start(job, "at", at=now + timedelta(seconds=0.8)),
        await client.start(job, "at, elsewhere", at=(now + timedelta(seconds=0.8)).astimezone()),
    ]
    for run in runs:
        info = await run.status()
        assert (run.outcome, info.status) == ("created", "pending")
        assert info.starts_at is not None
        assert now < info.starts_at < now + timedelta(seconds=30)
        why = await run.explain()
        assert why is None or (why.code, why.due_at) == ("start_delayed", info.starts_at)
    for run in runs:
        await run.wait(30)
        events = await client.history(run.instance_id)
        assert (await run.status()).starts_at is None
        assert events[0].recorded_at is not None
        assert events[0].recorded_at - now > timedelta(seconds=0.7)


@pytest.mark.parametrize("past", [timedelta(0), timedelta(days=9_000)])
async def test_a_time_that_is_over_counts_as_now(client: Client, past: timedelta) -> None:
    run = await client.start(job, "late", at=datetime.now(UTC) - past)
    assert await run.wait(30) == "late"


async def test_what_is_sent_to_a_delayed_start_waits_with_it(client: Client) -> None:
    run = await client.start(talker, instance_id="talk", delay=1.0)
    await run.raise_event("thanks", "yes")
    assert (await run.status()).status == "pending"
    assert await run.ask(Question("why?"), timeout=30) == "talk: why?"
    assert await run.wait(30) == "yes"
    types = [event.type for event in await client.history("talk")]
    assert types[0] == "orchestration_started"
    asked = Start(talker, delay=0.5)
    assert await client.ask("other", Question("who?"), start=asked, timeout=30) == "other: who?"


async def test_a_cancel_ends_a_delayed_start_before_any_of_its_code(client: Client) -> None:
    run = await client.start(job, "wait", instance_id="i", delay=3600)
    await run.raise_event("go on")
    await run.cancel("not needed")
    with pytest.raises(OrchestrationCancelled, match="not needed"):
        await run.wait(30)
    assert began == []
    again = await client.start(job, "again", instance_id="i", if_ended="restart", delay=0.3)
    assert (again.outcome, (await again.status()).status) == ("restarted", "pending")
    assert await again.wait(30) == "again"


async def test_a_cancel_without_a_worker_is_done_by_the_next_one(kept_url: str) -> None:
    async with Client(kept_url) as client:
        run = await client.start(job, "never", delay=3600)
        await run.cancel()
        async with worker(kept_url):
            with pytest.raises(OrchestrationCancelled):
                await run.wait(30)
    assert began == []


async def test_starts_of_a_greater_priority_begin_first(kept_url: str) -> None:
    async with Client(kept_url) as client:
        runs = [*await client.start_many([Start(job, f"low {n}") for n in range(8)])]
        runs += await client.start_many([Start(job, f"high {n}", priority=7) for n in range(8)])
        await client.start(job, "later", priority=9, delay=3600)
        async with worker(kept_url):
            for run in runs:
                await run.wait(30)
    names = [name for name in began if not name.endswith("cleanup")]
    assert {name.split()[0] for name in names[:8]} == {"high"}


# --- debounce, and starts of an id that runs --------------------------------------------------------------------------


async def names_of(client: Client, instance_id: str) -> list[str]:
    """The inputs of all runs of an id, oldest first."""
    summaries = await client.executions(instance_id)
    runs = [await client.history(instance_id, execution_id=one.execution_id) for one in reversed(summaries)]
    return [event.fields["input"] for run in runs for event in run if event.type == "orchestration_started"]


async def test_starts_that_follow_each_other_quickly_are_one_run(client: Client) -> None:
    runs = [await client.start(job, f"job {n}", instance_id="i", debounce=1.0) for n in range(5)]
    assert [run.outcome for run in runs] == ["created", *["replaced"] * 4]
    await runs[0].raise_event("unread")
    assert [await run.wait(30) for run in runs] == ["job 4"] * 5
    assert await names_of(client, "i") == ["job 4"]
    later = await client.start(job, "later", instance_id="i", debounce=0.2)
    assert (later.outcome, await later.wait(30)) == ("restarted", "later")
    assert await names_of(client, "i") == ["job 4", "later"]


async def test_a_debounce_ends_with_its_longest_wait(client: Client) -> None:
    began_at = time.monotonic()
    first = await client.start(job, "job 0", instance_id="i", debounce=1.0, max_wait=2.5)
    for n in range(1, 100):
        await client.start(
            job, f"job {n}", instance_id="i", debounce=1.0, max_wait=2.5, if_running="join", if_ended="return"
        )
        if (await first.status()).finished:
            break
        await anyio.sleep(0.1)
    assert 2.0 < time.monotonic() - began_at < 20.0
    assert len(await names_of(client, "i")) == 1


async def test_concurrent_debounced_starts_are_one_run(client: Client) -> None:
    async with anyio.create_task_group() as tasks:
        for n in range(20):
            tasks.start_soon(partial(client.start, job, f"job {n}", instance_id="i", debounce=1.0))
    assert await client.wait("i", 30) is not None
    assert len(await names_of(client, "i")) == 1


async def test_a_start_of_a_debounce_that_comes_too_late_is_the_next_run(client: Client) -> None:
    run = await client.start(job, "wait", instance_id="i", debounce=0.2)
    await until_running(client, "i")
    late = await client.start(job, "late", instance_id="i", debounce=0.2)
    assert late.outcome == "queued"
    await run.raise_event("go on")
    assert await late.wait(30) == "late"
    assert await names_of(client, "i") == ["wait", "late"]


async def until_running(client: Client, instance_id: str) -> None:
    async def is_running() -> bool:
        return (await client.status(instance_id)).status == "running"

    await until(is_running)


async def test_a_start_that_waits_for_the_end_of_a_run_says_so(client: Client) -> None:
    """Its handle says it, and the run mentions it."""
    first = await client.start(job, "wait", instance_id="i")

    async def waits() -> bool:
        found = await client.explain("i")
        return found is not None and found.code == "event"

    await until(waits)
    second = await client.start(job, "next", instance_id="i", if_running="queue_one")
    why = await second.explain()
    assert why is not None
    assert (why.code, why.name) == ("start_queued", "go on")
    assert why.sentence == "'i' waits for the event 'go on'; the next start of 'i' waits for the end of this run"
    of_first = await client.explain("i")
    assert of_first is not None
    assert of_first.code == "event"
    assert of_first.sentence == "'i' waits for the event 'go on'; a start waits for the end of this run"
    await first.raise_event("go on")
    assert await second.wait(30) == "next"
    assert await second.explain() is None


async def test_one_more_run_follows_and_has_the_last_input(client: Client) -> None:
    run = await client.start(job, "wait", instance_id="i", if_running="queue_one")
    assert run.outcome == "created"
    await until_running(client, "i")
    assert (await client.start(job, "x", instance_id="i")).outcome == "running"
    assert (await client.start(job, "x", instance_id="i", if_running="join")).outcome == "running"
    queued = [await client.start(job, f"job {n}", instance_id="i", if_running="queue_one") for n in range(3)]
    assert [one.outcome for one in queued] == ["queued"] * 3
    with pytest.raises(InstanceRunning, match="running"):
        await client.start(job, "x", instance_id="i", if_running="fail")
    await run.raise_event("go on")
    assert [await one.wait(30) for one in queued] == ["job 2"] * 3
    assert await names_of(client, "i") == ["wait", "job 2"]
    again = await client.start(job, "again", instance_id="i", if_running="queue_one")
    assert (again.outcome, await again.wait(30)) == ("restarted", "again")


async def test_a_start_cancels_the_run_before_it(client: Client) -> None:
    await client.start(job, "wait", instance_id="i")
    await until_running(client, "i")
    following = await client.start(job, "next", instance_id="i", if_running="cancel")
    assert (following.outcome, await following.wait(30)) == ("queued", "next")
    statuses = [one.status for one in await client.executions("i")]
    assert await names_of(client, "i") == ["wait", "next"]
    assert len(statuses) == 2
    await client.start(job, "waits", instance_id="delayed", delay=3600)
    instead = await client.start(job, "instead", instance_id="delayed", if_running="cancel")
    assert await instead.wait(30) == "instead"
    assert "waits" not in began


async def test_what_follows_survives_the_workers(kept_url: str) -> None:
    """It is in the database, with the end that it waits for or without."""
    async with Client(kept_url) as client:
        async with worker(kept_url):
            await client.start(job, "wait", instance_id="i")
            await until_running(client, "i")
        following = await client.start(job, "next", instance_id="i", if_running="cancel")
        async with worker(kept_url):
            assert await following.wait(30) == "next"
        assert await names_of(client, "i") == ["wait", "next"]


NOW: Final = datetime.now(UTC)

REFUSED: Final[dict[str, tuple[dict[str, Any], type[InvalidInput], str]]] = {
    "both": ({"delay": 5, "at": NOW}, InvalidOptions, "give one"),
    "without a zone": ({"at": NOW.replace(tzinfo=None)}, InvalidOptions, "time zone"),
    "no time": ({"at": 17}, InvalidOptions, "datetime"),
    "no number": ({"delay": "5"}, InvalidOptions, "delay"),
    "no finite number": ({"delay": float("nan")}, InvalidOptions, "delay"),
    "milliseconds": ({"delay": 2 * MAX_TIMER_SECONDS}, InvalidOptions, "milliseconds"),
    "far away": ({"at": NOW + timedelta(seconds=2 * MAX_TIMER_SECONDS)}, InvalidOptions, "over the limit"),
    "too great": ({"priority": 1001}, InvalidInput, "priority"),
    "negative": ({"priority": -1}, InvalidInput, "priority"),
    "a flag": ({"priority": True}, InvalidInput, "priority"),
    "no more than nothing": ({"debounce": 0}, InvalidOptions, "more than 0"),
    "a longer wait than the longest": ({"debounce": 5, "max_wait": 4}, InvalidOptions, "less than debounce"),
    "a longest wait of nothing": ({"max_wait": 4}, InvalidOptions, "give both"),
    "two times": ({"debounce": 5, "delay": 4}, InvalidOptions, "contradicts"),
    "no id to debounce": ({"debounce": 5, "instance_id": None}, InvalidOptions, "instance_id"),
    "no id that runs": ({"if_running": "queue_one", "instance_id": None}, InvalidOptions, "instance_id"),
    "no choice": ({"if_running": "perhaps"}, InvalidOptions, "if_running"),
    "no limit": ({"limits": ["model"]}, InvalidInput, "limit"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_bad_times_are_refused(sqlite_url: str, case: str) -> None:
    options, error, text = REFUSED[case]
    async with Client(sqlite_url) as client:
        with pytest.raises(error, match=text):
            await client.start(job, "x", **{"instance_id": "i", **options})
        assert [one async for one in client.list_instances()] == []
