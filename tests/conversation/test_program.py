"""The orchestration of a conversation, on histories made by hand: which signals it receives during a wake."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic_core import to_json

from affinity.conversation import program
from affinity.conversation.kinds import SIGNAL
from affinity.conversation.program import Program, Start
from affinity.orchestration import OrchestrationContext
from affinity.orchestration import events as ev
from affinity.orchestration.engine import Step
from tests.orchestration.harness import Live, new_events


async def conversation(ctx: OrchestrationContext, start: dict[str, Any]) -> None:
    """That of the conversations of each kind."""
    await Program(ctx, "chat.wake", Start(salt="s", **start)).run()  # type: ignore[typeddict-item]


@pytest.fixture(autouse=True)
def few_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """An execution continues as new after three signals, and receives five during a wake."""
    monkeypatch.setattr(program, "SIGNALS_PER_EXECUTION", 3)
    monkeypatch.setattr(program, "MAX_WAKE_SIGNALS", 5)


def begin(**start: Any) -> Live:
    """A conversation whose first wake runs."""
    live = Live(conversation)
    live.start(to_json(start).decode())
    signal(live, "wake", seq=1)
    return live


def signal(live: Live, kind: str, **fields: Any) -> Step:
    """Send a message to it."""
    return live.feed(ev.EventRaised(SIGNAL, to_json({"type": kind, **fields}).decode()))


def send(live: Live, first: int, last: int) -> None:
    """Announce inputs."""
    for seq in range(first, last + 1):
        signal(live, "wake", seq=seq)


def kinds(step: Step) -> list[type[ev.Event]]:
    return [type(each) for each in new_events(step)]


def wake_of(live: Live) -> int:
    """The event id of the activity that runs."""
    (found,) = live.execution.pending_activities
    return found


ENDS = [("interrupt", {"seq": 9, "cancel": True}), ("terminate", {})]


@pytest.mark.parametrize(("kind", "fields"), ENDS)
def test_a_wake_is_cancelled_after_many_signals(kind: str, fields: dict[str, Any]) -> None:
    """Also when the execution is to continue as new after the wake."""
    live = begin(wake_signals=5)
    send(live, 2, 5)
    assert ev.ActivityCancelled in kinds(signal(live, kind, **fields))


def test_a_wake_receives_a_bounded_number_of_signals() -> None:
    """The later ones are an event each. After the wake the execution continues as new, with those that are unread."""
    live = begin(wake_signals=5)
    send(live, 2, 6)
    assert kinds(signal(live, "interrupt", seq=7, cancel=True)) == [ev.EventRaised]
    send(live, 8, 20)
    step = live.complete(wake_of(live), '{"outcome":"done","processed":1}')
    (outcome,) = [each for each in new_events(step) if isinstance(each, ev.ContinuedAsNew)]
    assert json.loads(outcome.input)["wake_signals"] == 5
    assert [json.loads(each.data)["seq"] for each in outcome.carried] == [*range(7, 21)]


def test_the_bound_holds_for_all_attempts_of_a_wake_and_the_pauses_between() -> None:
    live = begin(wake_signals=5)
    send(live, 2, 4)
    live.complete(wake_of(live), '{"outcome":"failed","attempt":1,"retry_after":60}')
    send(live, 5, 6)
    assert kinds(signal(live, "resume")) == [ev.EventRaised]
    (timer,) = [n for n, each in enumerate(live.history, 1) if isinstance(each, ev.TimerCreated)]
    live.feed(ev.TimerFired(timer))
    assert kinds(signal(live, "wake", seq=7)) == [ev.EventRaised]
    live.complete(wake_of(live), '{"outcome":"done","processed":1}')
    assert isinstance(live.outcome, ev.ContinuedAsNew)


def test_an_execution_that_an_earlier_release_began_keeps_its_bound() -> None:
    """Its history would not replay otherwise. The next execution has the new one."""
    live = begin()
    send(live, 2, 3)
    assert kinds(signal(live, "interrupt", seq=4, cancel=True)) == [ev.EventRaised]
    live.complete(wake_of(live), '{"outcome":"done","processed":1}')
    assert isinstance(live.outcome, ev.ContinuedAsNew)
    assert json.loads(live.outcome.input)["wake_signals"] == 5
