"""Migrated SQLite files: copies of one, which cost a twentieth of what the migrations cost."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from affinity import migrate
from tests.support.waiting import run_on_a_thread

NEW_TOKEN: Final = "UPDATE timeline SET token = lower(hex(randomblob(16)))"  # noqa: S105 -- of the timeline


def create_file(path: Path) -> None:
    """Create a file as `migrate` does: a database with a timeline of its own, for its owner only."""
    with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(_migrated())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(NEW_TOKEN)


@cache
def _migrated() -> bytes:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "migrated.db"
        run_on_a_thread(migrate, f"sqlite:///{path}")
        return path.read_bytes()
