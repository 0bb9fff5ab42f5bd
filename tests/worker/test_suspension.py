"""An instance fails only by its own code's decision; everything else suspends it, with nothing removed."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest
from pydantic import BaseModel

from affinity import App, Client, Instance, OrchestrationContext, RuntimeOptions, Worker
from affinity.errors import InstanceNotSuspended, NotSerializable, UnknownInstance
from affinity.orchestration import engine
from affinity.provider.postgres.driver.target import Target
from tests.support.waiting import started, until

pytestmark = pytest.mark.anyio

V1 = RuntimeOptions.make(poll_interval=0.2, unregistered_timeout=0.4, code_version="v1")
V2 = RuntimeOptions.make(poll_interval=0.2, unregistered_timeout=0.4, code_version="v2")


def make_app(flow: Callable[[OrchestrationContext, int], Any], version: str = "1.0.0") -> App:
    made = App("suspended")

    async def run(ctx: OrchestrationContext, n: int) -> int:
        result: int = await flow(ctx, n)
        return result

    made.orchestration(name="flow", version=version)(run)
    return made


async def asks_for_go(ctx: OrchestrationContext, n: int) -> int:
    """Waits for ``go``; a second event is the result."""
    await ctx.schedule_wait("go")
    return await ctx.schedule_wait("value", int) + n


async def asks_for_more(ctx: OrchestrationContext, n: int) -> int:
    """Another code, which does not fit the history of `asks_for_go`."""
    await ctx.schedule_timer(n)
    return n


async def moves_on(ctx: OrchestrationContext, n: int) -> int:
    """Goes on with a version that is there or not."""
    ctx.continue_as_new(n + 1, version="2.0.0")


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    async with Client(kept_url) as client:
        yield client


async def suspended(client: Client, instance_id: str) -> Instance:
    """The instance once it is suspended."""

    async def look() -> bool:
        return (await client.status(instance_id)).status == "suspended"

    await until(look)
    return await client.status(instance_id)


def execute(url: str, statement: str, *values: object) -> None:
    """Change a row behind everybody's back."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(Path(url.removeprefix("sqlite:///")))) as file, file:
            file.execute(statement.replace("%s", "?"), values)
    else:
        with psycopg.connect(Target.parse(url).connect("test", {})) as connection:
            connection.execute(statement, values)


async def test_code_that_does_not_fit_the_history_suspends_and_code_that_does_goes_on(
    kept_url: str, client: Client
) -> None:
    """Without an operator; what came meanwhile is there."""
    async with Worker(make_app(asks_for_go), kept_url, V1):
        await client.start("flow", 1, instance_id="i")
        await started(client, "i")
    async with Worker(make_app(asks_for_more), kept_url, V2) as worker:
        await client.raise_event("i", "go")
        instance = await suspended(client, "i")
        assert instance.suspension is not None
        assert instance.suspension.error_type == "Nondeterminism"
        assert "EventAwaited('go')" in instance.suspension.message
        assert (instance.suspension.worker_id, instance.suspension.code) == (worker.identity.worker_id, "v2")
        assert (instance.error, instance.finished) == (None, False)
        await client.raise_event("i", "value", 41)
    async with Worker(make_app(asks_for_go), kept_url, V1):
        assert await client.wait("i", 30) == 42


async def test_code_that_tried_in_vain_does_not_try_again_by_itself(kept_url: str, client: Client) -> None:
    """An operator may say so, and it is suspended again; ``resume`` refuses an instance that is not suspended."""
    async with Worker(make_app(asks_for_go), kept_url, V1):
        await client.start("flow", 1, instance_id="i")
        await started(client, "i")
        with pytest.raises(InstanceNotSuspended):
            await client.resume("i")
        with pytest.raises(UnknownInstance):
            await client.resume("missing")
    async with Worker(make_app(asks_for_more), kept_url, V2):
        await client.raise_event("i", "go")
        first = (await suspended(client, "i")).suspension
    async with Worker(make_app(asks_for_more), kept_url, V2) as worker:
        await started_to_serve(client)
        assert (await client.status("i")).suspension == first
        await client.resume("i")

        async def look() -> bool:
            return (await client.status("i")).suspension not in {None, first}

        await until(look)
        assert (await suspended(client, "i")).suspension != first
        assert worker.runtime.lease.error is None


async def started_to_serve(client: Client) -> None:
    """A worker has looked into the queues, and for suspended instances, at least once."""
    other = await client.start("flow", 0)
    await started(client, other.instance_id)


@pytest.mark.parametrize("table", ["history", "orchestrator_queue"])
async def test_what_cannot_be_decoded_suspends_its_instance(kept_url: str, client: Client, table: str) -> None:
    """And none but that; when it can be read, it goes on."""
    options = RuntimeOptions.make(poll_interval=0.2, code_version="v1")
    async with Worker(make_app(asks_for_go), kept_url, options):
        await client.start("flow", 1, instance_id="i")
        await started(client, "i")
    await client.raise_event("i", "go")
    column = "event" if table == "history" else "payload"
    where = f"instance_id = 'i' AND {column} LIKE '%%event_awaited%%'" if table == "history" else "instance_id = 'i'"
    swap = f"UPDATE {table} SET {column} = replace({column}, %s, %s) WHERE {where}"
    known = "event_awaited" if table == "history" else "event_raised"
    execute(kept_url, swap.replace("%%", "%") if kept_url.startswith("sqlite") else swap, known, "from_the_future")
    async with Worker(make_app(asks_for_go), kept_url, options) as worker:
        reason = (await suspended(client, "i")).suspension
        assert reason is not None
        assert "from_the_future" in reason.message
        await started_to_serve(client)
        assert worker.runtime.lease.error is None
        execute(kept_url, f"UPDATE {table} SET {column} = replace({column}, %s, %s)", "from_the_future", known)
        await client.resume("i")
        await client.raise_event("i", "value", 41)
        assert await client.wait("i", 30) == 42


async def test_an_instance_that_no_claim_completes_waits_for_an_operator(kept_url: str, client: Client) -> None:
    """Claims exhausted: another code version does not take it by itself, it might be killed too."""
    await client.start("flow", 41, instance_id="i")
    execute(kept_url, "UPDATE instances SET claims = %s", 100)
    async with Worker(make_app(asks_for_go), kept_url, V1):
        reason = (await suspended(client, "i")).suspension
        assert reason is not None
        assert reason.error_type == "OrchestrationPoisoned"
    async with Worker(make_app(asks_for_go), kept_url, V2):
        await started_to_serve(client)
        assert (await client.status("i")).status == "suspended"
        await client.resume("i")
        await started(client, "i")


async def test_too_many_events_suspend_an_instance(
    kept_url: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit of ours is no decision of the code; what came is in the queue."""
    monkeypatch.setattr(engine, "MAX_BUFFERED_EVENTS", 2)
    async with Worker(make_app(asks_for_go), kept_url, V1):
        await client.start("flow", 41, instance_id="i")
        await started(client, "i")
        for n in range(3):
            await client.raise_event("i", "value", n)
        reason = (await suspended(client, "i")).suspension
        assert reason is not None
        assert reason.error_type == "ExecutionLimitReached"
        monkeypatch.undo()
        await client.resume("i")
        await client.raise_event("i", "go")
        assert await client.wait("i", 30) == 41


async def test_an_unregistered_version_suspends_until_a_worker_registers_it(kept_url: str, client: Client) -> None:
    """``continue_as_new(version=)`` to a version that is missing, once a worker has seen it for
    ``unregistered_timeout``; a worker that registers it goes on without a notification.
    """
    async with Worker(make_app(moves_on), kept_url, V1):
        await client.start("flow", 1, instance_id="i")
        instance = await suspended(client, "i")
        assert (instance.execution_id, instance.version) == (2, "2.0.0")
        assert instance.suspension is not None
        assert instance.suspension.error_type == "UnknownOrchestration"
        assert "'flow@2.0.0'" in instance.suspension.message
    async with Worker(make_app(asks_for_go, "2.0.0"), kept_url, V2):
        await client.raise_event("i", "go")
        await client.raise_event("i", "value", 40)
        assert await client.wait("i", 30) == 42


async def test_an_unregistered_orchestration_is_suspended(kept_url: str, client: Client) -> None:
    """It has not run, and does not fail; the worker that registers it runs it."""
    async with Worker(App("lacking"), kept_url, V1) as worker:
        await client.start("flow", 41, instance_id="i")
        assert (await suspended(client, "i")).version is None
        assert worker.runtime.lease.error is None
    async with Worker(make_app(asks_for_go), kept_url, V2):
        await client.raise_event("i", "go")
        await client.raise_event("i", "value", 1)
        assert await client.wait("i", 30) == 42


async def test_waiting_goes_on_over_a_suspension(kept_url: str, client: Client) -> None:
    """A suspended instance has not ended."""
    done: list[object] = []

    async def wait() -> None:
        done.append(await client.wait("i", 60))

    async with anyio.create_task_group() as tasks:
        async with Worker(App("lacking"), kept_url, V1):
            await client.start("flow", 41, instance_id="i")
            tasks.start_soon(wait)
            await suspended(client, "i")
        async with Worker(make_app(asks_for_go), kept_url, V2):
            await client.raise_event("i", "go")
            await client.raise_event("i", "value", 1)
            with anyio.fail_after(30):
                while not done:
                    await anyio.sleep(0.01)
    assert done == [42]


class TextLine(BaseModel):
    text: str


async def chats(ctx: OrchestrationContext, n: int) -> list[str]:
    """Waits for ``n`` messages."""
    return [(await ctx.schedule_wait("message", TextLine)).text for _ in range(n)]


async def test_an_event_that_does_not_fit_its_wait_does_no_harm(kept_url: str, client: Client) -> None:
    """It is refused to that wait, and is in the history; the chat goes on, on this worker and after a replay."""
    one = App("chats")
    one.orchestration(name="chats")(chats)
    async with Worker(one, kept_url, V1):
        await client.start("chats", 3, instance_id="chat")
        await client.raise_event("chat", "message", {"text": "a"})
        with pytest.raises(NotSerializable, match="No live worker takes it"):
            await client.raise_event("chat", "message", {"x": 1})
        await client.raise_event("chat", "message", {"x": 1}, force=True)
        await client.raise_event("chat", "message", {"text": "b"})

        async def look() -> bool:
            return "event_refused" in [event.type for event in await client.history("chat")]

        await until(look)
        assert (await client.status("chat")).status == "running"
    async with Worker(one, kept_url, V1):
        await client.raise_event("chat", "message", {"text": "c"})
        assert await client.wait("chat", 30) == ["a", "b", "c"]


async def test_a_message_marked_as_of_an_instance_that_goes_on_wakes_no_suspended_one(
    kept_url: str, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """A sender that has not seen the suspension marks it so; it is kept for later."""
    async with Worker(make_app(asks_for_go), kept_url, V1):
        await client.start("flow", 1, instance_id="i")
        await started(client, "i")
    async with Worker(make_app(asks_for_more), kept_url, V2) as worker:
        await client.raise_event("i", "go")
        reason = (await suspended(client, "i")).suspension
        await client.raise_event("i", "value", 41)
        execute(kept_url, "UPDATE orchestrator_queue SET route = %s", "new")
        await started_to_serve(client)
        assert (await client.status("i")).suspension == reason
        assert worker.runtime.lease.error is None
    assert caplog.text.count("instance i is suspended") == 1
    async with Worker(make_app(asks_for_go), kept_url, V1):
        assert await client.wait("i", 30) == 42
