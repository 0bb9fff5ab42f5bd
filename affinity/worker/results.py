"""Session state, and parts of guests, that are committed together with an activity's result.

An activity that opened the state of its session has *participants* enlisted (`affinity.session.Participant`), and
guests enlist others. When its code has returned they prepare the writes that go with the result. `StagedResult` carries
them beside it, in the turn or in the ack.

Each participant is notified exactly once whether the result was committed. Only a commit that this worker has seen
counts as one. So memory is never ahead of the database: a copy of the state is used again only when its result is in
the history.
"""

from __future__ import annotations

from collections.abc import Sequence

from affinity.errors import SessionError
from affinity.orchestration import ActivityContext
from affinity.orchestration.activity import settle
from affinity.provider.contract import WorkAbandon, WorkLock
from affinity.records import AnyParticipant, CommitPart, StateWrite


class StagedResult:
    """The participants of one run of an activity, and their parts of its result."""

    __slots__ = ("__weakref__", "_participants", "parts", "sessions", "state")

    def __init__(self, participants: Sequence[AnyParticipant]) -> None:
        self._participants = participants
        self.state: StateWrite | None = None
        self.parts: tuple[CommitPart, ...] = ()
        self.sessions: frozenset[str] = frozenset()
        """The sessions that are written."""

    @classmethod
    async def of(cls, participants: Sequence[AnyParticipant], session_id: str | None) -> StagedResult:
        """Return the staged result of a run whose code has returned, and had these enlisted.

        Raises:
            SessionError: more than one state, or more than one part of a guest.
            Exception: of a participant. All participants are settled then.
        """
        staged = cls(participants)
        try:
            for participant in participants:
                staged._add(await participant.prepare(), session_id)
        except BaseException:
            staged.settle(False)
            raise
        return staged

    def _add(self, write: object, session_id: str | None) -> None:
        """Add the part of a participant, which may be the application's code."""
        if write is None:
            return
        if isinstance(write, StateWrite):
            if self.state is not None:
                raise _second_write("states", session_id)
            self.state = write
            self.sessions |= {write.new.session_id}
        elif isinstance(write, CommitPart):
            if any(part.guest == write.guest for part in self.parts):
                raise _second_write(write.noun, session_id)
            self.parts = (*self.parts, write)
            self.sessions |= {write.session_id}
        else:
            what = type(write).__name__
            raise SessionError(f"a participant must prepare a StateWrite, a CommitPart or None, not a {what}")

    def settle(self, applied: bool) -> None:
        """Notify the participants, once, whether the result was committed."""
        participants, self._participants = self._participants, ()
        settle(participants, applied)


def _second_write(what: str, session_id: str | None) -> SessionError:
    return SessionError(
        f"2 {what} were written for session {session_id!r} in one activity; "
        "a session has one state: open it through one Sessions object"
    )


def requeue_after_conflict(lock: WorkLock) -> WorkAbandon:
    """Give-back of an activity whose session state was refused: it runs again, from the state in the store.

    It counts as an attempt, since its code did run. So an activity whose state is always refused fails in the end: for
    example, it writes the same session in another way.
    """
    return WorkAbandon(lock=lock)


def discard(context: ActivityContext, error: BaseException | None = None) -> None:
    """Settle the participants of a run that has ended so, without a result, unless a `StagedResult` has them."""
    settle(context._close(error), applied=False)
