"""Functions of the application around its activities, wakes, steps, and the calls of clients."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import anyio
import anyio.to_thread
import pytest

import affinity
from affinity import (
    ActivityContext,
    App,
    Client,
    ClientCall,
    Event,
    MiddlewareCall,
    Next,
    ObservedTurn,
    OrchestrationContext,
    RetryPolicy,
    RuntimeOptions,
    SyncNext,
    Wake,
    Worker,
    sync,
)
from affinity.agent import ModelReply, ModelRequest, ToolCall, run_loop
from affinity.conversation import AgentMessage, ToolResult, UserMessage
from affinity.errors import ActivityFailed, InvalidApp, OrchestrationFailed, UnknownInstance

pytestmark = pytest.mark.anyio

NOW = RetryPolicy(max_attempts=3, initial_interval=0.0)
VARIABLE: ContextVar[str] = ContextVar("tests.middleware", default="")
Question = Event("question", int, reply=int)


class Seen:
    """An app whose middleware notes what it goes around."""

    def __init__(self, kinds: str) -> None:
        self.notes: list[str] = []
        self.calls: list[MiddlewareCall] = []
        self.threads: list[int] = []
        self.app = App("middleware")
        for number, kind in enumerate(kinds):
            self.app.middleware(self._async(number) if kind == "a" else self._sync(number))
        app = self.app

        @app.activity
        async def work(ctx: ActivityContext, n: int) -> str:
            self.notes.append("work")
            return VARIABLE.get()

        @app.activity
        def work_in_thread(ctx: ActivityContext, n: int) -> str:
            self.notes.append("work")
            self.threads.append(threading.get_ident())
            return VARIABLE.get()

        @app.orchestration
        async def main(ctx: OrchestrationContext, name: str) -> str:
            return str(await ctx.schedule_activity(name, 7))

        self.main = main

    def _async(self, number: int) -> Callable[[MiddlewareCall, Next], Any]:
        async def goes_around(call: MiddlewareCall, next: Next) -> Any:
            self.calls.append(call)
            self.notes.append(f"+{number}")
            VARIABLE.set(f"{VARIABLE.get()}{number}")
            try:
                return await next()
            finally:
                self.notes.append(f"-{number}")

        return goes_around

    def _sync(self, number: int) -> Callable[[MiddlewareCall, SyncNext], Any]:
        def goes_around(call: MiddlewareCall, next: SyncNext) -> Any:
            self.calls.append(call)
            self.threads.append(threading.get_ident())
            self.notes.append(f"+{number}")
            VARIABLE.set(f"{VARIABLE.get()}{number}")
            try:
                return next()
            finally:
                self.notes.append(f"-{number}")

        return goes_around


@asynccontextmanager
async def running(app: App, url: str, **options: Any) -> AsyncIterator[Client]:
    async with Worker(app, url, RuntimeOptions(worker_node_id="w-0", **options)), Client(url) as client:
        yield client


@pytest.mark.parametrize("kinds", ["a", "s", "aa", "as", "sa", "ss", "sas", "asa"])
@pytest.mark.parametrize("name", ["work", "work_in_thread"])
async def test_they_go_around_in_the_order_of_registration(sqlite_url: str, kinds: str, name: str) -> None:
    """Async and not, around either kind of activity, with their context variables."""
    seen = Seen(kinds)
    async with running(seen.app, sqlite_url) as client:
        with affinity.use_headers({"a": "b"}):
            run = await client.start(seen.main, name, instance_id="i", for_session="s")
        numbers = [str(number) for number in range(len(kinds))]
        assert await run.wait(30) == "".join(numbers)
    assert seen.notes == [*(f"+{n}" for n in numbers), "work", *(f"-{n}" for n in reversed(numbers))]
    call = seen.calls[0]
    assert (call.kind, call.name, call.input, call.attempt) == ("activity", name, 7, 1)
    assert (call.instance_id, call.session_id, call.headers) == ("i", None, {"a": "b"})
    assert call.context.orchestration_name == "main"
    if name == "work_in_thread" and kinds in {"s", "ss"}:
        assert len({*seen.threads}) == 1  # such as a connection that belongs to the thread


async def test_an_error_in_one_is_of_the_activity_and_is_retried(kept_url: str) -> None:
    app, attempts = App("failing"), list[int]()

    @app.middleware
    async def fails_once(call: MiddlewareCall, next: Next) -> Any:
        attempts.append(call.attempt)
        result = await next()
        if len(attempts) < 3:
            raise LookupError(f"attempt {call.attempt}")
        return result if result != "change" else "changed"

    @app.activity
    async def work(ctx: ActivityContext, text: str) -> str:
        return text

    @app.orchestration
    async def main(ctx: OrchestrationContext, retry: bool) -> str:
        try:
            return await ctx.schedule_activity(work, "change", retry=NOW if retry else None)
        except ActivityFailed as error:
            return error.error_type

    async with running(app, kept_url) as client:
        assert await (await client.start(main, False)).wait(30) == "LookupError"
        assert await (await client.start(main, True)).wait(30) == "changed"
    assert attempts == [1, 1, 2]


@pytest.mark.parametrize("kinds", ["a", "s", "as", "sa"])
@pytest.mark.parametrize("is_async", [True, False])
async def test_next_takes_no_call_and_the_call_cannot_be_changed(sqlite_url: str, kinds: str, is_async: bool) -> None:
    """Frameworks of web applications give the request to the next one. What it set before was lost without a word."""
    app = App("mistaken")
    given: list[Any] = []

    async def waits(call: MiddlewareCall, next: Any) -> Any:
        with pytest.raises(AttributeError):
            call.input = 7  # type: ignore[misc]
        given.append(call.input)
        return await next(call)

    def returns(call: MiddlewareCall, next: Any) -> Any:
        return next(call)

    for kind in kinds:
        app.middleware(waits if kind == "a" else returns)

    async def work(ctx: ActivityContext, n: int) -> int:
        return n

    def work_in_a_thread(ctx: ActivityContext, n: int) -> int:
        return n

    app.activity(name="work")(work if is_async else work_in_a_thread)

    @app.orchestration
    async def asks(ctx: OrchestrationContext) -> str:
        with pytest.raises(ActivityFailed) as failed:
            await ctx.schedule_activity("work", 5)
        return str(failed.value)

    async with Worker(app, sqlite_url), Client(sqlite_url) as client:
        assert "next() takes no arguments" in await (await client.start(asks)).wait(timeout=20)
    assert given in ([], [5])


async def test_it_may_call_again_or_not_at_all(sqlite_url: str) -> None:
    app, ran = App("again"), list[str]()

    @app.middleware
    async def again(call: MiddlewareCall, next: Next) -> Any:
        if call.input == "not":
            return "instead"
        await next()
        return await next()

    @app.activity
    def work(ctx: ActivityContext, text: str) -> str:
        ran.append(text)
        return text

    @app.orchestration
    async def main(ctx: OrchestrationContext) -> list[str]:
        return [await ctx.schedule_activity(work, text) for text in ("not", "twice")]

    async with running(app, sqlite_url) as client:
        assert await (await client.start(main)).wait(30) == ["instead", "twice"]
    assert ran == ["twice", "twice"]


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_timeout_ends_the_activity_within_them(sqlite_url: str, is_async: bool) -> None:
    app, ended = App("slow"), list[str]()

    if is_async:

        @app.middleware
        async def outside(call: MiddlewareCall, next: Next) -> Any:
            try:
                return await next()
            finally:
                ended.append("outside")
    else:

        @app.middleware
        def outside_in_thread(call: MiddlewareCall, next: SyncNext) -> Any:
            try:
                return next()
            finally:
                ended.append("outside")

    @app.activity
    async def work(ctx: ActivityContext) -> None:
        try:
            await anyio.sleep(60)
        finally:
            ended.append("inside")

    @app.orchestration
    async def main(ctx: OrchestrationContext) -> None:
        await ctx.schedule_activity(work, timeout=timedelta(seconds=0.2))

    began = time.monotonic()
    async with running(app, sqlite_url) as client:
        with pytest.raises(OrchestrationFailed, match=r"0\.2"):
            await (await client.start(main)).wait(30)
    assert time.monotonic() - began < 20
    assert ended == ["inside", "outside"]


async def test_more_of_them_wait_in_threads_than_there_are_threads(sqlite_url: str) -> None:
    """They take no thread from the code within."""
    app = App("many")

    @app.middleware
    def outside(call: MiddlewareCall, next: SyncNext) -> Any:
        return next()

    @app.middleware
    async def between(call: MiddlewareCall, next: Next) -> Any:
        return await next()

    @app.activity
    def work(ctx: ActivityContext, n: int) -> int:
        return n

    @app.orchestration
    async def main(ctx: OrchestrationContext) -> list[int]:
        return list(await ctx.gather(*[ctx.schedule_activity(work, n) for n in range(100)]))

    async with running(app, sqlite_url, worker_concurrency=60) as client:
        assert await (await client.start(main)).wait(60) == list(range(100))


async def test_wakes_and_their_steps_have_them_and_recorded_steps_have_not(kept_url: str) -> None:
    app, seen = App("talks"), list[tuple[str, str, int]]()
    talks: affinity.Conversations[dict[str, Any]] = affinity.Conversations(dict[str, Any], kind="talks")

    @app.middleware
    async def noted(call: MiddlewareCall, next: Next) -> Any:
        seen.append((call.kind, call.name, call.attempt))
        return await next()

    def double(n: int) -> int:
        return 2 * n

    @talks.on_wake(retry=NOW)
    async def on_wake(wake: Wake, state: dict[str, Any]) -> None:
        doubled = await wake.step("double", double, 4)
        if wake.attempt == 1:
            raise LookupError
        wake.append(AgentMessage(str(doubled)))

    app.include(talks)
    async with running(app, kept_url) as client:
        assert (await client.conversation(talks, "c").ask(UserMessage("hi"), timeout=30)).text == "8"
    assert seen == [("wake", "talks", 1), ("step", "double", 1), ("wake", "talks", 2)]


async def test_tools_have_them_and_an_error_in_one_is_the_result_of_the_tool(sqlite_url: str) -> None:
    app, seen, texts = App("agents"), list[tuple[str, str, Any]](), dict[str, str]()
    agents: affinity.Conversations[dict[str, Any]] = affinity.Conversations(dict[str, Any], kind="agents")

    @app.middleware
    def noted(call: MiddlewareCall, next: SyncNext) -> Any:
        if call.kind == "tool":
            seen.append((call.kind, call.name, call.input))
            if call.input == {"n": 1}:
                raise LookupError("not this one")
        return next()

    def double(n: int) -> int:
        return 2 * n

    async def model(request: ModelRequest) -> ModelReply:
        results = [event for event in request.events if isinstance(event, ToolResult)]
        if results:
            texts.update((event.tool_use_id, str(event.result)) for event in results)
            return ModelReply(content="done")
        return ModelReply(calls=[ToolCall(str(n), "double", {"n": n}) for n in (1, 2)])

    @agents.on_wake
    async def on_wake(wake: Wake, state: dict[str, Any]) -> None:
        await run_loop(wake, model=model, tools=[double])

    app.include(agents)
    async with running(app, sqlite_url) as client:
        assert (await client.conversation(agents, "c").ask(UserMessage("hi"), timeout=30)).text == "done"
    assert sorted(seen, key=str) == [("tool", "double", {"n": 1}), ("tool", "double", {"n": 2})]
    assert "not this one" in texts["1"]  # they run at the same time, and end in any order
    assert texts["2"] == "4"


async def test_those_of_an_included_app_go_around_what_it_brings(sqlite_url: str) -> None:
    inner, outer, notes = App("inner"), App("outer"), list[str]()

    @inner.middleware
    async def of_inner(call: MiddlewareCall, next: Next) -> Any:
        notes.append(f"inner {call.name}")
        return await next()

    @inner.activity
    async def one(ctx: ActivityContext) -> None: ...

    outer.include(inner)

    @outer.middleware
    async def of_outer(call: MiddlewareCall, next: Next) -> Any:
        notes.append(f"outer {call.name}")
        return await next()

    @outer.activity
    async def two(ctx: ActivityContext) -> None: ...

    @outer.orchestration
    async def main(ctx: OrchestrationContext) -> None:
        await ctx.schedule_activity(one)
        await ctx.schedule_activity(two)

    async with running(outer, sqlite_url) as client:
        await (await client.start(main)).wait(30)
    assert notes == ["outer one", "inner one", "outer two"]


async def test_an_observer_has_each_turn_once_and_none_in_replay(kept_url: str) -> None:
    app, turns = App("observed"), list[ObservedTurn]()

    @app.observe_turns
    def observe(turn: ObservedTurn) -> None:
        turns.append(turn)
        raise LookupError("changes nothing")

    @app.activity
    async def work(ctx: ActivityContext) -> None: ...

    @app.orchestration
    async def main(ctx: OrchestrationContext, again: bool) -> None:
        await ctx.schedule_activity(work)
        if again:
            ctx.continue_as_new(False)
        await ctx.schedule_wait("go")
        raise ValueError("no")

    async with running(app, kept_url) as client:
        with affinity.use_headers({"a": "b"}):
            await client.start(main, True, instance_id="i", for_session="s")
        while not (turns and turns[-1].execution_id == 2 and turns[-1].events[-1][1] == "event_awaited"):
            await anyio.sleep(0.02)
    before = len(turns)
    async with running(app, kept_url) as client:  # which replays it
        await client.raise_event("i", "go")
        with pytest.raises(OrchestrationFailed):
            await client.wait("i", 30)
    assert len(turns) == before + 1
    ids = [(turn.execution_id, event_id) for turn in turns for event_id, _ in turn.events]
    assert ids == sorted({*ids})
    assert [turn.outcome for turn in turns if turn.outcome] == ["continued", "failed"]
    assert turns[-1].error == ("ValueError", "no")
    assert {(turn.instance_id, turn.orchestration, turn.session_id, turn.worker_id) for turn in turns} == {
        ("i", "main", "s", "w-0")
    }
    assert [dict(turn.headers) for turn in turns] == len(turns) * [{"a": "b"}]


async def test_a_client_has_them_around_what_causes_work(kept_url: str) -> None:
    app, calls = App("clients"), list[tuple[Any, ...]]()

    @app.orchestration
    async def main(ctx: OrchestrationContext) -> dict[str, str]:
        question = await ctx.schedule_wait(Question)
        question.reply(question.data)
        await ctx.schedule_wait("go")
        return dict(ctx.headers)

    talks: affinity.Conversations[dict[str, Any]] = affinity.Conversations(dict[str, Any], kind="talks")

    @talks.on_wake
    async def on_wake(wake: Wake, state: dict[str, Any]) -> None:
        wake.append(AgentMessage(str(dict(wake.headers))))

    app.include(talks)

    async def adds(call: ClientCall, next: Next) -> Any:
        calls.append((call.operation, [*call.names], [*call.ids]))
        with affinity.use_headers({"user": "ann"}):
            return await next()

    def adds_in_thread(call: ClientCall, next: SyncNext) -> Any:
        calls.append(("in thread",))
        return next()

    async with running(app, kept_url), Client(kept_url, middleware=[adds, adds_in_thread]) as client:
        run = await client.start(main, instance_id="i")
        assert await run.ask(Question(7), timeout=30) == 7
        await run.raise_event("go")
        assert await run.wait(30) == {"user": "ann"}
        talk = client.conversation(talks, "c")
        assert (await talk.ask(UserMessage("hi"), timeout=30)).text == "{'user': 'ann'}"
        await talk.send(UserMessage("hi"))
        called = [("start", ["main"], ["i"]), ("ask", ["question"], ["i"]), ("raise", ["go"], ["i"])]
        called += [("ask", ["talks"], ["c"]), ("send", ["talks"], ["c"])]
        assert calls == [each for call in called for each in (call, ("in thread",))]

        def in_thread() -> Any:
            with sync.Client(kept_url, middleware=[adds]) as own:
                run = own.start(main)
                run.ask(Question(7), timeout=30)
                run.raise_event("go")
                return run.wait(30)

        assert await anyio.to_thread.run_sync(in_thread) == {"user": "ann"}


async def test_an_error_in_one_of_a_client_is_raised_and_nothing_is_sent(sqlite_url: str) -> None:
    async def refuses(call: ClientCall, next: Next) -> Any:
        raise LookupError(call.operation)

    async with Client(sqlite_url, middleware=[refuses]) as client:
        with pytest.raises(LookupError, match="start"):
            await client.start("main", instance_id="i")
        with pytest.raises(UnknownInstance):
            await client.status("i")


def test_what_is_none_is_refused() -> None:
    app = App("refused")

    async def of_one(call: MiddlewareCall) -> None: ...

    def generator(call: MiddlewareCall, next: Next) -> Any:
        yield

    for function in (of_one, generator, 7, None):
        with pytest.raises(InvalidApp):
            app.middleware(function)  # type: ignore[type-var]
        with pytest.raises(InvalidApp):
            Client("sqlite:///x", middleware=[function])  # type: ignore[list-item]
        with pytest.raises(InvalidApp):
            sync.Client("sqlite:///x", middleware=[function])  # type: ignore[list-item]

    async def waits(turn: ObservedTurn) -> None: ...

    def of_two(turn: ObservedTurn, other: int) -> None: ...

    for observer in (waits, of_two, 7):
        with pytest.raises(InvalidApp):
            app.observe_turns(observer)  # type: ignore[type-var]
    assert (app.middleware_of("any"), app.observers) == ((), ())
    assert asyncio.iscoroutinefunction(waits)
