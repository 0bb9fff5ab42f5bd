"""The judge of starts finds violations: each test plants one wrong fact in right ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from affinity.orchestration import events as ev
from affinity.provider.contract import EventOrigin, InstanceInfo
from affinity.provider.contract.instances import Generation
from tests.programs.acts import Seen
from tests.programs.areas.starts import NAME, Asked, Judge, Outcome, StartAct, StartCall, Stay
from tests.programs.bodies import Job
from tests.programs.histories import Past, Run
from tests.programs.names import instance_id
from tests.programs.oracle import check_room

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Ran:
    """An execution of an instance, in seconds from the begin of the program."""

    mark: str = "a"
    begin: float = 0.0
    end: float = 9.0
    outcome: ev.Event | None = None  # None: its result
    rooms: Any = ""
    fails: bool = False

    def run(self, number: int) -> Run:
        """As a history."""
        stay = json.dumps(asdict(Stay(self.mark, self.rooms, fails=self.fails)))
        events = [ev.OrchestrationStarted(f"{NAME}.stay", "1.0.0", stay), self.outcome or self.result]
        times = [BEGIN + timedelta(seconds=at) for at in (self.begin, self.end)]
        return Run(number, events, {n: EventOrigin(n, at, None, None) for n, at in enumerate(times, 1)})

    @property
    def result(self) -> ev.Event:
        """As the code gives it."""
        return ev.OrchestrationCompleted(json.dumps(self.mark))


def past(*ran: Ran, number: int = 0, **more: Any) -> Past:
    """An instance with its executions."""
    runs = [each.run(count) for count, each in enumerate(ran, 1)]
    info: dict[str, Any] = {
        **dict.fromkeys(("custom_status", "output", "error", "parent_id", "owner")),
        **{"instance_id": f"{NAME}-{number}", "generation": Generation("g"), "name": f"{NAME}.stay"},
        **{"version": "1.0.0", "execution_id": len(runs), "status": "completed", "event_count": 2},
        **{"created_at": BEGIN, "updated_at": BEGIN},
    }
    return Past(InstanceInfo(**info | more), runs)


def call(outcome: Outcome = "created", *, place: int = 0, **act: Any) -> StartCall:
    """A start at the begin of the program."""
    return StartCall(StartAct(**act), BEGIN, place, place + 1, outcome)


def judge(pasts: Sequence[Past], *cancelled: int, **calls: StartCall) -> None:
    Judge({each.id: each for each in pasts}, Asked(calls, cancelled=set(cancelled))).check()


QUEUED = call("queued", place=2, if_running="queue_one")


def test_what_is_right_is_accepted() -> None:
    judge([past(Ran())], a=call())
    judge([past(Ran(), Ran("b", 9, 20))], a=call(), b=QUEUED)
    judge([past(Ran(), Ran("c", 9, 20))], a=call(), b=QUEUED, c=replace(QUEUED, begun=4, ended=5))
    hall = call(stay=Stay(rooms="hall"))
    beside = [past(Ran(str(n), rooms="hall"), number=n) for n in range(2)]
    judge(beside, **{str(n): replace(hall, act=replace(hall.act, number=n)) for n in range(2)})


def test_a_start_that_does_not_run() -> None:
    for outcome in ("restarted", "queued"):
        with pytest.raises(AssertionError, match="did not run"):
            judge([past(Ran())], a=call(), b=replace(QUEUED, outcome=outcome))
    with pytest.raises(AssertionError, match="did not run"):
        judge([], a=call())
    with pytest.raises(AssertionError, match="did not run"):
        judge([past(Ran(), Ran("b", 9, 20))], a=call(), b=QUEUED, c=replace(QUEUED, begun=4, ended=5))
    with pytest.raises(AssertionError, match="a start waits for its end"):
        judge([past(Ran(), next=Generation("n"))], a=call())
    with pytest.raises(AssertionError, match="nothing will end it"):
        judge([past(Ran(), status="pending")], a=call())


def test_a_start_that_should_not_run() -> None:
    with pytest.raises(AssertionError, match="ran, and was"):
        judge([past(Ran(), Ran("b", 9, 20))], a=call(), b=call("running"))
    with pytest.raises(AssertionError, match="ran 2 times"):
        judge([past(Ran(), Ran("a", 9, 20))], a=call())
    with pytest.raises(AssertionError, match="before the end of"):
        judge([past(Ran(), Ran("b", 8, 20))], a=call(), b=QUEUED)


def test_an_outcome_that_its_options_do_not_allow() -> None:
    for outcome in ("queued", "replaced", "restarted", "refused"):
        with pytest.raises(AssertionError, match=f"outcome='{outcome}'"):
            judge([past(Ran())], a=call(), b=call(outcome))
    with pytest.raises(AssertionError, match="was created by"):
        judge([past(Ran(), Ran("b", 9, 20))], a=call(), b=call())


def test_a_begin_before_its_time() -> None:
    judge([past(Ran(begin=5.0))], a=call(debounce=(5.0, None)))
    judge([past(Ran(begin=5.0))], a=call(debounce=(20.0, 5.0)))
    with pytest.raises(AssertionError, match="began after"):
        judge([past(Ran(begin=4.9))], a=call(debounce=(5.0, None)))
    with pytest.raises(AssertionError, match="began after"):
        judge([past(Ran(begin=2.9))], a=call(delay=3.0))


def test_an_end_that_is_not_as_asked() -> None:
    cancelled = Ran(outcome=ev.OrchestrationCancelled("enough"))
    judge([past(cancelled, status="cancelled")], 0, a=call())
    with pytest.raises(AssertionError, match="no client has asked"):
        judge([past(cancelled, status="cancelled")], 1, a=call())
    with pytest.raises(AssertionError, match="has completed"):
        judge([past(Ran(fails=True))], a=call(stay=Stay(fails=True)))
    with pytest.raises(AssertionError, match="gave"):
        judge([past(Ran(outcome=ev.OrchestrationCompleted('"other"')))], a=call())
    with pytest.raises(AssertionError, match="has the input"):
        judge([past(Ran(rooms="desk"))], a=call())


def test_more_instances_than_slots() -> None:
    act = StartAct(stay=Stay(rooms="hall"))
    calls = {str(n): replace(call(), act=replace(act, number=n)) for n in range(3)}
    judge(
        [past(Ran(str(n), begin=n // 2 * 9.0, end=n // 2 * 9.0 + 9, rooms="hall"), number=n) for n in range(3)], **calls
    )
    with pytest.raises(AssertionError, match=r"starts-2: 2'] ran at the same time"):
        judge([past(Ran(str(n), begin=float(n), rooms="hall"), number=n) for n in range(3)], **calls)
    two = [past(Ran(str(n), rooms="hall"), number=n) for n in range(2)]
    waited = past(last := Ran("2", begin=12.0, end=12.0, rooms="hall"), number=2)
    judge([*two, replace(waited, runs=[_cancelled_before(last)])], **calls)


def _cancelled_before(ran: Ran) -> Run:
    """A worker without its code has recorded a request to cancel, while it waited for its slot."""
    run = ran.run(1)
    times = [BEGIN + timedelta(seconds=2), *(origin.recorded_at for origin in run.origins.values())]
    return replace(
        run,
        events=[ev.CancelRequested("enough"), *run.events],
        origins={n: EventOrigin(n, at, None, None) for n, at in enumerate(times, 1)},
    )


def test_more_limited_instances_than_slots_in_the_area_of_orchestrations() -> None:
    jobs = (Job(limited=True),) * 3
    pasts = {
        instance_id(n): past(Ran(begin=float(n)), instance_id=instance_id(n))
        for n in range(3)  # the third one begins as the first two run
    }
    check_room(pasts, jobs[:2], Seen())
    check_room(pasts, jobs, Seen(reset={0}))
    check_room(pasts, jobs, Seen(opened_at=BEGIN + timedelta(seconds=2)))
    with pytest.raises(AssertionError, match="ran at the same time"):
        check_room(pasts, jobs, Seen())
    last = instance_id(2)
    check_room(pasts | {last: replace(pasts[last], runs=[_cancelled_before(Ran(begin=12.0, end=12.0))])}, jobs, Seen())
