"""Connections of the libraries that `affinity.once` knows, each in one form: a transaction or a savepoint begins, a
statement returns its first row, and the transaction ends with or without an error.

No library is imported here: an object of one that is not imported cannot be a connection of it.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING, Any, Final, LiteralString, Protocol, TypeAlias, runtime_checkable

from affinity.errors import OnceMisuse, TransactionFailed
from affinity.provider.statements import load_statements

if TYPE_CHECKING:
    import psycopg

FAILED: Final = (
    "a statement of this transaction has failed before, and its error was caught: the database takes no statement of "
    "it but a rollback. Roll back and begin again, or have what may fail in a savepoint of its own"
)

Row: TypeAlias = "tuple[Any, ...] | None"
Parameters: TypeAlias = Mapping[str, object]

KNOWN: Final = (
    "a connection of psycopg, sqlite3, aiosqlite or Django, or a connection or session of SQLAlchemy, on PostgreSQL or "
    "SQLite"
)


@runtime_checkable
class RunsSync(Protocol):
    """An ``AsyncConnection`` or ``AsyncSession`` of SQLAlchemy."""

    async def run_sync(self, fn: Callable[..., Any], /, *arg: Any, **kw: Any) -> Any:
        """See SQLAlchemy."""
        ...


@runtime_checkable
class FetchesAll(Protocol):
    """A connection of aiosqlite."""

    @property
    def in_transaction(self) -> bool:
        """See aiosqlite."""
        ...

    def execute_fetchall(self, sql: str, parameters: Any = ..., /) -> Any:
        """See aiosqlite."""
        ...


@runtime_checkable
class BeginsNested(Protocol):
    """A ``Connection`` or ``Session`` of SQLAlchemy."""

    def begin_nested(self) -> Any:
        """See SQLAlchemy."""
        ...

    def in_transaction(self) -> bool:
        """See SQLAlchemy."""
        ...


@runtime_checkable
class HasAtomicBlocks(Protocol):
    """A connection of Django."""

    vendor: Any
    in_atomic_block: Any


SyncConnection: TypeAlias = "psycopg.Connection[Any] | sqlite3.Connection | BeginsNested | HasAtomicBlocks"
AsyncConnection: TypeAlias = "psycopg.AsyncConnection[Any] | RunsSync | FetchesAll"


class Transaction(Protocol):
    """One transaction, or savepoint, of a connection that is used without ``await``."""

    @property
    def is_joined(self) -> bool:
        """Whether a transaction of the caller is open: it is called before `begin`."""
        ...

    def begin(self) -> None:
        """Begin a transaction; in an open one, a savepoint."""
        ...

    def fetch(self, name: str, parameters: Parameters) -> Row:
        """Run a statement of ``once.sql``, and return its first row."""
        ...

    def end(self, error: BaseException | None) -> bool:
        """Commit, or release the savepoint; after an error, undo what was done since `begin`. Return whether the error
        ends here, as some errors of the libraries do.
        """
        ...


class AsyncTransaction(Protocol):
    """The same, with ``await``."""

    @property
    def is_joined(self) -> bool:
        """See `Transaction`."""
        ...

    async def begin(self) -> None:
        """See `Transaction`."""
        ...

    async def fetch(self, name: str, parameters: Parameters) -> Row:
        """See `Transaction`."""
        ...

    async def end(self, error: BaseException | None) -> bool:
        """See `Transaction`."""
        ...


@cache
def statement(name: str, *, is_pyformat: bool = False) -> LiteralString:
    """Return a statement of ``once.sql``, with its parameters as ``:name``, or as ``%(name)s``."""
    return _statements(is_pyformat=is_pyformat)[name]


@cache
def _statements(*, is_pyformat: bool) -> Mapping[str, LiteralString]:
    found = load_statements(__package__, "once.sql")
    if not is_pyformat:
        return found
    names: tuple[LiteralString, ...] = (
        "work",
        "name",
        "instance_id",
        "activity",
        "attempt",
        "result",
        "seconds",
        "most",
    )
    for name in names:
        found = {key: text.replace(f":{name}", f"%({name})s") for key, text in found.items()}
    return found


def open_sync(connection: object) -> Transaction:
    """Return the form of a connection that is used without ``await``.

    Raises:
        OnceMisuse: it is of no library, or no database, that is known; or it commits each statement by itself.
    """
    if (psycopg := sys.modules.get("psycopg")) is not None and isinstance(connection, psycopg.Connection):
        return _Psycopg(connection)
    if isinstance(connection, sqlite3.Connection):
        return _Sqlite(connection)
    if _is_of("django", connection):
        return _Django(connection)
    if _is_of("sqlalchemy", connection) and isinstance(connection, BeginsNested):
        return _Alchemy(connection)
    raise _refusal(connection)


def open_async(connection: object) -> AsyncTransaction:
    """Return the form of a connection that is used with ``await``.

    Raises:
        OnceMisuse: see `open_sync`.
    """
    if (psycopg := sys.modules.get("psycopg")) is not None and isinstance(connection, psycopg.AsyncConnection):
        return _AsyncPsycopg(connection)
    if _is_of("sqlalchemy", connection) and isinstance(connection, RunsSync):
        return _AsyncAlchemy(connection)
    if _is_of("aiosqlite", connection):
        return _Aiosqlite(connection)
    raise _refusal(connection)


def is_async(connection: object) -> bool:
    """Return whether the connection is used with ``await``.

    Raises:
        OnceMisuse: it is of no library that is known.
    """
    if (psycopg := sys.modules.get("psycopg")) is not None and isinstance(connection, psycopg.AsyncConnection):
        return True
    if _is_of("aiosqlite", connection) or (_is_of("sqlalchemy", connection) and isinstance(connection, RunsSync)):
        return True
    open_sync(connection)
    return False


def _is_of(library: str, connection: object) -> bool:
    return any(base.__module__.partition(".")[0] == library for base in type(connection).__mro__)


def _refusal(connection: object) -> OnceMisuse:
    return OnceMisuse(f"once takes {KNOWN}, not {type(connection).__module__}.{type(connection).__qualname__}")


# --- psycopg ----------------------------------------------------------------------------------------------------------


class _Psycopg:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._block: AbstractContextManager[object] | None = None

    @property
    def is_joined(self) -> bool:
        return _is_in_transaction(self._connection)

    def begin(self) -> None:
        _refuse_failed(self._connection)
        self._block = self._connection.transaction()
        self._block.__enter__()

    def fetch(self, name: str, parameters: Parameters) -> Row:
        from psycopg.rows import tuple_row  # imported by the application

        with self._connection.cursor(row_factory=tuple_row) as cursor:
            return cursor.execute(statement(name, is_pyformat=True), parameters).fetchone()

    def end(self, error: BaseException | None) -> bool:
        assert self._block is not None
        return bool(self._block.__exit__(*_information(error)))


class _AsyncPsycopg:
    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection
        self._block: AbstractAsyncContextManager[object] | None = None

    @property
    def is_joined(self) -> bool:
        return _is_in_transaction(self._connection)

    async def begin(self) -> None:
        _refuse_failed(self._connection)
        self._block = self._connection.transaction()
        await self._block.__aenter__()

    async def fetch(self, name: str, parameters: Parameters) -> Row:
        from psycopg.rows import tuple_row  # imported by the application

        async with self._connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(statement(name, is_pyformat=True), parameters)
            return await cursor.fetchone()

    async def end(self, error: BaseException | None) -> bool:
        assert self._block is not None
        return bool(await self._block.__aexit__(*_information(error)))


def _is_in_transaction(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    from psycopg.pq import TransactionStatus  # imported by the application

    return connection.info.transaction_status != TransactionStatus.IDLE


def _refuse_failed(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Refuse a transaction that has failed, before psycopg counts a block of it: it could not be rolled back then."""
    from psycopg.pq import TransactionStatus  # imported by the application

    if connection.info.transaction_status == TransactionStatus.INERROR:
        raise TransactionFailed(FAILED)


def _information(error: BaseException | None) -> tuple[Any, Any, Any]:
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


# --- SQLite -----------------------------------------------------------------------------------------------------------

_BEGIN: Final = "BEGIN IMMEDIATE"
"""It waits for other writers here, and not at a later statement, where a transaction that has read would fail."""

_SAVEPOINT: Final = "SAVEPOINT affinity_once"

_RELEASE: Final = "RELEASE affinity_once"

_ENDED: Final = "the block has ended its transaction by itself: it must neither commit nor roll back"

_UNDO: Final = ("ROLLBACK TO affinity_once", _RELEASE)


class _Sqlite:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._is_own = False

    @property
    def is_joined(self) -> bool:
        return self._connection.in_transaction

    def begin(self) -> None:
        self._is_own = not self.is_joined
        if self._is_own:
            self._run(_BEGIN)
        self._run(_SAVEPOINT)

    def fetch(self, name: str, parameters: Parameters) -> Row:
        return self._run(statement(name), parameters)

    def _run(self, text: str, parameters: Parameters | None = None) -> Row:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        rows: list[tuple[Any, ...]] = cursor.execute(text, parameters or {}).fetchall()
        return rows[0] if rows else None

    def end(self, error: BaseException | None) -> bool:
        if error is None:
            try:
                self._run(_RELEASE)
            except sqlite3.OperationalError as lost:
                if self._connection.in_transaction:
                    self._connection.rollback()
                raise OnceMisuse(_ENDED) from lost
            if self._is_own:
                try:
                    self._run("COMMIT")
                except sqlite3.Error:
                    if self._connection.in_transaction:
                        self._run("ROLLBACK")
                    raise
        elif self._connection.in_transaction:  # else SQLite has rolled back by itself
            try:
                for text in ("ROLLBACK",) if self._is_own else _UNDO:
                    self._run(text)
            except sqlite3.OperationalError:  # the block has ended the transaction, and another one has begun
                self._connection.rollback()
        return False


class _Aiosqlite:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._is_own = False

    @property
    def is_joined(self) -> bool:
        return bool(self._connection.in_transaction)

    async def begin(self) -> None:
        self._is_own = not self.is_joined
        if self._is_own:
            await self._run(_BEGIN)
        await self._run(_SAVEPOINT)

    async def fetch(self, name: str, parameters: Parameters) -> Row:
        return await self._run(statement(name), parameters)

    async def _run(self, text: str, parameters: Parameters | None = None) -> Row:
        cursor = await self._connection.cursor()
        cursor.row_factory = None
        await cursor.execute(text, parameters or {})
        rows = list(await cursor.fetchall())
        return rows[0] if rows else None

    async def end(self, error: BaseException | None) -> bool:
        if error is None:
            try:
                await self._run(_RELEASE)
            except sqlite3.OperationalError as lost:
                if self._connection.in_transaction:
                    await self._connection.rollback()
                raise OnceMisuse(_ENDED) from lost
            if self._is_own:
                try:
                    await self._run("COMMIT")
                except sqlite3.Error:
                    if self._connection.in_transaction:
                        await self._run("ROLLBACK")
                    raise
        elif self._connection.in_transaction:  # else SQLite has rolled back by itself
            try:
                for text in ("ROLLBACK",) if self._is_own else _UNDO:
                    await self._run(text)
            except sqlite3.OperationalError:  # the block has ended the transaction, and another one has begun
                await self._connection.rollback()
        return False


# --- SQLAlchemy -------------------------------------------------------------------------------------------------------


class _Alchemy:
    """A ``Connection``, or a ``Session``, which writes its pending objects before a savepoint."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._block: Any = None

    @property
    def is_joined(self) -> bool:
        return bool(self._target.in_transaction())

    def begin(self) -> None:
        if self.is_joined:
            _prepare(self._connection())
            self._block = self._target.begin_nested()
        else:
            self._block = self._target.begin()
        try:
            _prepare(self._connection())
            self._block.__enter__()
        except BaseException:
            self._block.rollback()
            raise

    def _connection(self) -> Any:
        return self._target.connection() if hasattr(self._target, "get_bind") else self._target

    def fetch(self, name: str, parameters: Parameters) -> Row:
        import sqlalchemy  # imported by the application

        row = self._connection().execute(sqlalchemy.text(statement(name)), dict(parameters)).first()
        return None if row is None else tuple(row)

    def end(self, error: BaseException | None) -> bool:
        return bool(self._block.__exit__(*_information(error)))


def _prepare(connection: Any) -> None:
    """Refuse a connection whose blocks are no transactions, and begin the transaction that sqlite3 puts off: before it,
    a savepoint would commit by itself.
    """
    if connection.dialect.name not in {"postgresql", "sqlite"}:
        raise OnceMisuse(f"once takes {KNOWN}, not on {connection.dialect.name}")
    level = connection.get_execution_options().get("isolation_level")
    if (level or getattr(connection.dialect, "_on_connect_isolation_level", None)) == "AUTOCOMMIT":
        raise OnceMisuse("the connection has the isolation level AUTOCOMMIT: once needs a transaction")
    if connection.dialect.name == "sqlite" and not connection.connection.driver_connection.in_transaction:
        connection.exec_driver_sql(_BEGIN)


class _AsyncAlchemy:
    def __init__(self, target: Any) -> None:
        self._target = target
        self._sync = _Alchemy(getattr(target, "sync_session", None) or target.sync_connection)

    @property
    def is_joined(self) -> bool:
        return self._sync.is_joined

    async def begin(self) -> None:
        await self._target.run_sync(lambda _: self._sync.begin())

    async def fetch(self, name: str, parameters: Parameters) -> Row:
        row: Row = await self._target.run_sync(lambda _: self._sync.fetch(name, parameters))
        return row

    async def end(self, error: BaseException | None) -> bool:
        return bool(await self._target.run_sync(lambda _: self._sync.end(error)))


# --- Django -----------------------------------------------------------------------------------------------------------


class _Django:
    def __init__(self, connection: Any) -> None:
        if connection.vendor not in {"postgresql", "sqlite"}:
            raise OnceMisuse(f"once takes {KNOWN}, not on {connection.vendor}")
        self._connection = connection
        self._block: AbstractContextManager[object] | None = None

    @property
    def is_joined(self) -> bool:
        return bool(self._connection.in_atomic_block or not self._connection.get_autocommit())

    def begin(self) -> None:
        from django.db import transaction  # imported by the application

        block: AbstractContextManager[object] = transaction.atomic(using=self._connection.alias)
        block.__enter__()
        self._block = block

    def fetch(self, name: str, parameters: Parameters) -> Row:
        with self._connection.cursor() as cursor:
            cursor.execute(statement(name, is_pyformat=True), dict(parameters))
            row = cursor.fetchone()
        return None if row is None else tuple(row)

    def end(self, error: BaseException | None) -> bool:
        assert self._block is not None
        return bool(self._block.__exit__(*_information(error)))
