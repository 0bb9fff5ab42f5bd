"""Typed events: their data and their replies, live and in replay."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from affinity import App, Event, OrchestrationContext
from affinity.errors import InvalidApp, InvalidId, InvalidOptions, Nondeterminism, NotSerializable, OrchestrationMisuse
from affinity.orchestration import events as ev
from affinity.orchestration.engine import Execution
from affinity.orchestration.wire import ANY_EXECUTION
from affinity.provider.contract import Generation, MessageReply, Turn
from affinity.worker.turns import build_turn
from tests.support.messages import decode_message

from .harness import Live, define, new_events, run, through_json


class Question(BaseModel):
    text: str


class Answer(BaseModel):
    length: int


Ask = Event("ask", Question, reply=Answer)


def raised(text: str, key: str | None = "k") -> ev.EventRaised:
    return ev.EventRaised("ask", f'{{"text":"{text}"}}', key)


async def answers(ctx: OrchestrationContext) -> list[Any]:
    first = await ctx.schedule_wait(Ask)
    first.reply(Answer(length=len(first.data.text)))
    second = await ctx.schedule_wait(Ask)
    await ctx.schedule_timer(1)
    second.reply(Answer(length=0))
    return [first.name, first.key, second.key, first.data.text]


def turn_of(live: Live, step: Any) -> Turn:
    return build_turn(
        live.execution, step, generation=Generation("first"), first_version=None, consumed=[], acks=[], lock_here=0
    ).turn


def test_a_reply_is_recorded_in_the_step_and_a_row_of_its_turn() -> None:
    live = Live(answers)
    live.start()
    step = live.feed(raised("hello"))
    assert new_events(step)[1:] == [ev.EventReplied("k", '{"length":5}'), ev.EventAwaited("ask")]
    assert turn_of(live, step).replies == [MessageReply("k", '{"length":5}')]
    live.feed(raised("again", "l"))
    step = live.feed(ev.TimerFired(7))
    assert new_events(step)[1:] == [
        ev.EventReplied("l", '{"length":0}'),
        ev.OrchestrationCompleted('["ask","k","l","hello"]'),
    ]
    assert turn_of(live, step).replies == [MessageReply("l", '{"length":0}')]


def test_a_reply_to_an_event_without_a_key_is_dropped() -> None:
    live = run(answers, raised("hello", None), raised("again", None), ev.TimerFired(6))
    assert live.outcome == ev.OrchestrationCompleted('["ask",null,null,"hello"]')
    assert not any(isinstance(event, ev.EventReplied) for event in live.history)


def test_a_replay_must_reply_to_the_same_event() -> None:
    """What it replies may change: the recorded reply was sent."""
    history: list[ev.Event] = [
        ev.OrchestrationStarted("answers", "1.0.0", "null"),
        ev.EventAwaited("ask"),
        raised("hello"),
        ev.EventReplied("k", '{"length":999}'),
        ev.EventAwaited("ask"),
    ]
    Execution(define(answers), "i", 1).replay(through_json(history))
    history[3] = ev.EventReplied("x", '{"length":5}')
    with pytest.raises(Nondeterminism) as caught:
        Execution(define(answers), "i", 1).replay(history)
    assert (caught.value.expected, caught.value.actual) == ("EventReplied('x') as event 4", "EventReplied('k')")


def test_a_key_survives_the_buffer_a_lost_race_and_continue_as_new() -> None:
    async def again(ctx: OrchestrationContext) -> None:
        if ctx.execution_id == 1:
            await ctx.select(ctx.schedule_timer(1), ctx.schedule_wait(Ask))
            await ctx.schedule_timer(1)
            ctx.continue_as_new()
        (await ctx.schedule_wait(Ask)).reply(Answer(length=1))

    live = Live(again)
    live.start()
    live.feed(ev.TimerFired(2))
    live.feed(raised("early", "a"), ev.EventRaised("other", "1"), raised("late", "b"))
    step = live.feed(ev.TimerFired(6))
    assert isinstance(step.outcome, ev.ContinuedAsNew)
    _, started = decode_message(turn_of(live, step).messages[0].payload)
    assert isinstance(started, ev.OrchestrationStarted)
    assert [event.key for event in started.carried] == ["a", None, "b"]
    following = Live(again, execution_id=2)
    assert ev.EventReplied("a", '{"length":1}') in new_events(following.start(carried=started.carried))


def test_data_that_does_not_fit_waits_with_its_key() -> None:
    async def later(ctx: OrchestrationContext) -> Any:
        await ctx.schedule_wait(Ask)
        received = await ctx.schedule_wait(Event("ask", str))
        received.reply(received.data)
        ctx.continue_as_new()

    live = run(later, ev.EventRaised("ask", "7", "bad"), raised("good"), ev.EventRaised("ask", '"any"', "c"))
    assert ev.EventReplied("c", '"any"') in live.history
    assert isinstance(live.outcome, ev.ContinuedAsNew)
    assert live.outcome.carried == (ev.CarriedEvent("ask", "7", "bad"),)


def test_an_event_is_answered_once_and_with_its_type() -> None:
    async def misuses(ctx: OrchestrationContext) -> None:
        received = await ctx.schedule_wait(Ask)
        with pytest.raises(NotSerializable, match="reply to event 'ask' must be Answer"):
            received.reply({"length": "long"})  # type: ignore[arg-type]
        guid = ctx.new_guid()
        with pytest.raises(Exception, match="await it first"):
            received.reply(guid)  # type: ignore[arg-type]
        await guid
        with pytest.raises(OrchestrationMisuse, match="the coroutine 'misuses': await it first"):
            received.reply(misuses(ctx))  # type: ignore[arg-type]
        received.reply(Answer(length=1))
        with pytest.raises(Exception, match="has a reply already"):
            received.reply(Answer(length=2))

    live = run(misuses, raised("hello"))
    assert live.outcome == ev.OrchestrationCompleted("null")


def test_a_typed_event_is_raised_for_another_instance() -> None:
    async def sends(ctx: OrchestrationContext) -> None:
        ctx.raise_event("other", Ask(Question(text="hi")))
        with pytest.raises(InvalidOptions):
            ctx.raise_event("other", Ask(Question(text="hi")), 1)  # type: ignore[call-overload]

    live = Live(sends)
    step = live.start()
    assert new_events(step)[1] == ev.EventSent("other", "ask", '{"text":"hi"}')
    (message,) = turn_of(live, step).messages
    assert decode_message(message.payload) == (ANY_EXECUTION, raised("hi", None))


def test_what_is_no_event_is_refused() -> None:
    with pytest.raises(InvalidId):
        Event("")
    with pytest.raises(InvalidId, match="reserved"):
        Event("affinity:x")
    with pytest.raises(InvalidApp):
        Event("e", App)
    with pytest.raises(NotSerializable):
        Ask({"text": 1})  # type: ignore[arg-type]

    async def typed_twice(ctx: OrchestrationContext) -> None:
        with pytest.raises(InvalidOptions):
            ctx.schedule_wait(Ask, int)  # type: ignore[call-overload]

    assert run(typed_twice).outcome == ev.OrchestrationCompleted("null")
