"""Carry a plan out by itself, and print how."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.model.cluster import Cluster
from tests.model.databases import ModelDatabase, PostgresModelDatabase, SqliteModelDatabase
from tests.model.steps import Plan, describe

_SCRIPT: Final = """\
# From the root of the repository: python THIS_FILE sqlite | postgresql://...
# PostgreSQL: a database for this alone; everything in its schema "model" is removed.
import sys

from tests.model.replay import replay
from tests.model.steps import *

replay(sys.argv[1], [
{steps}])
"""


def script(plan: Plan) -> str:
    """A program that carries the plan out."""
    return _SCRIPT.format(steps=describe(plan))


def replay(url: str, plan: Plan) -> None:
    """Carry a plan out on a database; raises what the model finds."""
    with TemporaryDirectory() as directory:
        asyncio.run(_replay(url, Path(directory), plan))


async def _replay(url: str, directory: Path, plan: Plan) -> None:
    database: ModelDatabase
    if url == "sqlite":
        database = await SqliteModelDatabase.create(directory)
    else:
        database = await PostgresModelDatabase.create(url)
    try:
        await Cluster(database).run(plan)
    finally:
        await database.aclose()
