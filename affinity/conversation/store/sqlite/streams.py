"""Streams of journals: provisional parts of a wake that is running."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from affinity.conversation.journal import StreamCursor, StreamPart
from affinity.conversation.store.sqlite.rows import Head
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "streams.sql")


def read(tx: Tx, head: Head, seen: StreamCursor) -> tuple[list[StreamPart], StreamCursor | None]:
    """Return the parts that a reader has not seen, and the place of the last stored part."""
    row = tx.row(SQL["latest"], {"journal_id": head.journal_id})
    if row is None:
        return [], None
    wake_id, attempt, number = row
    last = StreamCursor(wake_id=wake_id, attempt=attempt, number=number)
    after = seen.number if (seen.wake_id, seen.attempt) == (last.wake_id, last.attempt) else 0
    if after >= last.number:
        return [], last
    wanted = {"journal_id": head.journal_id, "wake_id": last.wake_id, "attempt": last.attempt, "number": after}
    parts = [
        StreamPart(
            session_id=head.session_id,
            journal_id=head.journal_id,
            wake_id=last.wake_id,
            attempt=last.attempt,
            number=number,
            payload=payload,
        )
        for number, payload in tx.gather(SQL["read"], wanted)
    ]
    return parts, last


@dataclass(slots=True)
class _Stream:
    """The parts of a journal while others are added."""

    session_id: str
    journal_id: int
    ended_wake: str | None  # the last wake of which an attempt has ended
    ended_attempt: int
    wake_id: str | None  # of the parts
    attempt: int
    lost: bool = False  # the database has lost parts before those to add
    replaced: bool = False  # the stored parts are of another wake or attempt, and are removed
    added: list[StreamPart] = field(default_factory=list)

    def add(self, part: StreamPart, committed: Collection[tuple[Any, ...]]) -> None:
        """Add a part, unless it comes too late."""
        if part.wake_id == self.ended_wake:
            is_late = part.attempt <= self.ended_attempt
        else:
            is_late = (self.journal_id, part.wake_id) in committed
        if is_late or (part.wake_id == self.wake_id and part.attempt < self.attempt):
            return
        if (part.wake_id, part.attempt) != (self.wake_id, self.attempt):
            self.wake_id, self.attempt = part.wake_id, part.attempt
            self.replaced = True
            self.added.clear()
        self.added.append(part)

    def check_begin(self) -> None:
        """Add nothing if the attempt has no parts yet, and its first ones are not among these."""
        if self.replaced and min(part.number for part in self.added) > self.added[0].first:
            self.lost, self.replaced = True, False
            self.added.clear()


def write(tx: Tx, parts: Sequence[StreamPart]) -> list[int]:
    streams = _read_streams(tx, parts)
    wakes = {(part.journal_id, part.wake_id) for part in parts}
    committed = {
        (journal_id, wake_id) for journal_id, wake_id in tx.gather(SQL["committed"], {"rows": to_json(list(wakes))})
    }
    for part in parts:
        if (stream := streams.get((part.session_id, part.journal_id))) is not None:
            stream.add(part, committed)
    for stream in streams.values():
        stream.check_begin()
    tx.many(SQL["clear"], [stream.journal_id for stream in streams.values() if stream.replaced])
    rows: list[Any] = [
        (part.journal_id, part.wake_id, part.attempt, part.number, part.payload)
        for stream in streams.values()
        for part in stream.added
    ]
    tx.many(SQL["add"], rows)
    return [stream.journal_id for stream in streams.values() if stream.lost]


def retract(tx: Tx, session_id: str, journal_id: int, wake_id: str, attempt: int) -> None:
    at = {"session_id": session_id, "journal_id": journal_id, "wake_id": wake_id, "attempt": attempt}
    tx.run(SQL["retract"], {key: value for key, value in at.items() if key != "session_id"})
    tx.run(SQL["end_attempt"], at)


def _read_streams(tx: Tx, parts: Sequence[StreamPart]) -> dict[tuple[str, int], _Stream]:
    named = {(part.session_id, part.journal_id) for part in parts}
    rows = tx.gather(SQL["journals"], {"rows": to_json(list(named))})
    return {
        (session_id, journal_id): _Stream(session_id, journal_id, ended_wake, ended or 0, wake_id, attempt or 0)
        for session_id, journal_id, ended_wake, ended, wake_id, attempt in rows
    }
