"""The table ``affinity_once`` of an application's database: its statements, its creation, the removal of old rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib.resources import files
from typing import Final, Literal, LiteralString, TypeAlias

from affinity.effects.connections import statement
from affinity.errors import ConnectionLost, InvalidOptions, InvalidUrl, SchemaMismatch
from affinity.limits import MIN_ONCE_SECONDS
from affinity.provider.urls import scheme_of, sqlite_path

Engine: TypeAlias = Literal["postgresql", "sqlite"]

_FILES: Final[dict[Engine, str]] = {"postgresql": "postgres_schema.sql", "sqlite": "sqlite_schema.sql"}

BATCH: Final = 1_000
"""Rows that one transaction removes."""

_WAIT: Final = 10.0
"""Seconds that a transaction of SQLite waits for others."""


def table_sql(engine: Engine) -> LiteralString:
    """Return the statements that create the table, for a migration of the application."""
    return (files(__package__) / _FILES[engine]).read_text(encoding="utf-8")


def create_table(url: str) -> None:
    """Create the table, unless it is there.

    Raises:
        InvalidUrl: the URL is of no PostgreSQL or SQLite database.
        ConnectionLost: the database cannot be reached, or refuses the statements.
    """
    with _opened(url) as run:
        run(table_sql(_engine_of(url)), {})


def delete_older_than(url: str, seconds: float, progress: Callable[[int], None] = lambda _: None) -> int:
    """Remove the rows that are older; in transactions of `BATCH` rows. Return their number.

    Args:
        url: of the application's database.
        seconds: at least `limits.MIN_ONCE_SECONDS`. An activity whose row is removed before its result is recorded
            would have its effect again.
        progress: called after each transaction with the number so far.

    Raises:
        InvalidOptions: ``seconds`` is less.
        InvalidUrl, ConnectionLost: see `create_table`.
        SchemaMismatch: there is no such table.
    """
    if seconds < MIN_ONCE_SECONDS:
        raise InvalidOptions(
            f"rows are kept for {MIN_ONCE_SECONDS:g} s at least, not {seconds:g} s: an activity whose row is removed "
            "before its result is recorded would have its effect again"
        )
    name: Literal["postgres_delete", "sqlite_delete"]
    engine = _engine_of(url)
    name = "postgres_delete" if engine == "postgresql" else "sqlite_delete"
    found, removed = 0, BATCH
    with _opened(url) as run:
        while removed == BATCH:
            text = statement(name, is_pyformat=engine == "postgresql")
            found += (removed := run(text, {"seconds": seconds, "most": BATCH}))
            progress(found)
    return found


_Run: TypeAlias = Callable[[LiteralString, dict[str, object]], int]
"""Runs statements in one transaction; returns the number of rows of the last one."""


def _engine_of(url: str) -> Engine:
    scheme = scheme_of(url)
    if scheme in {"postgresql", "postgres"}:
        return "postgresql"
    if scheme == "sqlite":
        return "sqlite"
    raise InvalidUrl("the application's database is postgresql://… or sqlite:///…: for another one, there is no table")


@contextmanager
def _opened(url: str) -> Iterator[_Run]:
    with _opened_postgres(url) if _engine_of(url) == "postgresql" else _opened_sqlite(url) as run:
        yield run


@contextmanager
def _opened_postgres(url: str) -> Iterator[_Run]:
    import psycopg  # a program with SQLite only does without

    try:
        with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:  # it may be a pooler's

            def run(text: LiteralString, parameters: dict[str, object]) -> int:
                with connection.transaction():
                    return connection.execute(text, parameters or None).rowcount

            yield run
    except psycopg.errors.UndefinedTable as error:
        raise SchemaMismatch(_NO_TABLE) from error
    except psycopg.Error as error:
        raise ConnectionLost(
            "the application's database cannot be reached, or refuses the statement: "
            f"{type(error).__name__}{f' ({error.sqlstate})' if error.sqlstate else ''}"
        ) from error


@contextmanager
def _opened_sqlite(url: str) -> Iterator[_Run]:
    path = sqlite_path(url)
    assert path is not None
    try:
        with closing(sqlite3.connect(path, timeout=_WAIT, isolation_level=None)) as connection:

            def run(text: LiteralString, parameters: dict[str, object]) -> int:
                if not parameters:
                    connection.executescript(text)
                    return 0
                return len(connection.execute(text, parameters).fetchall())

            yield run
    except sqlite3.Error as error:
        if str(error) == "no such table: affinity_once":
            raise SchemaMismatch(_NO_TABLE) from error
        raise ConnectionLost(f"the application's database: {error}") from error


_NO_TABLE: Final = "the database has no table affinity_once: create it with `affinity once-table`"
