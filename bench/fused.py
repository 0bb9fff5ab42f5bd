"""The limit: the rows of our turns, written in one statement.

A turn removes the acknowledged item, adds two events to the history and the next item, locked, to the queue, and
updates the instance and its session.
"""

from __future__ import annotations

from typing import Any, Final

from bench.bare import BareLoop

TOKEN: Final = "0123456789abcdef.1"  # noqa: S105 -- a lock's
SCHEDULED: Final = (
    '{"type":"activity_scheduled","name":"step","input":"{\\"turn\\":10,\\"pause\\":0.0}","session_id":"walk-10"}'
)
COMPLETED: Final = '{"type":"activity_completed","schedule_id":20,"result":"[10,12345,123456.123456789]"}'
PAYLOAD: Final = '{"input":"{\\"turn\\":10,\\"pause\\":0.0}"}'
"""As long as in our walks."""

GATE: Final = '[0,["open","",1,1.0]]'
"""Of work with one limit."""


class FusedLoop(BareLoop):
    """Each round is a turn of all instances."""

    file = "fused.sql"
    statements = ("turn",)

    def values(self, rounds: int) -> dict[str, Any]:
        return {
            "events": 2 * rounds,
            "token": TOKEN,
            "completed": COMPLETED,
            "scheduled": SCHEDULED,
            "payload": PAYLOAD,
        }


class LimitedLoop(FusedLoop):
    """The same turns, whose work has a limit that does not bind.

    Its items have no mark as limited work, which would let triggers of ours write the places.
    """

    file = "limited.sql"

    def values(self, rounds: int) -> dict[str, Any]:
        return {**super().values(rounds), "gate": GATE}
