"""Sections of a handler that go on where an earlier attempt of the wake has stopped, such as the loop of an agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from affinity.conversation.endings import Endings, RunningCode
from affinity.conversation.events import JournalEntry


class Section:
    """A section of a handler: see `Wake.section`.

    Attributes:
        committed: the entries that earlier attempts of the wake have committed, without its trace.
    """

    def __init__(
        self, commit: Callable[[], Awaitable[None]], committed: Sequence[JournalEntry], endings: Endings
    ) -> None:
        """Called by the wake."""
        self._commit, self._endings = commit, endings
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

    async def commit(self) -> None:
        """Make durable and visible now the entries, requests and delegations so far, as `Wake.commit`. The state is
        kept for the next attempt, and stays unseen until the wake ends.

        Raises:
            SessionWriteConflict, SessionError, NotSerializable, PayloadTooLarge: as `Wake.commit`.
        """
        await self._commit()
