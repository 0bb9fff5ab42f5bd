"""Replay gives what the live run gave: for any order of inputs, from any step on, and for histories of old versions."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from affinity.errors import OrchestrationMisuse
from affinity.orchestration import events as ev
from affinity.orchestration.engine import Execution, Step
from affinity.orchestration.wire import decode_event, encode_event

from .harness import Live, moved, new_events
from .samples import app, chaos

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.json"))


def answers(event_id: int, event: ev.Event, chance: random.Random) -> ev.Event | None:
    """Something that the outside could say to a command."""
    match event:
        case ev.ActivityScheduled():
            failed = ev.ActivityFailed(event_id, "failed", "ValueError", "boom")
            return failed if chance.random() < 0.2 else ev.ActivityCompleted(event_id, str(chance.randrange(9)))
        case ev.TimerCreated():
            return ev.TimerFired(event_id)
        case ev.SubOrchestrationScheduled():
            failed_child = ev.SubOrchestrationFailed(event_id, "failed", "ValueError", "boom")
            return failed_child if chance.random() < 0.2 else ev.SubOrchestrationCompleted(event_id, '"kid"')
    return None


def random_input(history: list[ev.Event], chance: random.Random) -> ev.Event:
    """Mostly an answer to some command, stale ones included; sometimes an event, rarely a request to cancel."""
    if (dice := chance.random()) < 0.2:
        return chance.choice([*(ev.EventRaised(name, str(chance.randrange(9))) for name in "xyz"), moved("s")])
    if dice < 0.205:
        return ev.CancelRequested("chaos")
    commands = [n for n, event in enumerate(history, 1) if answers(n, event, chance)]
    event_id = chance.choice(commands[-12:])
    return answers(event_id, history[event_id - 1], chance) or ev.TimerFired(event_id)


def advance(execution: Execution, *inputs: ev.Event) -> Step:
    """Advance with suppliers that depend on nothing but the position, so that two executions can be compared."""
    return execution.advance(
        inputs, now=lambda: float(execution.event_count), new_guid=lambda: f"g{execution.event_count}"
    )


@pytest.mark.parametrize("seed", range(40))
def test_any_order_of_inputs_replays_from_any_step(seed: int) -> None:
    chance = random.Random(seed)
    live = Live(chaos)
    history: list[ev.Event] = []
    boundaries: list[int] = []
    holds: list[tuple[Mapping[int, ev.Hold], Sequence[int]]] = []
    batches: list[list[ev.Event]] = [[ev.OrchestrationStarted("chaos", "1.0.0", str(seed))]]
    while live.outcome is None:
        assert len(history) < 5_000
        step = advance(live.execution, *batches[-1])
        history += new_events(step)
        holds.append((step.holds, step.ended_holds))
        boundaries.append(len(history))
        batches.append([random_input(history, chance) for _ in range(chance.randrange(1, 4))])
    batches.pop()
    begun = [event_id for new, _ in holds for event_id in new]
    ended = [event_id for _, over in holds for event_id in over]
    assert begun
    assert sorted(begun) == sorted(ended)  # what began has ended once, at the latest with the execution
    assert not isinstance(live.execution.error, OrchestrationMisuse)

    for number, boundary in enumerate(boundaries):
        again = live.replayed(history[:boundary], page=(None, 1, 2, 7)[number % 4])
        assert again.event_count == boundary
        rest = [advance(again, *batch) for batch in batches[number + 1 :]]
        assert [event for step in rest for event in new_events(step)] == history[boundary:]
        assert [(step.holds, step.ended_holds) for step in rest] == holds[number + 1 :]
        assert again.outcome == live.outcome


def test_replay_asks_no_supplier() -> None:
    live = Live(chaos)
    live.start("1")

    def refuse() -> Any:
        raise AssertionError("asked")

    execution = live.replayed()
    step = execution.advance([ev.EventRaised("z", "1")], now=refuse, new_guid=refuse)
    assert new_events(step) == [ev.EventRaised("z", "1")]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_histories(path: Path) -> None:
    golden = json.loads(path.read_text())
    history = [decode_event(json.dumps(event)) for event in golden["history"]]
    assert [json.loads(encode_event(event)) for event in history] == golden["history"]
    definition = app.find_orchestration(golden["name"], golden["version"])
    assert definition is not None
    execution = Execution(definition, golden["instance_id"], golden["execution_id"])
    execution.replay(history)
    assert execution.event_count == len(history)
    assert execution.finished == (type(history[-1]) in ev.OUTCOMES)
    assert sorted(execution.pending_activities) == golden["pending_activities"]


def test_there_are_golden_histories() -> None:
    assert len(GOLDEN) >= 4
