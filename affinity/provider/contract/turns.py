"""Records of a turn, and of the other changes that an instance's fence guards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from affinity.provider.contract.failures import NewFailure
from affinity.provider.contract.instances import FINISHED, Generation, InstanceStatus, NewInstance, NewMessage
from affinity.provider.contract.sessions import SessionHold, SessionWatch
from affinity.provider.contract.work_items import NewWorkItem, WorkItem, WorkLock
from affinity.records import ActivityRun, CommitPart, Labels, StateWrite, frozen


@frozen(kw_only=True)
class InstanceUpdate:
    """Changes of a turn to the row of its instance, beside the history."""

    status: InstanceStatus
    version: str | None = None  # pinned by the first turn
    output: str | None = None  # JSON, when completed
    error: str | None = None  # JSON, when failed or cancelled
    continued: bool = False  # the execution ended in continue_as_new: execution id + 1, event count 0


class MessageReply(NamedTuple):
    """The reply to the message of a key to the instance of the turn. A message has one reply: the first."""

    key: str
    reply: str  # JSON


class ValueWrite(NamedTuple):
    """A change of a value of the instance of the turn."""

    key: str | None  # None: all values of the instance are removed
    value: str | None = None  # JSON; None: the value is removed


class InstanceValue(NamedTuple):
    """A value of an instance."""

    instance_id: str
    key: str
    value: str  # JSON


def last_values(changes: Sequence[ValueWrite]) -> tuple[bool, Mapping[str, str | None]]:
    """Return what is left of some changes of one instance: whether all its values are removed first, and the last value
    of each key.
    """
    was_cleared, values = False, dict[str, str | None]()
    for key, value in changes:
        if key is None:
            was_cleared = True
            values.clear()
        else:
            values[key] = value
    return was_cleared, values


@frozen(kw_only=True)
class Turn:
    """One step of one instance, committed whole or not at all.

    The fence: the instance is owned by the caller's incarnation, is of generation ``generation``, is not finished, runs
    execution ``execution_id`` and has exactly ``event_count`` events; every lock in ``acks`` has a live token; and
    every write in ``states`` and in ``parts`` passes its own fence (`StateWrite`, `CommitPart`). Otherwise nothing of
    the turn is applied. Of several writes of one session's state in a batch the first passes; see also
    `CommitPart.sessions`.
    """

    instance_id: str
    generation: Generation
    execution_id: int
    event_count: int
    history: Sequence[str]  # events event_count + 1, + 2, …
    consumed: Sequence[int] = ()  # ids of messages of this instance; other ids are ignored
    acks: Sequence[WorkLock] = ()  # work items whose results are in ``history``; their sessions are touched
    work_items: Sequence[NewWorkItem] = ()
    messages: Sequence[NewMessage] = ()
    instances: Sequence[NewInstance] = ()
    # Of this execution, including what this very turn queues: activity ids, removed from the queue whichever worker
    # runs them, and event ids of timers.
    cancel_activities: Sequence[int] = ()
    cancel_timers: Sequence[int] = ()
    update: InstanceUpdate | None = None  # a finished status also removes all queue rows of the instance
    custom_status: str | None = None  # JSON; None keeps the former status
    labels: Labels | None = None  # in place of those of the instance; None keeps them
    unread: int | None = None  # messages consumed so far that the code has not read; None: as many as before
    states: Sequence[StateWrite] = ()  # session state of the activities whose results are in ``history``
    parts: Sequence[CommitPart] = ()  # writes of guests, with these results
    holds: Sequence[SessionHold] = ()
    ended_holds: Sequence[int] = ()  # hold ids of this execution that end
    watches: Sequence[SessionWatch] = ()
    # By event id: runs of activities whose results are in ``history``, except first attempts on the committing worker
    # that began without a wait.
    runs: Mapping[int, ActivityRun] = field(default_factory=dict)
    release_sessions: Sequence[str] = ()  # released after all other changes of the turn: see `Provider.release_session`
    replies: Sequence[MessageReply] = ()  # kept as the keys are: see `Provider.send_message`
    values: Sequence[ValueWrite] = ()  # in order; kept until the instance is deleted or restarted
    failures: Sequence[NewFailure] = ()  # that are in ``history``

    @property
    def finishes(self) -> bool:
        """True if the instance ends with this turn."""
        return self.update is not None and self.update.status in FINISHED

    @property
    def ends(self) -> bool:
        """True if the execution ends with this turn."""
        return self.update is not None and (self.update.continued or self.update.status in FINISHED)

    @property
    def lasting_holds(self) -> Sequence[SessionHold]:
        """The holds that do not end with this turn; the last hold of each id."""
        if self.ends:
            return ()
        return [*{hold.hold_id: hold for hold in self.holds if hold.hold_id not in self.ended_holds}.values()]


class Placed(NamedTuple):
    """The place at which a committed turn has queued a new work item."""

    item: WorkItem | None  # locked to the caller: run it now
    holder: str | None  # otherwise the worker that holds its session now, if any
    parked: bool = False  # until an input queues it; False with no item: it is queued


@frozen(kw_only=True)
class TurnResult:
    """Outcome of one turn of a batch."""

    committed: bool
    lost_acks: Sequence[
        WorkLock
    ] = ()  # when refused: the locks without a live token (maybe none: then the fence failed)
    placed: Sequence[Placed] = ()  # when committed: one for each of ``work_items``
    conflicts: Sequence[str] = ()  # when refused: sessions of states and parts that did not pass their fences


@frozen(kw_only=True)
class Release:
    """Gives up the ownership of an instance, or hands it over; ``claims`` no longer counts its taking. Nothing happens
    when the caller does not own the instance.
    """

    instance_id: str
    to: str | None = None  # hand it to this worker, if alive and not draining; otherwise any worker may take it
    unknown: bool = False  # this worker does not register the orchestration


@frozen(kw_only=True)
class Suspend:
    """Suspends an instance that this worker cannot continue, for a reason that is not a decision of its code.

    It has the fence of a `Turn`: owner, generation, execution and number of events. Nothing happens when the fence
    does not hold.
    """

    instance_id: str
    generation: Generation
    execution_id: int
    event_count: int
    error_type: str  # the reason: name of an exception class, by which instances are found
    message: str  # text of the reason
    code: str  # the code version of the worker
    needs_code: bool  # whether other code may continue it: see `Provider.retry_suspended`


@frozen(kw_only=True)
class Reset:
    """Opens an instance again, running, suspended or ended, at an earlier point of its history.

    The fence: the instance has this generation, runs (or ended in) execution ``execution_id`` and has exactly
    ``event_count`` events. Then execution ``execution_id`` + 1 begins, with the first ``keep`` events of that one,
    followed by ``history``; the former execution stays readable. The instance is running, without an owner.

    Its work items, timers and holds are removed. Other messages for it stay, behind the ``messages`` without a delay.
    One that has not ended keeps its slots (`NewInstance.gate`). One that has ended has none, and does not wait for any.
    """

    instance_id: str
    generation: Generation
    execution_id: int
    event_count: int
    keep: int
    history: Sequence[str]
    messages: Sequence[NewMessage] = ()  # a timer keeps the time of the waiting timer of the same event id, if any
    work_items: Sequence[NewWorkItem] = ()
    watches: Sequence[SessionWatch] = ()
    custom_status: str | None = None  # JSON; None: the instance loses its custom status
    values: Sequence[ValueWrite] = ()  # in order
    labels: Labels | None = None  # that the instance has then; None: it has none
