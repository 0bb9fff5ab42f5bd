"""What must be kept together with an activity's result, on its way to the commit.

An activity that opened the state of its session has *participants* enlisted (`affinity.records.Participant`). When its
code has returned they are asked for what goes with the result. `StagedResult` carries that beside the result: in the
turn, or in the plain ack. Each participant learns exactly once whether the result was committed, and only a commit that
this worker has seen counts as one. So memory is never ahead of the database: a copy of the state is used again only
when the result that it belongs to is in the history.
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
        """Tell the participants, once."""
        participants, self._participants = self._participants, ()
        for each in participants:
            _tell(each, applied)


def _checked(write: object) -> StateWrite:
    """A participant may be anybody's code."""
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
    """How an activity is given back whose session state was refused: it runs again, from the state in the store.

    It counts as an attempt. Its code did run, and one whose state is refused again and again (because it writes the
    same session another way, say) must come to an end.
    """
    return WorkAbandon(lock=lock)


def discard(context: ActivityContext) -> None:
    """The run has no result: tell whoever was enlisted, unless `StagedResult.of` has taken them over."""
    for each in context._close():
        _tell(each, applied=False)


def _tell(participant: Participant, applied: bool) -> None:
    """A participant may be anybody's code: what it raises is logged, and changes nothing here."""
    try:
        participant.settled(applied)
    except Exception:
        logger.exception("a participant of an activity failed")
