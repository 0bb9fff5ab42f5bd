"""The limit: the rows of our turns, written by SQL alone in one statement, by a loop that does nothing else.

A turn removes the acknowledged item, adds two events to the history and the next item, locked, to the queue, and
updates the instance and its session. The loop checks no lease, no token of another and no fence, runs no user code, and
knows what it will write beforehand: nothing that keeps promises can be faster.
"""

from __future__ import annotations

import time
from typing import Any, Final

import psycopg

from affinity.provider.statements import load_statements
from bench.work import WrongResults

STATEMENTS: Final = load_statements("bench", "fused.sql")

TOKEN: Final = "0123456789abcdef.1"  # noqa: S105 -- a lock's
SCHEDULED: Final = (
    '{"type":"activity_scheduled","name":"step","input":"{\\"turn\\":10,\\"pause\\":0.0}","session_id":"walk-10"}'
)
COMPLETED: Final = '{"type":"activity_completed","schedule_id":20,"result":"[10,12345,123456.123456789]"}'
PAYLOAD: Final = '{"input":"{\\"turn\\":10,\\"pause\\":0.0}"}'
"""As long as in our walks."""


class FusedLoop:
    """A connection to a migrated database, and a number of instances on it."""

    def __init__(self, url: str, batch: int) -> None:
        self._connection = psycopg.connect(url, autocommit=True, options="-c search_path=affinity", prepare_threshold=0)
        self._instances = [f"walk-{number}" for number in range(batch)]
        self._turns = 0
        self._execute("begin")

    def run(self, turns: int) -> list[float]:
        """Turns of all instances together; the seconds of each statement."""
        return [self._turn() for _ in range(turns)]

    def close(self) -> None:
        """Check what was written, and disconnect.

        Raises:
            WrongResults: rows are missing.
        """
        wanted = (self._turns * len(self._instances), len(self._instances))
        written = self._execute("written")
        self._connection.close()
        if written != wanted:
            raise WrongResults(f"the loop wrote {written}, not {wanted}")

    def _turn(self) -> float:
        began = time.perf_counter()
        acked = self._execute("turn")
        taken = time.perf_counter() - began
        if acked != (len(self._instances),):
            raise WrongResults(f"{acked} items of {len(self._instances)} were there to acknowledge")
        self._turns += 1
        return taken

    def _execute(self, name: str) -> tuple[Any, ...] | None:
        values = {
            "instances": self._instances,
            "events": 2 * self._turns,
            "token": TOKEN,
            "completed": COMPLETED,
            "scheduled": SCHEDULED,
            "payload": PAYLOAD,
        }
        found = self._connection.execute(STATEMENTS[name], values, prepare=True)
        return found.fetchone() if found.description else None
