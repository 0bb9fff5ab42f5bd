"""Orchestrations and activities that wakes start: their ends are inputs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import pytest

import affinity
from affinity import ConversationHandle, RetryPolicy, Wake
from affinity.conversation import AgentMessage, CallEnded, CallStarted, ChildEnded, RunEnded, RunStarted, UserMessage
from affinity.errors import (
    ConversationTerminated,
    InvalidId,
    InvalidInput,
    InvalidLimit,
    InvalidOptions,
    OrchestrationCancelled,
    SessionError,
    UnknownInstance,
    WakeFailed,
    WakeMisuse,
)
from affinity.limits import MAX_PAYLOAD_BYTES
from tests.conversation.application import Chat, Stage, make, stage, status, until

pytestmark = pytest.mark.anyio

PATIENCE = 30
NOW = RetryPolicy(initial_interval=0.0)


class Work:
    """Functions that wakes start; some wait until the test lets them go on."""

    def __init__(self) -> None:
        self.gate = anyio.Event()
        self.charged: list[int] = []
        self.app = app = affinity.App("work")

        @app.activity
        async def charge(ctx: affinity.ActivityContext, cents: int) -> str:
            self.charged.append(cents)
            return f"charged {cents}"

        @app.activity
        async def wait(ctx: affinity.ActivityContext, text: str) -> str:
            await self.gate.wait()
            return text

        @app.activity
        async def fail(ctx: affinity.ActivityContext) -> None:
            raise ValueError("no money")

        @app.activity
        async def fill(ctx: affinity.ActivityContext) -> str:
            return "x" * (MAX_PAYLOAD_BYTES - 10)

        @app.orchestration
        async def order(ctx: affinity.OrchestrationContext, cents: int) -> str:
            return await ctx.schedule_activity(charge, cents)

        @app.orchestration
        async def ask(ctx: affinity.OrchestrationContext) -> str:
            return f"said {await ctx.schedule_wait('word')}"

        @app.orchestration
        async def refuse(ctx: affinity.OrchestrationContext) -> None:
            await ctx.schedule_activity(fail)

        self.charge, self.wait, self.fail, self.fill = charge, wait, fail, fill
        self.order, self.ask, self.refuse = order, ask, refuse


def starting(begin: Callable[[Wake], object]) -> Callable[[Wake, Chat], Awaitable[None]]:
    """A handler that begins something for each message, and answers each end."""

    async def handler(wake: Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                begin(wake)
            elif isinstance(event, CallEnded | RunEnded):
                wake.append(
                    AgentMessage(f"{event.error.type}: {event.error.message}" if event.error else str(event.result))
                )

    return handler


async def ends(talk: ConversationHandle) -> list[Any]:
    return [each.event for each in await talk.history(kinds=[CallEnded, RunEnded])]


async def begun(talk: ConversationHandle) -> list[Any]:
    """The ids of the runs that were started."""
    entries = await talk.history(kinds=[CallStarted, RunStarted])
    return [getattr(each.event, "run", None) or getattr(each.event, "call", None) for each in entries]


async def ask_until_settled(on: Stage, name: str = "c") -> str:
    return (await on.talk(name).ask(UserMessage("go"), until="settled", timeout=PATIENCE)).text


async def test_the_end_of_what_a_wake_starts_is_an_input(url: str) -> None:
    """It has the id that the call has returned, and the result."""
    work, ids = Work(), list[str]()

    def begin(wake: Wake) -> None:
        ids.append(wake.call(work.charge, 5))
        ids.append(wake.start("order", 7))

    async with stage(url, starting(begin), work.app) as on:
        talk = on.talk()
        await talk.ask(UserMessage("go"), timeout=PATIENCE)
        found = await until(lambda: _when(2, talk))
        assert sorted(found, key=lambda each: str(each.kind)) == [
            CallEnded(call=ids[0], activity="charge", result="charged 5"),
            RunEnded(run=ids[1], orchestration="order", result="charged 7"),
        ]
        assert sorted(work.charged) == [5, 7]
        assert await begun(talk) == ids


async def _when(number: int, talk: ConversationHandle) -> list[Any]:
    """The ends, when there are so many."""
    found = await ends(talk)
    return found if len(found) >= number else []


async def test_it_waits_for_what_it_has_started(url: str) -> None:
    """The status says so, an explanation names what it waits for, and a settled reply comes behind the end.

    An interrupt leaves it alone, and a fork waits for nothing of its origin.
    """
    work = Work()
    async with stage(url, starting(lambda wake: wake.call(work.wait, "late")), work.app) as on:
        talk = on.talk()
        await talk.ask(UserMessage("go"), timeout=PATIENCE)
        (call,) = await begun(talk)
        assert await talk.status() == "waiting"
        found = await until(partial(_explained, talk, "activity_running"))
        assert found.sentence.startswith(f"{call!r} waits for the activity 'wait', which runs on worker ")
        assert found.sentence.endswith(f"; 'c' waits for its run {call!r}")
        assert await (await talk.fork("fork")).status() == "idle"
        await talk.interrupt()
        await until(partial(status, talk, "waiting"))
        work.gate.set()
        await until(lambda: _when(1, talk))
        await until(partial(status, talk, "idle"))
        assert await ask_until_settled(on, "other") == "late"
        assert await ends(on.talk("fork")) == []


async def _explained(talk: ConversationHandle, code: str) -> Any:
    found = await talk.explain()
    return found if found is not None and found.code == code else None


@pytest.mark.parametrize(
    ("begin", "expected"),
    [
        (lambda work, wake: wake.call(work.fail), "ValueError: no money"),
        (lambda work, wake: wake.start(work.refuse), "ActivityFailed: activity 'fail': ValueError: no money"),
        (lambda work, wake: wake.start(work.order, 7, instance_id="taken"), "InstanceExists: "),
        (lambda work, wake: wake.call(work.fill), "PayloadTooLarge: "),
        (lambda work, wake: wake.call(work.wait, "late", timeout=0.05), "ActivityTimeout: "),
        (lambda work, wake: wake.call(work.charge, 7, session_id=wake.conversation_id, retry=NOW), "charged 7"),
        (lambda work, wake: wake.start(work.order, 7, instance_id="order-7", version="1.0.0"), "charged 7"),
    ],
)
async def test_an_error_is_typed(url: str, begin: Callable[[Work, Wake], object], expected: str) -> None:
    work = Work()
    async with stage(url, starting(partial(begin, work)), work.app) as on:
        await on.client.start("ask", instance_id="taken")
        said = await ask_until_settled(on)
        assert said.startswith(expected)


async def test_clients_reach_what_a_wake_has_started(url: str) -> None:
    """An orchestration by its own id, and the run by its id: to cancel it is an end."""
    work = Work()

    def begin(wake: Wake) -> None:
        wake.start(work.ask, instance_id=f"{wake.conversation_id}-ask")

    async with stage(url, starting(begin), work.app) as on:
        for name in ("a", "b"):
            await on.talk(name).ask(UserMessage("go"), timeout=PATIENCE)
        await until(partial(_raise, on, "a-ask"))
        (run,) = await begun(on.talk("b"))
        await on.client.cancel(run)
        assert [each.result for each in await until(lambda: _when(1, on.talk("a")))] == ["said yes"]
        (ended,) = await until(lambda: _when(1, on.talk("b")))
        assert ended.error.type == "OrchestrationCancelled"
        for cancelled in (run, "b-ask"):
            with pytest.raises(OrchestrationCancelled):
                await on.client.wait(cancelled, timeout=PATIENCE)


async def _raise(on: Stage, instance_id: str) -> bool:
    """Once the instance is there."""
    try:
        await on.client.raise_event(instance_id, "word", "yes")
    except UnknownInstance:
        return False
    return True


@pytest.mark.parametrize("commits", [False, True])
async def test_a_wake_that_fails_starts_what_it_has_committed(url: str, commits: bool) -> None:
    """An attempt that comes again starts it no second time."""
    work = Work()

    async def handler(wake: Wake, chat: Chat) -> None:
        if not isinstance(wake.events[0], UserMessage):
            return
        wake.call(work.charge, 1)
        wake.start(work.order, 2)
        if commits:
            await wake.commit()
        raise ValueError("no")

    async with stage(url, handler, work.app, retry=RetryPolicy(max_attempts=3, initial_interval=0.0)) as on:
        talk = on.talk()
        with pytest.raises(WakeFailed):
            await talk.ask(UserMessage("go"), timeout=PATIENCE)
        if commits:
            await until(lambda: _when(2, talk))
        assert sorted(work.charged) == ([1, 2] if commits else [])
        assert len(await begun(talk)) == (2 if commits else 0)


async def test_what_outlives_its_conversation_goes_on_and_its_end_is_dropped(url: str) -> None:
    """Also for a conversation that has got its id since then, and for one whose instance was cancelled, and deleted:
    that one has ended.
    """
    work = Work()

    def begin(wake: Wake) -> None:
        if not wake.events[0].text.startswith("new"):  # type: ignore[attr-defined]
            wake.call(work.wait, "late")

    async with stage(url, starting(begin), work.app) as on:
        names = ("ended", "deleted", "cancelled")
        for name in names:
            await on.talk(name).ask(UserMessage("go"), timeout=PATIENCE)
        runs = [(await begun(on.talk(name)))[0] for name in names]
        await on.client.cancel("cancelled")
        with suppress(OrchestrationCancelled):
            await on.client.wait("cancelled", timeout=PATIENCE)
        await on.client.delete("cancelled")
        await on.talk("ended").terminate(cascade=True)
        await until(partial(status, on.talk("ended"), "terminated"))
        await on.talk("deleted").delete()
        await on.talk("deleted").ask(UserMessage("new"), timeout=PATIENCE)
        work.gate.set()
        for run in runs:
            await on.client.wait(run, timeout=PATIENCE)
        for name in names:
            assert await ends(on.talk(name)) == []
        assert await on.talk("deleted").status() == "idle"
        with pytest.raises(ConversationTerminated):
            await on.talk("cancelled").send(UserMessage("more"))


async def test_it_waits_no_more_for_a_run_that_is_deleted(url: str) -> None:
    work = Work()
    async with stage(url, starting(lambda wake: wake.call(work.wait, "late")), work.app) as on:
        talk = on.talk()
        await talk.ask(UserMessage("go"), timeout=PATIENCE)
        (call,) = await begun(talk)
        await on.client.delete(call, force=True)
        assert await talk.status() == "idle"


async def test_a_conversation_without_an_instance_reads_the_end_with_its_next_input(url: str) -> None:
    work = Work()
    async with stage(url, starting(lambda wake: wake.call(work.wait, "late")), work.app) as on:
        talk = on.talk()
        await talk.ask(UserMessage("go"), timeout=PATIENCE)
        await on.client.delete("c", force=True)
        work.gate.set()
        await until(lambda: _when(1, talk))
        await talk.ask(UserMessage("more"), timeout=PATIENCE)
        await until(lambda: _when(2, talk))
        await until(partial(status, talk, "idle"))


async def test_a_child_works_until_what_it_has_started_has_ended(url: str) -> None:
    work = Work()
    child = make(starting(lambda wake: wake.call(work.wait, "late")), kind="child")

    async def handler(wake: Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                await wake.delegate(child, "c/child", event)
            elif isinstance(event, ChildEnded):
                wake.append(AgentMessage(str(event.result)))

    async with stage(url, handler, child, work.app) as on:
        talk = on.talk()
        await talk.ask(UserMessage("go"), timeout=PATIENCE)
        await until(partial(status, on.talk("c/child", child), "waiting"))
        assert await talk.status() == "waiting"
        work.gate.set()
        await until(lambda: talk.history(kinds=[AgentMessage]))
        assert (await talk.history(kinds=[AgentMessage]))[0].event == AgentMessage("late")


async def test_what_cannot_be_started_is_refused(url: str) -> None:
    work, left = Work(), list[Wake]()
    refused: list[tuple[Callable[[Wake], object], type[Exception]]] = [
        (lambda wake: wake.start(work.charge, 1), WakeMisuse),  # type: ignore[arg-type]
        (lambda wake: wake.call(work.order, 1), WakeMisuse),  # type: ignore[arg-type]
        (lambda wake: wake.call(print), WakeMisuse),
        (lambda wake: wake.call(work.charge), WakeMisuse),  # type: ignore[arg-type]
        (lambda wake: wake.call(work.charge, "five"), affinity.errors.InvalidInput),  # type: ignore[arg-type]
        (lambda wake: wake.call(work.charge, 5, timeout="1"), InvalidOptions),  # type: ignore[call-overload]
        (lambda wake: wake.call(work.charge, 5, retry=3), InvalidOptions),  # type: ignore[call-overload]
        (lambda wake: wake.start(work.order, 5, instance_id=""), InvalidId),
        (lambda wake: wake.append(RunEnded("r", "order")), WakeMisuse),
        (lambda wake: wake.append(CallStarted("r", "charge")), WakeMisuse),
    ]

    async def handler(wake: Wake, chat: Chat) -> None:
        left.append(wake)
        for attempt, error in refused:
            with pytest.raises(error):
                attempt(wake)

    async with stage(url, handler, work.app) as on:
        await on.talk().ask(UserMessage("go"), timeout=PATIENCE)
        with pytest.raises(SessionError):
            left[0].call(work.charge, 5)
        for event in (RunEnded("r", "order"), CallEnded("r", "charge")):
            with pytest.raises(affinity.errors.InvalidInput):
                await on.talk().send(event)


SERVICE = affinity.Limit("service of runs", concurrency=1)
TENANT = affinity.Limit("tenant of runs", concurrency=1, keyed=True)


@pytest.mark.parametrize(
    ("options", "recorded"),
    [
        ({}, (1000, 30.0, "gpu", [["service of runs", "", 1, 1.0]], 0)),
        (
            {"retry": None, "timeout": 5, "limits": [TENANT.key("acme")], "priority": 3},
            (None, 5.0, "gpu", [["service of runs", "", 1, 1.0], ["tenant of runs", "acme", 1, 1.0]], 3),
        ),
        ({"limits": []}, (1000, 30.0, "gpu", None, 0)),
        ({"name": "rename", "timeout": 7}, (None, 7.0, None, None, 0)),
    ],
)
async def test_options_of_the_definition_count_where_the_call_has_none(
    url: str, options: dict[str, Any], recorded: tuple[object, ...]
) -> None:
    app = affinity.App("limited", limits=[TENANT])

    @app.activity(name="rename", retry=RetryPolicy(max_attempts=1000), timeout=30, limits=[SERVICE], tag="gpu")
    async def ask(ctx: affinity.ActivityContext) -> str:
        return "asked"

    refused: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"limits": [TENANT]}, InvalidLimit),
        ({"limits": [affinity.Limit("lost")]}, InvalidLimit),
        ({"priority": -1}, InvalidInput),
        ({"timeout": 0}, InvalidOptions),
    ]

    def begin(wake: Wake) -> None:
        for wrong, error in refused:
            with pytest.raises(error):
                wake.call(ask, **wrong)
        given = dict(options)
        wake.call(given.pop("name", ask), **given)

    runtime = affinity.RuntimeOptions.make(poll_interval=0.2, tags=("gpu",))
    async with stage(url, starting(begin), app, options=runtime) as on:
        assert await ask_until_settled(on) == "asked"
        (run,) = await begun(on.talk())
        (fields, *_) = [record.fields async for record in on.client.history(run) if record.type == "activity_scheduled"]
        attempts = fields.get("retry", {}).get("max_attempts")
        found = (attempts, fields.get("timeout"), fields.get("tag"), fields.get("limits"), fields.get("priority", 0))
        assert found == recorded
