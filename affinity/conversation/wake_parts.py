"""The parts of a wake that is running, and the handlers of this process that wait for wakes of other conversations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pydantic import JsonValue

from affinity.around import around, before_each
from affinity.conversation.endings import Endings
from affinity.conversation.events import JournalEntry, JournalEvent
from affinity.conversation.inbox import PendingRequest
from affinity.conversation.journal import Entry, JournalAccess
from affinity.conversation.kept_state import KeptState
from affinity.conversation.kinds import ConversationKind
from affinity.conversation.lineage import CreationPlanner
from affinity.conversation.stream import StreamWriter
from affinity.conversation.trace import Trace
from affinity.conversation.views import PendingRevisit
from affinity.conversation.writing import WakeWriting
from affinity.errors import SessionError
from affinity.headers import Headers
from affinity.orchestration import ActivityContext
from affinity.orchestration.middleware import CallKind, MiddlewareCall
from affinity.records import database_of
from affinity.session import OpenSession
from affinity.tasks import run_in_thread


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeInputs:
    """The work of a wake, read and decoded."""

    pending: Sequence[JournalEntry]
    due: Sequence[PendingRevisit]
    requests: list[PendingRequest[JournalEvent]]  # the wake's own are added
    revisits: set[str]  # keys of pending revisits that are not due; the wake's own are added
    parent: str | None
    committed: Sequence[Entry]  # by earlier attempts of the wake, without its trace


@dataclass(slots=True)
class Finish:
    """The result of the wake for its parent."""

    is_set: bool = False
    """The handler has given a result."""
    result: JsonValue = None
    """The result that the handler has given, or the text of the last message."""


@dataclass(eq=False, kw_only=True)
class WakeParts:
    """The parts of a `Wake`."""

    context: ActivityContext
    headers: Headers
    """The headers of the first input of the wake that has some."""
    wake_id: str
    attempt: int
    kind: ConversationKind
    readable: frozenset[str]
    inputs: WakeInputs
    writing: WakeWriting
    stream: StreamWriter
    trace: Trace
    journals: JournalAccess
    lineage: CreationPlanner
    kept: KeptState
    """The state in the attempts of the wake."""
    take_inputs: Callable[[Sequence[Entry]], None] | None = None
    """Lets the wake process these inputs too; None: it tries one input alone."""
    tried_with: str | None = None
    """Id of the wake that has failed with the only input of this wake, and with others."""
    finish: Finish = field(default_factory=Finish)
    committing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a part is committed: the worker refuses a second one at the same time."""
    endings: Endings = field(default_factory=Endings)
    """The code of steps and tools that has ended, and whose results are not added yet."""
    opening: OpenSession[Any] | None = None
    """The open state, while the handler runs."""
    is_truncated: bool = False
    """The handler was cut off: see `Wake.note_truncated`."""
    has_ended: bool = False
    """The handler has ended."""

    def around(self, kind: CallKind, name: str, input: object, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with the middleware of the app around it, as an async one; without any, the function."""
        if not (middleware := self.context._middleware):
            return function
        call = MiddlewareCall(
            kind=kind,
            name=name,
            input=input,
            attempt=self.attempt,
            headers=self.headers,
            labels=self.context.labels,
            context=self.context,
        )

        async def run(*args: Any, **named: Any) -> Any:
            body = before_each(self.context._repeats(), partial(function, *args, **named))
            return await around(middleware, call, body, run_in_thread)()

        return run

    @property
    def address(self) -> tuple[str, str]:
        """The database and the id of its conversation."""
        return database_of(self.context.session_store), self.writing.session_id

    async def end(self) -> None:
        """End the handler, which may be left behind: its later additions are refused. Wait for a commit that it has
        begun.
        """
        self.has_ended = True
        async with self.committing:
            pass

    def require_running(self) -> None:
        """Raise `SessionError` once the handler has ended."""
        if self.has_ended:
            raise SessionError("the handler of this wake has ended: nothing can be added to it")


_handling: ContextVar[WakeParts | None] = ContextVar("affinity.conversation.wake", default=None)


@contextmanager
def handling(parts: WakeParts) -> Iterator[None]:
    """Mark that the handler of this wake runs in the block, and in the tasks that it starts there."""
    token = _handling.set(parts)
    try:
        yield
    finally:
        parts.has_ended = True
        _handling.reset(token)


@dataclass(frozen=True, slots=True, eq=False)
class _WakeWait:
    """The handler of a wake waits for the reply to an input of a conversation."""

    by: WakeParts
    database: str
    conversation_id: str
    seq: int


_waits: Final[set[_WakeWait]] = set()
"""The waits of this process."""


@contextmanager
def waiting_for(database: str, conversation_id: str, seq: int) -> Iterator[None]:
    """Note, if the caller is a handler, that it waits in the block for the reply to this input.

    Args:
        database: of the conversation: see `ProviderConnection.database`.
        conversation_id: of the input.
        seq: its number.
    """
    parts = _handling.get()
    if parts is None:
        yield
        return
    wait = _WakeWait(parts, database, conversation_id, seq)
    _waits.add(wait)
    try:
        yield
    finally:
        _waits.discard(wait)


def blocked_journals(database: str, conversation_id: str) -> Collection[int]:
    """Return the journals of this conversation whose wakes cannot end before the handler that calls this.

    A wake is blocked if it is the caller's own, or if its handler waits in this process for the caller, directly or
    through other conversations.
    """
    parts = _handling.get()
    if parts is None or parts.has_ended:
        return ()
    found = [parts]
    for wake in found:
        found += [wait.by for wait in tuple(_waits) if _is_for(wait, wake) and wait.by not in found]
    return [wake.writing.work.journal_id for wake in found if wake.address == (database, conversation_id)]


def _is_for(wait: _WakeWait, parts: WakeParts) -> bool:
    """Return whether the wait can only end after this wake: no wake has processed the input of its reply."""
    is_of_it = parts.address == (wait.database, wait.conversation_id) and wait.seq > parts.writing.work.processed
    return is_of_it and not wait.by.has_ended
