"""The oracle finds violations: each test plants one wrong fact in right ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from affinity.conversation.journal import Entry
from affinity.orchestration import events as ev
from affinity.provider.contract import EventOrigin, InstanceInfo
from affinity.provider.contract.instances import Generation
from tests.programs.acts import Seen
from tests.programs.alone import check_carried, check_labels, check_runs
from tests.programs.areas.conversations.oracle import Fold, behind_an_end
from tests.programs.bodies import ALWAYS, Activity, Gather, Job, Select, Statement, Timer, Value, Wait
from tests.programs.histories import Past, Run
from tests.programs.interpreter import app
from tests.programs.names import NAME, event_name, instance_id, session_id
from tests.programs.oracle import Oracle

BODY = f"{NAME}.body"
START = datetime(2030, 1, 1, tzinfo=UTC)
ME = instance_id(0)


def started(*body: Statement) -> ev.OrchestrationStarted:
    job = json.dumps(asdict(Job(body)), separators=(",", ":"))
    return ev.OrchestrationStarted(name=BODY, version="1.0.0", input=job)


def scheduled(task: Activity) -> ev.ActivityScheduled:
    session = None if task.session is None else session_id(task.session)
    return ev.ActivityScheduled(
        f"{NAME}.work", json.dumps(asdict(task), separators=(",", ":")), session_id=session, ordered=task.ordered
    )


def past(*events: ev.Event, name: str = ME, parent: str | None = None, after: Sequence[float] = ()) -> Past:
    """An instance of one execution; ``after``: seconds at which the events were recorded."""
    outcome = events[-1]
    status = "completed" if isinstance(outcome, ev.OrchestrationCompleted) else "running"
    info = InstanceInfo(
        instance_id=name,
        generation=Generation("b"),
        name=BODY,
        version="1.0.0",
        execution_id=1,
        status=status,  # type: ignore[arg-type]
        custom_status=None,
        output=outcome.result if isinstance(outcome, ev.OrchestrationCompleted) else None,
        error=None,
        parent_id=parent,
        owner="worker-0",
        event_count=len(events),
        created_at=START,
        updated_at=START,
    )
    times = [*after, *[0.0] * len(events)]
    origins = {
        n: EventOrigin(n, START + timedelta(seconds=times[n - 1]), None, None) for n in range(1, len(events) + 1)
    }
    return Past(info, [Run(1, events, origins)])


def alone(found: Past) -> None:
    definition = app.find_orchestration(BODY)
    assert definition is not None
    check_runs(found, definition)


def judge(*pasts: Past, states: Mapping[str, Sequence[str]] | None = None, seen: Seen | None = None) -> None:
    Oracle({each.id: each for each in pasts}, states or {}, seen or Seen(), 1).check()


PLAIN = Activity()
KEEPS = Activity(session=0, keeps="append")
DONE = past(started(PLAIN), scheduled(PLAIN), ev.ActivityCompleted(2, "1"), ev.OrchestrationCompleted("[1]"))
KEPT = past(started(KEEPS), scheduled(KEEPS), ev.ActivityCompleted(2, "1"), ev.OrchestrationCompleted("[1]"))
MARK = f"{ME}|1|2#b"


def changed(whole: Past, number: int, event: ev.Event) -> Past:
    """With another event of this number."""
    events = list(whole.last.events)
    events[number - 1] = event
    return replace(whole, runs=[replace(whole.last, events=events)])


def test_what_is_right_is_accepted() -> None:
    alone(DONE)
    judge(DONE)
    alone(KEPT)
    judge(KEPT, states={session_id(0): [MARK]})


def test_a_history_that_the_engine_does_not_make() -> None:
    with pytest.raises(AssertionError, match="the engine makes"):
        alone(changed(DONE, 2, scheduled(KEEPS)))
    with pytest.raises(AssertionError, match="event 4"):
        alone(changed(DONE, 4, ev.OrchestrationCompleted("[2]")))


def test_a_row_that_its_history_contradicts() -> None:
    with pytest.raises(AssertionError, match="its history ends in"):
        alone(replace(DONE, info=replace(DONE.info, status="failed")))
    with pytest.raises(AssertionError, match="its history"):
        alone(replace(DONE, info=replace(DONE.info, output="[7]")))


def test_values_of_the_context_come_from_the_history() -> None:
    guid, now = Value("guid"), Value("now")
    events = (started(guid, now), ev.GuidCreated("g"), ev.TimeRead(86_400.0))
    alone(past(*events, ev.OrchestrationCompleted('["g","1970-01-02T00:00:00+00:00"]')))


def test_a_result_that_its_task_does_not_give() -> None:
    failing = Activity(fails=ALWAYS)
    with pytest.raises(AssertionError, match="gave 1"):
        judge(past(started(failing), scheduled(failing), ev.ActivityCompleted(2, "1")))
    with pytest.raises(AssertionError, match="ended with"):
        judge(past(started(PLAIN), scheduled(PLAIN), ev.ActivityFailed(2, "poisoned", "E", "m")))


def test_two_results_of_one_activity() -> None:
    result = ev.ActivityCompleted(2, "1")
    with pytest.raises(AssertionError, match="2 answers"):
        judge(past(started(PLAIN), scheduled(PLAIN), result, result))


def test_a_result_of_an_attempt_that_another_one_has_followed() -> None:
    judge(DONE, seen=Seen(attempts={MARK: 1}))
    with pytest.raises(AssertionError, match="attempt 2 had begun"):
        judge(DONE, seen=Seen(attempts={MARK: 2}))


def test_a_timer_that_fires_early() -> None:
    events = (started(Timer(10)), ev.TimerCreated(10.0), ev.TimerFired(2), ev.OrchestrationCompleted("[null]"))
    judge(past(*events, after=[0, 0, 10]))
    with pytest.raises(AssertionError, match="fired after"):
        judge(past(*events, after=[0, 0, 9]))


def test_labels_that_no_event_gives() -> None:
    """A row with others, labels that are set again as they were, and an execution that continues with others."""
    tea, milk = {"drink": "tea"}, {"drink": "milk"}
    begun, ended = replace(started(PLAIN), labels=tea), ev.ContinuedAsNew("null")
    right = past(begun, ev.LabelsSet(milk), ev.OrchestrationCompleted("[]"))
    right = replace(right, info=replace(right.info, labels=milk))
    check_labels(right)
    for wrong, match in (
        (replace(right, info=replace(right.info, labels=tea)), "and its history"),
        (changed(right, 2, ev.LabelsSet(tea)), "sets .* again"),
        (replace(right, runs=[Run(1, (begun, ended), {}), Run(2, right.runs[0].events[2:], {})]), "and its history"),
        (replace(right, runs=[Run(1, (begun, ended), {}), Run(2, (replace(begun, labels=milk),), {})]), "and had"),
    ):
        with pytest.raises(AssertionError, match=match):
            check_labels(wrong)


def test_an_event_that_is_lost_or_doubled() -> None:
    seen = Seen(sent={"x": (0, 0)})
    arrived = ev.EventRaised(event_name(1), '"x"')
    waits = (started(Wait(0)), ev.EventAwaited(event_name(0)))
    judge(past(*waits, arrived), seen=seen)
    with pytest.raises(AssertionError, match="did not get"):
        judge(past(*waits), seen=seen)
    with pytest.raises(AssertionError, match="more than once"):
        judge(past(*waits, arrived, arrived), seen=seen)


def test_an_instance_that_is_gone_or_was_not_cancelled() -> None:
    with pytest.raises(AssertionError, match="is gone"):
        judge()
    with pytest.raises(AssertionError, match="was cancelled"):
        judge(past(started(Wait(0)), ev.EventAwaited(event_name(0))), seen=Seen(cancelled={0: 0}))


def test_a_child_whose_parent_has_ended_or_got_something_else() -> None:
    child = f"{ME}/1:2"
    asks = ev.SubOrchestrationScheduled(BODY, None, child, "{}")
    waits = past(started(Wait(0)), ev.EventAwaited(event_name(0)), name=child, parent=ME)
    ended = past(started(), ev.OrchestrationCompleted("[]"), name=child, parent=ME)
    judge(past(started(), asks), waits)
    with pytest.raises(AssertionError, match="its child"):
        judge(past(started(), asks, ev.OrchestrationCompleted("[]")), waits)
    with pytest.raises(AssertionError, match="has cancelled"):
        judge(past(started(), asks, ev.SubOrchestrationCancelled(2)), waits)
    with pytest.raises(AssertionError, match="waits for"):
        judge(past(started(), asks), ended)
    with pytest.raises(AssertionError, match="got"):
        judge(past(started(), asks, ev.SubOrchestrationCompleted(2, "[1]")), ended)


def test_a_state_that_is_no_fold_of_the_history() -> None:
    name = session_id(0)
    for marks in ([], ["other|1|2#b"], [MARK, MARK], [MARK, "other"]):
        with pytest.raises(AssertionError, match="session"):
            judge(KEPT, states={name: marks})
    with pytest.raises(AssertionError, match="session"):
        judge(KEPT, states={name: [MARK], session_id(1): [MARK]})


def test_a_failed_activity_leaves_nothing() -> None:
    task = replace(KEEPS, fails=ALWAYS)
    failed = ev.ActivityFailed(2, "failed", "Planned", "attempt 1")
    judge(past(started(task), scheduled(task), failed), states={})
    with pytest.raises(AssertionError, match="no activity has left it"):
        judge(past(started(task), scheduled(task), failed), states={session_id(0): [MARK]})


def test_an_activity_with_one_attempt_too_many() -> None:
    twice = replace(PLAIN, attempts=2, fails=ALWAYS)
    failed = [ev.ActivityFailed(2, "failed", "Planned", f"attempt {n}") for n in (2, 3)]
    judge(past(started(twice), scheduled(twice), failed[0]))
    judge(past(started(twice), scheduled(twice), failed[1]), seen=Seen(has_faults=True))
    with pytest.raises(AssertionError, match="ended in attempt 3"):
        judge(past(started(twice), scheduled(twice), failed[1]))
    with pytest.raises(AssertionError, match="ended in attempt 2"):
        judge(changed(DONE, 3, ev.ActivityCompleted(2, "2")))


def test_an_event_that_is_lost_when_an_execution_continues_as_new() -> None:
    body = (Timer(0), Select((Wait(0), Timer(0))))
    came = [ev.EventRaised(event_name(0), json.dumps(data)) for data in ("x", "y")]

    def continued(*carried: str, heard: tuple[str, ...] = (), of: tuple[Statement, ...] = body) -> Past:
        kept = tuple(ev.CarriedEvent(event_name(0), json.dumps(data)) for data in carried)
        job = json.dumps(asdict(Job(of, heard=heard)))
        return past(started(*of), *came, ev.ContinuedAsNew(job, carried=kept))

    def carry(found: Past) -> None:
        check_carried(found.id, found.last)

    carry(continued("y", heard=("x", "other")))
    with pytest.raises(AssertionError, match=r"has lost the events {'x'}"):
        carry(continued("y"))
    with pytest.raises(AssertionError, match=r"has read {'x'}, and carries"):
        carry(continued("x", "y", heard=("x",)))
    carry(continued(of=(Gather((Wait(0), Wait(0))),)))  # does not say what it has read when a part fails


def test_an_activity_that_had_ended_when_its_execution_was_reset() -> None:
    """Its result comes again, with the mark of the former execution."""
    start, task, completed, _ = KEPT.last.events
    reset = ev.ExecutionReset((ev.Ancestor(1, 2),))
    again = past(start, task, reset, completed, ev.OrchestrationCompleted("[1]"))
    later = replace(again.last, execution_id=2)
    judge(replace(again, runs=[KEPT.last, later]), states={session_id(0): [MARK]})
    unanswered = replace(KEPT.last, events=[start, task])
    with pytest.raises(AssertionError, match=r"has .*1.9 at 1, not .*2.2|no activity has left it"):
        judge(replace(again, runs=[unanswered, later]), states={session_id(0): [f"{ME}|1|9#b"]})


def test_ordered_activities_that_ran_out_of_order() -> None:
    task = replace(KEEPS, ordered=True)
    events = (started(task, task), scheduled(task), scheduled(task))
    results = (ev.ActivityCompleted(3, "1"), ev.ActivityCompleted(2, "2"))
    with pytest.raises(AssertionError, match="ordered"):
        judge(past(*events, *results), states={session_id(0): [f"{ME}|1|3#b", f"{ME}|1|2#b"]})


def test_a_request_of_a_wake_whose_conversation_ended_meanwhile_may_be_dropped() -> None:
    def entry(seq: int, kind: str, **about: object) -> Entry:
        return Entry(seq, kind, json.dumps(about), None, "w", False, START)

    asks = [
        entry(1, "agent.custom_tool_use", request_id="before"),
        entry(3, "agent.custom_tool_use", request_id="behind"),
    ]
    end = entry(2, "conversation.status_changed", status="terminated")
    assert behind_an_end([asks[0], end, asks[1]]) == {"behind"}
    assert behind_an_end(asks) == set()


def test_inputs_that_are_set_aside_together_are_found_where_all_are_kept() -> None:
    """One of those that retention has removed may have been an interrupt, which is read with what it follows."""

    def check(*kinds: str) -> None:
        kept = [SimpleNamespace(seq=number, kind=kind) for number, kind in enumerate(kinds, 1)]
        fold: Any = SimpleNamespace(journal=SimpleNamespace(entries=kept))
        letters: Any = SimpleNamespace(inputs=[1, 2], revisits=[])
        Fold._check_alone(fold, letters)

    check()
    check("user.message")
    check("user.message", "user.interrupt")
    with pytest.raises(AssertionError, match="together"):
        check("user.message", "user.message")
