"""Which error is the data's fault, and what a message may say: for both providers, code by code."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import aclosing, closing
from pathlib import Path
from typing import Final

import psycopg
import pytest

from affinity import Client, migrate
from affinity.errors import (
    AccessDenied,
    ConnectionLost,
    Contention,
    DatabaseFailure,
    DataRefused,
    Duplicate,
    InvalidUrl,
    LockTimeout,
    ProviderError,
    ReadOnly,
    SchemaMismatch,
    StatementTimeout,
)
from affinity.provider import has_password, inspect_schema, open_provider, redact
from affinity.provider.postgres.driver.errors import FIRST_WRITE, classify
from affinity.provider.sqlite import SqliteProvider
from affinity.provider.sqlite.driver import errors
from affinity.session import SessionState
from tests.provider.harnesses import sqlite_error
from tests.provider.postgres_stage import administrator, opened, registered, terminate
from tests.servers import PostgresServer

pytestmark = pytest.mark.anyio

REFUSED: Final = ["22001", "22003", "22021", "22P02", "22P05", "23502", "23514", "54000", "54001"]
"""The data's own fault: the whole list, but for `Duplicate`."""


# --- by code ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", REFUSED)
def test_a_few_codes_of_postgresql_speak_of_the_data(state: str) -> None:
    assert classify(state) is DataRefused


def test_every_other_code_of_postgresql_may_be_tried_again() -> None:
    """Of all that psycopg knows, and one that it does not know."""
    found = [getattr(name, "sqlstate", None) for name in vars(psycopg.errors).values() if isinstance(name, type)]
    states = {state for state in found if isinstance(state, str)}
    assert len(states) > 200
    for state in [*states, "ZZ999"]:
        speaks_of_data = state[:2] in {"22", "23", "54"} and state != "2200H"
        assert classify(state).retryable is not speaks_of_data, state


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("53100", DatabaseFailure),
        ("58030", DatabaseFailure),
        ("XX000", DatabaseFailure),
        ("57014", StatementTimeout),
        ("55P03", LockTimeout),
        ("40P01", Contention),
        ("25006", ReadOnly),
        ("23505", Duplicate),
        ("28P01", AccessDenied),
        ("42501", AccessDenied),
        ("42P01", SchemaMismatch),
        ("57P01", ConnectionLost),
        ("0A000", ConnectionLost),
        ("08006", ConnectionLost),
    ],
)
def test_a_code_of_postgresql_has_its_error(state: str, kind: type[ProviderError]) -> None:
    assert classify(state) is kind


def test_a_code_of_postgresql_is_not_all_there_is() -> None:
    """A fatal error ends the connection; two first writes are contention; transaction ids have a limit."""
    assert classify("53200", severity="FATAL") is ConnectionLost
    assert classify("23505", severity="ERROR", constraint=FIRST_WRITE) is Contention
    assert classify("54000", severity="ERROR", at="GetNewTransactionId") is DatabaseFailure


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_FULL, DatabaseFailure),
        (sqlite3.SQLITE_IOERR_FSYNC, DatabaseFailure),
        (sqlite3.SQLITE_CORRUPT, DatabaseFailure),
        (sqlite3.SQLITE_PROTOCOL, DatabaseFailure),
        (sqlite3.SQLITE_ERROR, DatabaseFailure),
        (sqlite3.SQLITE_READONLY_DBMOVED, ReadOnly),
        (sqlite3.SQLITE_CANTOPEN, ConnectionLost),
        (sqlite3.SQLITE_INTERRUPT, StatementTimeout),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, Contention),
        (sqlite3.SQLITE_LOCKED, Contention),
        (sqlite3.SQLITE_PERM, AccessDenied),
        (sqlite3.SQLITE_NOTADB, SchemaMismatch),
        (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, Duplicate),
        (sqlite3.SQLITE_CONSTRAINT_UNIQUE, Duplicate),
        (sqlite3.SQLITE_CONSTRAINT_CHECK, DataRefused),
        (sqlite3.SQLITE_CONSTRAINT_NOTNULL, DataRefused),
        (sqlite3.SQLITE_TOOBIG, DataRefused),
        (sqlite3.SQLITE_MISMATCH, DataRefused),
    ],
)
def test_a_code_of_sqlite_has_its_error(code: int, kind: type[ProviderError]) -> None:
    assert type(errors.translate(sqlite_error(code, "SQLITE_X"))) is kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), DatabaseFailure),
        (OverflowError("Python int too large"), DataRefused),
        (sqlite3.ProgrammingError("type 'object' is not supported"), DataRefused),
        (sqlite3.OperationalError("no code"), DatabaseFailure),
    ],
)
def test_what_python_raises_for_sqlite_has_its_error(error: errors.Failure, kind: type[ProviderError]) -> None:
    assert type(errors.translate(error)) is kind


# --- real ones of SQLite ----------------------------------------------------------------------------------------------


async def test_a_full_file_passes_when_there_is_room(sqlite_url: str) -> None:
    """SQLITE_FULL: nothing was changed, and the same call succeeds."""
    async with aclosing(await SqliteProvider.open(_path(sqlite_url))) as provider:
        await _pragma(provider, "max_page_count = 1")
        saving = provider.states.save(_state(200_000))
        with pytest.raises(DatabaseFailure, match="SQLITE_FULL") as caught:
            await saving
        assert caught.value.code == "SQLITE_FULL"
        assert await provider.states.load("s") is None
        await _pragma(provider, "max_page_count = 1000000")
        assert await provider.states.save(_state(200_000)) == 1


NO_MEMORY: Final = """
import asyncio, sqlite3, sys
from pathlib import Path
from affinity.provider.sqlite import SqliteProvider
from affinity.session import SessionState

async def main():
    provider = await SqliteProvider.open(Path(sys.argv[1]))
    await provider.states.save(SessionState(session_id="s", state=b"x"))
    sqlite3.connect(":memory:").execute("PRAGMA hard_heap_limit = 1000000").fetchall()
    try:
        await provider.states.save(SessionState(session_id="s", state=b"x" * 5_000_000))
    except Exception as error:
        print(type(error).__name__, error)
    print((await provider.states.load("s")).version)
    await provider.aclose()

asyncio.run(main())
"""


def test_no_memory_is_the_environment_s_fault(sqlite_url: str) -> None:
    """Python makes it a `MemoryError`. In a process of its own: SQLite's limit cannot be raised again."""
    command = [sys.executable, "-c", NO_MEMORY, str(_path(sqlite_url))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["DatabaseFailure SQLite: out of memory (SQLITE_NOMEM)", "1"]


async def test_an_undo_that_fails_is_made_up_for(sqlite_url: str) -> None:
    """A disk that refuses a write may refuse the rollback: the next verb is not in the middle of the last one."""
    async with aclosing(await SqliteProvider.open(_path(sqlite_url))) as provider:
        await provider._writer.call(lambda database: database._connection.execute("BEGIN IMMEDIATE").fetchall())
        assert await provider.states.save(_state(10)) == 1
        assert await provider.states.load("s")


def _path(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def _state(size: int) -> SessionState:
    return SessionState(session_id="s", state=b"x" * size)


async def _pragma(provider: SqliteProvider, text: str) -> None:
    await provider._writer.call(lambda database: database._connection.execute(f"PRAGMA {text}").fetchall())


# --- what a message says ----------------------------------------------------------------------------------------------


async def _error_of(call: Callable[[], Awaitable[object]]) -> Exception:
    try:
        await call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def _shown(error: BaseException) -> str:
    """The message, and whatever is shown of it, of its causes, and of what it hides."""
    lines = [line for line in traceback.format_exception(error) if not line.startswith("  File")]
    hidden = [_shown(other) for other in (error.__cause__, error.__context__) if other is not None]
    return "\n".join([str(error), repr(error), *lines, *hidden])


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://zoe:s3cret@127.0.0.1:1/chats", "127.0.0.1:1"),
        ("postgresql://zoe:s3%63ret@127.0.0.1:1/chats", "127.0.0.1:1"),
        ("postgresql://127.0.0.1:1/chats?user=zoe&password=s3cret", "127.0.0.1:1"),
        ("postgresql://127.0.0.1:1/chats?user=zoe&password=s3%63ret&sslpassword=s3cret", "127.0.0.1:1"),
        ("postgresql://zoe:s3#cret@127.0.0.1:1/chats", "127.0.0.1:1"),
        ("postgresql://zoe:s3cret@localhost:1,127.0.0.1:2/chats", "localhost:1, 127.0.0.1:2"),
        ("postgresql://zoe:s3cret@one.invalid,two.invalid/chats", "one.invalid:5432, two.invalid:5432"),
        ("postgresql://zoe:s3cret@[::1]:1/chats", "[::1]:1"),
        ("postgresql://zoe:s3cret@/chats?hostaddr=127.0.0.1&port=1", "127.0.0.1:1"),
        ("postgresql://zoe:s3cret@no-such-host.invalid/chats", "no-such-host.invalid:5432"),
        ("postgresql://zoe:s3cret@/chats?host=/no/such/directory", "/no/such/directory:5432"),
        ("postgresql://zoe:s3cret@/chats", "from.environment.invalid:1"),
    ],
)
async def test_no_connection_names_hosts_and_ports(
    url: str, place: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For all that connects: an operator sees which database was meant. Neither the user nor the database, nor the
    password in any form; nor do the causes of the error.
    """
    caplog.set_level(logging.DEBUG, "affinity")
    monkeypatch.setenv("PGHOST", "from.environment.invalid")
    monkeypatch.setenv("PGPORT", "1" if "environment" in place else "")
    for call in (lambda: open_provider(url), lambda: migrate(url), lambda: inspect_schema(url), Client(url).__aenter__):
        error = await _error_of(call)
        assert isinstance(error, ConnectionLost), error
        assert str(error).startswith(f"cannot connect to PostgreSQL at {place}: "), error
        for name in ("zoe", "s3", "cret", "top", "chats"):
            assert name not in _shown(error), (name, error)
    for name in ("s3", "cret", "top"):
        assert name not in caplog.text


@pytest.mark.parametrize(
    "option", ["sslmode=x", "connect_timeout=x", "target_session_attrs=x", "service=x", "port=99999"]
)
async def test_an_option_that_libpq_refuses_is_an_invalid_url(option: str) -> None:
    """It is not retried like an outage."""
    url = f"postgresql://ann:s3cret@127.0.0.1/chats?{option}"
    for call in (lambda: open_provider(url), lambda: migrate(url)):
        assert isinstance(await _error_of(call), InvalidUrl)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:s3@cret@127.0.0.1:1/chats",
        "postgresql://ann:top cret@127.0.0.1:1/chats",
        "postgresql://ann:s3/cret@127.0.0.1:1/chats",
        "postgresql://ann:s3?cret@127.0.0.1:1/chats",
        "postgresql://ann:top%zz@127.0.0.1/chats",
        "postgresql://ann:s3cret@127.0.0.1/chats?no_such_option=1",
        "postgresql://ann:s3cret@127.0.0.1/chats?password=s3cret&sslpassword=s3cret&port=x",
        "postgresql://ann:s3[cret@127.0.0.1/chats",
        "mysql://ann:s3cret@127.0.0.1/chats",
        "sqlite://ann/chats",
    ],
)
async def test_no_error_of_a_malformed_url_has_a_part_of_it(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """What was meant as a password may be anywhere in it."""
    caplog.set_level(logging.DEBUG, "affinity")
    for call in (lambda: open_provider(url), lambda: migrate(url), Client(url).__aenter__):
        error = await _error_of(call)
        assert isinstance(error, InvalidUrl)
        shown = _shown(error)
        for name in ("ann", "127.0.0.1", "s3", "cret", "top", "chats"):
            assert name not in shown, (name, shown)
    for name in ("s3", "cret", "top"):
        assert name not in caplog.text


@pytest.mark.parametrize("found", ["nothing", "no database", "never migrated", "too new"])
async def test_what_opens_or_migrates_a_file_names_it(tmp_path: Path, found: str) -> None:
    """The caller has just written the path, and has to see which of several files is meant."""
    path = tmp_path / "chats.db" if found != "nothing" else tmp_path / "missing" / "chats.db"
    if found == "no database":
        path.write_bytes(b"no database " * 1000)
    elif found == "too new":
        await migrate(f"sqlite:///{path}")
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("UPDATE migrations SET version = 1000000, oldest_code = 1000000")
    url = f"sqlite:///{path}"
    calls = [lambda: open_provider(url), Client(url).__aenter__]
    for call in calls if found == "never migrated" else [*calls, lambda: migrate(url)]:
        error = await _error_of(call)
        assert isinstance(error, ProviderError)
        assert str(path) in str(error), error


async def test_a_call_does_not_name_the_file(sqlite_url: str) -> None:
    """An instance may record what an activity has raised."""
    async with aclosing(await SqliteProvider.open(_path(sqlite_url))) as provider:
        await _pragma(provider, "max_page_count = 1")
        error = await _error_of(lambda: provider.states.save(_state(200_000)))
        assert "SQLITE_FULL" in str(error)
        assert str(_path(sqlite_url)) not in _shown(error)


async def test_no_error_of_a_server_names_its_user(postgres_server: PostgresServer) -> None:
    """A role that is unknown or lacks a right, a missing database, and connections that break; nor does one on an open
    connection name the host.
    """
    database = postgres_server.url(postgres_server.create_database())
    role = "affinity_nameless"
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(f"DROP ROLE IF EXISTS {role}")
        errors = [await _error_of(lambda: open_provider(database.replace("postgres@", f"{role}:pw@")))]
        admin.execute(f"CREATE ROLE {role} LOGIN")
        theirs = database.replace("postgres@", f"{role}@")
        errors.append(await _error_of(lambda: migrate(theirs)))
        await migrate(database)
        errors.append(await _error_of(lambda: open_provider(theirs)))
        errors.append(await _error_of(lambda: open_provider(postgres_server.url("affinity_no_database"))))
        async with opened(database) as provider:
            peer = await registered(provider)
            with administrator(database) as other:
                terminate(other)
            errors.append(await _error_of(peer.renew_lease))
        admin.execute(f"DROP ROLE {role}")
    assert [type(error) for error in errors] == [AccessDenied] * 4 + [ConnectionLost]
    for error in errors:
        assert ("127.0.0.1" in _shown(error)) is str(error).startswith("cannot connect"), error
        for name in (role, "affinity_no_database", database):
            assert name not in _shown(error), (name, error)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:p@ss@host/db", "postgresql://***@host/db"),
        ("postgresql://u:pa/ss@host/db", "postgresql://***@host/db"),
        ("postgresql://u:p?w@host/db", "postgresql://***@host/db"),
        ("postgresql://u@host/db?password=p@ss", "postgresql://***@host/db?password=***"),
        ("postgresql://host/db?user=u&password=x%26y&sslpassword=z", "postgresql://host/db?user=u&password=***&sslpassword=***"),
        ("host=h password='a b c' user=u", "host=h password=*** user=u"),
        ("postgresql://u:p@h/d?direct=postgresql%3A%2F%2Fu%3Ap%40h%2Fd&a=b", "postgresql://***@h/d?direct=***&a=b"),
        ("postgresql://h/d?a=b&direct=postgresql://u:p@h/d", "postgresql://h/d?a=b&direct=***"),
        ("sqlite:///x", "sqlite:///x"),
    ],
)  # fmt: skip
def test_a_log_line_has_no_password(url: str, shown: str) -> None:
    assert redact(url) == shown


@pytest.mark.parametrize("url", ["sqlite:///:memory:", "sqlite:///%3Amemory%3A", "sqlite:///file::memory:"])
async def test_a_database_in_memory_is_refused(url: str) -> None:
    for call in (lambda: open_provider(url), lambda: migrate(url), Client(url).__aenter__):
        with pytest.raises(InvalidUrl, match="belongs to one connection"):
            await call()


@pytest.mark.parametrize(
    ("url", "has"),
    [
        ("postgresql://u:p@host/db", True),
        ("postgresql://host/db?password=p", True),
        ("postgresql://host/db?sslpassword=p", True),
        ("postgresql://u@host:5432/db?passfile=/x", False),
        ("postgresql://host:5432/db", False),
        ("postgresql://host/db?direct=postgresql%3A%2F%2Fu%3Ap%40h%2Fd", True),
        ("postgresql://u:p@host/db?direct=postgresql%3A%2F%2Fu%40h%2Fd", True),
        ("postgresql://u@host/db?direct=postgresql%3A%2F%2Fu%40h%2Fd", False),
        ("sqlite:///x", False),
    ],
)
def test_whether_a_url_has_a_password(url: str, has: bool) -> None:
    assert has_password(url) is has
