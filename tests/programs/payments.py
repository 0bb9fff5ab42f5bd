"""Effects of activities in a table of the application's own, by `affinity.once`: each happens once."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import affinity
from affinity.effects import create_table

VARIABLE: Final = "AFFINITY_TEST_PAYMENTS"
"""Names the file of the program that runs, also in the processes of its workers."""


@contextmanager
def used() -> Iterator[None]:
    """In the block, activities pay into a file of this program."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "payments.db"
        create_table(f"sqlite:///{path}")
        with closing(_connect(str(path))) as connection:
            connection.executescript("PRAGMA journal_mode = wal; CREATE TABLE payments (mark TEXT NOT NULL)")
        os.environ[VARIABLE] = str(path)
        try:
            yield
        finally:
            del os.environ[VARIABLE]


def pay(ctx: affinity.ActivityContext, mark: str) -> None:
    """Pay for this run of an activity, in all its attempts once."""
    with closing(_connect(os.environ[VARIABLE])) as connection:
        with affinity.once(ctx, connection, str) as step:
            if not step.is_recorded:
                connection.execute("INSERT INTO payments VALUES (?)", [mark])
                step.result = mark
        paid = connection.execute("SELECT count(*) FROM payments WHERE mark = ?", [mark]).fetchone()
    assert (step.result, paid) == (mark, (1,)), f"{mark} got {step.result}, and has paid {paid[0]} times"


def paid_twice() -> Sequence[str]:
    """The marks of what was paid more than once."""
    with closing(_connect(os.environ[VARIABLE])) as connection:
        rows = connection.execute("SELECT mark FROM payments GROUP BY mark HAVING count(*) > 1").fetchall()
    return [mark for (mark,) in rows]


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    connection.execute("PRAGMA synchronous = off")  # no power is lost here
    return connection
