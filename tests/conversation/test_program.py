"""The orchestration of a conversation, on histories made by hand: the signals that it receives, the wakes it parks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic_core import to_json

from affinity import OrchestrationContext
from affinity.conversation import program
from affinity.conversation.kinds import SIGNAL
from affinity.conversation.program import Program, Start
from affinity.orchestration import events as ev
from affinity.orchestration.engine import Step
from tests.orchestration.harness import Live, new_events


async def conversation(ctx: OrchestrationContext, start: dict[str, Any]) -> None:
    """The orchestration of the conversations of each kind."""
    await Program(ctx, "chat.wake", Start(**{"salt": "s", **start})).run()  # type: ignore[typeddict-item]


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
    live = begin()
    send(live, 2, 5)
    assert ev.ActivityCancelled in kinds(signal(live, kind, **fields))


def test_a_wake_receives_a_bounded_number_of_signals() -> None:
    """The later ones are an event each. After the wake the execution continues as new, with the unread ones."""
    live = begin()
    send(live, 2, 6)
    assert kinds(signal(live, "interrupt", seq=7, cancel=True)) == [ev.EventRaised]
    send(live, 8, 20)
    step = live.complete(wake_of(live), '{"outcome":"done","processed":1}')
    (outcome,) = [each for each in new_events(step) if isinstance(each, ev.ContinuedAsNew)]
    assert [json.loads(each.data)["seq"] for each in outcome.carried] == [*range(7, 21)]


def test_the_bound_holds_for_all_attempts_of_a_wake_and_the_pauses_between() -> None:
    live = begin()
    send(live, 2, 4)
    live.complete(wake_of(live), '{"outcome":"failed","attempt":1,"retry_after":60}')
    send(live, 5, 6)
    assert kinds(signal(live, "resume")) == [ev.EventRaised]
    (timer,) = [n for n, each in enumerate(live.history, 1) if isinstance(each, ev.TimerCreated)]
    live.feed(ev.TimerFired(timer))
    assert kinds(signal(live, "wake", seq=7)) == [ev.EventRaised]
    live.complete(wake_of(live), '{"outcome":"done","processed":1}')
    assert isinstance(live.outcome, ev.ContinuedAsNew)


def parked(step: Step) -> list[bool]:
    """Which of the activities that a step schedules are parked."""
    return [each.parked for each in new_events(step) if isinstance(each, ev.ActivityScheduled)]


DONE = '{"outcome":"done","processed":1}'


def with_parked_wake() -> Live:
    """A conversation whose first wake has ended, and whose next one is parked."""
    live = begin()
    assert parked(live.complete(wake_of(live), DONE)) == [True]
    return live


def test_the_next_wake_is_parked() -> None:
    live = with_parked_wake()
    tasks = [json.loads(each.input)["wake"] for each in live.history if isinstance(each, ev.ActivityScheduled)]
    assert tasks == ["s-1-1", "s-1-2"]
    assert parked(live.complete(wake_of(live), '{"outcome":"done","processed":2}')) == [True]


def test_the_next_wake_is_not_parked_while_there_is_something_to_do() -> None:
    live = with_parked_wake()
    assert parked(live.complete(wake_of(live), '{"outcome":"done","processed":1,"more":true}')) == [False]
    signal(live, "wake", seq=9)  # sent before the wake was parked
    assert parked(live.complete(wake_of(live), '{"outcome":"done","processed":8}')) == [False]


def test_a_late_signal_of_a_processed_input_runs_nothing() -> None:
    live = with_parked_wake()
    signal(live, "wake", seq=2)
    assert parked(live.complete(wake_of(live), '{"outcome":"done","processed":2}')) == [True]


@pytest.mark.parametrize("outcome", ['{"outcome":"done","processed":1,"next_due":5}', '{"outcome":"failed"}'])
def test_a_conversation_that_waits_for_more_than_an_input_parks_nothing(outcome: str) -> None:
    """A revisit that is due, or a failure that only a signal ends: a timer, or the signal, begins the next wake."""
    live = begin()
    assert parked(live.complete(wake_of(live), outcome)) == []
    assert parked(signal(live, "wake", seq=2)) == [False]


def test_a_failed_attempt_of_a_parked_wake_is_repeated_unparked() -> None:
    live = with_parked_wake()
    step = live.complete(wake_of(live), '{"outcome":"failed","attempt":1,"retry_after":60}')
    (timer,) = [n for n, each in enumerate(live.history, 1) if isinstance(each, ev.TimerCreated)]
    assert parked(step) == []
    assert parked(live.feed(ev.TimerFired(timer))) == [False]


def test_an_interrupt_cancels_a_wake_that_was_parked() -> None:
    """An input that finds a parked wake sends no signal: this one runs."""
    live = with_parked_wake()
    step = signal(live, "interrupt", seq=3, cancel=True)
    assert ev.ActivityCancelled in kinds(step)
    (again,) = [each for each in new_events(step) if isinstance(each, ev.ActivityScheduled)]
    assert not again.parked
    assert json.loads(again.input)["cancelled_wakes"] == ["s-1-2"]


@pytest.mark.parametrize("was_parked", [True, False])
def test_a_termination_says_whether_a_wake_was_parked(was_parked: bool) -> None:
    """Only one that was not has a trace to be closed."""
    live = with_parked_wake()
    step = signal(live, "terminate", cascade=False, parked=was_parked)
    last = [json.loads(each.input) for each in new_events(step) if isinstance(each, ev.ActivityScheduled)]
    assert [task["cancelled_wakes"] for task in last] == ([] if was_parked else [["s-1-2"]])
    assert (live.outcome is not None) is was_parked


def test_an_operator_who_cancels_does_not_know_it() -> None:
    live = with_parked_wake()
    step = live.feed(ev.CancelRequested("stop"))
    (last,) = [json.loads(each.input) for each in new_events(step) if isinstance(each, ev.ActivityScheduled)]
    assert (last["cancelled_wakes"], last["was_parked"]) == (["s-1-2"], True)


def test_an_execution_that_continues_parks_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    """And in the latest version of the orchestration."""
    monkeypatch.setattr(program, "WAKES_PER_EXECUTION", 1)
    live = begin()
    (outcome,) = [
        each for each in new_events(live.complete(wake_of(live), DONE)) if isinstance(each, ev.ContinuedAsNew)
    ]
    assert outcome.version == ev.LATEST
    again = Live(conversation)
    assert parked(again.start(outcome.input)) == [True]


@pytest.mark.parametrize(("kind", "fields"), [("resume", {}), ("interrupt", {"seq": 1, "cancel": True})])
def test_what_says_nothing_new_does_not_wake(kind: str, fields: dict[str, Any]) -> None:
    """Nothing is pending while a wake is parked; the interrupt is an input that the wake before has processed."""
    live = with_parked_wake()
    assert kinds(signal(live, kind, **fields)) == [ev.EventRaised, ev.EventAwaited]
    assert parked(live.complete(wake_of(live), '{"outcome":"done","processed":2}')) == [True]


def test_a_parked_wake_makes_room_for_more_signals() -> None:
    """The execution continues as new: a termination behind them is received."""
    live = with_parked_wake()
    for _ in range(5):
        signal(live, "resume")
    (outcome,) = [each for each in live.history if isinstance(each, ev.ContinuedAsNew)]
    assert json.loads(outcome.input)["next_due"] == 0
    assert "cancelled_wakes" not in json.loads(outcome.input)


def test_a_termination_that_meets_the_end_of_a_wake_may_be_of_a_parked_one() -> None:
    """It was sent while the wake before ran: whether this one has begun, its inputs say."""
    live = with_parked_wake()
    step = signal(live, "terminate", cascade=False, parked=False)
    (last,) = [json.loads(each.input) for each in new_events(step) if isinstance(each, ev.ActivityScheduled)]
    assert last["was_parked"]


def test_the_trace_of_a_parked_wake_is_closed_unparked() -> None:
    """Also when an operator cancels meanwhile: a parked activity would end nothing."""
    live = begin(delegations=[{"id": "d", "parent": "p", "parent_kind": "k", "max_cycles": 9, "cycles": 0}])
    live.complete(wake_of(live), DONE)
    poisoned = ev.ActivityFailed(wake_of(live), kind="poisoned", error_type="ActivityPoisoned", message="")
    closing = live.feed(poisoned)
    assert parked(closing) == [False]
    assert parked(live.feed(ev.CancelRequested("stop"))) == [False]


def test_nothing_is_parked_without_a_journal() -> None:
    """It would be queued immediately, again and again."""
    live = begin()
    assert parked(live.complete(wake_of(live), '{"outcome":"nothing","processed":0}')) == []
    assert parked(signal(live, "wake", seq=1)) == [False]


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_closed_journal_ends_the_instance(is_reset: bool) -> None:
    """By the message that has closed it, unless an operator has reset the instance since then."""
    live = begin()
    live.complete(wake_of(live), '{"outcome":"nothing","processed":1,"closed":true}')
    signal(live, "wake", seq=2)  # came before it was closed
    (timer,) = [n for n, each in enumerate(live.history, 1) if isinstance(each, ev.TimerCreated)]
    if is_reset:
        live.feed(ev.TimerFired(timer))
    else:
        signal(live, "terminate", cascade=True)
    assert tasks_of(live)[-1]["terminated"] is not is_reset
    live.complete(wake_of(live), '{"outcome":"nothing"}')
    assert live.outcome is not None


def test_the_trace_of_a_cancelled_wake_is_closed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next wake closes it, also if an attempt of that one fails and another interrupt follows."""
    monkeypatch.setattr(program, "SIGNALS_PER_EXECUTION", 9)
    live = begin()
    signal(live, "interrupt", seq=2, cancel=True)
    live.complete(wake_of(live), '{"outcome":"failed","attempt":1,"retry_after":60}')
    signal(live, "interrupt", seq=9, cancel=True)
    tasks = [json.loads(each.input) for each in live.history if isinstance(each, ev.ActivityScheduled)]
    assert [each.get("cancelled_wakes") for each in tasks] == [None, ["s-1-1"], None]


def test_a_revisit_is_not_delayed_by_the_next_execution() -> None:
    """Its timer would begin anew: a wake finds the time that is left."""
    live = begin()
    live.complete(wake_of(live), '{"outcome":"done","processed":1,"next_due":3600}')
    signal(live, "unknown")
    signal(live, "unknown")
    (outcome,) = [each for each in live.history if isinstance(each, ev.ContinuedAsNew)]
    assert json.loads(outcome.input)["next_due"] == 0


@pytest.mark.parametrize(
    ("outcome", "is_due"),
    [
        ('{"outcome":"done","processed":1,"next_due":60}', True),
        ('{"outcome":"done","processed":2,"next_due":60}', False),
        ('{"outcome":"failed","attempt":1,"read":1}', True),
        ('{"outcome":"failed","attempt":1,"read":2}', False),
    ],
)
def test_an_input_of_a_new_journal_is_not_lost(outcome: str, is_due: bool) -> None:
    """Its numbers are smaller than in the journal before, whose inputs sent no signals."""
    live = with_parked_wake()
    live.complete(wake_of(live), '{"outcome":"done","processed":100}')
    signal(live, "wake", seq=2)  # the first input of the new journal has queued the wake
    assert parked(live.complete(wake_of(live), outcome)) == ([False] if is_due else [])


@pytest.mark.parametrize("end", ["terminate", "cancel"])
def test_an_end_behind_a_trace_that_an_attempt_has_closed_is_as_in_earlier_histories(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have one more activity, whose input is not compared."""
    monkeypatch.setattr(program, "SIGNALS_PER_EXECUTION", 9)
    live = begin()
    signal(live, "interrupt", seq=2, cancel=True)
    live.complete(wake_of(live), '{"outcome":"failed","attempt":1,"retry_after":60}')
    step = signal(live, "terminate") if end == "terminate" else live.feed(ev.CancelRequested("stop"))
    assert ev.ActivityScheduled in kinds(step)
    assert "cancelled_wakes" not in json.loads(live.execution.pending_activities[wake_of(live)].input)


def test_a_cancelled_instance_closes_its_journal_even_if_it_knows_of_no_work() -> None:
    """A delegation may have come that no signal has announced so far. Not with a termination, which has closed it."""
    for end in ("cancel", "terminate"):
        live = begin()
        live.complete(wake_of(live), '{"outcome":"done","processed":1,"next_due":60.0}')
        before = len(tasks_of(live))
        if end == "cancel":
            live.feed(ev.CancelRequested("stop"))
            assert tasks_of(live)[-1]["terminated"] is False
            live.complete(wake_of(live), '{"outcome":"done"}')
            assert isinstance(live.outcome, ev.OrchestrationCancelled)
        else:
            signal(live, "terminate")
            assert live.outcome is not None
        assert len(tasks_of(live)) == before + (end == "cancel")


def closing(**start: Any) -> Live:
    """A conversation whose wake has failed, and the recording of that too."""
    live = begin(**start)
    live.feed(ev.ActivityFailed(wake_of(live), kind="failed", error_type="RuntimeError", message=""))
    live.feed(ev.ActivityFailed(wake_of(live), kind="failed", error_type="RuntimeError", message=""))
    return live


def tasks_of(live: Live) -> list[dict[str, Any]]:
    return [json.loads(each.input) for each in live.history if isinstance(each, ev.ActivityScheduled)]


def test_the_failure_of_a_wake_is_recorded_at_last() -> None:
    """With growing pauses. The handler does not run meanwhile."""
    live = closing()
    for number in range(3):
        timers = [(n, each.delay) for n, each in enumerate(live.history, 1) if isinstance(each, ev.TimerCreated)]
        timer, delay = timers[-1]
        assert delay == 2**number
        live.feed(ev.TimerFired(timer))
        if number < 2:
            live.feed(ev.ActivityFailed(wake_of(live), kind="failed", error_type="RuntimeError", message=""))
    live.complete(wake_of(live), '{"outcome":"failed","attempt":1,"read":1}')
    assert ["failed" in each for each in tasks_of(live)] == [False, True, True, True, True]
    assert {each["wake"] for each in tasks_of(live)} == {"s-1-1"}
    assert live.execution.pending_activities == {}


@pytest.mark.parametrize(
    ("kind", "fields"), [("resume", {}), ("wake", {"seq": 2}), ("interrupt", {"seq": 2, "cancel": True})]
)
def test_another_wake_runs_for_what_comes_before_the_failure_is_recorded(kind: str, fields: dict[str, Any]) -> None:
    live = closing()
    signal(live, kind, **fields)
    assert ["failed" in each for each in tasks_of(live)] == [False, True, False]


@pytest.mark.parametrize("is_by_operator", [False, True])
@pytest.mark.parametrize("is_closing", [False, True])
def test_what_ends_a_conversation_between_two_attempts_reads_what_these_were_given(
    is_closing: bool, is_by_operator: bool
) -> None:
    """A delegation may be among it, whose parent waits."""
    live = closing() if is_closing else begin()
    if not is_closing:
        live.complete(wake_of(live), '{"outcome":"failed","attempt":1,"read":1,"retry_after":60.0}')
    if is_by_operator:
        live.feed(ev.CancelRequested("enough"))
    else:
        signal(live, "terminate")
    assert live.outcome is None
    assert tasks_of(live)[-1]["terminated"] is False
    live.complete(wake_of(live), '{"outcome":"nothing"}')
    assert live.outcome is not None


def test_the_attempts_to_record_a_failure_are_bounded_in_one_execution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "WAKES_PER_EXECUTION", 2)
    live = closing()
    (timer,) = [n for n, each in enumerate(live.history, 1) if isinstance(each, ev.TimerCreated)]
    live.feed(ev.TimerFired(timer))
    assert isinstance(live.outcome, ev.ContinuedAsNew)
    assert json.loads(live.outcome.input)["next_due"] == 0


@pytest.mark.parametrize("outcome", ['{"outcome":"failed","attempt":1,"retry_after":60', '{"outcome":"nothing"'])
def test_what_a_wake_has_found_out_about_a_cancelled_one_is_kept(outcome: str) -> None:
    """The cancelled one had ended: its result is lost, and with it what it had processed and begun."""
    live = begin()
    signal(live, "interrupt", seq=2, cancel=True)
    begun = '[{"id":"d","parent":"p","parent_kind":"k","max_cycles":9,"cycles":1}]'
    live.complete(wake_of(live), f'{outcome},"processed":1,"delegations":{begun}}}')
    if '"failed"' in outcome:
        signal(live, "resume")
    last = tasks_of(live)[-1]
    assert (last["processed"], last["delegations"]) == (1, json.loads(begun))


@pytest.mark.parametrize(
    "outcome",
    ['{"outcome":"nothing","processed":1,"closed":true}', '{"outcome":"failed","attempt":1,"read":1,"processed":1}'],
)
@pytest.mark.parametrize("is_by_operator", [False, True])
def test_an_end_behind_a_wake_that_has_not_read_all_reads_the_rest(outcome: str, is_by_operator: bool) -> None:
    """The wake found the journal closed, or failed for good: a delegation may be among the rest, whose parent waits."""
    live = begin()
    live.complete(wake_of(live), outcome)
    if is_by_operator:
        live.feed(ev.CancelRequested("enough"))
    else:
        signal(live, "terminate")
    assert live.outcome is None
    assert tasks_of(live)[-1]["terminated"] is False
    live.complete(wake_of(live), '{"outcome":"nothing"}')
    assert live.outcome is not None


def test_nothing_is_read_again_at_the_end_of_what_has_read_all() -> None:
    live = begin()
    live.complete(wake_of(live), '{"outcome":"done","processed":1,"next_due":60}')
    signal(live, "terminate")
    assert live.outcome is not None
    assert len(tasks_of(live)) == 1


def test_all_wakes_that_were_cancelled_since_the_last_result_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them may have committed, with a delegation; the result of each is dropped."""
    monkeypatch.setattr(program, "SIGNALS_PER_EXECUTION", 9)
    live = begin()
    signal(live, "interrupt", seq=2, cancel=True)
    signal(live, "interrupt", seq=3, cancel=True)
    assert tasks_of(live)[-1]["cancelled_wakes"] == ["s-1-1", "s-1-2"]
    live.complete(wake_of(live), '{"outcome":"nothing","processed":1,"more":true,"cancelled_wakes":["s-1-2"]}')
    assert tasks_of(live)[-1]["cancelled_wakes"] == ["s-1-2"]  # the other one has no open trace
    live.complete(wake_of(live), '{"outcome":"done","processed":3}')
    assert "cancelled_wakes" not in tasks_of(live)[-1]


def test_the_next_execution_knows_what_was_cancelled_and_delegated() -> None:
    live = begin(delegations=["d"])
    signal(live, "interrupt", seq=2, cancel=True)
    signal(live, "interrupt", seq=3, cancel=True)
    assert isinstance(live.outcome, ev.ContinuedAsNew)
    rest = json.loads(live.outcome.input)
    assert (rest["cancelled_wakes"], rest["delegations"]) == (["s-1-1", "s-1-2"], ["d"])


@pytest.mark.parametrize("outcome", ["done", "nothing", "failed"])
def test_delegations_come_from_the_last_result(outcome: str) -> None:
    live = begin()
    live.complete(wake_of(live), f'{{"outcome":"{outcome}","processed":1,"attempt":1,"delegations":["d","e"]}}')
    signal(live, "wake", seq=9)
    if outcome != "failed":
        live.complete(wake_of(live), '{"outcome":"done","processed":2,"delegations":["e"],"more":true}')
        assert tasks_of(live)[-1]["delegations"] == ["e"]
    else:
        assert tasks_of(live)[-1]["delegations"] == ["d", "e"]


def test_what_ends_a_conversation_is_repeated_until_it_succeeds() -> None:
    """Its parent waits."""
    live = begin()
    signal(live, "terminate")
    for number in range(3):
        live.feed(ev.ActivityFailed(wake_of(live), kind="failed", error_type="RuntimeError", message=""))
        if number:
            timers = [n for n, each in enumerate(live.history, 1) if isinstance(each, ev.TimerCreated)]
            live.feed(ev.TimerFired(timers[-1]))
    assert live.outcome is None
    assert tasks_of(live)[-1]["terminated"] is False
    live.complete(wake_of(live), '{"outcome":"done"}')
    assert live.outcome is not None


def test_an_operator_who_cancels_the_end_of_a_conversation_does_not_hide_it_from_its_parent() -> None:
    live = begin()
    signal(live, "terminate", cascade=True)
    live.feed(ev.CancelRequested("enough"))
    assert live.outcome is None
    assert tasks_of(live)[-1]["terminated"] is True
    assert tasks_of(live)[-1]["cancelled_wakes"] == ["s-1-1"]
    live.complete(wake_of(live), '{"outcome":"done"}')
    assert live.outcome is not None


def test_the_next_execution_goes_on_in_the_same_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a wake that has failed for good, what that was given is set aside."""
    monkeypatch.setattr(program, "WAKES_PER_EXECUTION", 1)
    live = begin()
    live.complete(wake_of(live), '{"outcome":"failed","attempt":1,"read":1}')
    assert isinstance(live.outcome, ev.ContinuedAsNew)
    assert json.loads(live.outcome.input)["state"] == "failed"
    again = Live(conversation)
    again.start(live.outcome.input)
    signal(again, "wake", seq=2)
    assert [each.get("aside") for each in tasks_of(again)] == [True]


TENANT = '[0,["tenant","acme",1,1.0]]'
URGENT = "[7]"


def gates(live: Live) -> list[tuple[bool, int, list[str]]]:
    """Of the activities so far: whether they are parked, their priorities, and the keys of their limits."""
    return [
        (each.parked, each.priority, [use.key for use in each.limits])
        for each in live.history
        if isinstance(each, ev.ActivityScheduled)
    ]


def result(**fields: Any) -> str:
    return to_json({"outcome": "done", "processed": 1, **fields}).decode()


def test_a_wake_waits_at_the_gate_that_an_attempt_has_returned() -> None:
    """So do the next wakes, in the next execution too; the wake that was parked at another gate is not parked again."""
    live = begin()
    live.complete(wake_of(live), result(outcome="nothing", gate=TENANT))
    live.complete(wake_of(live), result())
    live.complete(wake_of(live), result(outcome="nothing", gate=URGENT))
    tasks = [json.loads(each.input) for each in live.history if isinstance(each, ev.ActivityScheduled)]
    assert gates(live) == [(False, 0, []), (False, 0, ["acme"]), (True, 0, ["acme"]), (False, 7, [])]
    assert [each.get("gate") for each in tasks] == [None, TENANT, TENANT, URGENT]
    assert [each["wake"] for each in tasks] == ["s-1-1", "s-1-1", "s-1-2", "s-1-2"]
    assert [each.get("gate_was_read") for each in tasks] == [None, True, None, True]
    send(live, 2, 4)
    live.complete(wake_of(live), result(processed=4))
    assert isinstance(live.outcome, ev.ContinuedAsNew)
    assert json.loads(live.outcome.input)["gate"] == URGENT


def test_what_runs_no_handler_waits_at_no_gate() -> None:
    """The record of a failure, and the end of the conversation."""
    live = begin(gate=TENANT)
    live.feed(ev.ActivityFailed(wake_of(live), "failed", "E", "text"))
    live.complete(wake_of(live), result(outcome="failed", attempt=1, retry_after=60))
    signal(live, "resume")
    signal(live, "terminate", cascade=True)
    assert [limits for _, _, limits in gates(live)] == [["acme"], [], ["acme"], []]
