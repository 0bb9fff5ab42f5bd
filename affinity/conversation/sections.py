"""Sections of a handler that go on where an earlier attempt of the wake has stopped, such as the loop of an agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from affinity.conversation.endings import Endings, RunningCode
from affinity.conversation.events import JournalEntry, JournalEvent


class StepCount(NamedTuple):
    """The calls of `Wake.step` in this attempt so far."""

    recorded: int  # whose result an earlier attempt has recorded
    run: int


class Section:
    """A section of a handler: see `Wake.section`.

    Attributes:
        committed: the entries that earlier attempts of the wake have committed, without its trace.
        take_arrived: returns the inputs that have come since the wake began, up to the first one of which the function
            that it is given says no, and adds them to the inputs of the wake: see `affinity.agent.run_loop`.
    """

    def __init__(
        self,
        commit: Callable[[], Awaitable[None]],
        committed: Sequence[JournalEntry],
        endings: Endings,
        count_steps: Callable[[], StepCount],
        take_arrived: Callable[[Callable[[JournalEvent], bool]], Awaitable[Sequence[JournalEntry]]],
    ) -> None:
        """Called by the wake."""
        self._commit, self._endings = commit, endings
        self._count_steps = count_steps
        self.take_arrived = take_arrived
        self.committed: Sequence[JournalEntry] = committed

    @contextmanager
    def running_code(self) -> Iterator[RunningCode]:
        """Code that may change the state, called by the ``watch`` of what this yields, and whose result the block
        appends: a commit of other code that comes between the two waits for the end of the block.
        """
        code = self._endings.begin()
        try:
            yield code
        finally:
            code.settle()

    def watch_steps(self) -> Callable[[], bool]:
        """Return a function that returns whether `Wake.step` was called since now, and each result came from an earlier
        attempt: so nothing was done anew.
        """
        before = self._count_steps()

        def are_recorded() -> bool:
            now = self._count_steps()
            return now.recorded > before.recorded and now.run == before.run

        return are_recorded

    async def commit(self) -> None:
        """Make durable and visible now the entries, requests and delegations so far, as `Wake.commit`. The state is
        kept for the next attempt, and stays unseen until the wake ends.

        Raises:
            SessionWriteConflict, SessionError, NotSerializable, PayloadTooLarge: as `Wake.commit`.
        """
        await self._commit()
