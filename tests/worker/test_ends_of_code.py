"""Each place that calls code of the application turns any end of it into a result or an error: a table."""

import asyncio
import logging
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated, Any, ClassVar, Literal, cast

import anyio
import pytest
from pydantic import AfterValidator, BaseModel, PlainSerializer

import affinity
from affinity import Resource, SessionCache, Sessions
from affinity.agent import ModelReply, ToolCall, run_loop, tool
from affinity.console import Access, create
from affinity.conversation import AgentMessage, UserMessage
from affinity.conversation.events import JournalEvent, ToolResult
from affinity.errors import ActivityError, CodeExited, OrchestrationFailed, WakeFailed, errors_in, text_of_error
from affinity.orchestration.codec import Codec
from affinity.session.migrations import Migrations
from affinity.tasks import call_any, call_here, run_code
from affinity.testing import Env
from affinity.user_code import as_error, call_sync, describe_error


class Panic(BaseException):
    """As the exceptions of compiled modules may be."""


class Unprintable(Exception):
    """It has no text."""

    def __str__(self) -> str:
        raise RuntimeError("it has none")

    __repr__ = __str__


ENDS: dict[str, Callable[[], BaseException]] = {
    "CancelledError": asyncio.CancelledError,
    "Panic": lambda: Panic("index out of bounds"),
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "StopIteration": lambda: StopIteration(1),
    "StopAsyncIteration": StopAsyncIteration,
    "ExceptionGroup": lambda: ExceptionGroup("two", [ValueError("a"), KeyError("b")]),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("two", [Panic("a"), asyncio.CancelledError()]),
    "Unprintable": Unprintable,
    "LookupError": lambda: LookupError("plain"),
}

ran = Counter[str]()


def ends(name: str) -> Any:
    ran[name] += 1
    raise ENDS[name]()


async def ends_later(name: str) -> Any:
    ran[name] += 1
    if name == "CancelledError":  # of a task of its own, as a client's whose connection is closed
        task = asyncio.ensure_future(anyio.sleep(60))
        await anyio.lowlevel.checkpoint()
        task.cancel()
        await task
    await anyio.lowlevel.checkpoint()
    raise ENDS[name]()


def name_later(name: str) -> str:
    """What async code that raises it ends with: Python itself converts one of them."""
    return "RuntimeError" if name == "StopIteration" else name


def names_in(error: BaseException | None) -> Iterator[str]:
    """The class names of an error, of its causes, and of what they report."""
    while error is not None:
        yield from (type(each).__name__ for each in errors_in(error))
        yield describe_error(error)[0]
        yield getattr(error, "error_type", "")
        yield text_of_error(error)
        error = error.__cause__


# --- within a worker --------------------------------------------------------------------------------------------------

app = affinity.App("ends")


@app.activity
async def runs(ctx: affinity.ActivityContext, end: str) -> str:
    return cast(str, await ends_later(end))


@app.activity
def runs_in_a_thread(ctx: affinity.ActivityContext, end: str) -> str:
    return cast(str, ends(end))


def _decoded(end: str) -> str:
    return end if end == "fine" else cast(str, ends(end))


@app.activity
async def takes(ctx: affinity.ActivityContext, end: Annotated[str, AfterValidator(_decoded)]) -> str:
    return "fine"


@app.activity
async def returns(ctx: affinity.ActivityContext, end: str) -> Annotated[str, PlainSerializer(_decoded)]:
    return end


@app.orchestration
async def activity_that_ends(ctx: affinity.OrchestrationContext, of: tuple[str, str]) -> str:
    activity, end = of
    try:
        return cast(str, await ctx.schedule_activity(activity, end))
    except ActivityError as error:
        return f"{error.error_type}: {error.message}"


@app.orchestration
async def orchestration_that_ends(ctx: affinity.OrchestrationContext, end: str) -> None:
    ends(end)


class Chat(BaseModel):
    n: int = 0


desk = affinity.Conversations(Chat, kind="desk")


@tool
async def pay(end: str) -> str:
    """Pay."""
    return cast(str, await ends_later(end))


@tool
def pay_in_a_thread(end: str) -> str:
    """Pay."""
    return cast(str, ends(end))


def _confirm(arguments: Any) -> bool:
    return cast(bool, ends(arguments["end"]))


@tool(confirm=_confirm)
async def confirmed(end: str) -> str:
    """Pay."""
    raise AssertionError("it has run")


async def _model(request: Any) -> ModelReply:
    asked = [event.text for event in request.events if isinstance(event, UserMessage)][-1]
    results = [event for event in request.events if isinstance(event, ToolResult)]
    boundary, _, end = asked.partition(" ")
    if boundary == "model":
        await ends_later(end)
    if boundary in {"pay", "pay_in_a_thread", "confirmed"} and request.round == 1:
        return ModelReply(calls=[ToolCall(f"call {end}", boundary, {"end": end})])
    return ModelReply(content=str(results[-1].result) if results else "hello")


@desk.on_wake(retry=affinity.RetryPolicy(max_attempts=1))
async def _answer(wake: affinity.Wake, chat: Chat) -> None:
    for event in wake.events:
        boundary, _, end = cast(UserMessage, event).text.partition(" ")
        if boundary == "handler":
            await ends_later(end)
        if boundary in {"step", "step_in_a_thread"}:
            try:
                await wake.step("step", ends_later if boundary == "step" else ends, end)
            except Exception as error:
                wake.append(AgentMessage(str([*names_in(error)])))
            return
    await run_loop(wake, model=_model, tools=[pay, pay_in_a_thread, confirmed])


app.include(desk)


@pytest.mark.parametrize("activity", ["runs", "runs_in_a_thread", "takes", "returns"])
async def test_activities(activity: str) -> None:
    async with Env(app) as env:
        for end in ENDS:
            found = await (await env.client.start(activity_that_ends, (activity, end))).wait()
            assert (name_later(end) if activity == "runs" else end) in found


async def test_orchestrations() -> None:
    async with Env(app) as env:
        for end in ENDS:
            with pytest.raises(OrchestrationFailed) as caught:
                await (await env.client.start(orchestration_that_ends, end)).wait()
            assert caught.value.error_type == name_later(end)


@pytest.mark.parametrize("boundary", ["step", "step_in_a_thread", "pay", "pay_in_a_thread", "confirmed"])
async def test_parts_of_a_wake_that_go_on(boundary: str) -> None:
    """The error is the result, also in the next wakes: nothing runs a second time."""
    ran.clear()
    async with Env(app) as env:
        for end in ENDS:
            talk = env.client.conversation(desk, f"{boundary}-{end}")
            reply = await talk.ask(UserMessage(f"{boundary} {end}"))
            in_a_thread = boundary in {"step_in_a_thread", "pay_in_a_thread", "confirmed"}
            assert (end if in_a_thread else name_later(end)) in reply.text or "RuntimeError" in reply.text
            assert (await talk.ask(UserMessage("and"))).text
    assert ran == dict.fromkeys(ENDS, 1)


@pytest.mark.parametrize("boundary", ["handler", "model"])
async def test_parts_of_a_wake_that_fail_it(boundary: str) -> None:
    async with Env(app) as env:
        for end in ENDS:
            talk = env.client.conversation(desk, f"{boundary}-{end}")
            with pytest.raises(WakeFailed, match=name_later(end)):
                await talk.ask(UserMessage(f"{boundary} {end}"))
            assert (await talk.ask(UserMessage("and"))).text == "hello"


# --- functions that are given to objects ------------------------------------------------------------------------------


class Lease(BaseModel):
    session_id: str | None = "s"
    session_epoch: int | None = 1


async def _uses(cache: SessionCache[int]) -> None:
    async with cache.use(Lease()):
        pass


def _resource(**functions: Any) -> Resource[Any]:
    return Resource(**functions)


async def _hydrate(end: str) -> None:
    await _uses(SessionCache(hydrate=lambda _: ends(end)))


async def _hydrate_later(end: str) -> None:
    await _uses(SessionCache(hydrate=lambda _: ends_later(end)))


async def _checkpoint_later(end: str) -> None:
    await _uses(SessionCache(hydrate=lambda _: 1, checkpoint=lambda *_: ends_later(end)))


async def _size_of(end: str) -> None:
    await _uses(SessionCache(hydrate=lambda _: 1, max_bytes=9, size_of=lambda _: ends(end)))


async def _open_resource(end: str) -> None:
    await _resource(open=lambda _: ends(end)).acquire("k", 1)


async def _open_resource_later(end: str) -> None:
    await _resource(open=lambda _: ends_later(end)).acquire("k", 1)


async def _create_resource(end: str) -> None:
    made = _resource(name="r", create=lambda *_: ends_later(end), destroy=lambda *_: None)
    await made._create_now("id", "s")


async def _migrate(end: str) -> None:
    migrations = Migrations()
    migrations.register(1, 2, lambda _: ends(end))
    await migrations.apply("s", {}, 1, 2)


async def _migrate_later(end: str) -> None:
    migrations = Migrations()
    migrations.register(1, 2, lambda _: ends_later(end))
    await migrations.apply("s", {}, 1, 2)


async def _encode_state(**functions: Any) -> None:
    await Sessions(Chat, **functions)._schema.encode(Sessions(Chat)._schema.new("s", Chat()))


async def _to_record(end: str) -> None:
    await _encode_state(record=Chat, to_record=lambda _: ends(end))


async def _from_record(end: str) -> None:
    await _encode_state(record=Chat, from_record=lambda _: ends(end))


async def _metadata(end: str) -> None:
    await _encode_state(metadata=lambda _: ends(end))


async def _initial(end: str) -> None:
    async with Sessions(Chat, initial=lambda _: ends(end)).open(None, allow_transient=True):
        pass


async def _decode(end: str) -> None:
    Codec(Annotated[str, AfterValidator(lambda _: ends(end))], "a value").decode('"x"')


async def _encode(end: str) -> None:
    Codec(Annotated[str, PlainSerializer(lambda _: ends(end))], "a value").encode("x")


class Ended(JournalEvent):
    text: Annotated[str, PlainSerializer(ends)]
    kind: Literal["code.ended"] = "code.ended"


async def _event(end: str) -> None:
    affinity.Conversations(Chat, kind="kind", events=[Ended]).scheduled(Ended(end), "c")


async def _input_of_a_schedule(end: str) -> None:
    affinity.App("scheduled").schedule("s", "flow", input=Ended(end), every=3600)


async def _in_a_thread(end: str) -> None:
    await call_any(ends, end)


async def _in_a_task(end: str) -> None:
    await run_code(lambda: ends_later(end))


async def _here(end: str) -> None:
    await call_here(ends, end)


FUNCTIONS: dict[Callable[[str], Awaitable[None]], bool] = {
    _hydrate: False,
    _hydrate_later: True,
    _checkpoint_later: True,
    _size_of: False,
    _open_resource: False,
    _open_resource_later: True,
    _create_resource: True,
    _migrate: False,
    _migrate_later: True,
    _to_record: False,
    _from_record: False,
    _metadata: False,
    _initial: False,
    _decode: False,
    _encode: False,
    _event: False,
    _input_of_a_schedule: False,
    _in_a_thread: False,
    _in_a_task: True,
    _here: False,
}
"""Each calls a function of the application, which is async or not."""


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("function", FUNCTIONS)
async def test_functions(function: Callable[[str], Awaitable[None]], end: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 -- each boundary has an error of its own
        await function(end)
    names = " ".join(names_in(caught.value))
    assert name_later(end) in names if FUNCTIONS[function] else end in names or "RuntimeError" in names


@pytest.mark.parametrize("end", ENDS)
async def test_functions_that_free_something(end: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing can handle their error: it is logged."""
    cache = SessionCache(hydrate=lambda _: 1, dispose=lambda *_: ends_later(end))
    async with cache.use(Lease()):
        pass
    await cache.aclose()
    resource = _resource(open=lambda _: 1, close=lambda *_: ends(end))
    await resource.acquire("k", 1)
    await resource.release("k", 1)
    durable = _resource(name="r", create=lambda *_: 1, destroy=lambda *_: ends_later(end))
    assert not await durable._destroy_now("id", None)
    assert (cache.stats.size, len(resource)) == (0, 0)
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 3


class _Request:
    scope: ClassVar[dict[str, Any]] = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "query_string": b"",
        "headers": [],
        "root_path": "",
    }

    def __init__(self) -> None:
        self.status = 0
        self.body = b""

    async def receive(self) -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")


@pytest.mark.parametrize("is_async", [False, True])
async def test_functions_of_a_console(is_async: bool) -> None:
    async with Env(app) as env:
        for end in ENDS:
            console = create(env.client, access=lambda _, end=end: (ends_later if is_async else ends)(end))  # type: ignore[misc]
            request = _Request()
            await console(_Request.scope, request.receive, request.send)
            assert (request.status, b"access" in request.body) == (500, True)


async def test_a_console_without_an_access() -> None:
    async with Env(app) as env:
        console = create(env.client, access=lambda _: cast(Access, None))
        request = _Request()
        await console(_Request.scope, request.receive, request.send)
        assert request.status == 500


# --- what is no error of the code -------------------------------------------------------------------------------------


def test_the_signal_of_the_keyboard_is_no_error_of_the_code() -> None:
    def is_interrupted() -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        call_sync(is_interrupted)


def test_the_signal_ends_a_loop_that_runs_code() -> None:
    async def is_interrupted() -> None:
        signal.raise_signal(signal.SIGINT)
        await anyio.sleep(10)

    async def main() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as a second Ctrl-C of asyncio
        await run_code(is_interrupted)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())


async def test_a_cancellation_of_the_caller_is_one() -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("cleaned up")

    task = asyncio.ensure_future(run_code(waits))
    await anyio.lowlevel.checkpoint()
    await anyio.lowlevel.checkpoint()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cleaned up"]


def test_an_error_stays_itself() -> None:
    error = ValueError("plain")
    assert as_error(error) is error
    converted = as_error(SystemExit(3))
    assert isinstance(converted, CodeExited)
    assert describe_error(converted) == ("SystemExit", "3")
    assert affinity.RetryPolicy(non_retryable=(SystemExit,)).retries(converted, 1) is False
    assert affinity.RetryPolicy().retries(converted, 1) is True
