"""The cost of a verb on SQLite: instructions of its virtual machine, among few foreign rows and among many."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, closing
from itertools import count
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from affinity.provider.contract import Incarnation, WorkerIdentity
from affinity.provider.sqlite import SqliteProvider
from affinity.provider.sqlite.driver.database import connect
from affinity_conformance.providers.peer import Peer
from tests.provider.sqlite_files import create_file

Verb: TypeAlias = Callable[[], Awaitable[object]]

FEW, MUCH = 100, 5_000

FOREIGN_SESSIONS: Final = (
    "INSERT INTO sessions (session_id, worker_id, incarnation, epoch, locked_until, touched_at, claimed_at)"
    " SELECT 'other' || i, 'other', 'other-1', 1, 1e11, 0, 0 FROM numbers"
)
FOREIGN_CLASSES: Final = (
    "INSERT INTO failures (instance_id, execution_id, activity_id, attempt, kind, name, error_type, is_retried,"
    " failed_at, error) SELECT 'x' || i, 1, 2, 1, 'activity', 'step', 'Error' || i, 0, unixepoch() - i, '' FROM numbers"
)
FOREIGN_ROWS: Final = (
    "INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at,"
    " enqueued_at, payload) SELECT 'x', 1, i, 'work', 'other' || (i % 100 + 1), 'w:other', 0, 0, '' FROM numbers",
    "INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at,"
    " enqueued_at, payload) SELECT 'y', 1, i, 'work', 'offered' || i, 'new:other', 1e11, 0, '' FROM numbers",
    "INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, route, visible_at, enqueued_at, payload,"
    " order_session, order_number) SELECT 'z', 1, i, 'work', 'blocked', 0, 0, '', 'ordered', 10 + i FROM numbers",
    "INSERT INTO instances (instance_id, generation, name, owner_worker, owner_incarnation, created_at, updated_at)"
    " SELECT 'x' || i, '1', 'flow', 'other', 'other-1', 0, 0 FROM numbers",
    "INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)"
    " SELECT 'x' || i, 'w:other', 0, '' FROM numbers",
    "INSERT INTO instances (instance_id, generation, name, status, created_at, updated_at)"
    " SELECT 'sick' || i, '1', 'flow', 'suspended', 0, 0 FROM numbers",
    "INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)"
    " SELECT 'sick' || i, 'suspended', 0, '' FROM numbers",
    "INSERT INTO history (instance_id, execution_id, event_id, event) SELECT 'x' || i, 1, 1, '' FROM numbers",
    "INSERT INTO session_states (session_id, version, created_at, updated_at, schema_version, encoding, kind, labels,"
    " participants, state) SELECT 'other' || i, 1, i, i, 1, 'plain', 'other', '{}', '[]', x'00' FROM numbers",
    "INSERT INTO session_holds SELECT 'x' || i, 1, 1, 'other' || i, 1e11, 300 FROM numbers",
    "INSERT INTO session_watches SELECT 'other' || i, 'x' || i, '' FROM numbers",
    "INSERT INTO failures (instance_id, execution_id, activity_id, attempt, kind, name, error_type, is_retried,"
    " failed_at, error) SELECT 'x' || i, 1, 2, 1, 'activity', 'step' || (i % 5), 'Error', 0, unixepoch() - i, ''"
    " FROM numbers",
    "INSERT INTO suspensions (instance_id, name, execution_id, event_count, error_type, message, worker_id, code,"
    " tried, needs_code, suspended_at) SELECT 'sick' || i, 'flow' || (i % 5), 1, 0, 'Nondeterminism', '', 'other',"
    " 'v1', '[]', 0, unixepoch() - i FROM numbers",
    "INSERT INTO schedules (name, generation, revision, spec, next_due, skipped, created_at, updated_at)"
    " SELECT 'later' || i, '1', 1, '{}', 1e11 + i, 0, 0, 0 FROM numbers",
)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Counts the instructions of SQLite's virtual machine that provider objects run from now on."""
    counter = count()

    def counted(path: Path) -> sqlite3.Connection:
        connection = connect(path)
        connection.set_progress_handler(lambda: next(counter) < 0, 1)  # a true answer would end the statement
        return connection

    monkeypatch.setattr("affinity.provider.sqlite.provider.connect", counted)
    return counter


@asynccontextmanager
async def opened_file(path: Path) -> AsyncIterator[tuple[Peer, Path]]:
    """A worker on a new file, beside the one that has all the rows."""
    create_file(path)
    async with aclosing(await SqliteProvider.open(path)) as provider:
        peer, other = (
            Peer(provider, WorkerIdentity(worker_id=name, incarnation=Incarnation(f"{name}-1")))
            for name in ("a", "other")
        )
        await peer.register()
        await other.register()
        yield peer, path


async def cost_in_steps(steps: Iterator[int], verb: Verb) -> int:
    before = next(steps)
    await verb()
    return next(steps) - before


def fill_tables(path: Path, statements: Sequence[str], rows: int) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TEMP TABLE numbers (i INTEGER)")
        connection.executemany("INSERT INTO numbers VALUES (?)", [(number,) for number in range(1, rows + 1)])
        for statement in statements:
            connection.execute(statement)
