"""The conformance suite on SQLite, and on an old and a new PostgreSQL."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import closing
from inspect import getmembers, getsource, isfunction, signature
from pathlib import Path
from types import ModuleType
from typing import Any, Final, LiteralString

import psycopg
import pytest
from psycopg import sql

from affinity.audit.store.contract import AuditProvider
from affinity.blobs.store.contract import BlobProvider
from affinity.conversation.store.contract import JournalProvider
from affinity.flow.store.contract import LimitProvider
from affinity.provider.contract import Provider
from affinity.provider.postgres import PostgresProvider
from affinity.provider.postgres.driver import attempts
from affinity.provider.sqlite import SqliteProvider
from affinity.schedules.store.contract import ScheduleProvider
from affinity.trends.store.contract import TrendProvider
from affinity_conformance.providers import (
    AuditConformance,
    BlobConformance,
    ConversationConformance,
    Harness,
    KernelConformance,
    LimitConformance,
    ProviderConformance,
    ScheduleConformance,
    TrendConformance,
)
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.fault_fixtures import fault_verbs
from tests.provider.harnesses import SCHEMA, PostgresHarness, SqliteHarness
from tests.provider.postgres_stage import hot_verbs, session_verbs, some_sessions, some_work


class TestSqlite(ProviderConformance):
    """The embedded default."""

    @pytest.fixture
    async def harness(self, tmp_path: Path) -> Harness:
        return await SqliteHarness.create(tmp_path)


class TestPostgres(ProviderConformance):
    """The engine for many replicas; `postgres_shared` makes each test run on both versions. On the old one clients and
    workers are roles that have only the rights that `affinity migrate` gives.
    """

    @pytest.fixture
    async def harness(
        self, request: pytest.FixtureRequest, postgres_shared: str, postgres_age: str, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[Harness]:
        monkeypatch.setattr(attempts, "LONGEST_PAUSE", 0.02)  # hundreds of verbs meet a server without room
        weighs = "fetch_cost" in request.function.__code__.co_names  # and would find dead rows too
        harness = await PostgresHarness.create(postgres_shared, with_roles=postgres_age == "old", as_new=weighs)
        yield harness
        await harness.aclose()


PROTOCOLS: Final = (
    Provider,
    AuditProvider,
    BlobProvider,
    JournalProvider,
    LimitProvider,
    ScheduleProvider,
    TrendProvider,
)
"""The verbs of the kernel, and of the guests."""


def test_no_rule_hides_another() -> None:
    """All themes are one class: a name that two of them define would be one rule less, without notice."""
    themes = ProviderConformance.__mro__[1:]
    names = [name for theme in themes for name in vars(theme) if not name.startswith("__")]
    assert {name for name in names if names.count(name) > 1} == {"fault_part"}


def test_every_verb_meets_every_fault() -> None:
    """Verbs of the contract, and of the session store."""
    verbs = {name for protocol in PROTOCOLS for name in dir(protocol) if not name.startswith("_")} - {"aclose"}
    verbs -= {"dialect", "timeline", "database", "states"}
    states = {f"{name}_state" for name in ("load", "save", "delete")} | {
        "list_states",
        "count_states",
        "list_relatives_of_states",
    }
    more = {"send_keyed_message", "resume_with_user", "commit_turn_with_journal", "ack_work_item_with_journal"}
    assert set(fault_verbs(ProviderConformance)) == verbs | states | more


def test_the_kernels_suite_calls_no_verb_of_a_guest() -> None:
    """A provider without conversations, schedules or the audit log passes it."""
    guests = (
        ConversationConformance,
        ScheduleConformance,
        AuditConformance,
        LimitConformance,
        BlobConformance,
        TrendConformance,
    )
    verbs = {name for guest in guests for name in fault_verbs(guest)}
    assert {"append_journal", "write_schedules", "write_audit", "admit", "condemn_blobs", "count_trends"} <= verbs
    assert not verbs & fault_verbs(KernelConformance).keys()
    modules = {module for name, module in sys.modules.items() if re.match(KERNEL, name)}
    called = {node.attr for module in modules for node in ast.walk(parsed(module)) if isinstance(node, ast.Attribute)}
    assert {"commit_turn", "sweep"} <= called
    assert not verbs & called


KERNEL: Final = r"affinity_conformance\.providers\.(kernel\.)?\w+$"
"""Modules of the kernel's suite, and those that all parts share."""


def parsed(module: ModuleType) -> ast.Module:
    return ast.parse(getsource(module))


@pytest.mark.parametrize("provider", [SqliteProvider, PostgresProvider])
def test_verbs_have_the_parameters_of_the_contract(provider: type[Any]) -> None:
    """Names, kinds and defaults, in order."""
    members = [one for protocol in PROTOCOLS for one in getmembers(protocol, isfunction)]
    verbs = {name: _parameters(verb) for name, verb in members if not name.startswith("_")}
    whole = type(vars(provider)["__new__"](provider))  # with the verbs of guests
    assert {name: _parameters(getattr(whole, name)) for name in verbs} == verbs


def _parameters(verb: Callable[..., object]) -> list[tuple[str, object, object]]:
    """All but the first one, the provider."""
    _, *others = signature(verb).parameters.values()
    return [(each.name, each.kind, each.default) for each in others]


@pytest.mark.anyio
async def test_a_schema_that_was_used_is_as_a_migration_leaves_it(postgres_shared: str, postgres_database: str) -> None:
    """Whatever the rule before did, and though it left a transaction open."""
    await PostgresHarness.prepare(postgres_database)
    new = _everything(postgres_database)
    cluster = Cluster(await PostgresHarness.create(postgres_shared))
    peer = await cluster.worker("a")
    for verb in session_verbs(peer, await some_sessions(peer)):
        await verb()
    for verb in hot_verbs(peer, await some_work(peer)):
        await verb()
    await cluster.advance(5.0)
    await cluster.aclose()
    assert {name for name, found in _everything(postgres_shared).items() if found != new.get(name)} >= {
        "workers", "history", "(sizes)", "(sequences)", "(offset)"
    }  # fmt: skip
    with closing(_connect(postgres_shared)) as forgotten:
        forgotten.execute("SELECT FROM workers FOR UPDATE")
        await PostgresHarness.create(postgres_shared)
        assert {name for name, found in _everything(postgres_shared).items() if found != new.get(name)} <= {"(sizes)"}
        await PostgresHarness.create(postgres_shared, as_new=True)
        assert _everything(postgres_shared) == new
        with pytest.raises(psycopg.OperationalError):
            forgotten.execute("SELECT")


def _everything(database: str) -> dict[str, list[Any]]:
    """Rows by table, sizes, sequences and functions in the schema of the harness."""
    with closing(_connect(database)) as connection:
        names = connection.execute(TABLES).fetchall()
        rows = {name: connection.execute(ROWS.format(sql.Identifier(name))).fetchall() for (name,) in names}
        return rows | {f"({what})": connection.execute(query).fetchall() for what, query in OTHERS.items()}


def _connect(database: str) -> psycopg.Connection[Any]:
    return psycopg.connect(database, options=f"-c search_path={SCHEMA}")


TABLES: Final = """
    SELECT tablename FROM pg_tables
    WHERE schemaname = current_schema AND tablename NOT IN ('migrations', 'timeline', 'database_identity')"""
ROWS: Final = sql.SQL("SELECT t::text FROM {} t")  # as text: Python has no -infinity
OTHERS: Final[Mapping[str, LiteralString]] = {
    "sizes": """
        SELECT relname, pg_relation_size(oid) FROM pg_class
        WHERE relnamespace = current_schema::regnamespace ORDER BY 1""",
    "sequences": """
        SELECT sequencename, last_value FROM pg_sequences
        WHERE schemaname = current_schema AND sequencename <> 'clock_offset' ORDER BY 1""",
    "offset": "SELECT round(extract(epoch FROM clock() - clock_timestamp()))",  # of the clock, in seconds
    "functions": """
        SELECT pg_get_functiondef(oid) FROM pg_proc
        WHERE pronamespace = current_schema::regnamespace AND oid <> 'clock()'::regprocedure ORDER BY 1""",
}
