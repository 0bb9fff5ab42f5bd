"""Marks slow ones of the tests that are the same on every database, or on both versions of PostgreSQL; connections."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import psycopg
import pytest
from psycopg import sql

from affinity.provider.postgres.driver import target
from tests.provider.postgres_stage import administrator
from tests.provider.roles import CLIENT, READER, SCALER, WORKER

_LONG: Final = ("test_every_verb_survives[", "test_three_thousand_ancestors[")
_ALL_VERBS: Final = "test_every_verb_"
_OLDER: Final = re.compile(r"\[.*\bold\b")
_SLOWER: Final = {"test_postgres_connections.py", "test_postgres_cuts.py", "test_lost_tail.py"}
"""Files whose tests on the older PostgreSQL are slow too."""


@pytest.fixture(autouse=True, scope="session")
def patient_calls() -> None:
    """Tests here hold a row, and look at what waits for it; a busy machine may take longer than a call waits."""
    target.HOT["lock_timeout"] = "5s"


@pytest.fixture
def admin(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to the test's database; its server has the roles."""
    with administrator(postgres_migrated) as connection:
        for role in (CLIENT, WORKER, SCALER, READER):
            if not connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [role]).rowcount:
                name = sql.Identifier(role)
                connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(name, sql.Literal(role)))
        yield connection


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """The conformance suite and some files on the older PostgreSQL, and on both what takes seconds there and not on
    SQLite: the newer one, and the faults on SQLite, are part of each run. The suite on the older one is a session of
    its own, but for the tests of all verbs.
    """
    for item in items:
        suite, slower = "TestPostgres" in item.nodeid, item.path.name in _SLOWER
        if (suite and item.name.startswith(_LONG)) or ((suite or slower) and _OLDER.search(item.name)):
            item.add_marker(pytest.mark.slow)
            if item.name.startswith(_LONG):
                item.add_marker(pytest.mark.nightly)
            elif suite and not item.name.startswith(_ALL_VERBS):
                item.add_marker(pytest.mark.older)
