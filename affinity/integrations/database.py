"""Connections, transactions and errors of the tables of a plug: one form for SQLite and PostgreSQL, sync and async.

Calls run on the threads of a small pool, each with a connection of its own. So the async form of a call is the sync
form, awaited, and both run the same statements.
"""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal, LiteralString, ParamSpec, Protocol, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

from affinity.errors import (
    AccessDenied,
    ConnectionLost,
    Contention,
    DatabaseFailure,
    DataRefused,
    InvalidUrl,
    ProviderError,
    ReadOnly,
    SchemaMismatch,
)
from affinity.provider import sqlite_path

T = TypeVar("T")
P = ParamSpec("P")

Engine: TypeAlias = Literal["postgresql", "sqlite"]
Parameters: TypeAlias = Mapping[str, object]
Mode: TypeAlias = Literal["read", "write", "group"]
"""What a transaction is for. On PostgreSQL only one for writes has several statements: a group of writes is one."""

CONNECTIONS: Final = 4
"""Connections of a pool, which are opened when they are needed."""

_ATTEMPTS: Final = 4
"""Of a call whose connection was lost, or that has lost to another transaction. Every call may be repeated."""

_PAUSE: Final = 0.05
"""Seconds before the second attempt; twice as many before each further one."""

_BUSY: Final = 30.0
"""Seconds that a transaction of SQLite waits for others."""

_PLANS: Final = {"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off", "jit": "off"}
"""Settings of a connection to PostgreSQL: a plan that is made for small tables is also right for large ones. Through a
pooler each statement is planned as the tables are.
"""

_PIN: Final = "SELECT count(set_config(name, value, false)) FROM unnest(%s::text[], %s::text[]) AS plans (name, value)"

_SCHEMA_LOCK: Final = 0x61666C67
"""Key of the lock under which PostgreSQL's tables are made."""


@dataclass(frozen=True)
class Tables:
    """The tables of a plug, ``affinity_NAME_*``, one of which has their version, and its statements."""

    name: str
    package: str  # has queries.sql, postgres_schema.sql and sqlite_schema.sql
    version: int
    contents: str  # for messages, such as "threads"
    setup: str  # the call that makes them, for messages

    @property
    def schema_table(self) -> str:
        """Name of the table that has the version."""
        return f"affinity_{self.name}_schema"

    def statement(self, name: str, engine: Engine) -> LiteralString:
        """Return a statement of ``queries.sql``, with the parameters as the driver writes them."""
        return _statement(self.package, name, engine)

    def schema(self, engine: Engine) -> Sequence[LiteralString]:
        """Return the statements that create the tables."""
        return _schema(self.package, engine)


@cache
def _statement(package: str, name: str, engine: Engine) -> LiteralString:
    text = _statements(package)[name]
    if engine == "postgresql":
        text = re.sub(r"(?<!:):(\w+)", r"%(\1)s", text)
    return text  # of a file of this package


@cache
def _statements(package: str) -> dict[str, str]:
    text = (files(package) / "queries.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- (\w+): .*\n", text, flags=re.MULTILINE)[1:]
    return {name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}


@cache
def _schema(package: str, engine: Engine) -> Sequence[LiteralString]:
    name = "postgres_schema.sql" if engine == "postgresql" else "sqlite_schema.sql"
    text = (files(package) / name).read_text(encoding="utf-8")
    return [each for each in re.sub(r"--.*", "", text).split(";") if each.strip()]


class Connection(Protocol):
    """A connection whose statements are those of ``queries.sql``."""

    writes_groups: bool
    """Whether it has the statement ``write``."""

    def savepoint(self) -> AbstractContextManager[None]:
        """Undo what is within the block if it raises, and not the rest of the transaction."""
        ...

    def fetch(self, name: str, parameters: Parameters = ...) -> Sequence[tuple[Any, ...]]:
        """Run a statement, and return its rows; none of a statement that returns none."""
        ...

    def run_all(self, name: str, parameters: Iterable[Parameters]) -> None:
        """Run a statement with each of these parameters."""
        ...


class _Driver(Connection, Protocol):
    def transaction(self, mode: Mode = "write") -> AbstractContextManager[None]: ...

    def create_tables(self) -> None: ...

    def has_tables(self) -> bool: ...

    def close(self) -> None: ...


class Database:
    """The pool of connections to one database. Nothing is opened before the first call."""

    def __init__(self, url: str, tables: Tables, connections: int = CONNECTIONS) -> None:
        """Check the URL.

        Raises:
            InvalidUrl: it names neither a PostgreSQL database nor an SQLite file.
        """
        self._open, self._tables = opener(url, tables), tables
        self._local = threading.local()
        self._lock = threading.Lock()
        self._drivers: list[_Driver] = []
        self._pool = ThreadPoolExecutor(connections, thread_name_prefix=f"affinity-{tables.name}")
        self._finalizer = weakref.finalize(self, _close_all, self._pool, self._drivers)  # for who never calls `close`

    def run(self, function: Callable[[Connection], T], mode: Mode = "write") -> T:
        """Call the function in a transaction, on a thread of the pool.

        Raises:
            ProviderError: the database cannot be reached, or has refused a statement.
        """
        return self.submit(self.call, function, mode).result()

    async def arun(self, function: Callable[[Connection], T], mode: Mode = "write") -> T:
        """Await the same. A call that is cancelled ends on its thread."""
        return await asyncio.wrap_future(self.submit(self.call, function, mode))

    def submit(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> Future[T]:
        """Call the function on a thread of the pool."""
        return self._pool.submit(function, *args, **options)

    def close(self) -> None:
        """Close the connections, when the calls under way have ended. Later calls raise ``RuntimeError``."""
        self._finalizer()

    def call(self, function: Callable[[Connection], T], mode: Mode = "write") -> T:
        """Call the function in a transaction, on this thread of the pool. See `run`."""
        again = (ConnectionLost, ReadOnly) if mode == "group" else (ConnectionLost, ReadOnly, Contention)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._call_once(function, mode)
            except again:
                if attempt == _ATTEMPTS:
                    raise
            time.sleep(_PAUSE * 2 ** (attempt - 1))
        raise AssertionError("not reached")

    def _call_once(self, function: Callable[[Connection], T], mode: Mode) -> T:
        driver = self._driver()
        try:
            with driver.transaction(mode):
                return function(driver)
        except ProviderError as error:
            if isinstance(error, ConnectionLost | ReadOnly):  # a new connection may find the primary
                self._drop(driver)
            raise

    def _driver(self) -> _Driver:
        driver: _Driver | None = getattr(self._local, "driver", None)
        if driver is None:
            driver = self._open()
            try:
                _prepare(driver, self._tables)
            except BaseException:
                driver.close()
                raise
            with self._lock:
                self._drivers.append(driver)
            self._local.driver = driver
        return driver

    def _drop(self, driver: _Driver) -> None:
        self._local.driver = None
        with self._lock:
            self._drivers.remove(driver)
        driver.close()


def _close_all(pool: ThreadPoolExecutor, drivers: list[_Driver]) -> None:
    pool.shutdown()
    while drivers:
        drivers.pop().close()


def _prepare(driver: _Driver, tables: Tables) -> None:
    """Make the tables unless they are there.

    Raises:
        SchemaMismatch: a later release has made them.
    """
    if not driver.has_tables():
        driver.create_tables()
    with driver.transaction("read"):
        ((found,),) = driver.fetch("version")
    if found != tables.version:
        raise SchemaMismatch(
            f"the tables of {tables.contents} have version {found}, and this release knows version {tables.version}: "
            "use the release of affinity-workflows that has made them"
        )


def opener(url: str, tables: Tables) -> Callable[[], _Driver]:
    """Return the function that opens a connection to this database.

    Raises:
        InvalidUrl: see `Database`.
    """
    if (path := sqlite_path(url)) is not None:
        return lambda: _Sqlite(path, tables)
    if urlsplit(url).scheme in {"postgresql", "postgres"}:
        direct = _direct_url(url)
        return lambda: _Postgres(direct, tables)
    raise InvalidUrl(f"the database of {tables.contents} is postgresql://… or sqlite:///…")


def _direct_url(url: str) -> str:
    """The URL for libpq, of one for workers and clients: past a pooler, as workers connect, and without ``schema=``."""
    plain, _, query = url.partition("?")
    words = [word for word in query.split("&") if word]
    given = dict(word.split("=", 1) for word in words if word.startswith(("direct=", "schema=")))
    if "direct" in given:
        return _direct_url(unquote(given["direct"]))
    if url == os.environ.get("AFFINITY_URL") and (direct := os.environ.get("AFFINITY_DIRECT_URL")):
        return _direct_url(direct)
    rest = "&".join(word for word in words if not word.startswith("schema="))
    return f"{plain}?{rest}" if rest else plain


class _Sqlite:
    writes_groups = False

    def __init__(self, path: Path, tables: Tables) -> None:
        self._tables = tables
        with _sqlite_errors():
            # Another thread may close it, when no call goes on.
            self._connection = sqlite3.connect(path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA synchronous = FULL")

    def fetch(self, name: str, parameters: Parameters = {}) -> Sequence[tuple[Any, ...]]:  # noqa: B006 -- not changed
        with _sqlite_errors():
            return self._connection.execute(self._tables.statement(name, "sqlite"), dict(parameters)).fetchall()

    def run_all(self, name: str, parameters: Iterable[Parameters]) -> None:
        with _sqlite_errors():
            self._connection.executemany(self._tables.statement(name, "sqlite"), [dict(each) for each in parameters])

    @contextmanager
    def transaction(self, mode: Mode = "write") -> Iterator[None]:
        with _sqlite_errors():
            self._connection.execute("BEGIN" if mode == "read" else "BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        with _sqlite_errors():
            self._connection.execute("SAVEPOINT part")
            try:
                yield
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK TO part")
                raise
            self._connection.execute("RELEASE part")

    def has_tables(self) -> bool:
        text = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        with _sqlite_errors():
            return self._connection.execute(text, [self._tables.schema_table]).fetchone() is not None

    def create_tables(self) -> None:
        with _sqlite_errors():
            self._connection.execute("PRAGMA journal_mode = WAL")
            with self.transaction():
                for text in self._tables.schema("sqlite"):
                    self._connection.execute(text)
                self.fetch("set_version")

    def close(self) -> None:
        self._connection.close()


@contextmanager
def _sqlite_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", None)
        if name is None:
            raise DataRefused(f"SQLite: {error}") from error
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise Contention("SQLite: other transactions hold the file", name) from error
        if name.startswith("SQLITE_CANTOPEN"):
            raise ConnectionLost("SQLite: the file cannot be opened", name) from error
        if name.startswith(("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH")):
            raise AccessDenied("SQLite: the file cannot be written", name) from error
        if name.startswith(("SQLITE_CONSTRAINT", "SQLITE_TOOBIG", "SQLITE_MISMATCH")):
            raise DataRefused("SQLite has refused a value", name) from error
        raise DatabaseFailure(f"SQLite: {error}", name) from error


class _Postgres:
    writes_groups = True

    def __init__(self, url: str, tables: Tables) -> None:
        import psycopg  # a program with SQLite only does without

        self._tables = tables
        self._psycopg = psycopg
        with self._errors():
            self._connection: Any = psycopg.connect(url, autocommit=True)
            if self._is_pooled():  # a session may be another client's in the next transaction
                self._connection.prepare_threshold = None
            else:
                self._connection.execute(_PIN, [[*_PLANS], [*_PLANS.values()]])

    def _is_pooled(self) -> bool:
        """Whether a pooler answers: what it says to be the process of the connection is not that of the server."""
        ((process,),) = self._connection.execute("SELECT pg_backend_pid()").fetchall()
        return bool(process != self._connection.info.backend_pid)

    def fetch(self, name: str, parameters: Parameters = {}) -> Sequence[tuple[Any, ...]]:  # noqa: B006 -- not changed
        with self._errors():
            cursor = self._connection.execute(self._tables.statement(name, "postgresql"), parameters)
            return cursor.fetchall() if cursor.description is not None else ()

    def run_all(self, name: str, parameters: Iterable[Parameters]) -> None:
        with self._errors(), self._connection.cursor() as cursor:
            cursor.executemany(self._tables.statement(name, "postgresql"), list(parameters))

    @contextmanager
    def transaction(self, mode: Mode = "write") -> Iterator[None]:
        with self._errors(), self._connection.transaction() if mode == "write" else nullcontext():
            yield

    def savepoint(self) -> AbstractContextManager[None]:
        return self.transaction()

    def has_tables(self) -> bool:
        with self._errors():
            text = "SELECT to_regclass(%s) IS NOT NULL"
            row = self._connection.execute(text, [self._tables.schema_table]).fetchone()
        return bool(row[0])

    def create_tables(self) -> None:
        try:
            with self.transaction():
                self._connection.execute("SELECT pg_advisory_xact_lock(%s)", [_SCHEMA_LOCK])
                for text in self._tables.schema("postgresql"):
                    self._connection.execute(text)
                self.fetch("set_version")
        except AccessDenied as error:
            raise AccessDenied(
                f"this role may not make the tables of {self._tables.contents}: call `{self._tables.setup}` once with "
                "a role that may, and give this role SELECT, INSERT, UPDATE and DELETE on the tables "
                f"affinity_{self._tables.name}_*",
                error.code,
            ) from error

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        psycopg = self._psycopg
        try:
            yield
        except psycopg.Error as error:
            text = f"PostgreSQL: {type(error).__name__}"
            if (kind := _class_of(error.sqlstate)) is not None:
                raise kind(text, error.sqlstate) from error
            if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
                raise ConnectionLost(text, error.sqlstate) from error
            if isinstance(error, psycopg.DataError):
                raise DataRefused(f"{text}: {error}", error.sqlstate) from error
            raise DatabaseFailure(f"{text}: {error}", error.sqlstate) from error


_STATES: Final[Mapping[str, type[ProviderError]]] = {
    "40001": Contention,
    "40P01": Contention,
    "55P03": Contention,
    "25006": ReadOnly,
    "42501": AccessDenied,
    "42P01": SchemaMismatch,
    "28000": AccessDenied,
    "28P01": AccessDenied,
    "3D000": AccessDenied,
}


def _class_of(sqlstate: str | None) -> type[ProviderError] | None:
    """Return the class of an error by its SQLSTATE; None: by the class of the driver's error."""
    if sqlstate is None:
        return None
    if sqlstate in _STATES:
        return _STATES[sqlstate]
    return {"08": ConnectionLost, "57": ConnectionLost, "22": DataRefused, "23": DataRefused}.get(sqlstate[:2])
