"""Traces: spans of a wake and of its parts, in the journal, and in OpenTelemetry when it is in use."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import affinity
from affinity import RetryPolicy, telemetry
from affinity.conversation import (
    AgentMessage,
    ConversationIdle,
    JournalEntry,
    SpanCompleted,
    SpanStarted,
    UserMessage,
    shown_trace,
)
from affinity.conversation.journal import journal_writes
from affinity.errors import SessionWriteConflict
from affinity.provider.contract import WorkLock
from affinity.records import CommitPart
from affinity.session import StateWrite
from affinity.testing import Env
from affinity.worker.commits import Commits
from tests.conversation.application import Chat, kinds, make, stage
from tests.support.span_exporter import lines_of, provider, traced

pytestmark = pytest.mark.anyio


async def uses_tools(wake: affinity.Wake, chat: Chat) -> None:
    """Two tools, one within the other, and one that fails in the first attempt."""
    with wake.span("search"):
        wake.append(AgentMessage("searching"))
        with wake.span("fetch"):
            await anyio.sleep(0.01)
    with wake.span("write"):
        if wake.attempt == 1:
            raise ValueError("no pen")
    wake.append(AgentMessage("written", {"prompt_tokens": 3}))


async def test_a_wake_and_its_tools_have_spans_with_times_attempt_worker_and_error(url: str) -> None:
    async with stage(url, uses_tools, retry=RetryPolicy(initial_interval=0.01)) as on:
        talk = on.talk()
        reply = await talk.ask(UserMessage("one"), timeout=30)
        entries = [*await talk.trace(reply.wake_id)]
        first, second = split(entries)
        assert kinds(first) == [
            *["span.started"] * 3,
            *["span.completed"] * 2,
            "span.started",
            *["span.completed"] * 2,
            "conversation.status_changed",
        ]
        assert "agent.message" in kinds(second)
        spans = {each.event.name: each.event for each in first if isinstance(each.event, SpanCompleted)}
        assert {name: span.result for name, span in spans.items()} == {
            "fetch": "ok",
            "search": "ok",
            "write": "error",
            "chat.wake": "error",
        }
        assert spans["write"].error is not None
        assert (spans["write"].error.type, spans["write"].error.message) == ("ValueError", "no pen")
        assert "no pen" in spans["chat.wake"].error.stack if spans["chat.wake"].error else False
        assert spans["fetch"].seconds >= 0.01
        assert spans["fetch"].started_at is not None
        assert {span.attempt for span in spans.values()} == {1}
        assert {span.worker for span in spans.values()} == {"w0"}
        begun = {each.event.name: each.event for each in second if isinstance(each.event, SpanStarted)}
        assert begun["fetch"].parent == begun["search"].span
        assert begun["search"].parent == begun["chat.wake"].span
        assert {each.attempt for each in begun.values()} == {2}


def split(entries: list[JournalEntry]) -> tuple[list[JournalEntry], list[JournalEntry]]:
    """The entries of two attempts."""
    end = kinds(entries).index("conversation.status_changed") + 1
    return entries[:end], entries[end:]


async def test_a_trace_that_fails_is_closed_and_says_so(url: str) -> None:
    async def broken(wake: affinity.Wake, chat: Chat) -> None:
        wake.append(AgentMessage("half"))
        raise ValueError("broken")

    async with stage(url, broken, retry=RetryPolicy(max_attempts=1)) as on:
        talk = on.talk()
        with pytest.raises(affinity.errors.WakeFailed):
            await talk.ask(UserMessage("one"), timeout=30)
        history = await talk.history(after=1)
        assert kinds(history) == ["span.started", "span.completed", "conversation.idle"]
        assert isinstance(history[1].event, SpanCompleted)
        assert history[1].event.result == "error"
        assert isinstance(history[2].event, ConversationIdle)
        assert history[2].event.stop_reason == "failed"


async def test_a_wake_that_takes_long_runs_its_steps_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part that shows its trace is not committed beside the part of a step: the worker would refuse one of them."""
    monkeypatch.setattr(shown_trace, "SHOWN_AFTER", 0.01)
    running, most, is_shown = 0, 0, False
    attempts: list[int] = []
    commit = Commits.commit_part

    async def count(self: Commits, lock: WorkLock, state: StateWrite | None, parts: Sequence[CommitPart]) -> None:
        nonlocal running, most, is_shown
        running += 1
        most = max(most, running)
        await commit(self, lock, state, parts)
        running -= 1
        is_shown |= any(part.entries for part in journal_writes(parts))

    async def double(number: int) -> int:
        return 2 * number

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        attempts.append(wake.attempt)
        while not is_shown:
            await wake.step("double", double, 1)
        wake.append(AgentMessage("done"))

    monkeypatch.setattr(Commits, "commit_part", count)
    async with stage(url, handler) as on:
        assert (await on.talk().ask(UserMessage("one"), timeout=30)).text == "done"
    assert (attempts, most) == ([1], 1)


async def test_the_trace_of_a_wake_that_takes_long_is_there_while_it_runs(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it is not known whether a part was written: each span is there once, in order."""
    monkeypatch.setattr(shown_trace, "SHOWN_AFTER", 0.05)
    written_again, free = anyio.Event(), anyio.Event()

    async def slow(wake: affinity.Wake, chat: Chat) -> None:
        commit, commits = wake.context._commit_part, 0
        assert commit is not None

        async def lose_the_first_answer(*part: Any) -> None:
            nonlocal commits
            commits += 1
            await commit(*part)
            if commits == 1:
                raise SessionWriteConflict("c", None, None, "the answer was lost")
            written_again.set()

        object.__setattr__(wake.context, "_commit_part", lose_the_first_answer)
        with wake.span("shell"):
            await free.wait()
        wake.append(AgentMessage("done"))

    begun = ["user.message", "span.started", "span.started"]
    async with stage(url, slow) as on:
        talk = on.talk()
        seq = await talk.send(UserMessage("one"), event_id="m-1")
        with anyio.fail_after(30):
            async with talk.events(follow=True) as feed:
                entries = [await anext(feed) for _ in begun]
            await written_again.wait()
            async with talk.stream_reply(event_id="m-1") as stream:
                assert [(await anext(stream)).kind for _ in begun[1:]] == begun[1:]
        assert kinds(entries) == kinds(await talk.history()) == begun
        assert await talk.status() == "running"
        free.set()
        reply = await talk.reply(seq, timeout=30)
        assert {each.wake_id for each in await talk.history(after=1)} == {reply.wake_id}
        ends = ["span.completed", "agent.message", "span.completed", "conversation.idle"]
        assert kinds(await talk.history()) == [*begun, *ends]


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    with traced() as found:
        yield found


async def test_an_ask_is_one_trace_from_the_web_request_to_its_reply(
    sqlite_url: str, spans: InMemorySpanExporter
) -> None:
    """With both attempts of its wake, and the tools in them."""
    async with stage(sqlite_url, uses_tools, retry=RetryPolicy(initial_interval=0.01)) as on:
        with trace.get_tracer("tests").start_as_current_span("POST /chat"):
            reply = await on.talk("traced").ask(UserMessage("one"), timeout=30)
    found = spans.get_finished_spans()
    assert len({each.context.trace_id for each in found}) == 1
    tools = ["      INTERNAL search", "        INTERNAL fetch"]
    assert lines_of(found) == [
        "INTERNAL POST /chat",
        "  INTERNAL ask chat",
        "    PRODUCER send chat",
        "      CONSUMER invoke_agent chat !exception ERROR",
        *[f"  {line}" for line in tools],
        "        INTERNAL write !exception ERROR",
        "      CONSUMER invoke_agent chat",
        *[f"  {line}" for line in tools],
        "        INTERNAL write",
    ]
    first, second = (dict(each.attributes or {}) for each in found if each.name == "invoke_agent chat")
    expected = {
        "messaging.system": "affinity",
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.destination.name": "chat.wake",
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "chat",
        "gen_ai.conversation.id": "traced",
        "affinity.session_id": "traced",
        "affinity.instance_id": "traced",
        "affinity.wake_id": reply.wake_id,
        "affinity.worker_id": "w0",
        "affinity.attempt": 1,
    }
    assert first.items() >= expected.items()
    assert second.items() >= {**expected, "affinity.attempt": 2, "gen_ai.usage.input_tokens": 3}.items()


async def test_an_attempt_is_apart_if_the_wake_has_waited_for_over_a_minute(spans: InMemorySpanExporter) -> None:
    pause = RetryPolicy(initial_interval=90.0, max_interval=90.0)
    app = affinity.App("conversations")
    app.include(conversations := make(uses_tools, retry=pause))
    async with Env(app) as env:
        await env.client.conversation(conversations, "c").ask(UserMessage("one"))
    (sent,) = (each.context for each in spans.get_finished_spans() if each.name == "send chat")
    wakes = [each for each in spans.get_finished_spans() if each.name == "invoke_agent chat"]
    assert [each.parent and each.parent.span_id for each in wakes] == [sent.span_id, None]
    assert [[link.context.span_id for link in each.links] for each in wakes] == [[], [sent.span_id]]


async def test_a_wake_with_several_senders_has_links_to_the_others(
    sqlite_url: str, spans: InMemorySpanExporter
) -> None:
    begun, free = anyio.Event(), anyio.Event()

    async def waits(wake: affinity.Wake, chat: Chat) -> None:
        begun.set()
        await free.wait()

    async with stage(sqlite_url, waits) as on:
        talk = on.talk()
        await talk.send(UserMessage("one"))
        await begun.wait()
        await talk.send(UserMessage("two"))
        seq = await talk.send(UserMessage("three"))
        free.set()
        await talk.reply(seq, timeout=30)
    sends = [each.context.span_id for each in spans.get_finished_spans() if each.name == "send chat"]
    wakes = [each for each in spans.get_finished_spans() if each.name == "invoke_agent chat"]
    assert [each.parent and each.parent.span_id for each in wakes] == sends[:2]
    assert [[link.context.span_id for link in each.links] for each in wakes] == [[], sends[2:]]


async def test_the_logger_names_conversation_wake_and_attempt(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def logs(wake: affinity.Wake, chat: Chat) -> None:
        wake.logger.warning("hello from %s", wake.id)

    with caplog.at_level(logging.WARNING, "affinity.conversation"):
        async with stage(sqlite_url, logs) as on:
            reply = await on.talk("c").ask(UserMessage("one"), timeout=30)
    (record,) = [each for each in caplog.records if each.getMessage() == f"hello from {reply.wake_id}"]
    assert (record.__dict__["session_id"], record.__dict__["wake_id"], record.__dict__["attempt"]) == (
        "c",
        reply.wake_id,
        1,
    )


class Broken(SpanProcessor):
    """Fails where the SDK calls it, while it is switched on."""

    at: str | None = None

    def on_start(self, span: object, parent_context: object = None) -> None:
        if self.at == "start":
            raise RuntimeError("no room for a span")

    def on_end(self, span: object) -> None:
        if self.at == "end":
            raise RuntimeError("no room for a span")


@cache
def broken() -> Broken:
    """In the provider of the tests; a processor cannot be removed."""
    processor = Broken()
    provider().add_span_processor(processor)
    return processor


@pytest.mark.parametrize("at", ["start", "end"])
async def test_a_span_processor_that_fails_fails_no_wake(
    sqlite_url: str,
    at: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    spans: InMemorySpanExporter,
) -> None:
    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        with suppress(ZeroDivisionError), wake.span("divide"):
            raise ZeroDivisionError
        with wake.span("speak"):
            wake.append(AgentMessage(f"attempt {wake.attempt}"))

    monkeypatch.setattr(broken(), "at", at)
    monkeypatch.setattr(telemetry, "_reported", set())
    async with stage(sqlite_url, handler) as on:
        assert (await on.talk().ask(UserMessage("one"), timeout=30)).text == "attempt 1"
        assert (await on.talk().ask(UserMessage("two"), timeout=30)).text == "attempt 1"
    assert [each.levelname for each in caplog.records if "OpenTelemetry" in each.getMessage()] == ["WARNING"]


async def test_one_timer_shows_each_wake_that_takes_long_in_its_own_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown_trace, "SHOWN_AFTER", 0.02)
    name, shown, are_shown = ContextVar[str]("name"), list[tuple[Any, str]](), anyio.Event()

    async def show(parts: Any) -> None:
        shown.append((parts.wake_id, name.get()))
        if len(shown) == 2:
            are_shown.set()
        await anyio.sleep_forever()

    async def wake(wake_id: str, end: Callable[[], Awaitable[None]]) -> None:
        name.set(wake_id)
        parts: Any = SimpleNamespace(wake_id=wake_id)
        async with shown_trace.TraceShown(parts):
            await end()

    monkeypatch.setattr(shown_trace, "_show", show)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as wakes:
            wakes.start_soon(wake, "short", anyio.lowlevel.checkpoint)
            wakes.start_soon(wake, "first", are_shown.wait)
            await anyio.sleep(0.01)
            wakes.start_soon(wake, "second", are_shown.wait)
    assert shown == [("first", "first"), ("second", "second")]
