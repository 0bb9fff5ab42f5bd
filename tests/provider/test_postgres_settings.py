"""PostgreSQL: settings of the server, the database, the role, the URL and the environment that others have chosen."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Final

import anyio
import psycopg
import pytest
from psycopg import sql

from affinity import Client, Worker, migrate
from affinity.errors import SchemaMismatch
from affinity.provider import change_rights, inspect_schema, open_provider
from affinity.provider.postgres.driver import connections
from affinity.provider.postgres.driver.target import PINNED, Target
from tests.servers import PostgresServer
from tests.support.smoke import app, smoke

pytestmark = pytest.mark.anyio

HOSTILE: Final[Mapping[str, str]] = {
    "DateStyle": "German, DMY",
    "IntervalStyle": "iso_8601",
    "TimeZone": "Asia/Kolkata",
    "timezone_abbreviations": "India",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "array_nulls": "off",
    "xmlbinary": "hex",
    "xmloption": "document",
    "lc_monetary": "POSIX",
    "lc_numeric": "POSIX",
    "lc_time": "POSIX",
    "standard_conforming_strings": "off",
    "backslash_quote": "on",
    "transform_null_equals": "on",
    "quote_all_identifiers": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "default_transaction_read_only": "on",
    "session_replication_role": "replica",
    "row_security": "off",
    "client_encoding": "LATIN1",
    "search_path": "pg_catalog",
    "statement_timeout": "1",
    "lock_timeout": "1",
    "idle_session_timeout": "1",
    "idle_in_transaction_session_timeout": "1",
}
"""Values of settings with which statements fail, or mean something else. All at once."""

SINCE: Final[Mapping[str, tuple[int, str]]] = {
    "restrict_nonsystem_relation_kind": (17_00_00, "view"),
    "transaction_timeout": (17_00_00, "1s"),
}
"""The same, from a version of the server on."""

STRINGS: Final[Mapping[str, str]] = {
    **HOSTILE,
    "application_name": "x",
    "backtrace_functions": "x",
    "createrole_self_grant": "set",
    "default_table_access_method": "heap",
    "default_tablespace": "pg_default",
    "default_text_search_config": "pg_catalog.simple",
    "lc_messages": "POSIX",
    "restrict_nonsystem_relation_kind": "view, foreign-table",
    "temp_tablespaces": "pg_default",
    "wal_consistency_checking": "all",
}
"""Values of settings that are text. `PATHS` are left out: with others no connection, or no function, is possible."""

PATHS: Final = frozenset(
    [
        "dynamic_library_path",
        "extension_control_path",
        "extension_destdir",
        "local_preload_libraries",
        "output_plugin_libraries",
        "session_preload_libraries",
    ]
)


@contextmanager
def configured(server: PostgresServer, url: str, settings: Mapping[str, str], of: str = "DATABASE") -> Iterator[None]:
    """Give the database of a URL, or its role, these settings for a while."""
    name = psycopg.conninfo.conninfo_to_dict(url)["dbname" if of == "DATABASE" else "user"]
    owner = sql.SQL(f"{of} {{}}").format(sql.Identifier(str(name)))
    with closing(psycopg.connect(server.url(), autocommit=True)) as admin:
        try:
            for setting, value in settings.items():
                admin.execute(
                    sql.SQL("ALTER {} SET {} = {}").format(owner, sql.Identifier(setting), sql.Literal(value))
                )
            yield
        finally:
            admin.execute(sql.SQL("ALTER {} RESET ALL").format(owner))


@contextmanager
def new_role(server: PostgresServer, url: str, *, superuser: bool = False) -> Iterator[str]:
    """The same URL for a role that no other test has."""
    name = f"settings_{uuid.uuid4().hex}"
    kind = sql.SQL("SUPERUSER" if superuser else "")
    with closing(psycopg.connect(server.url(), autocommit=True)) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN {}").format(sql.Identifier(name), kind))
        try:
            yield url.replace("postgres@", f"{name}@")
        finally:
            server.drop_database(str(psycopg.conninfo.conninfo_to_dict(url)["dbname"]))
            admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def known(server: PostgresServer, settings: Mapping[str, str]) -> dict[str, str]:
    """Those that this server has, and of `SINCE`."""
    return {**settings, **{name: value for name, (since, value) in SINCE.items() if server.major * 10_000 >= since}}


async def test_settings_of_a_database_change_nothing(
    postgres_server: PostgresServer, postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do those of the URL and of the environment: migrate, the CLI's other doors, a worker and a client work."""
    for name, value in {
        "PGTZ": "Asia/Kolkata",
        "PGDATESTYLE": "German",
        "PGOPTIONS": "-c DateStyle=SQL",
        "PGGEQO": "on",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    url = f"{postgres_database}?client_encoding=LATIN1&options=-cIntervalStyle%3Dsql_standard%20-cbytea_output%3Descape"
    with configured(postgres_server, postgres_database, known(postgres_server, HOSTILE)):
        await migrate(url)
        assert (await inspect_schema(url)).pending == ()
        await smoke(url)


async def test_each_connection_has_the_settings_that_are_pinned(
    postgres_server: PostgresServer, postgres_migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a role has, and the environment says; each by its exact value, or unknown to the server."""
    monkeypatch.setenv("PGTZ", "Asia/Kolkata")
    monkeypatch.setenv("PGDATESTYLE", "German")
    role = {name: value for name, value in known(postgres_server, HOSTILE).items() if name in PINNED}
    assert role.keys() >= PINNED.keys() - SINCE.keys()
    with (
        new_role(postgres_server, postgres_migrated, superuser=True) as url,
        configured(postgres_server, url, role, "ROLE"),
    ):
        target = Target.parse(url)
        connection = await connections.connect(target, target.connect("affinity test", {}))
        async with connection:
            for name, value in PINNED.items():
                found = await (await connection.execute("SELECT current_setting(%s, true)", [name])).fetchone()
                assert found in ((value,), (None,)), name


async def test_a_setting_that_may_not_be_changed_is_refused(
    postgres_server: PostgresServer, postgres_migrated: str
) -> None:
    """With `session_replication_role = replica` no trigger would fire, and only a superuser may set it."""
    with new_role(postgres_server, postgres_migrated) as theirs:
        await change_rights(postgres_migrated, workers=[Target.parse(theirs).conninfo["user"]])
        replica = configured(postgres_server, theirs, {"session_replication_role": "replica"}, of="ROLE")
        with replica, pytest.raises(SchemaMismatch, match=r"session_replication_role.* RESET"):
            async with Worker(app, theirs, migrate=False):
                pass
        async with Worker(app, theirs, migrate=False):
            pass


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1", "WIN1252"])
async def test_a_database_that_is_not_utf8_is_refused(postgres_server: PostgresServer, encoding: str) -> None:
    """At every door, with the remedy; a standby's or a pooler's is no other."""
    name = sql.Identifier(f"not_utf8_{encoding.lower()}")
    with closing(psycopg.connect(postgres_server.url(), autocommit=True)) as admin:
        admin.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(name))
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING {} LOCALE 'C'")
        admin.execute(statement.format(name, sql.Literal(encoding)))
        url = postgres_server.url(f"not_utf8_{encoding.lower()}")
        doors: Sequence[Callable[[], Awaitable[object]]] = (
            lambda: migrate(url),
            lambda: inspect_schema(url),
            lambda: open_provider(url),
            Client(url).__aenter__,
            Worker(app, url).__aenter__,
        )
        for door in doors:
            with pytest.raises(SchemaMismatch, match=rf"encoding of the database is {encoding}.* ENCODING 'UTF8'"):
                await door()
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.mark.parametrize(("value", "lines"), [("off", 1), ("on", 0), ("local", 0)])
async def test_a_worker_logs_once_that_commits_may_be_lost(
    postgres_server: PostgresServer, postgres_migrated: str, value: str, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the setting comes from a role, a database or the server. A client does not log it."""
    with configured(postgres_server, postgres_migrated, {"synchronous_commit": value}):
        async with Worker(app, postgres_migrated, migrate=False), Client(postgres_migrated):
            pass
    found = [record for record in caplog.records if "synchronous_commit is off" in record.getMessage()]
    assert [record.levelno for record in found] == [logging.WARNING] * lines


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(1800)
async def test_every_setting_that_a_user_may_set(postgres_server: PostgresServer, postgres_migrated: str) -> None:
    """One at a time, each with another value, or with its smallest and its largest one: all works."""
    with closing(psycopg.connect(postgres_server.url(), autocommit=True)) as admin:
        rows = admin.execute(
            "SELECT name, reset_val, vartype, min_val, max_val, enumvals FROM pg_settings"
            " WHERE context IN ('user', 'superuser') ORDER BY name"
        ).fetchall()
    failed, tried = [], 0
    for name, *about in rows:
        for value in _others(name, about):
            with ExitStack() as stack:
                try:
                    stack.enter_context(configured(postgres_server, postgres_migrated, {name: value}))
                except psycopg.Error as error:  # the server takes no such value
                    print(f"{name} = {value}: not tried: {error}")
                    continue
                tried += 1
                try:
                    with anyio.fail_after(60):
                        await smoke(postgres_migrated)
                except Exception as error:
                    failed.append(f"{name} = {value}: {error!r}")
    assert failed == []
    assert tried > len(rows) * 0.9


def _others(name: str, about: Sequence[Any]) -> list[str]:
    value, kind, least, most, values = about
    if kind == "bool":
        return ["off" if value == "on" else "on"]
    if kind == "string":
        return [] if name in PATHS else [STRINGS[name]]
    return [each for each in values or (least, most) if each != value]
