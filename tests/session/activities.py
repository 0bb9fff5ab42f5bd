"""Activities without a worker: contexts that enlist, and a database that takes their result and the state with it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from pydantic import BaseModel

from affinity import MemorySessionStore, OpenSession, Sessions, SessionStore
from affinity.errors import SessionWriteConflict
from affinity.session import Participant, SessionRecord, SessionState, StateWrite, scratch

S = TypeVar("S")


class Chat(BaseModel):
    """The state of most tests."""

    lines: list[str] = []
    turns: int = 0
    draft: str = scratch(default="")


class EndedError(BaseException):
    """The error of a context that is asked to enlist after its run."""


_ids = count(1)


@dataclass(eq=False)
class Activity:
    """An activity's context, as far as the session layer looks at one."""

    session_id: str | None = "s"
    session_epoch: int | None = 1
    session_store: SessionStore | None = None
    session_listeners: Collection[object] | None = None
    instance_id: str = "i"
    name: str = "say"
    execution_id: int = 1
    activity_id: int = field(default_factory=lambda: next(_ids))
    enlisted: list[Participant] = field(default_factory=list)
    over: bool = False
    error: BaseException | None = None

    @property
    def ended(self) -> bool:
        return self.over

    def _enlist(self, participant: Participant) -> None:
        if self.over:
            raise EndedError
        self.enlisted.append(participant)


async def fail(opening: OpenSession[Chat], line: str = "half") -> None:
    """A block that raises after it has changed the state."""
    async with opening as chat:
        chat.lines.append(line)
        raise ZeroDivisionError


class CountingStore(MemorySessionStore):
    """Counts its calls, and fails when asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.loads = self.saves = 0
        self.failure: Exception | None = None
        self.before_load: Callable[[], Any] | None = None

    async def load(self, session_id: str) -> SessionRecord | None:
        self.loads += 1
        if self.before_load is not None:
            await self.before_load()
        if self.failure is not None:
            raise self.failure
        return await super().load(session_id)

    async def save(self, new: SessionState, **fences: Any) -> int:
        self.saves += 1
        if self.failure is not None:
            raise self.failure
        return await super().save(new, **fences)

    async def apply(self, write: StateWrite | None) -> bool:
        """Write the state that goes with a result, as a commit does."""
        try:
            if write is not None:
                await self.save(write.new, expected_version=write.base_version, epoch=write.epoch)
        except SessionWriteConflict:
            return False
        return True


class Host:
    """Runs activities as a worker does, on one database."""

    def __init__(self, database: CountingStore | None = None) -> None:
        self.database = database or CountingStore()

    def activity(self, session_id: str | None = "s", epoch: int | None = 1, activity_id: int | None = None) -> Activity:
        ctx = Activity(session_id, epoch, self.database)
        if activity_id is not None:
            ctx.activity_id = activity_id
        return ctx

    async def finish(self, ctx: Activity, *, commit: bool = True) -> bool:
        """The activity's code has returned: its result is sent, and committed unless the test says otherwise."""
        ctx.over = True
        applied = False
        try:
            writes = [await each.prepare() for each in ctx.enlisted]
            applied = commit and all([await self.database.apply(write) for write in writes])
        finally:
            self.settle(ctx, applied)
        return applied

    def settle(self, ctx: Activity, applied: bool) -> None:
        ctx.over = True
        participants, ctx.enlisted = ctx.enlisted, []
        for each in participants:
            each.settled(applied)

    async def say(
        self, chats: Sessions[Chat], line: str = "hello", *, ctx: Activity | None = None, commit: bool = True
    ) -> OpenSession[Chat]:
        """One whole activity that adds a line."""
        ctx = ctx or self.activity()
        opening = chats.open(ctx)
        async with opening as chat:
            chat.lines.append(line)
            chat.turns += 1
        await self.finish(ctx, commit=commit)
        return opening

    async def read(self, chats: Sessions[S], session_id: str = "s", epoch: int = 1) -> S:
        """One whole activity that only looks."""
        ctx = self.activity(session_id, epoch)
        async with chats.open(ctx) as state:
            pass
        await self.finish(ctx)
        return state

    async def stored(self, session_id: str = "s") -> SessionRecord:
        record = await MemorySessionStore.load(self.database, session_id)
        assert record is not None
        return record
