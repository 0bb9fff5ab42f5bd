"""Loops that write the rows of our operations by SQL alone, and do nothing else.

They check no lease, no token of another and no fence, run no user code, and know what they will write beforehand:
nothing that keeps promises can be faster.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, LiteralString

import psycopg

from affinity.provider.postgres.driver.target import HOT
from affinity.provider.statements import load_statements
from bench.work import WrongResults


class BareLoop:
    """A connection to a migrated database, and a number of instances on it, which take their rounds together."""

    file: str
    """Of the statements; ``begin`` and ``written`` are among them."""
    statements: tuple[str, ...]
    """Names of the statements of a round, in order. Each is a transaction, and counts the instances that it finds."""

    def __init__(self, url: str, batch: int) -> None:
        options = " ".join(f"-c {name}={value}" for name, value in {"search_path": "affinity", **HOT}.items())
        self._connection = psycopg.connect(url, autocommit=True, options=options, prepare_threshold=0)
        self._sql: Mapping[str, LiteralString] = load_statements("bench", self.file)
        self._instances = [f"walk-{number}" for number in range(batch)]
        self._rounds = 0
        self._execute("begin")

    def values(self, rounds: int) -> dict[str, Any]:
        """The values of the statements, after so many rounds."""
        raise NotImplementedError

    def run(self, rounds: int) -> list[float]:
        """Rounds of all instances together; the seconds of each."""
        return [self._round() for _ in range(rounds)]

    def close(self) -> None:
        """Check what was written, and disconnect.

        Raises:
            WrongResults: rows are missing.
        """
        wanted = (self._rounds * len(self._instances), len(self._instances))
        written = self._execute("written")
        self._connection.close()
        if written != wanted:
            raise WrongResults(f"the loop wrote {written}, not {wanted}")

    def _round(self) -> float:
        began = time.perf_counter()
        found = [self._execute(name) for name in self.statements]
        taken = time.perf_counter() - began
        if any(row is None or row[0] != len(self._instances) for row in found):
            raise WrongResults(f"{self.statements} have found {found}, and not {len(self._instances)} instances")
        self._rounds += 1
        return taken

    def _execute(self, name: str) -> tuple[Any, ...] | None:
        values = {"instances": self._instances, **self.values(self._rounds)}
        found = self._connection.execute(self._sql[name], values, prepare=True)
        return found.fetchone() if found.description else None
