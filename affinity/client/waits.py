"""Activities that wait for a conversation or an instance, and find out from the database that they wait in a circle.

A wait of an activity, such as the handler of a wake, that takes long is noted in the database
(`affinity.journal.ActivityWait`), by the worker of the activity. Each wait of a circle is noted before or after another
one, so the last one sees the whole circle. It is the one that is refused; the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

import anyio

from affinity.errors import ProviderError, WakeMisuse
from affinity.journal import ActivityWait, JournalAccess, WaitEdge, new_journal_id
from affinity.orchestration import ActivityContext
from affinity.records import database_of
from affinity.session.writer import current_activity

T = TypeVar("T")

PAUSES: Final = (0.5, 1.0, 2.0, 5.0)
"""Seconds from the begin of a wait to the first look for a circle, and between two looks; the last one repeats. A short
wait costs nothing.
"""

END_SECONDS: Final = 5.0
"""For the end of a wait to be noted; a sweep removes the note of an activity that has ended."""


class NotedWait:
    """A wait that may be part of a circle. Outside of activities it does nothing.

    Args:
        database: where the awaited instance is: see `ProviderConnection.database`.
        awaited: id of the instance, or of the conversation.
        journal_id: of the conversation; None: the end of the instance is awaited.
        seq: number of the input whose reply is awaited.
    """

    def __init__(self, database: str, awaited: str, journal_id: int | None = None, seq: int | None = None) -> None:
        ctx = current_activity()
        self._journals: JournalAccess | None = None
        if isinstance(ctx, ActivityContext) and database_of(ctx.session_store) == database:
            self._journals = ctx.journals if ctx.journals is not None and ctx.journals.is_here() else None
            about = (ctx.instance_id, ctx.execution_id, ctx.activity_id, ctx.worker_id)
            self._wait = ActivityWait(new_journal_id(), *about, awaited, journal_id, seq)
        self.journal_id: int | None = journal_id
        """As given, or as found out before the first wait."""
        self._pauses = iter(PAUSES)
        self._next = time.monotonic() + next(self._pauses)
        self._is_noted = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.end()

    async def over(self, wait: Callable[[], Awaitable[T]]) -> T:
        """Call ``wait``, which may be cancelled and called again, until it returns.

        Raises:
            WakeMisuse: the wait can never end.
        """
        while self._journals is not None:
            with anyio.move_on_after(self._next - time.monotonic()):
                return await wait()
            await self._look(self._journals)
            self._next = time.monotonic() + next(self._pauses, PAUSES[-1])
        return await wait()

    async def end(self) -> None:
        """Remove the note."""
        if self._is_noted and self._journals is not None:
            self._is_noted = False
            with anyio.move_on_after(END_SECONDS, shield=True):
                await self._journals.end_wait(self._wait.wait_id)

    async def _look(self, journals: JournalAccess) -> None:
        if self._wait.seq is not None and not self.journal_id:
            return  # the journal is not known yet
        try:
            if not self._is_noted:
                self._is_noted = True
                self._wait = self._wait._replace(journal_id=self.journal_id)
                await journals.begin_wait(self._wait)
            edges = await journals.get_waits(self._wait.instance_id)
        except ProviderError:
            return  # the next look finds it
        if circle := find_circle(edges, self._wait.wait_id):
            path = " → ".join(map(repr, circle))
            raise WakeMisuse(
                f"this wait can never end, since each of these waits for the next: {path}. Use wake.revisit() to run "
                "again, send() without waiting, or wake.delegate() to give the work to another conversation"
            )


def find_circle(edges: Sequence[WaitEdge], wait_id: int) -> Sequence[str]:
    """The instances of a circle of which this wait is the last one to begin, first and last the one that waits; empty:
    there is none.
    """
    own = next((edge for edge in edges if edge.wait_id == wait_id), None)
    if own is None:
        return ()
    older = [edge for edge in edges if (edge.began, edge.wait_id) < (own.began, own.wait_id)]
    paths: dict[str, tuple[str, ...]] = {own.awaited: (own.instance_id, own.awaited)}
    for at in (reached := [own.awaited]):
        for edge in older:
            if edge.instance_id == at and edge.awaited not in paths:
                paths[edge.awaited] = (*paths[at], edge.awaited)
                reached.append(edge.awaited)
    return paths.get(own.instance_id, ())
