"""Where the demo's workers checkpoint their transcripts: one SQLite file, beside the database that affinity runs on.

It plays the application's own store. Two things make it safe to be killed between a checkpoint and the recording of
the turn's result, which runs the turn again elsewhere:

    * A line has a position, the key of its row, so that it is there once however often it was said.
    * A line is only added after the one before it, and never under an older epoch than that one's. So a worker that
      was paused, and does not know yet that its sessions have moved, is refused instead of believed.

Rows are written with ``synchronous = NORMAL``: what a process has committed survives its ``kill -9``, because the
kernel has it. Surviving a power cut would need FULL, and is not what the demo shows.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, LiteralString, Self

from affinity.cli.demo.conversations import Message
from affinity.orchestration.codec import Codec

BUSY_SECONDS: Final = 30.0
"""How long a writer waits for its turn."""

_SCHEMA: Final = """
    PRAGMA journal_mode = WAL;
    CREATE TABLE line (
        session_id TEXT NOT NULL,
        position   INTEGER NOT NULL,
        epoch      INTEGER NOT NULL,
        worker_id  TEXT NOT NULL,
        message    TEXT NOT NULL,
        PRIMARY KEY (session_id, position)
    ) WITHOUT ROWID;
    CREATE TABLE hydration (
        session_id TEXT NOT NULL,
        worker_id  TEXT NOT NULL,
        lines      INTEGER NOT NULL
    );
"""

_ADD: Final = """
    INSERT INTO line (session_id, position, epoch, worker_id, message)
    SELECT :session_id, :position, :epoch, :worker_id, :message
    WHERE (
        SELECT coalesce(max(position), -1) = :position - 1 AND coalesce(max(epoch), 0) <= :epoch
        FROM line WHERE session_id = :session_id
    )
"""

_MESSAGE: Final = Codec(Message, "a line of a transcript")


class StaleTranscriptError(Exception):
    """Another worker has written to the session's transcript: this copy of it is out of date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One message of a stored transcript, and the lease under which it was written."""

    position: int  # from 0
    epoch: int
    worker_id: str
    message: Message


class TranscriptStore:
    """A connection to the store; safe to use from any thread."""

    def __init__(self, path: Path, worker_id: str = "") -> None:
        """Open the store that `create` made; ``worker_id`` signs what is written."""
        self.path = path
        self._worker_id = worker_id
        self._guard = threading.Lock()
        self._connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA synchronous = NORMAL")

    @classmethod
    def create(cls, path: Path) -> Self:
        """Make an empty store, and open it to read."""
        store = cls(path)
        store._connection.executescript(_SCHEMA)
        return store

    def close(self) -> None:
        """Close the connection."""
        with self._guard:
            self._connection.close()

    # -- for a worker

    def hydrate(self, session_id: str) -> Sequence[Line]:
        """The session's transcript, from its first line to its last; notes that it was asked for."""
        with self._transaction() as connection:
            lines = _lines(connection, session_id)
            row = (session_id, self._worker_id, len(lines))
            connection.execute("INSERT INTO hydration (session_id, worker_id, lines) VALUES (?, ?, ?)", row)
        return lines

    def append(self, session_id: str, lines: Iterable[Line]) -> None:
        """Add lines to the session's transcript: all of them, or none.

        Raises:
            StaleTranscriptError: one does not follow the last that is stored, or its epoch is older.
        """
        with self._transaction() as connection:
            for line in lines:
                if connection.execute(_ADD, _row(session_id, line)).rowcount != 1:
                    raise StaleTranscriptError(
                        f"session {session_id!r}: line {line.position} of epoch {line.epoch} does not follow the last "
                        "one stored: another worker has the session"
                    )

    # -- for whoever watches

    def turns(self) -> Mapping[str, int]:
        """Lines stored so far, by the worker that wrote them."""
        return dict(self._query("SELECT worker_id, count(*) FROM line GROUP BY worker_id"))

    def hydrations(self) -> int:
        """How often a worker has asked for a transcript."""
        ((count,),) = self._query("SELECT count(*) FROM hydration")
        return int(count)

    def transcripts(self) -> Mapping[str, Sequence[Line]]:
        """Every stored transcript, by session."""
        rows = self._query(
            "SELECT session_id, position, epoch, worker_id, message FROM line ORDER BY session_id, position"
        )
        found: defaultdict[str, list[Line]] = defaultdict(list)
        for session_id, *columns in rows:
            found[session_id].append(_line(*columns))
        return found

    def _query(self, statement: LiteralString) -> Sequence[tuple[Any, ...]]:
        with self._guard:
            return self._connection.execute(statement).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Reads and writes as one; begun as a writer, since a reader cannot always become one later."""
        with self._guard:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")


def _lines(connection: sqlite3.Connection, session_id: str) -> Sequence[Line]:
    query = "SELECT position, epoch, worker_id, message FROM line WHERE session_id = ? ORDER BY position"
    return [_line(*columns) for columns in connection.execute(query, [session_id])]


def _line(position: int, epoch: int, worker_id: str, message: str) -> Line:
    return Line(position=position, epoch=epoch, worker_id=worker_id, message=_MESSAGE.decode(message))


def _row(session_id: str, line: Line) -> Mapping[str, object]:
    return {
        "session_id": session_id,
        "position": line.position,
        "epoch": line.epoch,
        "worker_id": line.worker_id,
        "message": _MESSAGE.encode(line.message),
    }
