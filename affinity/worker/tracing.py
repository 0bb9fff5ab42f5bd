"""What a worker adds to traces: the attempts of activities, and the executions that end on it.

Nothing here runs on a worker that has found no tracer provider when it started (`affinity.tracing`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, NamedTuple

import anyio
from cachetools import LRUCache

from affinity.errors import ProviderError
from affinity.orchestration import ActivityContext
from affinity.orchestration.engine import Execution
from affinity.orchestration.wire import ActivityTask
from affinity.provider.contract import Generation, MoveFilter, MoveReason, SessionMove, Turn, WorkItem
from affinity.records import frozen
from affinity.telemetry import INSTANCE_ATTRIBUTE, SESSION_ATTRIBUTE, label_attributes
from affinity.tracing import Attempt, ExecutionEnd, ExecutionName, SessionMoveEvent, execution_context, record_execution
from affinity.worker.services import WorkerServices

NO_MOVES: Final[frozenset[MoveReason]] = frozenset({"new", "foreign_write"})
"""Reasons of a new epoch with which a session comes neither from another worker nor from an earlier start of one."""

REST: Final[MoveReason] = "idle_expired"
"""The reason of a move that is no takeover: the session's lock had ended before its work came."""

MOVE_SECONDS: Final = 1.0
"""How long an attempt waits for the reason of its session's move."""

SHOWN_MOVES: Final = 10_000
"""Epochs that are remembered as shown; an epoch that is forgotten is shown once more."""


class AttemptTracer:
    """Describes the attempts of one worker."""

    def __init__(self, services: WorkerServices) -> None:
        self._list_moves = services.provider.list_session_moves
        self._worker_id = services.identity.worker_id
        self._shown: LRUCache[int, None] = LRUCache(SHOWN_MOVES)

    async def describe(self, item: WorkItem, task: ActivityTask, context: ActivityContext) -> Attempt:
        """The attempt of this item. The first one of an epoch reads why its session has come here."""
        key = item.lock.key
        attributes: dict[str, str | bool | int | float] = {
            "messaging.message.id": "/".join(map(str, key)),
            INSTANCE_ATTRIBUTE: key.instance_id,
            "affinity.execution_id": key.execution_id,
            "affinity.activity_id": key.activity_id,
            "affinity.orchestration": task.orchestration,
            "affinity.attempt": context.attempt,
            "affinity.worker_id": self._worker_id,
            **label_attributes(task.labels),
        }
        if (session_id := item.session_id or task.shown_session) is not None:
            attributes[SESSION_ATTRIBUTE] = session_id
        if item.session_epoch is not None:
            attributes["affinity.session_epoch"] = item.session_epoch
        return Attempt(
            name=item.name,
            scheduled_in=task.trace,
            queue_time=item.queued_for,
            is_interrupted=item.attempts - item.failures > 1,
            move=await self._find_move(item),
            attributes=attributes,
        )

    async def _find_move(self, item: WorkItem) -> SessionMoveEvent | None:
        session_id, epoch = item.session_id, item.session_epoch
        if session_id is None or epoch is None or epoch in self._shown:
            return None
        self._shown[epoch] = None
        with suppress(ProviderError), anyio.move_on_after(MOVE_SECONDS):
            moves = await self._list_moves(MoveFilter(session_id=session_id), after=epoch - 1, limit=1)
            return next((_event(each) for each in moves if each.epoch == epoch and each.reason not in NO_MOVES), None)
        return None


def _event(move: SessionMove) -> SessionMoveEvent:
    attributes: dict[str, str | bool | int | float] = {"affinity.move.epoch": move.epoch}
    if move.from_worker is not None:
        attributes["affinity.move.from"] = move.from_worker
    if move.gap_seconds is not None:
        attributes["affinity.move.gap"] = move.gap_seconds
    return SessionMoveEvent(reason=move.reason, attributes=attributes, is_takeover=move.reason != REST)


class TurnContexts(NamedTuple):
    """Trace contexts for the rows of a turn."""

    execution: str | None = None
    """Of the execution."""
    work: str | None = None
    """Of what it schedules: of the ask that it serves, or else its own."""


NO_CONTEXTS: Final = TurnContexts()


def _name(execution: Execution, generation: Generation) -> ExecutionName:
    return ExecutionName(
        instance_id=execution.instance_id,
        generation=generation,
        execution_id=execution.execution_id,
        started_in=execution.started_in,
    )


@frozen(kw_only=True)
class ExecutionTracer:
    """Names the executions of one worker to their parts, and records the ones that end there."""

    worker_id: str
    is_on: bool

    def contexts(self, execution: Execution, generation: Generation) -> TurnContexts:
        """The contexts for a turn of this execution."""
        if not self.is_on:
            return NO_CONTEXTS
        own = execution_context(_name(execution, generation))
        return TurnContexts(own, execution.asked_in or own)

    def record_end(self, execution: Execution, turn: Turn, now: float) -> None:
        """Record an execution whose last turn is committed; ``now``: Unix seconds of the database."""
        if not self.is_on or (update := turn.update) is None:
            return
        end = ExecutionEnd(
            of=_name(execution, turn.generation),
            name=execution.name,
            version=execution.version,
            session_id=execution.session_id,
            labels=label_attributes(execution.labels),
            worker_id=self.worker_id,
            began=execution.began,
            ended=now,
            outcome="continued" if update.continued else update.status,
            error=execution.failure,
            senders=execution.senders,
        )
        record_execution(end)
