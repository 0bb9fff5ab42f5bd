"""The connections of the tables of plugs, as of threads: through a pooler, and to a server that takes no writes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import psycopg
import pytest

pytest.importorskip("langgraph", reason="this environment has no LangGraph")

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.test_utils import generate_checkpoint, generate_config, generate_metadata

from affinity.errors import ReadOnly
from affinity.integrations.langgraph import AffinitySaver
from tests.servers.pgbouncer import PROGRAM, pooler

pytestmark = pytest.mark.anyio


@pytest.mark.skipif(PROGRAM is None, reason="this machine has no program pgbouncer")
async def test_threads_through_a_pooler_in_transaction_mode(postgres_database: str, tmp_path: Path) -> None:
    """Of two sessions each transaction has another one: no statement has a name, and no setting is left to others."""
    with pooler(tmp_path, postgres_database, mode="transaction", default_pool_size=2, server_round_robin=1) as url:

        @checkpointer_test(name="AffinitySaver")
        async def checkpointers() -> AsyncGenerator[BaseCheckpointSaver[Any], None]:
            with AffinitySaver(url) as saver:
                yield saver

        report = await validate(checkpointers)
        assert {name: result.failures for name, result in report.results.items() if result.failures} == {}
        assert report.conformance_level() == "FULL"
        with psycopg.connect(url, autocommit=True, prepare_threshold=None) as other:
            shown = [other.execute("SELECT current_setting('enable_seqscan')").fetchall() for _ in range(4)]
        assert shown == [[("on",)]] * 4


def put(saver: AffinitySaver) -> None:
    checkpoint = generate_checkpoint(channel_values={"x": 1}, channel_versions={"x": 1})
    saver.put(generate_config("t"), checkpoint, generate_metadata(), {"x": 1})


def test_a_server_that_takes_no_writes_is_left(postgres_database: str) -> None:
    """As a primary that has become a standby, whose connections last: the next one may find the primary."""
    with (
        AffinitySaver(f"{postgres_database}?application_name=threads") as saver,
        psycopg.connect(postgres_database, autocommit=True) as admin,
    ):
        put(saver)
        name = admin.info.dbname
        admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        question = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'threads'"
        admin.execute(question)
        with pytest.raises(ReadOnly):
            put(saver)
        admin.execute("SET default_transaction_read_only = off")
        admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = off')
        put(saver)
        assert len(list(saver.list(None))) == 2
