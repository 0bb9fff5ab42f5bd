"""Rows that this version cannot read, and values that no row can hold: each hurts its own instance, and the worker goes
on serving all others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from affinity import ActivityContext, App, Client, OrchestrationContext, RuntimeOptions, Sessions, Worker
from affinity.client.views import Failure
from affinity.errors import InvalidOptions, OrchestrationFailed, PayloadTooLarge
from affinity.limits import MAX_PAYLOAD_DEPTH
from affinity.session import SessionMetadata, SessionState, StateWrite
from tests.support.statements import execute
from tests.support.waiting import started

pytestmark = pytest.mark.anyio

UNREADABLE = [
    '{"type":"progress_reported","value":1}',
    '{"type":"event_awaited"}',
    '{"type":"event_awaited","name":',
    '{"type":"timer_created","delay":1' + "0" * 400 + "}",
    "[1]",
    "",
]
"""In place of an event: of a newer version, without a field, cut off, out of range, of another type, empty."""

app = App("rows")


@app.activity
async def double(context: ActivityContext, n: int) -> int:
    return 2 * n


@app.orchestration
async def waits(context: OrchestrationContext, n: int) -> int:
    await context.schedule_wait("go")
    return await context.schedule_activity(double, n)


without_activities = App("rows without activities")
without_activities.orchestration(waits)


def worker_of(url: str, app: App = app, **options: Any) -> Worker:
    return Worker(app, url, RuntimeOptions.make(**{"poll_interval": 0.2, "drain_timeout": 1.0} | options))


async def given_up(client: Client, instance_id: str) -> Failure:
    """Why an instance does not go on: it is suspended, or it failed."""
    with anyio.fail_after(30):
        while True:
            instance = await client.status(instance_id)
            if instance.suspension is not None:
                return Failure(instance.suspension.error_type, instance.suspension.message)
            if instance.error is not None:
                return instance.error
            await anyio.sleep(0.02)


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    async with Client(kept_url) as client:
        yield client


@pytest.mark.parametrize("text", UNREADABLE)
async def test_an_unreadable_event_in_a_history(text: str, kept_url: str, client: Client) -> None:
    async with worker_of(kept_url):
        for name in ("bad", "good"):
            await client.start(waits, 1, instance_id=name)
            await started(client, name)
    execute(kept_url, "UPDATE history SET event = %s WHERE instance_id = 'bad' AND event_id = 2", text)
    async with worker_of(kept_url) as worker:
        for name in ("bad", "good"):
            await client.raise_event(name, "go")
        assert await client.wait("good", timeout=30) == 2
        reason = await given_up(client, "bad")
        assert reason.type == "OrchestrationUnreadable"
        assert (await client.status("bad")).status == "suspended"
        assert reason.message.startswith("event 2 cannot be read")
        assert worker.runtime.lease.error is None


async def test_claims_are_looked_at_before_anything_is_decoded(kept_url: str, client: Client) -> None:
    """An instance whose rows kill the process that reads them must not be read once more."""
    async with worker_of(kept_url):
        await client.start(waits, 1, instance_id="bad")
        await started(client, "bad")
    execute(kept_url, "UPDATE history SET event = '' WHERE instance_id = 'bad'")
    execute(kept_url, "UPDATE instances SET claims = 100 WHERE instance_id = 'bad'")
    await client.raise_event("bad", "go")
    async with worker_of(kept_url) as worker:
        assert (await given_up(client, "bad")).type == "OrchestrationPoisoned"
        assert worker.runtime.lease.error is None


@pytest.mark.parametrize("text", UNREADABLE)
async def test_an_unreadable_message(text: str, kept_url: str, client: Client) -> None:
    """To an instance that is live, and to one that is not."""
    async with worker_of(kept_url):
        await client.start(waits, 1, instance_id="cold")
        await started(client, "cold")
    await client.raise_event("cold", "go")
    execute(kept_url, "UPDATE orchestrator_queue SET payload = %s WHERE instance_id = 'cold'", text)
    async with worker_of(kept_url) as worker:
        await client.start(waits, 1, instance_id="live")
        await client.start(waits, 1, instance_id="good")
        await started(client, "live")
        execute(
            kept_url,
            "INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload) "
            "SELECT 'live', 'new', created_at, %s FROM instances WHERE instance_id = 'live'",
            text,
        )
        await client.raise_event("good", "go")
        assert await client.wait("good", timeout=30) == 2
        for name in ("cold", "live"):
            reason = await given_up(client, name)
            assert reason.type == "OrchestrationUnreadable"
            assert "cannot be read" in reason.message
        assert worker.runtime.lease.error is None


@pytest.mark.parametrize("text", ['{"retry":{"max_attempts":-1},"input":1}', "{}", "[]", '{"input":', ""])
async def test_an_unreadable_task_of_an_activity(text: str, kept_url: str, client: Client) -> None:
    """Its activity fails, and the orchestration decides."""
    async with worker_of(kept_url, without_activities):
        await client.start(waits, 1, instance_id="bad")
        await client.raise_event("bad", "go")
        await started(client, "bad")
        with anyio.fail_after(30):
            while (await client.status("bad")).event_count < 4:
                await anyio.sleep(0.02)
    execute(kept_url, "UPDATE worker_queue SET payload = %s WHERE instance_id = 'bad'", text)
    async with worker_of(kept_url) as worker:
        await client.start(waits, 1, instance_id="good")
        await client.raise_event("good", "go")
        assert await client.wait("good", timeout=30) == 2
        reason = await given_up(client, "bad")
        assert reason.type == "ActivityFailed"
        assert "its task cannot be read" in reason.message
        assert worker.runtime.lease.error is None


async def test_bytes_that_are_no_text(sqlite_url: str) -> None:
    """SQLite keeps them, and gives them back with the rows of others."""
    async with Client(sqlite_url) as client:
        async with worker_of(sqlite_url):
            for name in ("event", "message", "good"):
                await client.start(waits, 1, instance_id=name)
                await started(client, name)
        for name in ("event", "message", "good"):
            await client.raise_event(name, "go")
        broken = b'{"type":"event_awaited","name":"\xff\xed\xa0\x80"}'
        execute(sqlite_url, "UPDATE history SET event = CAST(%s AS TEXT) WHERE instance_id = 'event'", broken)
        execute(
            sqlite_url,
            "UPDATE orchestrator_queue SET payload = CAST(%s AS TEXT) WHERE instance_id = 'message'",
            broken,
        )
        async with worker_of(sqlite_url) as worker:
            assert await client.wait("good", timeout=30) == 2
            for name in ("event", "message"):
                reason = await given_up(client, name)
                assert reason.type == "OrchestrationUnreadable"
            assert worker.runtime.lease.error is None


async def test_a_suspension_that_is_damaged_keeps_no_other_from_being_tried(sqlite_url: str) -> None:
    """SQLite has the list of who has tried as text; nothing else of a suspension is read by statements."""
    names = ("bad", "good")
    async with Client(sqlite_url) as client:
        async with worker_of(sqlite_url, code_version="1"):
            for name in names:
                await client.start(waits, 1, instance_id=name)
                await started(client, name)
        ((event,),) = execute(sqlite_url, "SELECT event FROM history WHERE instance_id = 'good' AND event_id = 2")
        execute(sqlite_url, "UPDATE history SET event = '' WHERE event_id = 2")
        async with worker_of(sqlite_url, code_version="1"):
            for name in names:
                await client.raise_event(name, "go")
                await given_up(client, name)
        execute(sqlite_url, "UPDATE history SET event = %s WHERE instance_id = 'good' AND event_id = 2", event)
        execute(sqlite_url, "UPDATE suspensions SET tried = 'no JSON' WHERE instance_id = 'bad'")
        async with worker_of(sqlite_url, code_version="2") as worker:
            assert await client.wait("good", timeout=30) == 2
            with anyio.fail_after(30):
                while (
                    tried := execute(sqlite_url, "SELECT code, tried FROM suspensions WHERE instance_id = 'bad'")
                ) != [("2", '["2"]')]:
                    await anyio.sleep(0.05)
            assert tried
            assert worker.runtime.lease.error is None


# --- values that no row can hold --------------------------------------------------------------------------------------

MESSAGE_COUNTS = {"large": 2**31, "huge": 10**25, "a float": 1.5, "negative": -1, "a bool": True, "good": 1}

values = App("values")
described = Sessions(
    dict[str, str],
    kind="described",
    initial=lambda _: {},
    metadata=lambda state: SessionMetadata(message_count=MESSAGE_COUNTS[state["count"]]),  # type: ignore[arg-type]
)
values.include(described)


@values.activity
async def describe(context: ActivityContext, count: str) -> int:
    async with described.open(context) as state:
        state["count"] = count
    return 1


class Preparing:
    """A participant of another session layer, which prepares rubbish."""

    def __init__(self, what: str) -> None:
        self.what = what

    async def prepare(self) -> StateWrite | None:
        new: Any = {"schema_version": {"schema_version": "v2"}, "state": {"state": "text"}}.get(self.what, {})
        if self.what == "tuple":
            return (b"state", 1)  # type: ignore[return-value]
        epoch: Any = "7" if self.what == "epoch" else 2**70
        return StateWrite(new=SessionState(**{"session_id": "s", "state": b"1"} | new), base_version=0, epoch=epoch)

    def settled(self, applied: bool) -> None:
        pass


@values.activity
async def enlist(context: ActivityContext, what: str) -> int:
    context._enlist(Preparing(what))
    return 1


@values.activity
async def deep(context: ActivityContext, depth: int) -> object:
    value: object = "x"
    for _ in range(depth):
        value = [value]
    return value


@values.orchestration
async def run_activity(context: OrchestrationContext, call: tuple[str, Any]) -> Any:
    name, argument = call
    return await context.schedule_activity(name, argument).on_session("s")


async def test_values_that_no_row_can_hold_fail_the_activity_that_gave_them(kept_url: str, client: Client) -> None:
    bad: list[tuple[str, Any]] = [("describe", count) for count in MESSAGE_COUNTS if count != "good"]
    bad += [("enlist", what) for what in ("schema_version", "state", "tuple", "epoch", "version")]
    bad += [("deep", depth) for depth in (MAX_PAYLOAD_DEPTH + 1, 200, 220, 254, 255)]
    async with worker_of(kept_url, values) as worker:
        runs = [await client.start(run_activity, call) for call in bad]
        for call, run in zip(bad, runs, strict=True):
            with pytest.raises(OrchestrationFailed) as raised:
                await client.wait(run.instance_id, timeout=30)
            assert raised.value.error_type == "ActivityFailed", call
        for call in [("describe", "good"), ("deep", MAX_PAYLOAD_DEPTH)]:
            await client.wait((await client.start(run_activity, call)).instance_id, timeout=30)
        assert worker.runtime.lease.error is None


@pytest.mark.parametrize("version", ["v2", -1, 2**31, 1.5])
def test_a_schema_version_that_no_row_can_hold(version: Any) -> None:
    with pytest.raises(InvalidOptions, match="schema_version must be an integer"):
        Sessions(dict, schema_version=version)


async def test_an_event_that_is_nested_too_deep_is_refused_to_its_sender(sqlite_url: str) -> None:
    data: object = "x"
    for _ in range(MAX_PAYLOAD_DEPTH + 1):
        data = [data]
    async with Client(sqlite_url) as client:
        await client.start(waits, 1, instance_id="waits")
        with pytest.raises(PayloadTooLarge):
            await client.raise_event("waits", "go", data)
        with pytest.raises(PayloadTooLarge):
            await client.start("waits", data)
