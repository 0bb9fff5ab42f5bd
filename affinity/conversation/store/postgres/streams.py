"""Provisional output of wakes.

A transaction that writes parts of streams notifies the subscribers of changes itself: it does not wait for the disk,
since its table is not logged.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from psycopg.types.numeric import Int8

from affinity.conversation.journal import StreamPart
from affinity.provider.postgres.changes import channel_of, notices_of
from affinity.provider.postgres.driver.arrays import Ints, Texts
from affinity.provider.postgres.operations import Database
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "streams.sql")


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
        "channel": channel_of(db.connections.target),
        "notices": Texts(notices_of(dict.fromkeys(part.session_id for part in parts), minor=True)),
    }
    rows = await db.connections.quick.run(_SQL["write"], params)
    return [journal_id for journal_id, _ in rows if journal_id is not None]


async def retract_stream(db: Database, session_id: str, journal_id: int, wake_id: str, attempt: int) -> None:
    params = {
        "session": session_id,
        "journal": Int8(journal_id),
        "wake": wake_id,
        "attempt": Int8(attempt),
        "channel": channel_of(db.connections.target),
    }
    await db.connections.quick.run(_SQL["retract"], params)
