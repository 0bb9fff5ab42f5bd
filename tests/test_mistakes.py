"""Mistakes of the first hour, and the message that names the remedy of each: where a function is registered, where an
orchestration runs, where the client is called.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Optional, get_args

import anyio
import pytest
from pydantic import BaseModel

import affinity
import affinity.console
from affinity import RetryPolicy, RuntimeOptions, agent, errors
from affinity.agent.purse import Purse
from affinity.client.calls import check_quotas
from affinity.conversation import UserMessage
from affinity.errors import (
    AffinityError,
    InvalidApp,
    InvalidInput,
    InvalidLimit,
    InvalidOptions,
    InvalidUrl,
    OrchestrationFailed,
    OrchestrationMisuse,
)
from affinity.limits import check_age, check_limit, seconds_of
from affinity.orchestration import events as ev
from affinity.provider.contract import Quotas

from .orchestration.harness import run

# --- where a function is registered -----------------------------------------------------------------------------------


class State(BaseModel):
    count: int = 0


class Mailer:
    async def send(self, ctx: affinity.ActivityContext, text: str) -> str:
        return text

    async def flush(self, ctx: affinity.ActivityContext) -> str:
        return ""

    async def __call__(self, ctx: affinity.ActivityContext, text: str) -> str:
        return text

    def search(self, text: str) -> str:
        return text

    async def on_wake(self, wake: affinity.Wake, state: State) -> None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    async def __call__(self, ctx: affinity.ActivityContext) -> None: ...


@dataclasses.dataclass
class NoFields:
    text = "no annotation"


class Plain:
    pass


async def send_with(client: str, ctx: affinity.ActivityContext, text: str) -> str:
    return client + text


async def without_context(text: str) -> str:
    return text


async def reversed_parameters(text: str | None, ctx: affinity.ActivityContext) -> None: ...


async def of_an_orchestration(ctx: affinity.OrchestrationContext) -> None: ...


async def two_inputs(ctx: affinity.ActivityContext, one: int, two: int) -> None: ...


async def nothing() -> None: ...


async def takes_no_fields(ctx: affinity.ActivityContext, value: NoFields) -> None: ...


async def takes_a_plain_object(ctx: affinity.ActivityContext, value: Plain) -> None: ...


async def only_wake(wake: affinity.Wake) -> None: ...


async def state_first(state: State, wake: affinity.Wake) -> None: ...


def sync_handler(wake: affinity.Wake, state: State) -> None: ...


def needs_wake(wake: affinity.Wake, text: str) -> str:
    return text


def activity(function: Any, **options: Any) -> Callable[[], object]:
    def register() -> None:
        app = affinity.App("mistakes")
        app.activity(**options)(function)
        app.check()

    return register


def orchestration(function: Any) -> Callable[[], object]:
    return lambda: affinity.App("mistakes").orchestration(function)


def handler(function: Any) -> Callable[[], object]:
    return lambda: affinity.Conversations(State, kind="mistakes").on_wake(function)


def tool(function: Any) -> Callable[[], object]:
    return lambda: agent.tool(function)


ANY_FUNCTION: Final[Any] = send_with
NO_NAME: Final = "has no name of its own: give it one"
REGISTRATIONS: Final[list[tuple[str, Callable[[], object]]]] = [
    (NO_NAME, activity(functools.partial(send_with, "x"))),
    (NO_NAME, activity(Mailer())),
    (NO_NAME, orchestration(functools.partial(send_with, "x"))),
    (NO_NAME, tool(functools.partial(Mailer().search, "x"))),
    (NO_NAME, tool(Mailer())),
    ("takes no attributes: register a function", activity(Frozen(), name="frozen")),
    ("takes 'self', which no worker has: register the method of an object", activity(Mailer.send)),
    ("takes 'self', which no worker has: register the method of an object", activity(Mailer.flush)),
    ("takes 'self', which no worker has: register the method of an object", orchestration(Mailer.flush)),
    ("takes 'self', which no worker has: register the method of an object", handler(Mailer.on_wake)),
    ("takes 'self': make a tool of the method of an object", tool(Mailer.search)),
    ("put @staticmethod above @app.activity", activity(staticmethod(send_with))),
    ("put @classmethod above @app.activity", activity(classmethod(ANY_FUNCTION))),
    ("only functions can be registered", activity(Mailer)),
    ("only functions can be tools", tool(Mailer)),
    ("a name is given by keyword: @app.activity(name='send')", activity("send")),
    ("a name is given by keyword: @app.orchestration(name='send')", orchestration("send")),
    ("a name is given by keyword: @tool(name='send')", tool("send")),
    ("must take its context first, as in (ctx: ActivityContext, input)", activity(without_context)),
    ("must take its context first, as in (ctx: ActivityContext, input)", activity(reversed_parameters)),
    ("must take its context first, as in (ctx: ActivityContext, input)", activity(of_an_orchestration)),
    ("must take its context first, as in (ctx: OrchestrationContext, input)", orchestration(Mailer().send)),
    ("must take its context and at most one input (put several into a model)", activity(two_inputs)),
    ("must take its context and at most one input (put several into a model)", activity(nothing)),
    ("'text' has no annotation, so that it is no field", activity(takes_no_fields)),
    ("make it a dataclass or a pydantic model", activity(takes_a_plain_object)),
    ("must take the wake and the state, (wake, state), not (wake", handler(only_wake)),
    ("must take the wake and the state, (wake, state), not ()", handler(nothing)),
    ("must take its context first, as in (wake: Wake, state)", handler(state_first)),
    ("must be an async def", handler(sync_handler)),
    ("must be a ToolContext, which has the wake", tool(needs_wake)),
]


@pytest.mark.parametrize(("text", "register"), REGISTRATIONS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_function_of_a_wrong_form_is_refused(text: str, register: Callable[[], object]) -> None:
    with pytest.raises((InvalidApp, InvalidOptions)) as refused:
        register()
    assert text in str(refused.value)


@pytest.mark.parametrize(
    "register",
    [
        activity(functools.partial(send_with, "x"), name="partial"),
        activity(Mailer(), name="object"),
        activity(Mailer().send),
        handler(Mailer().on_wake),
        handler(functools.partial(Mailer.on_wake, Mailer())),
        tool(Mailer().search),
    ],
)
def test_the_form_that_the_message_names_passes(register: Callable[[], object]) -> None:
    register()


def takes_nothing() -> None: ...


def takes_one(value: object) -> None: ...


def takes_two(first: object, second: object) -> None: ...


def takes_three(first: object, second: object, third: object) -> None: ...


WRONG: Final[Any] = "support:app"
KEYED: Final = affinity.Limit("mistakes", concurrency=1, keyed=True)
RATED: Final = affinity.Limit("rated", rate=affinity.Rate(1, per=1))
WAKE: Final[Any] = None  # the mistake is found before the wake is used
CALLBACKS: Final[dict[str, tuple[Callable[[Any], object], Callable[..., None]]]] = {
    "open of a resource": (lambda f: affinity.Resource(open=f), takes_one),
    "close of a resource": (lambda f: affinity.Resource(open=takes_one, close=f), takes_two),
    "key of a resource": (lambda f: affinity.Resource(open=takes_one, key=f), takes_one),
    "create of a resource": (lambda f: affinity.Resource(name="r", create=f, destroy=takes_two), takes_two),
    "destroy of a resource": (lambda f: affinity.Resource(name="r", create=takes_two, destroy=f), takes_two),
    "initial": (lambda f: affinity.Sessions(State, initial=f), takes_one),
    "metadata": (lambda f: affinity.Sessions(State, metadata=f), takes_one),
    "dispose": (lambda f: affinity.Sessions(State, dispose=f), takes_two),
    "size_of": (lambda f: affinity.Sessions(State, size_of=f), takes_one),
    "to_record": (lambda f: affinity.Sessions(State, record=State, to_record=f), takes_one),
    "from_record": (lambda f: affinity.Sessions(State, record=State, from_record=f), takes_one),
    "the migration from 1 to 2": (
        lambda f: affinity.Sessions(State, kind="mistakes").register_migration(1, 2, f),
        takes_one,
    ),
    "hydrate": (lambda f: affinity.SessionCache[State](hydrate=f), takes_one),
    "checkpoint": (lambda f: affinity.SessionCache[State](checkpoint=f), takes_two),
    "rebuild": (lambda f: affinity.Conversations(State, rebuild=f), takes_one),
    "priority": (lambda f: affinity.Conversations(State, priority=f), takes_one),
    "the function of limit 'mistakes'": (KEYED.by, takes_one),
    "middleware": (lambda f: affinity.App().middleware(f), takes_two),
    "observer": (lambda f: affinity.App().observe_turns(f), takes_one),
    "confirm": (lambda f: agent.tool(confirm=f)(nothing), takes_one),
    "resource": (lambda f: agent.tool(resource=f)(nothing), takes_one),
    "describe": (lambda f: agent.tool(describe=f)(nothing), takes_one),
    "count_tokens": (lambda f: agent.ContextWindow(max_tokens=1, count_tokens=f), takes_one),
    "summarise": (lambda f: agent.ContextWindow(max_bytes=1, summarise=f), takes_one),
    "cost": (lambda f: Purse(WAKE, RATED, f), takes_one),
    "access": (lambda f: affinity.console.create("sqlite:///mistakes.db", access=f), takes_one),
    "redact": (lambda f: affinity.console.create("sqlite:///mistakes.db", redact=f), takes_three),
}


@pytest.mark.parametrize("name", CALLBACKS)
def test_a_callback_that_cannot_be_called_is_refused_where_it_is_given(name: str) -> None:
    """And not when it is first needed: a resource that could not be closed was left open, with a line of the log."""
    give, right = CALLBACKS[name]
    give(right)
    give(lambda *values: None)
    for wrong in (takes_nothing, takes_three if right is takes_one else takes_one, lambda *, named: None):
        with pytest.raises((InvalidApp, InvalidOptions, InvalidLimit), match=f"{name}.* must be a function"):
            give(wrong)
    with pytest.raises((InvalidApp, InvalidOptions, InvalidLimit)):
        give(5.5)


LISTS: Final[dict[str, Callable[[Any], object]]] = {
    "limits": lambda one: affinity.App(limits=one),
    "events": lambda one: affinity.Conversations(State, events=one),
    "readable": lambda one: affinity.Conversations(State, readable=one),
    "middleware": lambda one: affinity.Client("sqlite:///mistakes.db", middleware=one),
    "listeners": lambda one: affinity.Worker(affinity.App(), "sqlite:///mistakes.db", listeners=one),
    "at": lambda one: affinity.App().schedule("x", "y", at=one),
}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("one", [KEYED, UserMessage, "support", takes_two, datetime.now(UTC), 5])
def test_one_item_in_place_of_a_list_is_refused(name: str, one: object) -> None:
    with pytest.raises(AffinityError, match=f"^{name} must be a list: put .* in brackets$"):
        LISTS[name](one)


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("a worker runs an affinity.App, not 'support:app'", lambda: affinity.Worker(WRONG, "sqlite:///mistakes.db")),
        ("options must be RuntimeOptions", lambda: affinity.Worker(affinity.App(), "sqlite:///mistakes.db", WRONG)),
    ],
)
def test_a_worker_refuses_what_is_of_another_type(text: str, make: Callable[[], object]) -> None:
    with pytest.raises((InvalidApp, InvalidOptions), match=text):
        make()


@pytest.mark.parametrize("url", [None, Path("mistakes.db"), b"sqlite:///mistakes.db"])
async def test_a_url_that_is_no_text_is_refused(url: Any) -> None:
    for opened in (affinity.Worker(affinity.App(), url), affinity.Client(url)):
        with pytest.raises(InvalidUrl, match="URL must be a text, as "):
            await opened.__aenter__()
    with pytest.raises(InvalidUrl, match="must be a text"):
        await affinity.migrate(url)


# --- where an orchestration runs --------------------------------------------------------------------------------------

app: Final = affinity.App("mistakes")
URLS: Final[list[str]] = []
"""URL of the database of the test that runs."""


@dataclasses.dataclass
class Point:
    x: int


class Maybe(BaseModel):
    x: Optional[int]  # noqa: UP045 -- as beginners write it


@app.activity
async def double(ctx: affinity.ActivityContext, n: int) -> int:
    return 2 * n


@app.activity
async def beep(ctx: affinity.ActivityContext) -> None: ...


@app.activity
async def maybe(ctx: affinity.ActivityContext, n: Optional[int]) -> int:  # noqa: UP045
    return n or 0


@app.activity
async def wants_maybe(ctx: affinity.ActivityContext, n: Maybe) -> None: ...


@app.activity
async def untyped(ctx, point): ...  # type: ignore[no-untyped-def]


@app.activity
async def untyped_result(ctx: affinity.ActivityContext):  # type: ignore[no-untyped-def]
    return Point(1)


@app.activity
async def refuse(ctx: affinity.ActivityContext) -> None:
    raise ValueError(f"refused {ctx.attempt}")


@app.orchestration
async def child(ctx: affinity.OrchestrationContext, n: int) -> int:
    return n


Code = Callable[[Any], Any]
AWAIT: Final = "await it first"
SEVERAL: Final = "it takes one input: put several values into a model"


async def unpacked(ctx: Any) -> None:
    _one, _two = ctx.gather(ctx.schedule_activity(double, 1), ctx.schedule_activity(double, 2))


async def looped(ctx: Any) -> None:
    for _ in ctx.gather(ctx.schedule_activity(double, 1)):
        pass


async def looped_async(ctx: Any) -> None:
    async for _ in ctx.gather(ctx.schedule_activity(double, 1)):
        pass


async def entered(ctx: Any) -> None:
    async with ctx.schedule_activity(double, 1):
        pass


async def in_condition(ctx: Any) -> None:
    if ctx.schedule_activity(double, 1):
        pass


async def summed(ctx: Any) -> int:
    total = 0
    for n in range(3):
        total += ctx.schedule_activity(double, n)
    return total


def of_future(use: Callable[[Any], object]) -> Code:
    async def code(ctx: Any) -> object:
        return use(ctx.schedule_activity(double, 1))

    return code


def of_call(call: Callable[[Any], Awaitable[object]]) -> Code:
    async def code(ctx: Any) -> object:
        return await call(ctx)

    return code


RUNS: Final[list[tuple[str, Code]]] = [
    *[
        (AWAIT, of_future(use))
        for use in (
            lambda future: future + 1,
            lambda future: 1 + future,
            lambda future: "n: " + future,
            int,
            lambda future: -future,
            round,
            math.sqrt,
            lambda future: future > 1,
            lambda future: future == 2,
            lambda future: future != 2,
            lambda future: 2 in future,
            len,
            list,
            lambda future: future[0],
            lambda future: future["key"],
            lambda future: future.upper(),
            lambda future: not future,
            lambda future: json.dumps({"n": future}),
            lambda future: ", ".join([future]),
            lambda future: future(),
        )
    ],
    *[(AWAIT, code) for code in (unpacked, looped, looped_async, entered, in_condition, summed)],
    ("['n']: it has no value before it is awaited",
     of_call(lambda ctx: ctx.schedule_activity("x", {"n": ctx.new_guid()}))),
    ("never awaited", of_future(lambda future: f"{future}")),
    (f"schedule_activity was given 2 inputs, and {SEVERAL}", of_call(lambda ctx: ctx.schedule_activity(double, 1, 2))),
    (f"has no option 'n' (it has retry, timeout). An input is given by position, and {SEVERAL}",
     of_call(lambda ctx: ctx.schedule_activity(double, n=1))),
    (f"schedule_sub_orchestration was given 2 inputs, and {SEVERAL}",
     of_call(lambda ctx: ctx.schedule_sub_orchestration(child, 1, 2))),
    ("has no option 'n' (it has instance_id, version, labels)", of_call(lambda ctx: ctx.start_detached(child, n=1))),
    ("continue_as_new was given 2 inputs", of_call(lambda ctx: ctx.continue_as_new(1, 2))),
    ("call .on_session(...) on what it returns", of_call(lambda ctx: ctx.schedule_activity(double, 1, session_id="s"))),
    ("its first parameter is the context, the second one is the input",
     of_call(lambda ctx: ctx.schedule_activity(beep, 1))),
    ("it may be None, and has no default; pass None, or write `= None`",
     of_call(lambda ctx: ctx.schedule_activity(maybe))),
    ("a field without a default is required, also one that may be None",
     of_call(lambda ctx: ctx.schedule_activity(wants_maybe, {}))),
    ("has no annotation, and would be read as a dict, not a Point: annotate it",
     of_call(lambda ctx: ctx.schedule_activity(untyped, Point(1)))),
    ("leave it out to wait without a limit",
     of_call(lambda ctx: ctx.schedule_activity(double, 1).on_session("s", wait=0))),
    ("leave it out to wait without a limit",
     of_call(lambda ctx: ctx.schedule_activity(double, 1).on_session("s", fail_after=True))),
]  # fmt: skip


@pytest.mark.parametrize(("text", "code"), RUNS)
def test_a_mistake_in_an_orchestration_names_its_remedy(text: str, code: Code) -> None:
    async def main(ctx: affinity.OrchestrationContext) -> Any:
        return await code(ctx)

    outcome = run(main).outcome
    assert isinstance(outcome, ev.OrchestrationFailed)
    assert text in outcome.message


def test_uses_of_a_future_that_are_no_mistake() -> None:
    async def main(ctx: affinity.OrchestrationContext) -> int:
        one, other = ctx.schedule_timer(1), ctx.schedule_timer(1)
        assert one == one  # noqa: PLR0124
        assert one != other
        assert one in [other, one]
        assert {one: 1}[one] == 1
        assert "pending" in f"{one}"
        assert not hasattr(one, "value")
        won = await ctx.select(one, other)
        assert won.future == one
        return won.index

    assert run(main, ev.TimerFired(2)).outcome == ev.OrchestrationCompleted("0")


def in_orchestration(code: Code) -> Code:
    """The code of an orchestration that a worker runs."""

    async def main(ctx: affinity.OrchestrationContext) -> None:
        await code(ctx)

    return main


async def makes_a_client(ctx: Any) -> None:
    affinity.Client(URLS[-1])


SYNC: Final = affinity.sync.Client("sqlite:///never_opened.db")


async def makes_a_sync_client(ctx: Any) -> None:
    affinity.sync.Client(URLS[-1])


async def uses_a_sync_client(ctx: Any) -> None:
    list(SYNC.list_instances())


async def makes_a_worker(ctx: Any) -> None:
    affinity.Worker(app, URLS[-1])


async def uses_a_client(ctx: Any) -> None:
    await CLIENTS[-1].start(child, 1)


async def opens_a_state(ctx: Any) -> None:
    async with affinity.Sessions(State).open("s", store=affinity.MemorySessionStore()):
        pass


async def limits_with_asyncio(ctx: Any) -> None:
    async with asyncio.timeout(0.01):
        await ctx.schedule_activity(double, 1)


async def limits_with_anyio(ctx: Any) -> None:
    with anyio.move_on_after(0.01):
        await ctx.schedule_activity(double, 1)


async def groups_with_anyio(ctx: Any) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(limits_with_anyio, ctx)


CLIENTS: Final[list[affinity.Client]] = []
NO_SCOPES: Final = "use ctx.select(..., ctx.schedule_timer(seconds)) and ctx.gather"
IN_WORKERS: Final[list[tuple[str, Code]]] = [
    ("a Client cannot be used in orchestration", makes_a_client),
    ("a Client cannot be used in orchestration", uses_a_client),
    ("a Client cannot be used in orchestration", makes_a_sync_client),
    ("a sync client cannot be used in orchestration", uses_a_sync_client),
    ("a Worker cannot be used in orchestration", makes_a_worker),
    ("the state of a session cannot be used in orchestration", opens_a_state),
    (NO_SCOPES, limits_with_asyncio),
    (NO_SCOPES, limits_with_anyio),
    (NO_SCOPES, groups_with_anyio),
]
for _, mistake in IN_WORKERS:
    app.orchestration(name=mistake.__name__)(in_orchestration(mistake))


@app.orchestration
async def correct(ctx: affinity.OrchestrationContext) -> int:
    return await ctx.schedule_activity(double, 4)


@app.orchestration
async def catches_the_wrong_error(ctx: affinity.OrchestrationContext) -> str:
    try:
        await ctx.schedule_activity(refuse)
    except ValueError:
        return "never"
    return ""


@app.orchestration
async def retries(ctx: affinity.OrchestrationContext) -> None:
    await ctx.schedule_activity(refuse, retry=RetryPolicy(max_attempts=2, initial_interval=0))


@app.orchestration
async def returns_untyped(ctx: affinity.OrchestrationContext) -> Any:
    return await ctx.schedule_activity(untyped_result)


async def test_a_mistake_in_an_orchestration_ends_it_and_not_its_worker(sqlite_url: str) -> None:
    URLS.append(sqlite_url)
    async with affinity.Worker(app, sqlite_url), affinity.Client(sqlite_url) as client:
        CLIENTS.append(client)
        for text, code in IN_WORKERS:
            run = await client.start(code.__name__)
            with pytest.raises(OrchestrationFailed) as failed:
                await run.wait(30)
            assert text in str(failed.value), code.__name__
        with pytest.raises(OrchestrationFailed, match="has no annotation, and would be read as a dict, not a Point"):
            await (await client.start(returns_untyped)).wait(30)
        await anyio.sleep(0.05)  # longer than the limits above
        assert await (await client.start(correct)).wait(30) == 8


async def test_the_traceback_of_a_failed_activity_says_how_to_catch_it(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with affinity.Worker(app, sqlite_url), affinity.Client(sqlite_url) as client:
        with pytest.raises(OrchestrationFailed):
            await (await client.start(catches_the_wrong_error)).wait(30)
    lines = [logging.Formatter().format(record) for record in caplog.records]
    assert "catch ActivityFailed, and use error.is_a(ValueError)" in lines[-1]


talk: Final = affinity.Conversations(State, kind="talk")
talks: Final = affinity.App("talks")


@talk.on_wake(retry=RetryPolicy(max_attempts=2, initial_interval=0))
async def fail(wake: affinity.Wake, state: State) -> None:
    await wake.step("count", step_once, retry=RetryPolicy(max_attempts=2, initial_interval=0))
    raise ValueError(f"refused {wake.attempt}")


STEPS: Final[list[None]] = []


async def step_once() -> int:
    STEPS.append(None)
    if len(STEPS) == 1:
        raise KeyError("first")
    return 1


talks.include(talk)
talks.include(app)


async def test_what_a_handler_returns_and_a_step_that_it_does_not_await_have_no_effect(
    kept_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As docs/learn/writing-code.md says. The first has a line in the log; of the second Python warns."""
    careless, steps, before = affinity.Conversations(State, kind="careless"), list[Any](), len(STEPS)

    @careless.on_wake
    async def answers_by_return(wake: affinity.Wake, state: State) -> Any:
        steps.append(wake.step("count", step_once))
        return "the answer"

    hasty = affinity.App("hasty")
    hasty.include(careless)
    async with affinity.Worker(hasty, kept_url), affinity.Client(kept_url) as client:
        reply = await client.conversation(careless, "careless").ask(UserMessage("hello"), timeout=30)
    assert (reply.text, len(STEPS)) == ("", before)
    assert "returned str, which is dropped" in caplog.text
    with pytest.warns(RuntimeWarning, match="never awaited"):
        steps.clear()


async def test_a_failure_that_is_retried_is_one_line(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Of an activity, a step and a wake; the last failure has a traceback."""
    async with affinity.Worker(talks, sqlite_url), affinity.Client(sqlite_url) as client:
        with pytest.raises(OrchestrationFailed):
            await (await client.start(retries)).wait(30)
        with pytest.raises(errors.WakeFailed):
            await client.conversation(talk, "c").ask(UserMessage("hello"), timeout=30)
    retried = [record for record in caplog.records if "is retried" in record.getMessage()]
    assert len(retried) == 3
    for record in retried:
        assert record.levelno == logging.WARNING
        assert record.exc_info is None
        assert "\n" not in record.getMessage()
        assert "ValueError: refused 1" in record.getMessage() or "KeyError: 'first'" in record.getMessage()
    final = [record for record in caplog.records if "refused 2" in record.getMessage()]
    assert len(final) >= 2
    assert all(record.exc_info for record in final)


# --- where the client and the options are used ------------------------------------------------------------------------


async def test_calls_of_a_conversation_that_does_not_exist(kept_url: str) -> None:
    """Each says so, also the one for which it is an instance."""
    chats = affinity.Conversations(State, kind="chats")
    absent: Any = None
    async with affinity.Client(kept_url) as client:
        talk = client.conversation(chats, "nobody")
        for call in (talk.explain, talk.status, talk.resume, talk.terminate, talk.history):
            with pytest.raises(errors.UnknownConversation):
                await call()
        with pytest.raises(errors.InvalidId, match="request id must be a string"):
            await talk.answer(absent, allowed=True)


async def test_calls_of_a_client(sqlite_url: str) -> None:
    async with affinity.Worker(app, sqlite_url), affinity.Client(sqlite_url) as client:
        anything: Any = client
        uses: list[Callable[[Any], object]] = [list, sorted, lambda items: items[0], next]
        for use in uses:
            for listing in (client.list_instances(), client.list_conversations(), client.session_manager.list()):
                with pytest.raises(TypeError, match="is read with `async for`"):
                    use(listing)
        with pytest.raises(InvalidInput, match=r"there is no condition 'id_prefix', did you mean 'prefix'\? There are"):
            await anext(anything.list_instances(id_prefix="x"))
        with pytest.raises(OrchestrationMisuse, match="start was given 2 inputs"):
            await anything.start(child, 1, 2)
        with pytest.raises(OrchestrationMisuse, match="start has no option 'n'"):
            await anything.start(child, n=1)
        for timeout in (True, "5", -1):
            anything = timeout
            with pytest.raises(InvalidInput, match=r"timeout = .*: must be a number of seconds"):
                await client.wait("x", anything)


def _types_of(annotation: Any) -> Iterator[Any]:
    """The types in an annotation, within unions and ``Annotated``."""
    yield annotation
    for part in get_args(annotation):
        yield from _types_of(part)


NUMBERS: Final = [
    name for name, field in RuntimeOptions.model_fields.items() if {int, float} & {*_types_of(field.annotation)}
]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [True, False])
def test_a_bool_is_no_number(name: str, value: bool) -> None:
    with pytest.raises(InvalidOptions, match=f"{name} = {value}: a bool is no value of it"):
        RuntimeOptions.make(**{name: value})


BOOLS: Final[list[Callable[[], object]]] = [
    lambda: RetryPolicy(max_attempts=True),
    lambda: RetryPolicy(jitter=True),
    lambda: affinity.Sessions(State, max_sessions=True),
    lambda: affinity.Sessions(State, max_bytes=True, size_of=lambda state: 1),
    lambda: affinity.Sessions(State, idle_timeout=True),
    lambda: affinity.SessionCache(max_sessions=True),
    lambda: affinity.ConversationLimits(inputs=True),
    lambda: affinity.Conversations(State).on_wake(timeout=True),
    lambda: affinity.Conversations(State).on_wake(max_cycles=True),
    lambda: agent.tool(confirm=True, confirm_within=True)(Mailer().search),
    lambda: agent.ContextWindow(max_bytes=True),
    lambda: affinity.App().schedule("x", child, input=1, every=True),
    lambda: check_age("older_than", True),
    lambda: check_limit(True),
    lambda: seconds_of("timeout", True),
    lambda: check_quotas(Quotas(instances=True)),
]


@pytest.mark.parametrize("give", BOOLS)
def test_a_bool_is_no_number_in_other_options(give: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput, match="True"):
        give()


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("ActivityFailed", "it is in affinity.errors, as in `from affinity.errors import ActivityFailed`"),
        ("InvalidApp", "it is in affinity.errors"),
        ("tool", "it is in affinity.agent"),
        ("ToolContext", "it is in affinity.agent"),
        ("Env", "it is in affinity.testing"),
        ("WorkItem", "it is in affinity.provider.contract"),
        ("Conversation", "did you mean 'Conversations'?"),
        ("RetryPolices", "did you mean 'RetryPolicy'?"),
    ],
)
def test_a_public_name_of_another_module_is_found(name: str, remedy: str) -> None:
    with pytest.raises(ImportError) as refused:
        exec(f"from affinity import {name}")  # noqa: S102
    assert remedy in str(refused.value)
    with pytest.raises(AttributeError) as missing:
        getattr(affinity, name)
    assert str(missing.value) == str(refused.value)
    assert not hasattr(affinity, name)


def test_each_error_is_found() -> None:
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.AffinityError):
            with pytest.raises(AttributeError, match=f"from affinity.errors import {name}"):
                getattr(affinity, name)


@pytest.mark.parametrize("name", ["testing", "cli", "paging"])
def test_modules_are_imported_as_before(name: str) -> None:
    exec(f"from affinity import {name}")  # noqa: S102
    with pytest.raises(ImportError, match="cannot import name 'nothing_like_it'"):
        exec("from affinity import nothing_like_it")  # noqa: S102
