"""Databases that lose what they have committed: a pair of servers whose second one lags, and a file and its backup."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from tests.servers.programs import LocalServer, Standby


class Pair:
    """A primary and its standby, with a migrated database."""

    def __init__(self, primary: LocalServer, standby: Standby) -> None:
        self.primary, self.standby = primary, standby
        self.database = primary.create_database()
        one, two = (server.url(self.database) for server in (primary, standby))
        hosts = ",".join(url.partition("@")[2].partition("/")[0] for url in (one, two))
        self.url = f"postgresql://postgres@{hosts}/{self.database}?target_session_attrs=read-write"

    def fail_over(self) -> None:
        """The primary dies, and the standby takes its place."""
        self.primary.stop("immediate")
        self.standby.promote()

    def draw(self, sequence: str, last: int) -> None:
        """Have others draw what the new primary's sequence issues up to that value, unless it is past it."""
        self.run(
            self.standby,
            f"SELECT nextval('affinity.{sequence}') FROM affinity.{sequence}, generate_series(last_value + 1, {last})",
        )

    def run(self, server: LocalServer, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(server.url(self.database), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


def copy(source: Path, target: Path) -> None:
    """Also over a file that is open."""
    with closing(sqlite3.connect(source, timeout=30)) as old, closing(sqlite3.connect(target, timeout=30)) as new:
        old.backup(new)
