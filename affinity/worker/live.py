"""An instance in memory: its coroutine, its mailbox, and the inputs that wait there."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from affinity.errors import NotSerializable, OrchestrationUnreadable
from affinity.orchestration.engine import Execution, Step
from affinity.orchestration.events import Event, TimerFired
from affinity.orchestration.wire import ANY_EXECUTION, read_message
from affinity.provider.contract import Generation, OrchestrationItem, QueuedMessage, Turn, WorkLock
from affinity.records import ActivityRun
from affinity.redaction import redacted
from affinity.user_code import describe_error
from affinity.worker.replays import Replay
from affinity.worker.results import StagedResult

logger: logging.Logger = logging.getLogger("affinity.worker")

NOOP = TimerFired(schedule_id=0)
"""Stands for a message to an execution that has ended: the next turn consumes it, and replay ignores it."""


@dataclass(slots=True)
class Input:
    """An input of an instance: a queued message, or the result of a work item that ran here."""

    event: Event
    size: int  # characters of its payload
    message_id: int | None = None
    lock: WorkLock | None = None
    run: ActivityRun | None = None  # of the activity that has this result; None: the first attempt, on this worker
    staged: StagedResult | None = None
    order: str | None = None  # of an ordered item: its session, whose next item waits until this one is removed
    error: Exception | None = None  # why the message cannot be read; the event is `NOOP` then

    def writes_any(self, sessions: Collection[str]) -> bool:
        """Whether state or entries of one of these sessions go with the result."""
        return self.staged is not None and not self.staged.sessions.isdisjoint(sessions)

    def settle(self, applied: bool) -> None:
        """Settle the writes that go with the result: whether the result is in the history, as far as is known."""
        if self.staged is not None:
            self.staged.settle(applied)


@dataclass(slots=True)
class LiveInstance:
    """An instance whose coroutine is in memory."""

    execution: Execution
    generation: Generation
    mailbox: list[Input] = field(default_factory=list)
    committing: bool = False
    replay: Replay | None = None  # until the coroutine is at the end of the history
    unread: list[QueuedMessage] = field(default_factory=list)  # messages that wait for the replay
    size: int = 0  # characters of its history: what the coroutine may hold
    remote_holder: str | None = None  # the other worker on whose sessions the last turns placed their work
    remote_turns: int = 0

    @property
    def idle(self) -> bool:
        """Whether it may be dropped without losing an input, a turn or a replay."""
        return not self.committing and not self.mailbox and self.replay is None


class HistoryPoint(NamedTuple):
    """A point in the history of an instance: the fence of a write at this point."""

    instance_id: str
    generation: Generation
    execution_id: int
    event_count: int

    @classmethod
    def of(cls, known: OrchestrationItem | Turn) -> Self:
        """Where a fetch found the instance, or where a turn of it begins."""
        return cls(known.instance_id, known.generation, known.execution_id, known.event_count)


def log_failure(execution: Execution) -> None:
    """Log what the orchestration has raised, with its traceback, once its end is committed; nothing after a replay."""
    if (error := execution.error) is None:
        return
    session = "" if execution.session_id is None else f", session {execution.session_id}"
    logger.error(
        "orchestration %s of %s failed (version %s, execution %d%s): %s: %s",
        execution.name,
        execution.instance_id,
        execution.version,
        execution.execution_id,
        session,
        *describe_error(redacted(error)),
        exc_info=redacted(error),
        extra={
            "instance_id": execution.instance_id,
            "execution_id": execution.execution_id,
            "session_id": execution.session_id,
        },
    )


def read_input(message: QueuedMessage, execution: Execution) -> Input:
    """The message as an input of this execution."""
    try:
        addressed, event, run = read_message(message.payload)
    except NotSerializable as error:
        unreadable = OrchestrationUnreadable(f"message {message.id} cannot be read: {error}")
        return Input(NOOP, len(message.payload), message_id=message.id, error=unreadable)
    if addressed not in {ANY_EXECUTION, execution.execution_id} and not execution.expects(addressed, event):
        event = NOOP
    return Input(event, len(message.payload), message_id=message.id, run=None if event is NOOP else run)


def unwanted_results(step: Step, inputs: Sequence[Input]) -> Collection[int]:
    """Results with state or entries that the step has not recorded, by the `id` of the input: no code waits for them.
    Their work items are removed, and what goes with them is not written, since the history does not have them.
    """
    staged = [i for i in inputs if i.staged is not None and i.staged.sessions]
    if not staged:
        return ()
    recorded = {id(event) for _, event in step.events}
    return {id(i) for i in staged if id(i.event) not in recorded}


def staged_of(inputs: Sequence[Input], unwanted: Collection[int]) -> list[StagedResult]:
    """State and entries that are written with the results among the inputs."""
    return [i.staged for i in inputs if i.staged is not None and id(i) not in unwanted]


def runs_of(step: Step, inputs: Sequence[Input]) -> Mapping[int, ActivityRun]:
    """The runs whose results are among the inputs, by the ids of the events that the inputs have become."""
    runs = {id(i.event): i.run for i in inputs if i.run is not None}
    return {n: runs[id(event)] for n, event in step.events if id(event) in runs} if runs else {}
