"""Activities that wait for an instance, and find out from the database that they wait in a circle.

The worker of an activity notes a wait that takes long in the database (`affinity.records.ActivityWait`). Each wait of a
circle is noted before or after another, so the last one sees the whole circle. It is refused; the others go on.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

import anyio

from affinity.errors import ProviderError, WakeMisuse
from affinity.orchestration import ActivityContext
from affinity.records import ActivityWait, WaitEdge, WaitNotes, database_of
from affinity.session.writer import current_activity

T = TypeVar("T")

PAUSES: Final = (0.5, 1.0, 2.0, 5.0)
"""Seconds from the beginning of a wait to the first look for a circle, and between two looks; the last pause repeats. A
short wait costs nothing.
"""

END_SECONDS: Final = 5.0
"""Seconds for noting the end of a wait; a sweep removes the note of an activity that has ended."""


class NotedWait:
    """A wait that may be part of a circle. Outside of activities it does nothing.

    Args:
        database: where the awaited instance is: see `ProviderConnection.database`.
        awaited: id of the instance.
        target_id: identifies data that a guest keeps under that id, of which ``seq`` is awaited; 0: not known yet.
            None: the end of the instance is awaited.
        seq: see `ActivityWait.seq`.
        remedy: the last sentence of the error.
    """

    def __init__(
        self,
        database: str,
        awaited: str,
        target_id: int | None = None,
        seq: int | None = None,
        *,
        remedy: str = "Start it without waiting for its end, or let the orchestration of this activity wait",
    ) -> None:
        ctx = current_activity()
        self._notes: WaitNotes | None = None
        if isinstance(ctx, ActivityContext) and database_of(ctx.session_store) == database:
            self._notes = ctx._waits if ctx._waits is not None and ctx._waits.is_here() else None
            about = (ctx.instance_id, ctx.execution_id, ctx.activity_id, ctx.worker_id)
            self._wait = ActivityWait(secrets.randbits(63), *about, awaited, target_id, seq)
        self.target_id: int | None = target_id
        """The given id, or the id that was found out before the first wait."""
        self._remedy = remedy
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
        while self._notes is not None:
            with anyio.move_on_after(self._next - time.monotonic()):
                return await wait()
            await self._look(self._notes)
            self._next = time.monotonic() + next(self._pauses, PAUSES[-1])
        return await wait()

    async def end(self) -> None:
        """Remove the note."""
        if self._is_noted and self._notes is not None:
            self._is_noted = False
            with anyio.move_on_after(END_SECONDS, shield=True):
                await self._notes.end_wait(self._wait.wait_id)

    async def _look(self, notes: WaitNotes) -> None:
        if self._wait.seq is not None and not self.target_id:
            return  # it is not known yet
        try:
            if not self._is_noted:
                self._is_noted = True
                self._wait = self._wait._replace(target_id=self.target_id)
                await notes.begin_wait(self._wait)
            edges = await notes.get_waits(self._wait.instance_id)
        except ProviderError:
            return  # the next look finds it
        if circle := find_circle(edges, self._wait.wait_id):
            path = " → ".join(map(repr, circle))
            raise WakeMisuse(f"this wait can never end, since each of these waits for the next: {path}. {self._remedy}")


def find_circle(edges: Sequence[WaitEdge], wait_id: int) -> Sequence[str]:
    """Return the instances of a circle in which this wait began last, from the instance that waits round to itself.
    Empty: the waits form no circle.
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
