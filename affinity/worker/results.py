"""Session state that is committed together with an activity's result.

An activity that opened the state of its session has *participants* enlisted (`affinity.records.Participant`). When its
code has returned they prepare the state that is written with the result. `StagedResult` carries it beside the result:
in the turn, or in the ack. Each participant is notified exactly once whether the result was committed, and only a
commit that this worker has seen counts as one. So memory is never ahead of the database: a copy of the state is used
again only when the result that it belongs to is in the history.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from affinity.errors import SessionError
from affinity.orchestration import ActivityContext
from affinity.provider.contract import WorkAbandon, WorkLock
from affinity.records import Participant, StateWrite

logger = logging.getLogger("affinity.worker")


class StagedResult:
    """The participants of one run of an activity, and the state that goes with its result."""

    __slots__ = ("__weakref__", "_participants", "state")

    def __init__(self, participants: Sequence[Participant]) -> None:
        self._participants = participants
        self.state: StateWrite | None = None

    @classmethod
    async def of(cls, participants: Sequence[Participant], session_id: str | None) -> StagedResult:
        """The staged result of a run whose code has returned, and had these enlisted.

        Raises:
            SessionError: more than one state for the session.
            Exception: what a participant raised. All are settled then.
        """
        staged = cls(participants)
        try:
            writes = [_checked(write) for each in participants if (write := await each.prepare()) is not None]
            staged.state = _only(writes, session_id)
        except BaseException:
            staged.settle(False)
            raise
        return staged

    def settle(self, applied: bool) -> None:
        """Notify the participants, once, whether the result was committed."""
        participants, self._participants = self._participants, ()
        for each in participants:
            _tell(each, applied)


def _checked(write: object) -> StateWrite:
    """Check what a participant has prepared: it may be the application's code."""
    if not isinstance(write, StateWrite):
        raise SessionError(f"a participant must prepare a StateWrite or None, not a {type(write).__name__}")
    return write


def _only(writes: Sequence[StateWrite], session_id: str | None) -> StateWrite | None:
    if len(writes) > 1:
        raise SessionError(
            f"{len(writes)} states were written for session {session_id!r} in one activity; "
            "a session has one state: open it through one Sessions object"
        )
    return writes[0] if writes else None


def requeue_after_conflict(lock: WorkLock) -> WorkAbandon:
    """Give-back of an activity whose session state was refused: it runs again, from the state in the store.

    It counts as an attempt: its code did run, and an activity whose state is refused each time (since it writes the
    same session in another way, for example) must fail in the end.
    """
    return WorkAbandon(lock=lock)


def discard(context: ActivityContext, error: BaseException | None = None) -> None:
    """Settle the participants of a run that has ended so, without a result, unless a `StagedResult` has them."""
    for each in context._close(error):
        _tell(each, applied=False)


def _tell(participant: Participant, applied: bool) -> None:
    """A participant may be the application's code: what it raises is logged, and changes nothing here."""
    try:
        participant.settled(applied)
    except Exception:
        logger.exception("a participant of an activity failed")
