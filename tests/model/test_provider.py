"""Whatever workers, clients and scripts do to a provider, in whatever order: it keeps its promises.

`pytest tests/model --model-examples 5000 --model-seed 1` looks longer, and elsewhere. A plan that fails is made as
short as it can be, and printed as a program that carries it out by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from hypothesis import given

from tests.conftest import Servers
from tests.model.cluster import Cluster
from tests.model.databases import ModelDatabase, PostgresModelDatabase, SqliteModelDatabase
from tests.model.replay import script
from tests.model.steps import PLANS, Plan

Look = Callable[[Callable[..., None], int], None]


def test_sqlite(look: Look, tmp_path: Path) -> None:
    """The embedded default."""
    with asyncio.Runner() as runner:
        _look(look, runner, runner.run(SqliteModelDatabase.create(tmp_path)), usual=60)


def test_postgres(look: Look, servers: Servers) -> None:
    """The engine for many replicas; the conformance suite runs on its other versions."""
    with asyncio.Runner() as runner:
        _look(look, runner, runner.run(PostgresModelDatabase.create(servers.shared("old"))), usual=40)


def _look(look: Look, runner: asyncio.Runner, database: ModelDatabase, usual: int) -> None:
    @given(PLANS)
    def judged(plan: Plan) -> None:
        try:
            runner.run(Cluster(database).run(plan))
        except Exception as error:
            error.add_note(script(plan))
            raise

    try:
        look(judged, usual)
    finally:
        runner.run(database.aclose())
