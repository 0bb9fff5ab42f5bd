"""One connection to the file: how it is opened, and how transactions on it begin, end and are repeated."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Concatenate, Final, LiteralString, ParamSpec, TypeVar

from affinity.errors import DatabaseChanged, SchemaMismatch
from affinity.provider.sqlite.driver.clock import Clock
from affinity.provider.sqlite.driver.errors import FAILURES, is_busy, translate
from affinity.provider.sqlite.driver.timeline import learn, read
from affinity.provider.sqlite.driver.transaction import Tokens, Tx
from affinity.provider.timeline import SeenTimeline, Timeline

P = ParamSpec("P")
T = TypeVar("T")

MAX_WAIT: Final = 10.0
"""Seconds that a transaction waits for the file before it gives up with `Contention`."""

OLDEST_SQLITE: Final = (3, 38, 0)
"""The first release with JSON always built in; ``RETURNING``, ``UPDATE … FROM`` and ``STRICT`` came before it."""

_PRAGMAS: Final[tuple[LiteralString, ...]] = (
    "PRAGMA synchronous = FULL",  # in WAL mode, only this makes a commit survive a power cut
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cache_size = -16000",  # 16 MB
    "PRAGMA journal_size_limit = 67108864",  # a burst may grow the WAL file; it need not stay that large
)


def connect(path: Path, *, create: bool = False) -> sqlite3.Connection:
    """A configured connection in autocommit mode, which may pass from one thread to another.

    Raises:
        ConnectionLost: there is no such file or directory.
        SchemaMismatch: the file is no database, or this Python's SQLite is too old.
    """
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        needed = ".".join(map(str, OLDEST_SQLITE))
        raise SchemaMismatch(f"SQLite {sqlite3.sqlite_version} is too old: {needed} is needed")
    if create:
        _create(path)
    uri = f"{path.absolute().as_uri()}?mode=rw"
    connection: sqlite3.Connection | None = None
    try:
        # Waiting for locks is ours: SQLite's own backoff sleeps up to 100 ms at a time.
        connection = sqlite3.connect(
            uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        # The settings read the file too. A process that migrates it, or closes it last, locks it for a moment.
        retry_while_busy(partial(_configure, connection), MAX_WAIT)
    except FAILURES as error:
        if connection is not None:
            connection.close()
        raise translate(error, path) from error
    return connection


def _create(path: Path) -> None:
    """Make the file for its owner only, unless it is there; SQLite gives the files beside it the same mode."""
    with suppress(OSError):  # the file exists; or it cannot be made, and then the connection fails
        os.close(os.open(path.resolve(), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _configure(connection: sqlite3.Connection) -> None:
    # Bytes that are no text must not fail the statement, which reads the rows of others too: they come as surrogates,
    # which the decoder of that row refuses.
    connection.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
    for pragma in _PRAGMAS:
        connection.execute(pragma)


def retry_while_busy(attempt: Callable[[], T], max_wait: float) -> T:
    """Repeat ``attempt`` while another connection is in the way, for ``max_wait`` seconds at most.

    Raises:
        sqlite3.Error: the last one.
    """
    end = time.monotonic() + max_wait
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= end:
                raise
        time.sleep(random.uniform(0.0005, 0.003))  # noqa: S311 - spreads rivals, guards nothing


class Database:
    """A connection and its transactions; used by one thread at a time."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        clock: Clock,
        *,
        max_wait: float = MAX_WAIT,
        timeline: Timeline | None = None,
        seen: SeenTimeline | None = None,
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._tokens = Tokens()
        self._timeline = timeline
        self._seen = seen  # by what only reads
        self._max_wait = max_wait
        self._waits: bool | None = True  # whether commits wait for the disk; None: not known
        self._waits_wanted = True
        self._version = self._data_version()

    def write(self, operation: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``operation`` in a write transaction; it is undone as a whole when it raises.

        Raises:
            DatabaseChanged: the file was restored meanwhile; ``operation`` was not run.
        """
        connection = self._connection
        try:
            self._undo()  # what could not be undone when an operation failed
            if self._waits is not self._waits_wanted:
                self._set_waits()
            retry_while_busy(lambda: connection.execute("BEGIN IMMEDIATE"), self._max_wait)
            try:
                tx = Tx(connection, self._clock.now(), self._tokens)
                if self._timeline is not None:
                    self._check(tx, self._timeline)
                result = operation(tx, *args, **kwargs)
                connection.execute("COMMIT")
            except BaseException:
                with suppress(*FAILURES):  # a disk that fails may refuse this too; the first error says more
                    self._undo()
                raise
        except FAILURES as error:
            raise translate(error) from error
        return result

    def write_unsynced(self, operation: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """As `write`, without waiting for the disk: a crash of the machine may undo it, until the next `write`."""
        self._waits_wanted = False
        try:
            return self.write(operation, *args, **kwargs)
        finally:
            self._waits_wanted = True

    def read(self, operation: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``operation`` on one snapshot; it takes no lock that a writer would wait for."""
        try:
            return retry_while_busy(lambda: self._snapshot(operation, *args, **kwargs), self._max_wait)
        except FAILURES as error:
            raise translate(error) from error

    def changed(self) -> bool:
        """Whether another connection has committed since the last call."""
        before, self._version = self._version, self._data_version()
        return self._version != before

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _snapshot(self, operation: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._undo()
        self._connection.execute("BEGIN")
        try:
            tx = Tx(self._connection, self._clock.now(), self._tokens)
            if self._seen is not None:
                self._seen.note(*read(tx), self._seen.reached)
            return operation(tx, *args, **kwargs)
        finally:
            with suppress(*FAILURES):
                self._undo()

    def _check(self, tx: Tx, timeline: Timeline) -> None:
        token, reached = learn(tx, timeline)
        try:
            timeline.check(token, reached)
        except DatabaseChanged:
            self._connection.execute("COMMIT")  # the new timeline, if it was begun just now
            raise

    def _set_waits(self) -> None:
        self._waits = None
        self._connection.execute(f"PRAGMA synchronous = {'FULL' if self._waits_wanted else 'NORMAL'}")
        self._waits = self._waits_wanted

    def _undo(self) -> None:
        if self._connection.in_transaction:  # some errors have rolled back already
            self._connection.execute("ROLLBACK")

    def _data_version(self) -> int:
        try:
            version: int = retry_while_busy(
                lambda: self._connection.execute("PRAGMA data_version").fetchone()[0], self._max_wait
            )
        except FAILURES as error:
            raise translate(error) from error
        return version
