"""The overview, and the workers."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from affinity.client import Client
from affinity.console.pages.base import ROWS, Query
from affinity.console.payloads import Payloads
from affinity.explain.names import differences

COUNTED: Final = 1_000
"""Where counts of the queues stop."""

FEW: Final = 10
"""Rows of each list."""

MOVES: Final = 200
"""Moves that are counted by reason."""


async def overview(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """How many, how full, and what needs a person."""
    newest = await client.list_conversations_page(limit=100)
    moves = await client.session_moves(limit=MOVES)
    workers = await client.workers()
    return {
        "statistics": await client.statistics(limit=COUNTED, every_instance=False),
        "counted": COUNTED,
        "workers": workers,
        "differences": differences(workers),
        "requests": (await client.requests_page(limit=FEW)).items,
        "suspended": (await client.list_page(status=["suspended"], limit=FEW)).items,
        "failed": (await client.list_page(status=["failed"], limit=FEW)).items,
        "failed_conversations": [each for each in newest.items if each.status == "failed"][:FEW],
        "moves": [*reversed(moves)][:FEW],
        "reasons": Counter(move.reason for move in moves).most_common(),
        "moves_since": moves[0].moved_at if moves else None,
        "say": payloads.text,
    }


async def workers(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """All workers, and the last moves."""
    found = await client.workers()
    moves = await client.session_moves(limit=ROWS)
    return {"workers": found, "load": await client.load(), "moves": [*reversed(moves)]}
