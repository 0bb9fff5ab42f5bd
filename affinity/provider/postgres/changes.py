"""Changes by session id, of data that guests keep for a session and of replies of instances: NOTIFY with the ids, on
one channel for each schema.

No commit of a turn contains a NOTIFY, for the reason that `hints` gives; a NOTIFY may follow the commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from typing import Final

from affinity.provider.contract import ChangeWatch, merge_changes
from affinity.provider.postgres.driver.arrays import Texts
from affinity.provider.postgres.driver.target import Target
from affinity.provider.postgres.driver.wire import Statement
from affinity.provider.postgres.hints import Listener, subscribed
from affinity.provider.postgres.operations import Database

_NOTIFY: Final = "SELECT pg_notify(%(channel)s, n) FROM unnest(%(notices)s) AS n"

_MAX_NOTICE_BYTES: Final = 7_999
"""Bytes of the payload of one notification: PostgreSQL's own limit."""

_MINOR: Final = ""
"""First line of a notice of minor changes; no session has this id."""

_MAX_WATCHED: Final = 10_000
"""Session ids that wait for one subscriber. Beyond this number it is notified that any session may have changed."""


def watch_changes(db: Database) -> AbstractAsyncContextManager[ChangeWatch]:
    return subscribed(db, _ChangeListener(channel_of(db.connections.target)))


async def notify_changes(db: Database, session_ids: Collection[str], *, minor: bool = False) -> None:
    if notify := change_statement(db.connections.target, session_ids, minor=minor):
        await db.connections.quick.run(*notify)


def change_statement(target: Target, session_ids: Collection[str], *, minor: bool = False) -> Statement | None:
    """Return the statement that notifies the subscribers of these changes; None without changes."""
    if not session_ids:
        return None
    return _NOTIFY, {"channel": channel_of(target), "notices": Texts(notices_of(session_ids, minor=minor))}


def channel_of(target: Target) -> str:
    """Return the channel of all changes in a schema."""
    return f"affinity_changes_{sha256(f'{target.schema} changes'.encode()).hexdigest()[:40]}"


class _ChangeListener(Listener):
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
    """Return the ids of a notice, as `ChangeWatch.wait` returns them."""
    first, *others = notice.split("\n")
    return dict.fromkeys(others, False) if first == _MINOR else dict.fromkeys([first, *others], True)


def notices_of(session_ids: Collection[str], *, minor: bool = False) -> Iterator[str]:
    """Yield the ids as payloads of as few notifications as possible. An id has no control characters."""
    head = [_MINOR] if minor else []
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
