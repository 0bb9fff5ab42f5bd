"""Carry a plan out by itself, and print how."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

from tests.model.databases import ModelDatabase, PostgresModelDatabase, SqliteModelDatabase
from tests.model.steps import describe


class Runner(Protocol):
    """Carries one plan out on a database."""

    def __init__(self, database: ModelDatabase) -> None: ...

    async def run(self, plan: Any) -> None:
        """Raise the violation, if there is one."""
        ...


_SCRIPT: Final = """\
# From the root of the repository: PYTHONPATH=. python THIS_FILE sqlite | postgresql://...
# PostgreSQL: a database for this alone; everything in its schema "model" is removed.
import sys

from tests.model.replay import replay
{imports}
replay(sys.argv[1], {cluster}, [
{steps}])
"""


def script(cluster: type[Runner], plan: Sequence[object]) -> str:
    """A program that carries the plan out."""
    modules = sorted({cluster.__module__, *(type(step).__module__ for step in plan)})
    imports = "".join(f"from {module} import *\n" for module in modules)
    return _SCRIPT.format(imports=imports, cluster=cluster.__name__, steps=describe(plan))


def replay(url: str, cluster: type[Runner], plan: Sequence[Any]) -> None:
    """Carry a plan out on a database; raises what the model finds."""
    with TemporaryDirectory() as directory:
        asyncio.run(_replay(url, cluster, Path(directory), plan))


async def _replay(url: str, cluster: type[Runner], directory: Path, plan: Sequence[Any]) -> None:
    database: ModelDatabase
    if url == "sqlite":
        database = await SqliteModelDatabase.create(directory)
    else:
        database = await PostgresModelDatabase.create(url)
    try:
        await cluster(database).run(plan)
    finally:
        await database.aclose()
