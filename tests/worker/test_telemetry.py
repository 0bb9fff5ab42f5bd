"""What runs on a worker is seen in logs and traces with its session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.to_thread
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from affinity import ActivityContext, App, Client, OrchestrationContext, RuntimeOptions, Worker
from affinity.errors import OrchestrationFailed
from affinity.telemetry import SESSION_ATTRIBUTE, current_session_id, session_scope
from tests.support.span_exporter import session_of, traced

pytestmark = pytest.mark.anyio

OPTIONS = RuntimeOptions.make(poll_interval=0.2)

app = App("telemetry")
logger = logging.getLogger("tests.telemetry")
tracer = trace.get_tracer("tests")


def say(text: str) -> None:
    """A record and a span, as a library would make them that knows nothing of sessions."""
    logger.info(text)
    with tracer.start_as_current_span(text):
        pass


meetings: dict[str, asyncio.Event] = {}


@app.activity
async def meet(context: ActivityContext, me_and_other: tuple[str, str]) -> str | None:
    """Speaks, waits until the other activity has spoken, speaks again: here, in a child task, in a thread."""
    me, other = me_and_other
    say(f"{me} before")
    meetings[me].set()
    await meetings[other].wait()
    say(f"{me} after")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, say, f"{me} below")
    return current_session_id()


@app.activity
def speak(context: ActivityContext, text: str) -> str | None:
    say(text)
    return current_session_id()


@app.activity
async def fail(context: ActivityContext, text: str) -> None:
    say(text)
    raise ValueError(text)


@app.orchestration
async def both(context: OrchestrationContext) -> tuple[str | None, str | None]:
    """Two sessions at the same time."""
    one = context.schedule_activity(meet, ("one", "two")).on_session("session-1")
    two = context.schedule_activity(meet, ("two", "one")).on_session("session-2")
    return await context.gather(one, two)


@app.orchestration
async def once(context: OrchestrationContext, work: tuple[str, str | None]) -> Any:
    activity, session_id = work
    future = context.schedule_activity(activity, activity)
    return await (future if session_id is None else future.on_session(session_id))


@pytest.fixture(autouse=True)
def spans(caplog: pytest.LogCaptureFixture) -> Iterator[InMemorySpanExporter]:
    caplog.set_level(logging.INFO)
    with traced() as found:
        yield found


def said(spans: InMemorySpanExporter) -> list[tuple[str, object]]:
    """The names of our spans, with their sessions."""
    scoped = [(span, span.instrumentation_scope) for span in spans.get_finished_spans()]
    return [(span.name, session_of(span)) for span, scope in scoped if scope is not None and scope.name == "tests"]


def seen(caplog: pytest.LogCaptureFixture, spans: InMemorySpanExporter) -> tuple[dict[str, Any], dict[str, Any]]:
    """Text to session: of our records, and of our spans."""
    records = {one.getMessage(): getattr(one, SESSION_ATTRIBUTE) for one in caplog.records if one.name == logger.name}
    return records, dict(said(spans))


async def test_concurrent_sessions_have_their_own_log_fields(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, spans: InMemorySpanExporter
) -> None:
    meetings.update(one=asyncio.Event(), two=asyncio.Event())
    before = logging.getLogRecordFactory()
    async with Worker(app, sqlite_url, OPTIONS), Client(sqlite_url) as client:
        run = await client.start(both)
        assert await client.wait(run.instance_id, timeout=30) == ["session-1", "session-2"]
    texts = {f"{me} {when}": me for me in ("one", "two") for when in ("before", "after", "below")}
    expected = {text: "session-1" if me == "one" else "session-2" for text, me in texts.items()}
    assert seen(caplog, spans) == (expected, expected)
    assert logging.getLogRecordFactory() is before


async def test_code_in_a_thread_has_the_session_of_its_activity(sqlite_url: str, spans: InMemorySpanExporter) -> None:
    async with Worker(app, sqlite_url, OPTIONS), Client(sqlite_url) as client:
        for session_id in ("a", "b", "a"):
            run = await client.start(once, ("speak", session_id))
            assert await client.wait(run.instance_id, timeout=30) == session_id
    assert [session for _, session in said(spans)] == ["a", "b", "a"]


async def test_it_is_gone_after_an_error(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, spans: InMemorySpanExporter
) -> None:
    """The worker's own records of the failure belong to no session, nor does the next activity without one."""
    async with Worker(app, sqlite_url, OPTIONS), Client(sqlite_url) as client:
        run = await client.start(once, ("fail", "a"))
        with pytest.raises(OrchestrationFailed):
            await client.wait(run.instance_id, timeout=30)
        run = await client.start(once, ("speak", None))
        assert await client.wait(run.instance_id, timeout=30) is None
    assert seen(caplog, spans) == ({"fail": "a", "speak": None},) * 2
    logged = [one for one in caplog.records if "ValueError" in one.getMessage()]
    assert [getattr(one, SESSION_ATTRIBUTE) for one in logged] == [None, None]  # activity, orchestration


async def test_a_session_around_the_worker_is_not_its_activities(sqlite_url: str) -> None:
    """A script that has a session open, and runs a worker meanwhile."""
    with session_scope("script"):
        async with Worker(app, sqlite_url, OPTIONS), Client(sqlite_url) as client:
            run = await client.start(once, ("speak", None))
            assert await client.wait(run.instance_id, timeout=30) is None
        assert current_session_id() == "script"


@app.orchestration
async def speaker(context: OrchestrationContext, depth: int) -> list[str | None]:
    """Speaks before each await, and lets activities and a sub-orchestration speak; what each of them sees, in order."""
    say(f"{context.instance_id} {depth} begins")
    alone = await context.schedule_activity(speak, f"{depth} alone")
    on_other = await context.schedule_activity(speak, f"{depth} on another").on_session("other")
    below = await context.schedule_sub_orchestration(speaker, depth - 1) if depth else []
    say(f"{context.instance_id} {depth} ends")
    return [context.session_id, current_session_id(), alone, on_other, *below]


@app.orchestration
async def twice(context: OrchestrationContext, rounds: int) -> str | None:
    """Another execution, another worker's memory: the session stays."""
    if rounds:
        context.continue_as_new(rounds - 1)
    return context.session_id


async def test_the_session_of_a_start_is_that_of_its_whole_tree_of_calls(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, spans: InMemorySpanExporter
) -> None:
    """Orchestrations, theirs, and activities that are on no session of their own; and of nothing else."""
    async with Worker(app, sqlite_url, OPTIONS), Client(sqlite_url) as client:
        run = await client.start(speaker, 1, instance_id="with", for_session="a")
        without = await client.start(speaker, 0, instance_id="without")
        assert await client.wait(run.instance_id, timeout=30) == ["a", "a", "a", "other", "a", "a", "a", "other"]
        assert await client.wait(without.instance_id, timeout=30) == [None, None, None, "other"]
        continued = await client.start(twice, 2, for_session="b")
        assert await client.wait(continued.instance_id, timeout=30) == "b"
        listed = {each.instance_id: each.session_id async for each in client.list_instances(session_id="a")}
        assert len(listed) == 2
        assert set(listed.values()) == {"a"}
        assert (await client.status("without")).session_id is None
    records, carried = seen(caplog, spans)
    assert records == carried
    assert {records[text] for text in records if text.startswith(("with ", "with/", "1 alone"))} == {"a"}
    assert {records[text] for text in records if text.startswith("without")} == {None}
    assert {records[text] for text in records if "another" in text} == {"other"}
    assert current_session_id() is None


async def test_the_session_of_a_start_outlives_a_reset(kept_url: str) -> None:
    """For the activity that is queued again, and for the orchestration that goes on."""
    async with Worker(app, kept_url, OPTIONS), Client(kept_url) as client:
        run = await client.start(once, ("speak", None), for_session="a")
        assert await client.wait(run.instance_id, timeout=30) == "a"
        assert await client.reset(run.instance_id, to_event=2) == 2
        assert await client.wait(run.instance_id, timeout=30) == "a"
        assert (await client.status(run.instance_id)).session_id == "a"
