"""Steps: which events an input causes, in which order, with which values."""

from __future__ import annotations

import logging
import signal
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel

from affinity import ActivityContext, App, OrchestrationContext, RetryPolicy, errors
from affinity.errors import ErrorDetails, InvalidId, InvalidInput, InvalidOptions, NotSerializable
from affinity.limits import MAX_TIMER_SECONDS
from affinity.orchestration import events as ev
from affinity.orchestration.engine import Execution
from affinity.telemetry import SESSION_ATTRIBUTE, current_session_id, session_scope

from .harness import Live, define, new_events, run

app = App("turns")


class Message(BaseModel):
    text: str


class Reply(BaseModel):
    text: str


@app.activity
async def reply(ctx: ActivityContext, message: Message) -> Reply:
    return Reply(text=message.text)


@app.activity(name="tick")
def tick_function(ctx: ActivityContext) -> int:
    return 1


async def conversation(ctx: OrchestrationContext, opening: Message) -> list[Reply]:
    session_id = await ctx.new_guid()
    first = await ctx.schedule_activity(reply, opening).on_session(session_id)
    second = await ctx.schedule_activity(reply, Message(text="and?")).on_session(session_id)
    return [first, second]


def test_the_hot_loop() -> None:
    live = Live(conversation)
    assert new_events(live.start('{"text":"hi"}'))[1:] == [
        ev.GuidCreated("g1"),
        ev.ActivityScheduled("reply", '{"text":"hi"}', "g1"),
    ]
    assert new_events(live.complete(3, '{"text":"A"}')) == [
        ev.ActivityCompleted(3, '{"text":"A"}'),
        ev.ActivityScheduled("reply", '{"text":"and?"}', "g1"),
    ]
    assert live.execution.pending_activities == {5: ev.ActivityScheduled("reply", '{"text":"and?"}', "g1")}
    step = live.complete(5, '{"text":"B"}')
    assert step.outcome == ev.OrchestrationCompleted('[{"text":"A"},{"text":"B"}]')
    assert new_events(step)[-1] is step.outcome
    assert live.execution.finished
    assert live.execution.pending_activities == {}


def test_commands_come_behind_the_input_that_caused_them() -> None:
    async def two(ctx: OrchestrationContext) -> None:
        a, b = ctx.schedule_activity("a"), ctx.schedule_activity("b")
        await a
        await ctx.schedule_activity("after a")
        await b
        await ctx.schedule_activity("after b")

    live = Live(two)
    live.start()
    step = live.feed(ev.ActivityCompleted(3, "null"), ev.ActivityCompleted(2, "null"), ev.ActivityCompleted(5, "null"))
    assert new_events(step) == [
        ev.ActivityCompleted(3, "null"),
        ev.ActivityCompleted(2, "null"),
        ev.ActivityScheduled("after a", "null"),
    ]
    assert step.consumed == 3  # 5 was no command when it came: results of nothing are dropped
    step = live.feed(ev.ActivityCompleted(6, "null"))
    assert new_events(step)[1:] == [ev.ActivityScheduled("after b", "null")]


def test_creation_order_is_emission_order_whatever_is_awaited_first() -> None:
    async def backwards(ctx: OrchestrationContext) -> None:
        a = ctx.schedule_activity("a")
        t = ctx.schedule_timer(5)
        c = ctx.schedule_sub_orchestration("child")
        w = ctx.schedule_wait("w")
        await w
        await c
        await t
        await a

    live = Live(backwards)
    assert new_events(live.start())[1:] == [
        ev.ActivityScheduled("a", "null"),
        ev.TimerCreated(5.0),
        ev.SubOrchestrationScheduled("child", None, "i/1:4", "null"),
        ev.EventAwaited("w"),
    ]


def test_a_future_runs_in_the_background_until_it_is_awaited() -> None:
    async def background(ctx: OrchestrationContext) -> Any:
        future = ctx.schedule_activity("slow")
        await ctx.schedule_timer(1)
        return [await future, await future]

    live = run(background, ev.ActivityCompleted(2, "7"))
    assert not live.execution.finished
    live.feed(ev.TimerFired(3))
    assert live.outcome == ev.OrchestrationCompleted("[7,7]")


def test_options_of_an_activity_are_recorded() -> None:
    policy = RetryPolicy(max_attempts=4)

    async def options(ctx: OrchestrationContext) -> None:
        await ctx.schedule_activity(tick_function, retry=policy, timeout=timedelta(minutes=1)).on_session("s")

    live = Live(options)
    assert new_events(live.start())[1:] == [ev.ActivityScheduled("tick", "null", "s", policy, 60.0)]


def test_results_are_typed_by_reference_and_raw_by_name() -> None:
    async def both(ctx: OrchestrationContext) -> str:
        typed = await ctx.schedule_activity(reply, Message(text="x"))
        raw = await ctx.schedule_activity("reply", {"text": "x"})
        return f"{type(typed).__name__} {type(raw).__name__}"

    live = run(both, ev.ActivityCompleted(2, '{"text":"x"}'), ev.ActivityCompleted(4, '{"text":"x"}'))
    assert live.outcome == ev.OrchestrationCompleted('"Reply dict"')


def test_a_result_that_does_not_fit_is_raised_at_the_await() -> None:
    async def strict(ctx: OrchestrationContext) -> str:
        try:
            await ctx.schedule_activity(reply, Message(text="x"))
        except NotSerializable as error:
            return str(error)
        return "fits"

    live = run(strict, ev.ActivityCompleted(2, "5"))
    assert isinstance(live.outcome, ev.OrchestrationCompleted)
    assert "result of activity 'reply' must be Reply" in live.outcome.result


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("failed", errors.ActivityFailed),
        ("timeout", errors.ActivityTimeout),
        ("poisoned", errors.ActivityPoisoned),
        ("unknown", errors.UnknownActivity),
        ("cancelled", errors.ActivityCancelled),
    ],
)
def test_activity_errors(kind: ev.ActivityFailureKind, error: type[errors.ActivityError]) -> None:
    seen: list[errors.ActivityError] = []

    async def careful(ctx: OrchestrationContext) -> None:
        try:
            await ctx.schedule_activity("work")
        except errors.ActivityError as caught:
            seen.append(caught)
            raise

    live = run(careful, ev.ActivityFailed(2, kind, "ValueError", "boom"))
    assert {type(each) for each in seen} == {error}
    assert (seen[0].activity, seen[0].error_type, seen[0].message) == ("work", "ValueError", "boom")
    bases = ErrorDetails(bases=("ActivityError", "AffinityError", "ValueError"))
    assert live.outcome == ev.OrchestrationFailed(error.__name__, "activity 'work': ValueError: boom", bases)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("failed", errors.OrchestrationFailed),
        ("cancelled", errors.OrchestrationCancelled),
        ("exists", errors.InstanceExists),
    ],
)
def test_child_errors(kind: ev.ChildFailureKind, error: type[Exception]) -> None:
    async def parent(ctx: OrchestrationContext) -> str:
        try:
            await ctx.schedule_sub_orchestration("child")
        except error as caught:
            return type(caught).__name__
        return ""

    live = run(parent, ev.SubOrchestrationFailed(2, kind, "ValueError", "boom"))
    assert live.outcome == ev.OrchestrationCompleted(f'"{error.__name__}"')


@app.orchestration(name="kid")
async def child(ctx: OrchestrationContext, message: Message) -> Reply:
    return Reply(text=message.text)


def test_sub_orchestrations() -> None:
    async def parent(ctx: OrchestrationContext) -> str:
        one = await ctx.schedule_sub_orchestration(child, Message(text="x"), instance_id="mine", version="1.0.0")
        two = await ctx.schedule_sub_orchestration("kid", {"text": "y"})
        return one.text + str(two["text"])

    live = Live(parent)
    step = live.start(parent=ev.ParentRef("p", 1, 2, "b"))
    assert new_events(step)[1:] == [ev.SubOrchestrationScheduled("kid", "1.0.0", "mine", '{"text":"x"}')]
    step = live.feed(ev.SubOrchestrationCompleted(2, '{"text":"a"}'))
    assert new_events(step)[1:] == [ev.SubOrchestrationScheduled("kid", None, "i/1:4", '{"text":"y"}')]
    live.feed(ev.SubOrchestrationCompleted(4, '{"text":"b"}'))
    assert live.outcome == ev.OrchestrationCompleted('"ab"')
    assert (live.execution.child_id(2), live.execution.child_id(4)) == ("mine", "i/1:4")
    assert live.execution.parent == ev.ParentRef("p", 1, 2, "b")


def test_default_child_ids_stay_in_bounds() -> None:
    async def parent(ctx: OrchestrationContext) -> None:
        await ctx.schedule_sub_orchestration("child")

    live = Live(parent, instance_id="é" * 128)
    scheduled = new_events(live.start())[1]
    assert isinstance(scheduled, ev.SubOrchestrationScheduled)
    assert len(scheduled.instance_id.encode()) <= 256
    assert scheduled.instance_id.endswith("/1:2")


def test_values_are_recorded_once() -> None:
    async def values(ctx: OrchestrationContext) -> list[str]:
        now = await ctx.utc_now()
        assert now == datetime.fromtimestamp(1000, UTC)
        a, b = ctx.new_guid(), ctx.new_guid()
        later = [await b, await a]
        await ctx.schedule_timer(1)
        return later

    live = Live(values)
    assert new_events(live.start())[1:] == [
        ev.TimeRead(1000.0),
        ev.GuidCreated("g1"),
        ev.GuidCreated("g2"),
        ev.TimerCreated(1.0),
    ]
    live.feed(ev.TimerFired(5))
    assert live.outcome == ev.OrchestrationCompleted('["g2","g1"]')


def test_timers() -> None:
    async def timers(ctx: OrchestrationContext, delay: float) -> None:
        await ctx.schedule_timer(timedelta(seconds=delay))

    live = Live(timers)
    assert new_events(live.start("-5"))[1:] == [ev.TimerCreated(0.0)]
    live.feed(ev.TimerFired(2))
    assert live.outcome == ev.OrchestrationCompleted("null")


@pytest.mark.parametrize("delay", ["soon", None, True, float("nan"), float("inf"), MAX_TIMER_SECONDS + 1])
def test_delays_are_checked(delay: Any) -> None:
    async def timers(ctx: OrchestrationContext) -> None:
        with pytest.raises(InvalidOptions):
            ctx.schedule_timer(delay)
        if delay is not None:
            with pytest.raises(InvalidOptions):
                ctx.schedule_activity("work", timeout=delay)
        with pytest.raises(InvalidOptions):
            ctx.schedule_activity("work", timeout=0)

    assert run(timers).outcome == ev.OrchestrationCompleted("null")


def test_names_and_ids_are_checked() -> None:
    async def names(ctx: OrchestrationContext) -> None:
        for refused in ("", "a\nb", "x" * 257, 5, None):
            value: Any = refused
            with pytest.raises(InvalidId):
                ctx.schedule_wait(value)
            if isinstance(value, str):
                with pytest.raises(InvalidInput):
                    ctx.schedule_activity(value)
            if value is not None:
                with pytest.raises(InvalidId):
                    ctx.schedule_sub_orchestration("child", instance_id=value)
                with pytest.raises(InvalidId):
                    ctx.schedule_sub_orchestration("child", version=value)
        with pytest.raises(InvalidOptions):
            ctx.schedule_activity("work", retry=3)  # type: ignore[call-overload]
        with pytest.raises(NotSerializable, match="input of activity 'work'"):
            ctx.schedule_activity("work", object())
        with pytest.raises(NotSerializable, match="input of activity 'reply' must be Message"):
            ctx.schedule_activity(reply, 5)  # type: ignore[arg-type]

    assert run(names).outcome == ev.OrchestrationCompleted("null")


def test_an_input_that_does_not_fit_fails_the_orchestration() -> None:
    live = run(conversation, input="5")
    assert isinstance(live.outcome, ev.OrchestrationFailed)
    assert live.outcome.error_type == "NotSerializable"
    assert "input of orchestration 'conversation@1.0.0' must be Message" in live.outcome.message


def test_a_result_that_does_not_fit_fails_the_orchestration() -> None:
    async def wrong(ctx: OrchestrationContext) -> int:
        return "five"  # type: ignore[return-value]

    live = run(wrong)
    assert isinstance(live.outcome, ev.OrchestrationFailed)
    assert "result of orchestration 'wrong@1.0.0' must be int: got str" in live.outcome.message


@pytest.mark.parametrize(
    "error",
    [ValueError("boom"), SystemExit("boom"), KeyboardInterrupt("boom"), RecursionError("boom"), StopIteration("boom")],
)
def test_whatever_the_code_raises_fails_the_orchestration(error: BaseException) -> None:
    async def raises(ctx: OrchestrationContext) -> None:
        raise error

    live = run(raises)
    assert isinstance(live.outcome, ev.OrchestrationFailed)
    assert "boom" in live.outcome.message or isinstance(error, StopIteration)
    assert live.execution.error is not None


def test_the_signal_of_the_keyboard_in_an_orchestration_is_raised() -> None:
    async def interrupted(ctx: OrchestrationContext) -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        Live(interrupted).start()


def test_stale_inputs_are_dropped() -> None:
    async def one(ctx: OrchestrationContext) -> None:
        await ctx.schedule_activity("a")
        await ctx.schedule_timer(1)

    live = run(one, ev.ActivityCompleted(2, "1"))
    step = live.feed(
        ev.ActivityCompleted(2, "1"),  # again
        ev.ActivityFailed(2, "failed", "E", "m"),
        ev.TimerFired(0),
        ev.TimerFired(2),  # of another kind
        ev.ActivityCompleted(4, "1"),
        ev.SubOrchestrationCompleted(4, "1"),
        ev.ActivityCompleted(99, "1"),
        ev.OrchestrationStarted("one", "1.0.0", "null"),
    )
    assert step.events == []
    assert step.consumed == 8
    live.feed(ev.TimerFired(4))
    step = live.feed(ev.TimerFired(4), ev.EventRaised("late", "1"), ev.CancelRequested("late"))
    assert (step.events, step.outcome, step.consumed) == ([], None, 3)


def test_commands_are_no_inputs() -> None:
    with pytest.raises(TypeError, match="TimerCreated"):
        Live(conversation).feed(ev.TimerCreated(1))


def test_custom_status_is_recorded_when_it_changes() -> None:
    async def status(ctx: OrchestrationContext) -> None:
        ctx.set_custom_status({"step": 1})
        await ctx.schedule_timer(1)
        ctx.set_custom_status({"step": 1})
        await ctx.schedule_timer(2)
        ctx.set_custom_status("a")
        ctx.set_custom_status("b")
        with pytest.raises(errors.PayloadTooLarge):
            ctx.set_custom_status("x" * 5000)

    live = Live(status)
    step = live.start()
    assert step.custom_status == '{"step":1}'
    assert new_events(step)[1:] == [ev.CustomStatusSet('{"step":1}'), ev.TimerCreated(1.0)]
    step = live.feed(ev.TimerFired(3))
    assert step.custom_status is None
    step = live.feed(ev.TimerFired(5))
    assert step.custom_status == '"b"'
    assert new_events(step)[1:] == [
        ev.CustomStatusSet('"a"'),
        ev.CustomStatusSet('"b"'),
        ev.OrchestrationCompleted("null"),
    ]


def test_the_logger_is_silent_in_replay(caplog: pytest.LogCaptureFixture) -> None:
    replaying: list[bool] = []

    async def talks(ctx: OrchestrationContext) -> None:
        ctx.logger.info("one")
        replaying.append(ctx.is_replaying)
        await ctx.schedule_timer(1)
        ctx.logger.info("two")

    with caplog.at_level(logging.INFO, "affinity.orchestration"):
        run(talks, ev.TimerFired(2))
    assert [record.message for record in caplog.records] == ["one", "two"]
    assert vars(caplog.records[0])["instance_id"] == "i"
    assert replaying == [False, True, True]


def test_a_step_does_not_depend_on_the_length_of_the_history() -> None:
    import sys

    async def loop(ctx: OrchestrationContext) -> None:
        while True:
            await ctx.schedule_activity("work")

    def calls_of_a_turn(live: Live) -> int:
        calls = 0

        def count(frame: object, event: str, arg: object) -> None:
            nonlocal calls
            calls += event in {"call", "c_call"}

        sys.setprofile(count)
        try:
            live.advance(live.execution, ev.ActivityCompleted(live.execution.event_count, "null"))
        finally:
            sys.setprofile(None)
        return calls

    live = Live(loop)
    live.start()
    first = calls_of_a_turn(live)
    for _ in range(2000):
        live.advance(live.execution, ev.ActivityCompleted(live.execution.event_count, "null"))
    assert calls_of_a_turn(live) == first


@pytest.mark.parametrize("is_replayed", [False, True])
def test_the_time_never_runs_backwards(is_replayed: bool) -> None:
    """The clock of the next primary may be behind: the times that the history has are its lower bound."""

    async def times(ctx: OrchestrationContext) -> list[float]:
        read = [await ctx.utc_now()]
        for _ in range(2):
            await ctx.schedule_timer(1)
            read.append(await ctx.utc_now())
        return [each.timestamp() for each in read]

    live = Live(times)
    execution = live.execution
    history: list[ev.Event] = []
    inputs: list[tuple[ev.Event, float]] = [
        (ev.OrchestrationStarted("times", "", "null", time=1000.0), 990.0),
        (ev.TimerFired(3), 995.0),
        (ev.TimerFired(6), 1001.0),
    ]
    for given, now in inputs:
        step = execution.advance([given], now=partial(float, now), new_guid=str)
        history += new_events(step)
        if is_replayed:
            execution = live.replayed(history)
    assert [event.value for event in history if isinstance(event, ev.TimeRead)] == [1000.0, 1000.0, 1001.0]


def test_the_session_is_named_while_the_code_runs(caplog: pytest.LogCaptureFixture) -> None:
    """In a step, in a replay, and when the coroutine is dropped; what was named around it is named again afterwards."""
    seen: list[str | None] = []

    async def main(ctx: OrchestrationContext) -> None:
        try:
            seen.append(current_session_id())
            await ctx.schedule_timer(1.0)
            ctx.logger.info("one")
        finally:
            seen.append(current_session_id())

    definition = define(main)
    start = ev.OrchestrationStarted(definition.name, definition.version, "null")
    execution = Execution(definition, "i", 1, "s")
    with session_scope("around"), caplog.at_level("INFO", "affinity.orchestration"):
        execution.advance([start], now=float, new_guid=str)
        dropped = Execution(definition, "i", 1, "s")
        dropped.replay([start, ev.TimerCreated(1.0)])
        dropped.close()
        execution.advance([ev.TimerFired(2)], now=float, new_guid=str)
        assert current_session_id() == "around"
    assert seen == ["s"] * 4
    (record,) = caplog.records
    assert (vars(record)["session_id"], vars(record)[SESSION_ATTRIBUTE]) == ("s", "s")


async def _echoes(ctx: OrchestrationContext, count: int) -> None:
    for _ in range(count):
        await ctx.schedule_activity("echo", await ctx.schedule_wait("go", str))


def test_a_turn_ends_when_its_events_are_large() -> None:
    """At the first input that reaches the bound, with what the code asks for: the rest is for the next turn."""
    live = Live(_echoes)
    live.start("3")
    data = f'"{"x" * 1_000}"'
    step = live.execution.advance(
        [ev.EventRaised("go", data)] * 3, now=lambda: 0.0, new_guid=lambda: "g", max_size=2_000
    )
    assert (step.consumed, step.outcome) == (1, None)
    assert [type(event) for event in new_events(step)] == [ev.EventRaised, ev.ActivityScheduled]
    step = live.execution.advance([ev.EventRaised("go", data)] * 5, now=lambda: 0.0, new_guid=lambda: "g", max_size=1)
    assert (step.consumed, live.execution.unread_size) == (1, len(data))
