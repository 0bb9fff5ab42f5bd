"""``affinity once-table``."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from affinity.cli.help import MISUSED
from affinity.effects import table, table_sql
from tests.cli.conftest import document, refused, run, succeed
from tests.conftest import Servers
from tests.effects.shops import Shop
from tests.servers.pgbouncer import PROGRAM, pooler

INSERT: Final = "INSERT INTO affinity_once (work, name, instance_id, activity, attempt, result, written_at) VALUES "


@pytest.mark.parametrize("engine", ["postgresql", "sqlite"])
def test_the_statements_are_printed_for_a_migration(engine: str, directory: Path) -> None:
    """As they are, so that the output can be a file; no database is made."""
    printed = succeed("once-table", "--print", engine)
    assert printed == table_sql("postgresql" if engine == "postgresql" else "sqlite")
    assert document("once-table", "--print", engine) == {"sql": printed}
    assert [*directory.iterdir()] == []


@pytest.fixture(params=["new", "sqlite"])
def url(request: pytest.FixtureRequest, servers: Servers, directory: Path) -> Iterator[str]:
    """An application's database, without tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{directory}/shop.db"
        return
    server = servers.server(request.param)
    name = server.create_database()
    yield server.url(name)
    server.drop_database(name)


def _shop(url: str) -> Shop:
    return Shop("sqlite3" if url.startswith("sqlite:") else "psycopg", url)


def _add_row(url: str, work: str, days: int) -> None:
    """A payment of so many days ago."""
    when = f"strftime('%Y-%m-%d %H:%M:%f', 'now', '-{days} days')"
    if not url.startswith("sqlite:"):
        when = f"clock_timestamp() - make_interval(days => {days})"
    with _shop(url).plain() as execute:
        execute(f"{INSERT} ('{work}', '', 'order-7', 'pay', 1, '7', {when})")


def _works(url: str) -> list[str]:
    with _shop(url).plain() as execute:
        return [str(row[0]) for row in execute("SELECT work FROM affinity_once ORDER BY work")]


def test_the_table_is_made_and_a_second_time_kept(url: str) -> None:
    assert succeed("once-table", "--url", url) == "the table affinity_once is there\n"
    _add_row(url, "a", 0)
    assert document("once-table", "--url", url) == {"table": "affinity_once"}
    assert _works(url) == ["a"]


def test_old_rows_are_removed(url: str) -> None:
    succeed("once-table", "--url", url)
    for work, days in (("old", 40), ("older", 400), ("new", 20)):
        _add_row(url, work, days)
    assert document("once-table", "--url", url, "--delete-older-than", "52w") == {"removed": 1}
    assert _works(url) == ["new", "old"]
    assert succeed("once-table", "--url", url, "--delete-older-than", "30d") == "removed 1 row\n"
    assert _works(url) == ["new"]


def test_more_rows_than_one_batch(directory: Path) -> None:
    url = f"sqlite:///{directory}/shop.db"
    succeed("once-table", "--url", url)
    with closing(sqlite3.connect(directory / "shop.db")) as connection:
        rows = [(f"w{n}", "2020-01-01 00:00:00.000") for n in range(2_001)]
        connection.executemany(f"{INSERT} (?, '', 'order-7', 'pay', 1, '7', ?)", rows)
        connection.commit()
    assert document("once-table", "--url", url, "--delete-older-than", "1d") == {"removed": 2_001}
    assert _works(url) == []


@pytest.mark.skipif(PROGRAM is None, reason="this machine has no program pgbouncer")
def test_rows_are_removed_through_a_pooler(
    postgres_database: str, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In transaction mode, where each transaction may have another session."""
    monkeypatch.setattr(table, "BATCH", 1)
    settings: dict[str, Any] = {"min_pool_size": 3, "server_round_robin": 1}
    with pooler(tmp_path, postgres_database, mode="transaction", **settings) as url:
        succeed("once-table", "--url", url)
        for number in range(20):
            _add_row(postgres_database, f"w{number}", 40)
        with psycopg.connect(postgres_database, autocommit=True) as admin, psycopg.connect(url, autocommit=True):
            question = (
                "SELECT count(*) >= 3 FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            while admin.execute(question).fetchall() != [(True,)]:
                time.sleep(0.05)
        assert document("once-table", "--url", url, "--delete-older-than", "30d") == {"removed": 20}


def test_what_is_refused(url: str) -> None:
    assert "no table affinity_once" in run("once-table", "--url", url, "--delete-older-than", "30d").stderr
    succeed("once-table", "--url", url)
    _add_row(url, "old", 40)
    for age in ("23h", "0s"):
        assert "kept for 86400 s" in refused(MISUSED, "once-table", "--url", url, "--delete-older-than", age)
    assert "contradicts" in refused(MISUSED, "once-table", "--print", "sqlite", "--delete-older-than", "30d")
    refused(MISUSED, "once-table", "--print", "mysql")
    refused(MISUSED, "once-table", "--url", "mysql://shop", "--delete-older-than", "30d")
    assert _works(url) == ["old"]
