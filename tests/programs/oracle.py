"""Rules at rest between the instances of a random program and the states of its sessions."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from pydantic import TypeAdapter

from affinity.orchestration import events as ev
from tests.programs.acts import Seen
from tests.programs.bodies import Activity, Job
from tests.programs.histories import Past, Run
from tests.programs.interpreter import Planned, leaks, reply_to
from tests.programs.names import NAME, instance_id, session_id
from tests.programs.slots import ROOM, Stay, above_bound
from tests.programs.values import wrong

_TASK: Final = TypeAdapter(Activity)
_TASKS: Final = {f"{NAME}.work", f"{NAME}.threaded"}

CLOCK: Final = 1e-5
"""Seconds by which two times of one moment may differ: they are rounded."""

States = Mapping[str, Sequence[str]]
"""The marks in the state of each session that has a record."""


class Oracle:
    """Judges histories, by instance id, and states, by session.

    Each check raises AssertionError.
    """

    def __init__(self, pasts: Mapping[str, Past], states: States, seen: Seen, count: int) -> None:
        self._pasts = pasts
        self._states = states
        self._seen = seen
        self._count = count  # instances that the program starts

    def check(self) -> None:
        """All of it."""
        for past in self._pasts.values():
            for run in past.runs:
                self._check_activities(past, run)
                self._check_timers(past, run)
                self._check_children(past, run)
        self._check_instances()
        self._check_orphans()
        self._check_events()
        self._check_replies()
        self._check_states()
        self._check_order()
        self._check_leaks()
        assert not self._seen.crowded, f"above a limit: {self._seen.crowded}"

    def _check_leaks(self) -> None:
        """No code has seen what other code has set, and each value was read as it was given."""
        seen, read = [*leaks], [*wrong]
        leaks.clear()  # for the next program
        wrong.clear()
        assert not seen, f"code has seen what other code has set: {seen}"
        assert not read, f"values were not read as they were given: {read}"

    # -- activities and timers

    def _check_activities(self, past: Past, run: Run) -> None:
        """Ended activities did so as their tasks say, and only once."""
        ends = Counter(event.schedule_id for event in run.events if hasattr(event, "schedule_id"))
        for number, task, answer in activities(run):
            where = f"{past.id}/{run.execution_id}: activity {number}, {task}"
            assert ends[number] <= 1, f"{where} has {ends[number]} answers"
            if isinstance(answer, ev.ActivityCompleted):
                assert not task.hangs, f"{where} completed"
                value = json.loads(answer.result)
                assert value >= 1 if task.keeps else value > task.fails, f"{where} gave {value}"
                last = self._seen.attempts.get(f"{past.id}|{run.execution_id}|{number}#{past.info.generation}", 0)
                assert task.keeps or value >= last, f"{where} gave {value}, and attempt {last} had begun"
            elif isinstance(answer, ev.ActivityFailed):
                kinds = _kinds(task)
                assert answer.kind in kinds, f"{where} ended with {answer}, not {kinds or 'its result'}"
            if task.session is None and not self._seen.has_faults:
                attempt = _attempt(answer)
                assert attempt <= task.attempts, f"{where} ended in attempt {attempt}: {answer}"

    def _check_timers(self, past: Past, run: Run) -> None:
        """None fires before its time."""
        if run.is_reset:
            return
        answers = run.answers()
        fired = {event.schedule_id: n for n, event in enumerate(run.events, 1) if isinstance(event, ev.TimerFired)}
        for number, event in enumerate(run.events, 1):
            if isinstance(event, ev.TimerCreated) and isinstance(answers.get(number), ev.TimerFired):
                passed = run.origins[fired[number]].recorded_at - run.origins[number].recorded_at
                assert passed.total_seconds() >= event.delay - CLOCK, f"{past.id}: {event} fired after {passed}"

    # -- instances

    def _check_instances(self) -> None:
        """Started instances are there; instances that were asked to cancel have ended."""
        for number in range(self._count):
            name = instance_id(number)
            past = self._pasts.get(name)
            if number not in self._seen.deleted:
                assert past is not None, f"{name} is gone"
            if past is not None and self._seen.cancelled.get(number) == self._seen.opened[number]:
                assert number in self._seen.deleted or past.has_ended, (
                    f"{name} was cancelled and is {past.info.status}, it waits for {past.last.open_commands()}"
                )

    def _check_children(self, past: Past, run: Run) -> None:
        """A parent got the result that its child gave."""
        for number, event in enumerate(run.events, 1):
            if not isinstance(event, ev.SubOrchestrationScheduled):
                continue
            child = self._pasts.get(event.instance_id)
            answer = run.answers().get(number)
            if child is None or child.info.parent_id != past.id or _number_of(event.instance_id) is not None:
                continue
            first = next((each for each in child.runs[0].events if isinstance(each, ev.OrchestrationStarted)), None)
            is_of_event = first is not None and _started_by(first, run.execution_id, number)  # not of another one
            if first is not None and is_of_event and child.runs[0].execution_id == 1 and not child.runs[0].is_reset:
                assert first.labels == event.labels, f"{past.id} starts {child.id}: {event}, which begins with {first}"
            if isinstance(answer, ev.SubOrchestrationCancelled):
                assert child.has_ended, f"{past.id} has cancelled {child.id}, which is {child.info.status}"
            if isinstance(answer, ev.SubOrchestrationCompleted) and not self._was_reset(past):
                assert (child.info.status, child.info.output) == ("completed", answer.result), (
                    f"{past.id} got {answer} of {child.info}"
                )
            if number in run.open_commands() and run is past.last and not past.has_ended:
                assert not child.has_ended, f"{past.id} waits for {child.id}, which is {child.info.status}"

    def _check_orphans(self) -> None:
        """A child of an instance that has ended has ended."""
        for past in self._pasts.values():
            parent = self._pasts.get(past.info.parent_id or "")
            if parent is not None and parent.has_ended:
                assert past.has_ended, f"{parent.id} is {parent.info.status}, its child {past.id} {past.info.status}"

    def _was_reset(self, past: Past) -> bool:
        return any(run.is_reset for run in past.runs)

    # -- events

    def _check_events(self) -> None:
        """An event arrives once, and always where its receiver still runs."""
        for past in self._pasts.values():
            for run in past.runs:
                raised = [event for event in run.events if isinstance(event, ev.EventRaised) and _is_ours(event)]
                twice = [one for one, count in Counter(event.data for event in raised).items() if count > 1]
                assert not twice, f"{past.id}/{run.execution_id} got {twice} more than once"
        for data, (to, generation) in self._seen.sent.items():
            if generation == self._seen.generations[to]:
                self._check_arrived(instance_id(to), json.dumps(data))
        for past in self._pasts.values():
            for event in past.last.events:
                if isinstance(event, ev.EventSent):
                    self._check_arrived(event.instance_id, event.data)

    def _check_arrived(self, to: str, data: str) -> None:
        past, number = self._pasts.get(to), _number_of(to)
        if past is None or past.has_ended or number in self._seen.deleted or self._seen.generations[number or 0]:
            return
        if any(type(run.outcome) not in {type(None), ev.ContinuedAsNew} for run in past.runs):
            return  # a reset does not bring back what was in the queue when the instance ended
        arrived = [event.data for run in past.runs for event in run.events if isinstance(event, ev.EventRaised)]
        assert data in arrived, f"{to} is {past.info.status}, and did not get the event {data}"

    def _check_replies(self) -> None:
        """A question has the reply that its instance recorded, and has it if one did."""
        for data, reply in self._seen.replies.items():
            assert reply == reply_to(data), f"the reply to {data} is {reply}"
        for past in self._pasts.values():
            for event in past.last.events:
                if isinstance(event, ev.EventReplied):
                    got = event.key in self._seen.replies or event.key in self._seen.asked
                    assert got, f"{past.id} replied {event}, and its client did not get it"

    # -- sessions

    def _check_states(self) -> None:
        """Each mark is in its state once, at the place that its activity returned, and has a reason to be there."""
        reasons = self._reasons()
        for name, marks in self._states.items():
            twice = [mark for mark, count in Counter(marks).items() if count > 1]
            assert not twice, f"session {name} has {twice} more than once: {marks}"
            for mark in marks:
                uid = mark.partition("#")[0]
                known = reasons.get(uid)
                assert known in {None, name}, f"session {name} has {mark}, which is of {known}"
                if known is None and not mark.endswith("/early"):
                    assert self._may_be_forgotten(uid), f"session {name} has {mark}, and no activity has left it"
        for name, place, uid in self._places():
            marks = self._states.get(name, ())
            if name not in {session_id(number) for number in self._seen.removed}:
                found = marks[place - 1].partition("#")[0] if 0 < place <= len(marks) else None
                assert found == uid, f"session {name} has {found} at {place}, not {uid}: {marks}"

    def _reasons(self) -> Mapping[str, str]:
        """Marks that may be in a state, with its session: completed, or ended or cancelled from outside meanwhile."""
        found = {mark: session_id(session) for mark, (session, _) in self._seen.written.items()}
        for uid, task, answer, _ in self._keeping():
            if not isinstance(answer, ev.ActivityFailed):
                found[uid] = session_id(task.session or 0)
        return found

    def _places(self) -> Iterator[tuple[str, int, str]]:
        """Session, place and mark, of all that is known to be in a state."""
        for mark, (session, place) in self._seen.written.items():
            yield session_id(session), place, mark
        for uid, task, answer, came_again in self._keeping():
            if isinstance(answer, ev.ActivityCompleted) and not came_again:
                yield session_id(task.session or 0), json.loads(answer.result), uid

    def _keeping(self) -> Iterator[tuple[str, Activity, ev.Event | None, bool]]:
        for past in self._pasts.values():
            for run in past.runs:
                for number, task, answer in activities(run):
                    if task.keeps and task.session is not None:
                        uid = f"{past.id}|{run.execution_id}|{number}"
                        yield uid, task, answer, _came_again(past, run, answer)

    def _may_be_forgotten(self, uid: str) -> bool:
        """Whether the history that would explain a mark was removed."""
        owner, bar, _ = uid.partition("|")
        return bool(self._seen.deleted and bar) and _number_of(owner) in {None, *self._seen.deleted}

    def _check_order(self) -> None:
        """Ordered activities of a session that one execution scheduled have left their marks in order."""
        for past in self._pasts.values():
            for run in past.runs:
                places: defaultdict[int, list[int]] = defaultdict(list)
                for _, task, answer in activities(run):
                    if task.ordered and task.keeps and isinstance(answer, ev.ActivityCompleted):
                        places[task.session or 0].append(json.loads(answer.result))
                for session, found in places.items():
                    if session not in self._seen.removed and not run.is_reset:
                        assert found == sorted(found), f"{past.id}/{run.execution_id}: ordered, and at {found}"


def check_room(pasts: Mapping[str, Past], jobs: Sequence[Job], seen: Seen) -> None:
    """Until all were let begin, no more instances ran at a time than `ROOM` has slots. One that was reset after its end
    has none.

    Raises:
        AssertionError: there were more.
    """
    limited = [number for number, job in enumerate(jobs) if job.limited and number not in seen.reset]
    stays: list[Stay] = []
    for past in [pasts[instance_id(number)] for number in limited if instance_id(number) in pasts]:
        for runs in past.generations:
            begin = runs[0].began_at or LATE
            last = runs[-1]
            end = LATE if last.outcome is None else last.origins[len(last.events)].recorded_at
            if seen.opened_at is None or begin < seen.opened_at:
                stays.append((begin, end, past.id))
    found = [*above_bound(stays, ROOM.concurrency or 0)]
    assert not found, f"{found[0]} ran at the same time, and {ROOM.name} has {ROOM.concurrency} slots: {stays}"


LATE: Final = datetime.max.replace(tzinfo=UTC)
"""After the end of the program."""


def activities(run: Run) -> Iterator[tuple[int, Activity, ev.Event | None]]:
    """The activities of an execution: event id, task, and the event that answered or cancelled it.

    If the answer was copied from an execution that was reset, the activity is of that execution.
    """
    answers = run.answers()
    copied = {getattr(event, "schedule_id", 0) for event in run.events[: run.copied]}
    for number, event in enumerate(run.events, 1):
        if isinstance(event, ev.ActivityScheduled) and number not in copied and event.name in _TASKS:
            yield number, _TASK.validate_json(event.input), answers.get(number)


def ended_marks(pasts: Iterable[Past]) -> Iterator[str]:
    """The marks of activities with a result of their last attempt: nothing has cancelled them while they ran."""
    for past in pasts:
        for run in past.runs:
            for number, task, answer in activities(run):
                if isinstance(answer, ev.ActivityCompleted | ev.ActivityFailed) and not task.hangs:
                    yield f"{past.id}|{run.execution_id}|{number}#{past.info.generation}"


def _came_again(past: Past, run: Run, answer: ev.Event | None) -> bool:
    """Whether a reset has taken a step again from this answer: then it has the mark of the former execution."""
    formers = {each.execution_id: each.events for each in past.runs}
    after = [formers.get(each.execution_id, ())[each.event_id :][:1] for each in run.lineage]
    return answer is not None and any(answer in events for events in after)


def _kinds(task: Activity) -> frozenset[str]:
    """How an activity may fail."""
    late = {"timeout"} if task.hangs or task.limited else set[str]()
    failed = {"failed"} if task.fails >= task.attempts or ((task.hangs or task.limited) and task.fails) else set[str]()
    return frozenset(late | failed | ({"busy"} if task.impatient else set[str]()))


def _attempt(answer: ev.Event | None) -> int:
    """In which an activity without a state has ended; 0: it says nothing of it."""
    if isinstance(answer, ev.ActivityCompleted):
        return int(answer.result)
    planned = isinstance(answer, ev.ActivityFailed) and answer.error_type == Planned.__name__
    return int(answer.message.removeprefix("attempt ")) if planned and isinstance(answer, ev.ActivityFailed) else 0


def _number_of(name: str) -> int | None:
    """Of an instance that the program starts."""
    number = name.removeprefix(f"{NAME}-")
    return int(number) if number.isdecimal() else None


def _is_ours(event: ev.EventRaised) -> bool:
    return not event.name.startswith("affinity:")


def _started_by(first: ev.OrchestrationStarted, execution_id: int, number: int) -> bool:
    """Whether this event of its parent has started the instance: another one may name the same id."""
    parent = first.parent
    return parent is not None and (parent.execution_id, parent.schedule_id) == (execution_id, number)
