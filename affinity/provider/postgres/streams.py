"""Provisional output of wakes, and the subscription to changes of journals: NOTIFY with session ids, on one channel for
each schema.

No commit of a turn has a NOTIFY, for the reason that `hints` gives; one may follow it. A transaction that writes parts
of streams may have one: it does not wait for the disk, since its table is not logged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from typing import Final

from psycopg.types.numeric import Int8

from affinity.journal import StreamPart
from affinity.provider.contract.journal_side import JournalWatch, merge_changes
from affinity.provider.postgres.driver.arrays import Ints, Texts
from affinity.provider.postgres.driver.target import Target
from affinity.provider.postgres.driver.wire import Statement
from affinity.provider.postgres.hints import Listener, subscribed
from affinity.provider.postgres.operations import Database
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "streams.sql")

_NOTIFY: Final = "SELECT pg_notify(%(channel)s, n) FROM unnest(%(notices)s) AS n"

_MAX_NOTICE_BYTES: Final = 7_999
"""Bytes of the payload of one notification: PostgreSQL's own limit."""

_MINOR: Final = ""
"""First line of a notice of inputs and of provisional parts; no session has this id."""

_MAX_WATCHED: Final = 10_000
"""Session ids that wait for one subscriber; beyond, it is notified that any journal may have changed."""


async def write_stream(db: Database, parts: Sequence[StreamPart]) -> Collection[int]:
    if not parts:
        return ()
    params = {
        "session": Texts(part.session_id for part in parts),
        "journal": Ints(part.journal_id for part in parts),
        "wake": Texts(part.wake_id for part in parts),
        "attempt": Ints(part.attempt for part in parts),
        "number": Ints(part.number for part in parts),
        "first": Ints(part.first for part in parts),
        "payload": Texts(part.payload for part in parts),
        "channel": _channel(db.connections.target),
        "notices": Texts(_notices(dict.fromkeys(part.session_id for part in parts), is_minor=True)),
    }
    rows = await db.connections.quick.run(_SQL["write"], params)
    return [journal_id for journal_id, _ in rows if journal_id is not None]


async def retract_stream(db: Database, session_id: str, journal_id: int, wake_id: str, attempt: int) -> None:
    params = {
        "session": session_id,
        "journal": Int8(journal_id),
        "wake": wake_id,
        "attempt": Int8(attempt),
        "channel": _channel(db.connections.target),
    }
    await db.connections.quick.run(_SQL["retract"], params)


def watch_journals(db: Database) -> AbstractAsyncContextManager[JournalWatch]:
    return subscribed(db, _JournalListener(_channel(db.connections.target)))


async def notify_journals(db: Database, session_ids: Collection[str], *, only_inputs: bool = False) -> None:
    if notify := notify_readers(db.connections.target, session_ids, only_inputs=only_inputs):
        await db.connections.quick.run(*notify)


def notify_readers(target: Target, session_ids: Collection[str], *, only_inputs: bool = False) -> Statement | None:
    """The statement that notifies the readers of these journals, if there are any."""
    if not session_ids:
        return None
    return _NOTIFY, {"channel": _channel(target), "notices": Texts(_notices(session_ids, is_minor=only_inputs))}


def _channel(target: Target) -> str:
    return f"affinity_journals_{sha256(f'{target.schema} journals'.encode()).hexdigest()[:40]}"


class _JournalListener(Listener):
    """One subscription: collects ids until `wait` fetches them."""

    def __init__(self, channel: str) -> None:
        super().__init__([channel])
        self._ids: dict[str, bool] = {}
        self._is_full = False

    def note(self, channel: str, payload: str) -> None:
        self._is_full = self._is_full or len(self._ids) > _MAX_WATCHED
        if not self._is_full:
            merge_changes(self._ids, _read(payload))

    async def wait(self, timeout: float) -> Mapping[str, bool] | None:
        await self.wait_for_news(timeout)
        ids, self._ids = self._ids, {}
        is_full, self._is_full = self._is_full, False
        return {} if is_full else ids or None


def _read(notice: str) -> Mapping[str, bool]:
    """The ids, as `JournalWatch.wait` gives them."""
    first, *others = notice.split("\n")
    return dict.fromkeys(others, False) if first == _MINOR else dict.fromkeys([first, *others], True)


def _notices(session_ids: Collection[str], *, is_minor: bool = False) -> Iterator[str]:
    """The ids as payloads of as few notifications as they fit into. An id has no control characters."""
    head = [_MINOR] if is_minor else []
    notice, size = [*head], len(head) - 1
    for session_id in session_ids:
        length = len(session_id.encode()) + 1
        if size + length > _MAX_NOTICE_BYTES:
            yield "\n".join(notice)
            notice, size = [*head], len(head) - 1
        notice.append(session_id)
        size += length
    if notice != head:
        yield "\n".join(notice)
