"""An SQLite file of an `Env`. Its clock stands still until it is moved."""

from __future__ import annotations

import mmap
import os
import shutil
import sqlite3
import struct
import tempfile
import time
from collections.abc import Collection
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import anyio.to_thread

from affinity.provider.contract import OFFER_SECONDS, Provider
from affinity.provider.sqlite import SqliteProvider
from affinity.provider.sqlite.driver.clock import Clock
from affinity.provider.sqlite.driver.database import Database, connect
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.sqlite.parts import ask, parts
from affinity.provider.statements import load_statements
from affinity.provider.timeline import Timeline
from affinity.testing.env.waiting import Waiting

SQL: Final = load_statements(__package__, "sqlite.sql")

MEMORY: Final = Path("/dev/shm")  # noqa: S108 -- a directory of random name is made in it
"""A file system in memory, on Linux."""

_NEW_TOKEN: Final = "UPDATE timeline SET token = lower(hex(randomblob(16)))"  # noqa: S105 -- of the timeline

_TIME: Final = struct.Struct("d")

_template: bytes | None = None  # a migrated file; made once in a process


class StillClock(Clock):
    """A clock that is moved by hand, in a file beside the database: worker processes share it."""

    def __init__(self, database: Path) -> None:
        super().__init__()
        path = database.with_name("clock")
        if not path.exists():
            path.write_bytes(_TIME.pack(round(time.time(), 6)))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _TIME.size)

    def now(self) -> float:
        """The time that was set last."""
        found: float = _TIME.unpack_from(self._memory)[0]
        return found

    def set(self, to: float) -> None:
        """Move it, to the next whole microsecond: see `Clock.now`; what is due at ``to`` is due then."""
        at = round(to, 6)
        _TIME.pack_into(self._memory, 0, at if at >= to else round(at + 1e-6, 6))


class SqliteDatabase:
    """A file in a directory of its own; made by `create`."""

    puts_later = False

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / "env.db"
        self._path.write_bytes(_template or b"")
        self._clock = StillClock(self._path)
        self.url: str = f"sqlite:///{self._path}"
        with closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute(_NEW_TOKEN)
        self._database = Database(connect(self._path), self._clock)

    @classmethod
    async def create(cls) -> SqliteDatabase:
        """A copy of a migrated file, in memory where there is a file system for it."""
        global _template  # noqa: PLW0603 -- the migrations take a hundred times as long as a copy
        if _template is None:
            _template = await _migrated()
        place = MEMORY if os.access(MEMORY, os.W_OK) else None
        return cls(Path(tempfile.mkdtemp(prefix="affinity-env-", dir=place)))

    def now(self) -> float:
        return self._clock.now()

    async def open(
        self, timeline: Timeline | None = None, *, one_connection: bool = False, as_client: bool = False
    ) -> Provider:
        return await SqliteProvider.open(self._path, clock=self._clock, timeline=timeline)

    async def next_due(self, waiting: Waiting) -> float | None:
        return await anyio.to_thread.run_sync(partial(self._database.read, _next_due, waiting))

    async def jump(self, to: float, alive: Collection[str], busy: Collection[str]) -> None:
        await anyio.to_thread.run_sync(partial(self._database.write, _jump, self._clock, to, alive, busy))

    async def aclose(self) -> None:
        self._database.close()
        shutil.rmtree(self._directory, ignore_errors=True)


async def _migrated() -> bytes:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "template.db"
        await SqliteProvider.migrate(path)
        return path.read_bytes()


def _next_due(tx: Tx, waiting: Waiting) -> float | None:
    at = {
        "now": tx.now,
        "alive": to_json(list(waiting.alive)),
        "busy": to_json(list(waiting.busy)),
        "unknown": waiting.unknown,
        "offer": OFFER_SECONDS,
    }
    due: list[float | None] = [tx.value(SQL["next_due"], at)]
    due += [at for guest, at in ask(tx, "next_due").items() if waiting.endless or not parts()[guest].is_endless]
    if tx.value(SQL["waits"], at):
        due.append(tx.value(SQL["next_lease"], at))
    return min([each for each in due if each is not None], default=None)


def _jump(tx: Tx, clock: StillClock, to: float, alive: Collection[str], busy: Collection[str]) -> None:
    """While this transaction has the lock of a writer, no other one reads the clock."""
    at = {"seconds": to - tx.now, "now": tx.now, "alive": to_json(list(alive)), "busy": to_json(list(busy))}
    for statement in ("move_items", "move_sessions", "move_workers"):
        tx.run(SQL[statement], at)
    clock.set(to)
